// Questions to the server, and what every page needs: elements, texts, one question at a time.
import { h, render } from "/static/vendor/preact.mjs";
import htm from "/static/vendor/htm.mjs";
import { tableFromIPC } from "/static/vendor/flechette.mjs";

export const html = htm.bind(h);
export { render };

export const element = (id) => document.getElementById(id);

async function asked(path, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given).toString();
  const answer = await fetch(`/api${path}${text ? `?${text}` : ""}`);
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({ error: `the server answered with ${answer.status}` }));
    throw new Error(said.error);
  }
  return answer;
}

export async function json(path, query) {
  const answer = await asked(path, query);
  return Object.assign(await answer.json(), answer.status === 202 ? { unfinished: true } : {});
}

/** Asks the server to change something; only our own pages may. */
export async function post(path, value, options = {}) {
  const answer = await fetch(`/api${path}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value), ...options });
  const said = await answer.json().catch(() => ({ error: `the server answered with ${answer.status}` }));
  if (!answer.ok) throw new Error(said.error);
  return said;
}

/** Columns as arrays, with what the server says about them as `about`. */
export async function columns(path, query) {
  const table = tableFromIPC(await (await asked(path, query)).arrayBuffer());
  const found = { about: JSON.parse(table.schema.metadata?.get("carrypost") ?? "{}"), length: table.numRows };
  for (const name of table.names) found[name] = table.getChild(name).toArray();
  return found;
}

/** Asks one question at a time, always the last one that was wanted, and shows its answer. */
export class Latest {
  constructor(ask, show, fail = (error) => console.warn(error.message)) {
    Object.assign(this, { ask, show, fail, key: "", shown: "", busy: false });
  }

  get ready() {
    return this.key === this.shown;
  }

  async want(key, ...values) {
    this.values = values;
    this.key = key;
    if (this.busy) return;
    this.busy = true;
    while (!this.ready) {
      const asking = this.key;
      try {
        const answer = await this.ask(...this.values);
        if (asking === this.key) this.show(answer);
      } catch (error) {
        if (asking === this.key) this.fail(error);
      }
      this.shown = asking;
    }
    this.busy = false;
  }

  again() {
    this.shown = "";
  }
}

export const clipped = (text, length = 28) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/** Names may hold anything: characters that turn or hide text are shown as signs. */
export const plain = (text) =>
  // eslint-disable-next-line no-control-regex
  String(text ?? "").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, "\u25af");

const EPOCH = 1e8; // Later times are those of real nodes: seconds since 1970, shown as the time of day, UTC.

const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const wholes = new Intl.NumberFormat("en");

export const number = (t) => tenths.format(t);

export const seconds = (t) => (!Number.isFinite(t) ? "–" : t > EPOCH ? clock(t % 86400) : `${number(t)} s`);

/** Labels of a chart's axis of times. */
export const ticks = (_, times) => times.map((t) => (t > EPOCH ? clock(t % 86400).replace(/\.0$/, "").slice(-5) : t.toLocaleString("en")));

export const clock = (t) => {
  if (t > EPOCH) return clock(t % 86400);
  const whole = Math.floor(Math.abs(t));
  const two = (value) => String(value).padStart(2, "0");
  const text = `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return `${t < 0 ? "−" : ""}${text}.${Math.floor((Math.abs(t) % 1) * 10)}`;
};

export const count = (value) => wholes.format(value);

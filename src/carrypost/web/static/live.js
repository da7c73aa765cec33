// A running node: asked once a second while the page is visible. Panels show what the last answer has.
import uPlot from "/static/vendor/uPlot.esm.js";
import { clipped, count, element, html, json, plain, render } from "/static/api.js";
import { Acting } from "/static/acting.js";
import { messaging } from "/static/messaging.js";
import { near } from "/static/near.js";

const PERIOD_MS = 1000;
const KEPT = 300;
const id = location.pathname.split("/")[2];

export const bytes = (value) => {
  let unit = 0;
  let size = value ?? 0;
  while (size >= 1000 && unit < 3) [size, unit] = [size / 1000, unit + 1];
  return `${unit ? size.toFixed(1) : count(size)} ${["B", "kB", "MB", "GB"][unit]}`;
};
export const lasting = (s) => (s >= 172800 ? `${Math.round(s / 86400)} d` : s >= 7200 ? `${Math.round(s / 3600)} h` : s >= 120 ? `${Math.round(s / 60)} min` : `${Math.round(s)} s`);
export const date = (us) => (us === null || us === undefined ? "–" : new Date(us / 1000).toLocaleString("sv"));

const many = (value, name) => `${count(value)} ${value === 1 ? name.replace(/s$/, "") : name}`;

class Live {
  constructor() {
    Object.assign(this, { serial: -1, found: null, history: [], error: "", message: "", verdict: null, trace: null, ready: false, reasons: {} });
    this.path = `/nodes/${id}`;
    this.acting = new Acting(this);
    this.message = new URLSearchParams(location.search).get("message") ?? "";
  }

  async start() {
    document.addEventListener("visibilitychange", () => this.#wake());
    this.reasons = await (await fetch("/static/reasons.json")).json();
    await this.#round();
  }

  get names() {
    return Object.fromEntries((this.found?.peers ?? []).map((each) => [each.node, each.name]));
  }

  called(node) {
    return this.names[node] || (node.length > 14 ? `${node.slice(0, 10)}…` : node);
  }

  choose(message) {
    Object.assign(this, { message, verdict: null, trace: null });
    history.replaceState(null, "", message ? `?message=${encodeURIComponent(message)}` : location.pathname);
    this.look().then(() => this.draw());
    element("message").scrollIntoView({ block: "nearest" });
  }

  async look() {
    if (!this.message) return;
    const asked = this.message;
    try {
      const [verdict, trace] = await Promise.all([json(`${this.path}/verdict`, { message: asked }), json(`${this.path}/trace`, { message: asked })]);
      if (asked === this.message) Object.assign(this, { verdict, trace, failed: "" });
    } catch (error) {
      if (asked === this.message) this.failed = error.message;
    }
  }

  #wake() {
    if (!document.hidden && !this.timer) this.#round();
  }

  async #round() {
    this.timer = 0;
    if (document.hidden) return;
    this.timer = -1;
    try {
      const found = await json(`${this.path}/sample`, { after: this.serial });
      this.error = "";
      if (found.status) {
        this.history = (found.serial < this.serial || this.serial < 0 ? found.history : [...this.history, ...found.history]).slice(-KEPT);
        this.found = found;
      } else this.found = { ...(this.found ?? {}), ...found };
      this.serial = found.serial;
      await Promise.all([this.look(), this.acting.look()]);
    } catch (error) {
      this.error = `the server of these pages does not answer: ${error.message}`;
    }
    this.draw();
    this.timer = setTimeout(() => this.#round(), PERIOD_MS);
  }

  get old() {
    return this.error !== "" || this.found?.state !== "up";
  }

  draw() {
    const { found } = this;
    this.#head();
    if (!found) return;
    document.querySelector("main").classList.toggle("old", this.old && Boolean(found.status));
    if (found.status) {
      this.#message();
      render(near(this), element("near"));
      this.#node();
      render(messaging(this), element("messaging"));
      this.acting.draw();
      this.#curves();
    }
    this.ready = true;
    document.documentElement.dataset.ready = "";
  }

  #head() {
    const { found } = this;
    const status = found?.status;
    const since = status ? `carrypost ${status.version}, process ${status.pid}, running for ${lasting(status.uptime_s)}` : "";
    const why = this.error || (found?.state === "gone" ? found.reason : "");
    render(html`<a class="brand" href="/">carrypost</a>
      <h1>${plain(clipped(status?.node ?? id, 40))}</h1>
      <span class=${`state ${this.old ? "gone" : ""}`} role="status">${this.old ? "not running" : "running"}</span>
      <span class="faint">${since}</span>
      ${why && html`<p class="bad" role="alert">${plain(clipped(why, 300))}${status ? "; what you see is its last state" : ""}</p>`}
      <span class="right faint">${plain(clipped(found?.folder ?? "", 60))}${found?.read_only ? ", looking only" : ""}</span>`, element("head"));
    document.title = `carrypost: ${plain(clipped(status?.node ?? "node", 20))}`;
  }

  #message() {
    const { verdict, trace } = this;
    const typed = (event) => this.choose(event.target.value.trim());
    render(html`<h2>What became of a message?</h2>
      <div class="line"><input type="search" aria-label="message" placeholder="id or label of a message" value=${this.message} onChange=${typed}/></div>
      ${this.failed && html`<p class="bad" role="alert">${plain(clipped(this.failed, 300))}</p>`}
      ${verdict && html`<p id="verdict" class="verdict" data-verdict=${verdict.verdict}>${plain(verdict.sentence)}</p>
        ${verdict.remedy && html`<p>${plain(verdict.remedy)}</p>`}
        <ul class="faint">${verdict.facts.map((each) => html`<li>${plain(each)}</li>`)}</ul>`}
      ${trace?.rows.length > 0 && html`<div class="table"><table id="history"><tbody>${trace.rows.map((row) => html`<tr>
        <td class="number">${row.kind === "held" ? "now" : date(row.t * 1e6)}</td><td>${plain(clipped(row.sentence, 300))}</td></tr>`)}</tbody></table></div>`}
      ${!verdict && !this.message && html`<p class="faint">Type an id or a label, or choose a message below.</p>`}`, element("message"));
  }

  #node() {
    const { status, findings } = this.found;
    const { cache, store, carries, udp } = status;
    const limit = (value, most) => (most === null || most === undefined ? "" : ` of ${value(most)}`);
    const pairs = [
      ["messages", `${count(cache.messages)}${limit(count, carries.messages_max)}, ${bytes(cache.bytes)}${limit(bytes, carries.bytes_max)}`],
      ["store", `${bytes(store.bytes)}, ${bytes(store.free_bytes)} free on its disk${store.failure ? `; last failure: ${store.failure}` : ""}`],
      ["carries", carries.altruistic === true ? "for everybody" : carries.altruistic === false ? "only what programs here want" : `for ${[carries.altruistic].flat().join(", ")}`],
      ["neighbours", `${count(status.neighbours)} linked, ${count(status.heard)} heard, ${count(status.places)} places`],
      ["addresses", status.addresses.join(", ") || "none"],
      ["security", status.security],
      ["datagrams", `${count(udp.counters.sent)} sent (${bytes(udp.counters.sent_bytes)}), ${count(udp.counters.received)} received (${bytes(udp.counters.received_bytes)})`],
      ["messaging", status.messaging === null ? "off (messaging.enabled)" : ["subscriptions", "consumers", "queues", "lost"].map((each) => many(status.messaging[each], each)).join(", ")],
    ];
    const reasons = (title, counts) => {
      const all = Object.entries(counts).filter(([, value]) => value).sort((a, b) => b[1] - a[1]);
      return all.length > 0 && html`<details open=${all.length < 6}><summary>${title}</summary><table><tbody>${all.map(([reason, value]) => html`<tr>
        <td class="number">${count(value)}</td><td>${plain(reason)}</td><td class="faint wide">${plain(this.reasons[title]?.[reason] ?? "")}</td></tr>`)}</tbody></table>
          </details>`;
    };
    render(html`<h2>Node</h2>
      ${findings.map((each) => html`<p class="warn" role="alert">${plain(each.detail)} <span class="faint">${plain(each.advice)}</span></p>`)}
      <dl>${pairs.map(([name, value]) => html`<dt>${name}</dt><dd>${plain(value)}</dd>`)}</dl>
      <div class="curves"><div><h3>bytes per second</h3><div id="rates"></div></div><div><h3>messages held</h3><div id="held"></div></div></div>
      ${reasons("dropped", status.dropped)}${reasons("refused", status.refused)}`, element("node"));
  }

  #curves() {
    const rows = this.history;
    if (rows.length < 2) return;
    const t = rows.slice(1).map((row) => row[0] - rows.at(-1)[0]);
    const rate = (column) => rows.slice(1).map((row, at) => Math.max(0, row[column] - rows[at][column]) / Math.max(0.1, row[0] - rows[at][0]));
    const style = getComputedStyle(document.body);
    const colour = (name) => style.getPropertyValue(name).trim();
    const show = (place, data, series) => {
      this.plots ??= {};
      const box = element(place);
      if (this.plots[place]?.root.parentNode === box) return this.plots[place].setData(data);
      const axis = { stroke: colour("--text"), grid: { stroke: colour("--edge"), width: 1 }, ticks: { show: false } };
      const times = { ...axis, size: 24, space: 70, values: (_, ticks) => ticks.map((each) => (each ? `${-each} s ago` : "now")) };
      this.plots[place] = new uPlot({
        width: box.clientWidth || 200, height: 110, legend: { show: false }, cursor: { show: false },
        axes: [times, { ...axis, size: 46, values: (_, ticks) => ticks.map((each) => (each >= 1000 ? `${each / 1000}k` : each)) }],
        series: [{}, ...series.map((name) => ({ stroke: colour(name), points: { show: false } }))], scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(1, high)] } },
      }, data, box);
    };
    show("rates", [t, rate(1), rate(2)], ["--node", "--carries"]);
    show("held", [t, rows.slice(1).map((row) => row[5])], ["--delivered"]);
  }
}

const live = new Live();
window.carrypost = {
  state: () => ({ t: live.found?.t ?? 0, serial: live.serial, message: live.message, node: live.found?.status?.node ?? "", old: live.old, ready: live.ready }),
  sample: () => live.found,
  kept: () => ({ history: live.history.length }),
};
live.start();

// The log: rows up to now that pass the filters, steps to the next one, and a download of all of them.
import { Latest, clipped, columns, count, html, plain, render, seconds } from "/static/api.js";

const LIMIT = 200;
const PLAYING_MAX = 40; // Rows while time plays: nobody reads more of them.
const WIDTHS = [90, 90, 130, 130, 200];
const NUMBERS = new Set(["registry", "path", "load", "tally"]); // Kinds of rows whose size is not one in bytes.
const SPANS = [[1, "last second"], [10, "last 10 s"], [60, "last minute"], [600, "last 10 min"], [Infinity, "from the start"]];
const bits = new Float64Array(1);
const whole = new BigInt64Array(bits.buffer);

/** The next number that can be told from a time, above or below it. */
function beside(t, up) {
  if (t === 0) return up ? Number.MIN_VALUE : -Number.MIN_VALUE;
  bits[0] = t;
  whole[0] += t > 0 === up ? 1n : -1n;
  return bits[0];
}

export class LogPanel {
  constructor(box, app) {
    Object.assign(this, { box, app, rows: null, detail: "", ofNode: false, ofMessage: false, error: "", limit: LIMIT });
    const { rows, start, end } = app.run.info;
    const much = LIMIT * ((end - start) / Math.max(1, rows));
    this.span = SPANS.find(([length]) => length >= much)?.[0] ?? Infinity;
    this.asked = new Latest((query) => columns(`${app.run.path}/rows`, query), (rows) => {
      [this.rows, this.error] = [rows, ""];
      this.draw();
    }, (error) => {
      this.error = error.message;
      this.draw();
    });
  }

  /** The filters as the server has them. */
  filters() {
    const { app } = this;
    return {
      kinds: [...app.kinds].join(","), detail: this.detail,
      node: this.ofNode && app.node >= 0 ? app.run.name(app.node) : null, message: this.ofMessage ? app.message : null,
    };
  }

  #query(t) {
    const from = Math.max(this.app.run.info.start, t - this.span);
    return { ...this.filters(), from, to: t, last: 1, limit: this.app.playing ? PLAYING_MAX : this.limit };
  }

  refresh(t) {
    const query = this.#query(t);
    this.asked.want(JSON.stringify([query, this.app.run.info.rows]), query);
  }

  ready(t) {
    return this.asked.ready && this.asked.key === JSON.stringify([this.#query(t), this.app.run.info.rows]);
  }

  /** Goes to the next row that passes the filters, or to the one before. */
  async step(forward) {
    const { app } = this;
    const { start, end, rows } = app.run.info;
    const edge = beside(app.t, forward);
    for (let width = Math.max(1e-3, (50 * (end - start)) / Math.max(1, rows)); ; width *= 8) {
      const span = forward ? { from: edge, to: Math.min(end, edge + width) } : { from: Math.max(start, edge - width), to: edge };
      if (span.to < span.from) return;
      const found = await columns(`${app.run.path}/rows`, { ...this.filters(), ...span, limit: 1, last: forward ? null : 1 });
      if (found.length) {
        app.seek(found.t[0]);
        return;
      }
      if (forward ? span.to >= end : span.from <= start) return;
    }
  }

  #changed = () => {
    this.limit = LIMIT;
    this.app.changed();
    this.app.axis.prepare();
  };

  draw() {
    const { app, rows } = this;
    const kind = (name) => html`<label class="chip"><input type="checkbox" checked=${app.kinds.has(name)} onChange=${(event) => {
      if (event.target.checked) app.kinds.add(name);
      else app.kinds.delete(name);
      this.#changed();
    }}/>${plain(clipped(name, 20))}</label>`;
    const only = (name, text, able) => able && html`<label class="chip"><input type="checkbox" checked=${this[name]}
      onChange=${(event) => { this[name] = event.target.checked; this.#changed(); }}/>${text}</label>`;
    const asked = new URLSearchParams(Object.entries(this.filters()).filter(([, value]) => value));
    asked.set("all", "1");
    render(html`
      <div id="filters">
        <select aria-label="time of the log" onChange=${(event) => { this.span = Number(event.target.value); this.#changed(); }}>
          ${SPANS.map(([length, text]) => html`<option value=${length} selected=${length === this.span}>${text}</option>`)}</select>
        ${only("ofNode", "this node", app.node >= 0)} ${only("ofMessage", "this message", app.message)}
        <input type="search" placeholder="detail" aria-label="detail" value=${this.detail}
          onChange=${(event) => { this.detail = event.target.value; this.#changed(); }}/>
        <details class="kinds"><summary>${app.kinds.size ? `${app.kinds.size} kinds` : "all kinds"}</summary><div>${app.run.info.kinds.map(kind)}</div></details>
        <span id="shown" class="faint">${rows && `showing ${count(rows.length)} of ${count(rows.about.total)}`}</span>
        ${rows && rows.length < rows.about.total && this.limit < 5000 && html`<button class="small" onClick=${() => {
          this.limit = 5000;
          app.changed();
        }}>more</button>`}
        <a href=${`/api${app.run.path}/rows?${asked}`} download="rows.arrows" title="all rows that pass the filters, as an Arrow stream">download</a>
      </div>
      ${this.error && html`<p class="bad" role="alert">${plain(this.error)}</p>`}
      <div class="rows"><table><colgroup>${WIDTHS.map((width) => html`<col width=${width}/>`)}<col/></colgroup><tbody>${rows && this.#rows(rows)}</tbody></table></div>`, this.box);
  }

  #rows(rows) {
    const { app } = this;
    const node = (name) => name && (app.run.numbers.has(name)
      ? html`<button class="link" onClick=${() => app.choose({ node: app.run.numbers.get(name) })}>${plain(clipped(app.run.called(name), 20))}</button>`
      : plain(clipped(name, 20)));
    const found = [];
    for (let row = rows.length - 1; row >= 0; row--) {
      const [message, t] = [rows.message[row], rows.t[row]];
      const more = [rows.detail[row], rows.hops[row] !== null && `${rows.hops[row]} hops`, rows.size[row] !== null && `${count(rows.size[row])}${NUMBERS.has(rows.kind[row]) ? "" : " B"}`,
        ...(rows.attrs[row] ?? []).slice(0, 6).map(([key, value]) => `${key}=${clipped(value ?? "", 40)}`)];
      // Without keys: it is faster to write other texts into rows than to replace all rows.
      found.push(html`<tr>
        <td class="number"><button class="link" onClick=${() => app.seek(t)}>${seconds(t)}</button></td>
        <td>${plain(clipped(rows.kind[row], 12))}</td><td>${node(rows.node[row])}</td><td>${node(rows.peer[row])}</td>
        <td>${message && html`<button class="link" onClick=${() => app.choose({ message })}>${plain(clipped(message, 26))}</button>`}</td>
        <td>${plain(clipped(more.filter(Boolean).join(" "), 120))}</td></tr>`);
    }
    return found;
  }
}

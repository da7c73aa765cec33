// A campaign: its runs, also while they are being made, and the families of its metrics.
import { clipped, count, element, html, json, plain, render } from "/static/api.js";

const PERIOD_MS = 2000;
const DRAWN = 500;
const PAGE = 200;
const id = location.pathname.split("/")[2];
const COLUMNS = ["run", "scenario", "settings", "seed", "status", "rows", "cpu_s", "elapsed_s", "error"];
const NUMBERS = new Set(["rows", "cpu_s", "elapsed_s"]);

class Campaign {
  constructor() {
    const query = new URLSearchParams(location.search);
    Object.assign(this, { info: null, error: "", filter: query.get("filter") ?? "", failed: false });
    Object.assign(this, { by: "", down: false, chosen: [], family: query.get("family") ?? "", of: "", page: null, ready: false });
  }

  async start() {
    await this.#ask();
    if (this.family) await this.choose(this.family);
    this.ready = true;
    document.documentElement.dataset.ready = "";
    setTimeout(() => this.#follow(), PERIOD_MS);
  }

  async #ask() {
    try {
      Object.assign(this, { info: await json(`/campaigns/${id}`), error: "" });
    } catch (error) {
      this.error = error.message;
    }
    this.draw();
  }

  async #follow() {
    if (!document.hidden && (this.info?.making || this.error)) await this.#ask();
    setTimeout(() => this.#follow(), PERIOD_MS);
  }

  async choose(family, after = 0) {
    this.family = family;
    try {
      const found = await json(`/campaigns/${id}/${family}`, { run: this.of, after, limit: PAGE });
      this.page = after ? { ...found, rows: [...this.page.rows, ...found.rows] } : found;
      this.error = "";
    } catch (error) {
      Object.assign(this, { page: null, error: error.message });
    }
    history.replaceState(null, "", `?family=${encodeURIComponent(family)}`);
    this.draw();
  }

  /** Opens the replay of one run, or of two side by side. */
  async open(...runs) {
    try {
      const [one, other] = await Promise.all(runs.map((run) => json(`/campaigns/${id}/open`, { run })));
      location.assign(`/replay/${one.id}${other ? `?with=${other.id}` : ""}`);
    } catch (error) {
      this.error = error.message;
      this.draw();
    }
  }

  get runs() {
    const { filter, failed, by, down } = this;
    const found = this.info.runs.filter((each) => (!failed || each.status === "failed") && (!filter || `${each.run} ${each.status} ${each.error}`.includes(filter)));
    const order = (one, other) => (NUMBERS.has(by) ? (one[by] ?? -1) - (other[by] ?? -1) : String(one[by]).localeCompare(String(other[by]), "en", { numeric: true }));
    return by ? found.sort((one, other) => (down ? -1 : 1) * order(one, other)) : found;
  }

  draw() {
    const { info, error } = this;
    render(html`<a class="brand" href="/">carrypost</a><h1>${plain(clipped(info?.folder ?? id, 80))}</h1>
      ${info && html`<span class="faint">${count(info.runs.length)} runs are over, ${count(Object.keys(info.tracebacks).length)} failed${info.making ? "; others are being made" : ""}</span>`}
      ${info?.report && html`<a class="right" href=${`/report/${id}`} target="_blank" rel="noopener">report</a>`}
      ${error && html`<p class="bad" role="alert">${plain(clipped(error, 300))}</p>`}`, element("head"));
    if (!info) return;
    this.#runs();
    this.#family();
  }

  #runs() {
    const { runs, chosen } = this;
    const sort = (column) => {
      Object.assign(this, { down: this.by === column && !this.down, by: column });
      this.draw();
    };
    const tick = (run) => {
      this.chosen = chosen.includes(run) ? chosen.filter((each) => each !== run) : [...chosen, run].slice(-2);
      this.draw();
    };
    const cell = (run, column) => (column === "run" ? html`<button class="link" onClick=${() => this.open(run.run)} disabled=${run.status === "failed"}>${plain(clipped(run.run, 60))}</button>`
      : column === "error" && run.error ? html`<details><summary class="bad">${plain(clipped(run.error, 80))}</summary>
        <pre>${(this.info.tracebacks[run.run] ?? "").split("\n").map(plain).join("\n")}</pre></details>`
      : NUMBERS.has(column) ? (run[column] === null ? "–" : count(Math.round(run[column] * 1000) / 1000)) : plain(clipped(run[column], 60)));
    render(html`<h2>Runs</h2>
      <div class="line"><input type="search" aria-label="filter" placeholder="filter by name or error" value=${this.filter} onInput=${(event) => { this.filter = event.target.value; this.draw(); }}/>
        <label class="check"><input id="failures" type="checkbox" checked=${this.failed} onChange=${(event) => { this.failed = event.target.checked; this.draw(); }}/> failures only</label>
        <button id="compare" disabled=${chosen.length !== 2} onClick=${() => this.open(...chosen)}>compare two</button></div>
      <div class="table"><table><thead><tr><th></th>${COLUMNS.map((column) => html`<th class=${NUMBERS.has(column) ? "number" : ""}>
        <button class="link" onClick=${() => sort(column)}>${column}${this.by === column ? (this.down ? " ↓" : " ↑") : ""}</button></th>`)}</tr></thead>
        <tbody>${runs.slice(0, DRAWN).map((run) => html`<tr key=${run.run}><td>
          <input type="checkbox" aria-label="compare" checked=${chosen.includes(run.run)} disabled=${run.status === "failed"} onChange=${() => tick(run.run)}/></td>
          ${COLUMNS.map((column) => html`<td class=${NUMBERS.has(column) ? "number" : ""}>${cell(run, column)}</td>`)}</tr>`)}</tbody></table></div>
      ${runs.length > DRAWN && html`<p class="faint">the first ${count(DRAWN)} of ${count(runs.length)}: filter for others</p>`}
      ${this.info.runs.length === 0 && html`<p class="faint">No run is over yet.</p>`}`, element("runs"));
  }

  #family() {
    const { info, page, family } = this;
    const figure = (each) => (Number.isInteger(each) ? count(each) : String(Math.round(each * 1e6) / 1e6));
    const value = (each) => (each === null || each === undefined ? "–" : typeof each === "number" ? figure(each) : plain(clipped(String(each), 60)));
    render(html`<h2>Metrics</h2>
      ${info.families.length === 0 ? html`<p class="faint">There are no metrics yet: <code>carrypost lab metrics ${plain(info.folder)}</code></p>` : html`<div class="line">
        <select id="families" aria-label="family" value=${family} onChange=${(event) => this.choose(event.target.value)}>
          <option value="">choose a family</option>${info.families.map((each) => html`<option value=${each.name}>${each.name}</option>`)}</select>
        <select aria-label="of run" value=${this.of} onChange=${(event) => { this.of = event.target.value; if (family) this.choose(family); }}>
          <option value="">all runs</option>${info.runs.slice(0, DRAWN).map((each) => html`<option value=${each.run}>${plain(clipped(each.run, 60))}</option>`)}</select>
        ${page && html`<a href=${`/api/campaigns/${id}/${family}?as=csv&run=${encodeURIComponent(this.of)}`} download=${`${family}.csv`}>CSV</a>`}</div>`}
      ${page && html`<p>${plain(page.meaning)}</p><div class="table"><table id="rows"><thead>
        <tr>${page.columns.map((each) => html`<th class=${/int|float|double/.test(each.type) ? "number" : ""} title=${plain(each.meaning)}>${each.name}</th>`)}</tr></thead>
        <tbody>${page.rows.map((row) => html`<tr>${row.map((each) => html`<td class=${typeof each === "number" ? "number" : ""}>${value(each)}</td>`)}</tr>`)}</tbody></table>
          </div>
        ${page.next !== null && html`<p><button id="more" onClick=${() => this.choose(family, page.next)}>more rows</button></p>`}
        <details><summary>what the columns mean</summary><dl>${page.columns.map((each) => html`<dt>${each.name}</dt><dd>${plain(each.meaning)}</dd>`)}</dl>
          </details>`}`, element("family"));
  }
}

const campaign = new Campaign();
window.carrypost = { state: () => ({ ready: campaign.ready, family: campaign.family, rows: campaign.page?.rows.length ?? 0 }), campaign: () => campaign.info };
campaign.start();

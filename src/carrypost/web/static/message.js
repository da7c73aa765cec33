// One message: search, the copies of those that belong to it, its curve, and why it is not at a node.
import uPlot from "/static/vendor/uPlot.esm.js";
import { Latest, clipped, columns, count, html, json, number, plain, render, seconds, ticks } from "/static/api.js";

export const STATES = ["none", "carries", "delivered", "acknowledged", "ended"];
const WORDS = { none: "has it not", carries: "carries it", delivered: "got it delivered", acknowledged: "its author knows",
  ended: "had it, undelivered" };
const LISTED = 50;

/** The copies of a message, ordered by reception. */
export class Copies {
  constructor(found, run) {
    Object.assign(this, found);
    this.run = run;
    this.state = new Uint8Array(run.info.nodes.length);
    this.present = new Uint8Array(run.info.nodes.length);
    this.curve = this.#curve();
  }

  /** The number of copies that were received by a time. */
  until(t) {
    let low = 0, high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.received[middle] <= t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** By node, its place in `STATES`; `present` tells who has a copy. */
  at(t) {
    const { state, present } = this;
    state.fill(0);
    present.fill(0);
    const rows = this.until(t);
    for (let row = 0; row < rows; row++) {
      const node = this.node[row];
      if (node < 0) continue;
      const ended = this.ended[row] <= t;
      if (!ended) present[node] = 1;
      const now = this.acknowledged[row] <= t ? 3 : this.delivered[row] <= t ? 2 : ended ? 4 : 1;
      // Of several copies the one that came farthest counts; a copy that is here counts more than one that ended.
      if (state[node] === 0 || state[node] === 4 || (now !== 4 && now > state[node])) state[node] = now;
    }
    return state;
  }

  reached(t) {
    const found = new Set();
    for (let row = 0; row < this.until(t); row++) found.add(this.node[row]);
    found.delete(-1);
    return [...found].sort((a, b) => a - b);
  }

  #curve() {
    const had = new Set();
    const found = { t: [], reached: [], delivered: [] };
    const deliveries = [...new Map([...this.delivered].map((t, row) => [row, t]).filter(([, t]) => t === t)
      .sort((a, b) => b[1] - a[1]).map(([row, t]) => [this.node[row], t])).values()].sort((a, b) => a - b);
    let next = 0;
    const add = (t) => {
      while (next < deliveries.length && deliveries[next] <= t) next++;
      if (found.t.at(-1) === t) {
        found.reached[found.t.length - 1] = had.size;
        found.delivered[found.t.length - 1] = next;
      } else [found.t, found.reached, found.delivered].forEach((list, at) => list.push([t, had.size, next][at]));
    };
    for (let row = 0; row < this.length; row++) {
      while (next < deliveries.length && deliveries[next] < this.received[row]) add(deliveries[next]);
      had.add(this.node[row]);
      add(this.received[row]);
    }
    while (next < deliveries.length) add(deliveries[next]);
    return found;
  }

  /** The way by which the message came to a node: rows, the first one first. */
  way(node) {
    const found = [];
    let before = Infinity;
    for (let at = node; at >= 0 && found.length < 1000;) {
      let row = -1;
      for (let each = 0; each < this.length && this.received[each] <= before; each++) {
        if (this.node[each] === at) {
          row = each;
          break;
        }
      }
      if (row < 0) break;
      found.unshift(row);
      before = this.received[row];
      at = this.peer[row] === at ? -1 : this.peer[row];
    }
    return found;
  }

  /** Nodes that have a copy, by hops. */
  hopsAt(t) {
    const found = new Map();
    for (let row = 0; row < this.until(t); row++) {
      if (this.ended[row] <= t || this.hops[row] < 0) continue;
      found.set(this.hops[row], (found.get(this.hops[row]) ?? 0) + 1);
    }
    return [...found].sort((a, b) => a[0] - b[0]);
  }
}

export async function copiesOf(run, message) {
  return new Copies(await columns(`${run.path}/copies`, { message }), run);
}

export class MessagePanel {
  constructor(box, app) {
    Object.assign(this, { box, app, query: "", control: false, listed: [], error: "", why: null });
    this.search = new Latest(() => json(`${app.run.path}/messages`, {
      query: this.query, control: this.control ? 1 : null, limit: LISTED,
    }), (found) => this.#list(found), (error) => this.#fail(error));
    this.copies = new Latest((message) => Promise.all([
      copiesOf(app.run, message), app.other ? copiesOf(app.other, message).catch(() => null) : null,
      json(`${app.run.path}/messages`, { query: message, control: 1, limit: 5 }),
    ]), (found) => this.#show(found), (error) => this.#fail(error));
    this.reason = new Latest((message, node) => json(`${app.run.path}/why`, { message, node }), (why) => {
      this.why = why;
      app.changed();
    }, (error) => this.#fail(error));
  }

  /** The journey of the message to the chosen node, as lines on a map: as it came, or as it could have come. */
  journey(run) {
    const { app, why } = this;
    if (run !== app.run || !why || app.node < 0) return [];
    if (why.verdict === "arrived") return app.copies ? [{ nodes: app.copies.way(app.node).map((row) => app.copies.node[row]),
      colour: "text", width: 2, arrow: true }] : [];
    const nodes = why.journey.length ? [why.journey[0][0], ...why.journey.map(([, b]) => b)] : [];
    const stop = why.stop ? [{ nodes: why.stop.slice(0, 2), colour: "mark", width: 5 }] : [];
    return [...stop, { nodes, colour: "text", dash: [6, 4], width: 2, arrow: true }];
  }

  get ready() {
    return this.copies.ready && this.reason.ready && this.search.ready;
  }

  #fail(error) {
    this.error = error.message;
    this.app.changed();
  }

  #list(found) {
    this.listed = found;
    this.draw();
  }

  #show([copies, others, found]) {
    const { app } = this;
    this.error = "";
    this.about = found.find(({ message }) => message === app.message) ?? { message: app.message };
    [app.copies, app.otherCopies] = [copies, others];
    this.#plot();
    app.axis.prepare();
    app.changed();
  }

  choose(message) {
    const { app } = this;
    [app.copies, app.otherCopies, this.why, this.about, this.error] = [null, null, null, null, ""];
    if (message) this.copies.want(message, message);
    else this.copies.key = this.copies.shown = "";
    if (!message) app.axis.prepare();
    this.ask();
    app.changed();
  }

  /** Asks again after rows were added. */
  anew() {
    for (const each of [this.copies, this.reason, this.search]) each.again();
    this.find(this.query);
    if (this.app.message) this.copies.want(`${this.app.message} ${this.app.run.info.rows}`, this.app.message);
    this.ask();
  }

  /** Asks why the chosen message is not at the chosen node. */
  ask() {
    const { message, node, run } = this.app;
    this.why = null;
    if (message && node >= 0) this.reason.want(`${message}\n${node}`, message, run.name(node));
    else this.reason.key = this.reason.shown = "";
  }

  find(query) {
    this.query = query;
    this.search.want(`${query} ${this.control} ${this.app.run.info.rows}`);
  }

  plotAnew() {
    if (this.app.copies) this.#plot();
  }

  #plot() {
    const { app, box } = this;
    const place = box.querySelector(".curve");
    this.plot?.destroy();
    this.plot = null;
    if (!place || !app.copies) return;
    const { curve } = app.copies;
    const step = uPlot.paths.stepped({ align: 1 });
    const line = (label, colour) => ({ label, stroke: app.colours[colour].text, paths: step, points: { show: false } });
    const series = [{}, line("reached", "carries"), line("delivered", "delivered")];
    let data = [[...curve.t, app.run.info.end], [...curve.reached, curve.reached.at(-1)],
      [...curve.delivered, curve.delivered.at(-1)]];
    if (app.otherCopies) {
      const { curve: other } = app.otherCopies;
      series.push({ ...line("reached, other run", "mark"), dash: [4, 3] });
      data = uPlot.join([data, [[...other.t, app.other.info.end], [...other.reached, other.reached.at(-1)]]]);
      for (const values of data.slice(1)) values.forEach((value, at) => { values[at] ??= at ? values[at - 1] : 0; });
    }
    const axis = { stroke: app.colours.text.text, grid: { stroke: app.colours.edge.text, width: 1 }, ticks: { show: false } };
    this.plot = new uPlot({
      width: place.clientWidth || 320, height: 130, series, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false } }, axes: [{ ...axis, size: 30, values: ticks }, { ...axis, size: 44 }],
      hooks: { ready: [(plot) => plot.over.addEventListener("click", () => app.seek(plot.posToVal(plot.cursor.left, "x")))] },
    }, data, place);
  }

  draw() {
    const { app } = this;
    const typed = (event) => this.find(event.target.value);
    const shown = app.message ? this.#chosen() : this.#results();
    render(html`
      <h2>Message</h2>
      <input type="search" id="search" aria-label="search messages" placeholder="id, label, author, destination"
        value=${this.query} onInput=${typed}/>
      <label class="check"><input type="checkbox" checked=${this.control} onChange=${(event) => {
        this.control = event.target.checked;
        this.find(this.query);
      }}/> also messages that programs did not send</label>
      ${this.error && html`<p class="bad" role="alert">${plain(this.error)}</p>`}
      ${this.query || !app.message ? this.#results() : null}
      ${app.message ? shown : null}`, this.box);
    if (app.copies && !this.box.querySelector(".curve canvas")) this.#plot();
  }

  #results() {
    const { app } = this;
    if (!this.listed.length) return html`<p class="faint">no message found</p>`;
    return html`<ul class="list" id="messages">${this.listed.map((each) => html`<li key=${each.message}>
      <button class="row" onClick=${() => { this.query = ""; app.choose({ message: each.message, t: Math.max(app.t, each.t) }); }}>
        <b>${plain(clipped(each.label ?? each.message, 24))}</b> <span>${plain(clipped(app.run.called(each.source), 16))}</span>
        <span class="number">${seconds(each.t)}</span></button></li>`)}</ul>`;
  }

  #chosen() {
    const { app, about } = this;
    const counts = new Array(STATES.length).fill(0);
    const state = app.copies?.at(app.t);
    state?.forEach((each, node) => { counts[each] += each ? 1 : app.run.here[node]; });
    const held = app.copies?.present.reduce((sum, each) => sum + each, 0) ?? 0;
    const facts = about && [
      ["author", about.source && app.run.called(about.source)], ["published", about.t !== undefined && `${seconds(about.t)}`], ["to", about.destination],
      ["recipients", about.recipients?.map((name) => app.run.called(name)).join(", ")], ["size", about.size && `${count(about.size)} bytes`],
      ["deadline", about.deadline && `${seconds(about.deadline)}, after ${number(about.deadline - about.t)} s`],
      ["belongs to", about.origin],
    ].filter(([, text]) => text);
    return html`
      <p class="title"><b id="chosen">${plain(clipped(app.message, 40))}</b>
        <button class="small" title="no message" onClick=${() => app.choose({ message: null })}>✕</button></p>
      <dl>${facts?.map(([name, text]) => html`<dt>${name}</dt><dd>${plain(clipped(String(text), 80))}</dd>`)}</dl>
      ${state && html`<ul class="legend" id="states">${STATES.map((name, at) => html`
        <li><i class=${name}></i>${WORDS[name]}<span class="number">${count(counts[at])}</span></li>`)}</ul>
        <p class="faint">copies now: ${count(held)}${this.#hops()}</p>`}
      <div class="curve"></div>
      ${this.#why()}`;
  }

  #legs() {
    const { app, why } = this;
    if (why.verdict !== "arrived" || !app.copies) return why.journey;
    const { peer, node, received } = app.copies;
    return app.copies.way(app.node).filter((row) => peer[row] >= 0).map((row) => [peer[row], node[row], received[row]]);
  }

  #hops() {
    const found = this.app.copies.hopsAt(this.app.t);
    return found.length ? `, by hops: ${found.slice(0, 8).map(([hops, nodes]) => `${hops}: ${nodes}`).join(", ")}` : "";
  }

  #why() {
    const { app, why } = this;
    if (app.node < 0) return html`<p class="faint">Choose a node on the map to learn why the message is not there, or how it came.</p>`;
    if (!why) return null;
    const leg = ({ 0: a, 1: b, 2: t }) => html`<li><button class="row" onClick=${() => app.seek(t)}>
      ${plain(clipped(app.run.called(app.run.name(a)), 14))} → ${plain(clipped(app.run.called(app.run.name(b)), 14))}<span class="number">${seconds(t)}</span></button></li>`;
    return html`<h3>${why.verdict === "arrived" ? "How it came" : "Why not?"}</h3>
      <p id="why" data-verdict=${why.verdict}>${plain(why.sentence)}</p>
      ${why.stop && html`<p><button onClick=${() => app.seek(why.stop[2])}>go to where it stopped</button></p>`}
      <ol class="list" id="journey">${this.#legs().slice(0, 40).map(leg)}</ol>`;
  }
}

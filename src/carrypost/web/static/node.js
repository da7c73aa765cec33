// One node: its lives, neighbours, cache, and what became of messages there.
import uPlot from "/static/vendor/uPlot.esm.js";
import { Latest, clipped, count, html, json, plain, render, seconds, ticks } from "/static/api.js";

export class NodePanel {
  constructor(box, app) {
    Object.assign(this, { box, app, found: null, error: "" });
    this.asked = new Latest((name, at) => json(`${app.run.path}/node`, { name, at }), (found) => {
      [this.found, this.error] = [found, ""];
      this.draw();
      this.#plot();
    }, (error) => {
      this.error = error.message;
      this.draw();
    });
  }

  ready(t) {
    return this.app.node < 0 ? true : this.asked.ready && this.asked.key === this.#key(t);
  }

  #key(t) {
    return `${this.app.node} ${t} ${this.app.run.info.rows}`;
  }

  refresh(t) {
    if (this.app.node < 0) this.found = null;
    else this.asked.want(this.#key(t), this.app.run.name(this.app.node), t);
    if (this.app.node < 0) this.draw();
  }

  #plot() {
    const { app, found, box } = this;
    const place = box.querySelector(".curve");
    const key = `${found.name} ${app.run.info.rows}`;
    if (!place || (this.plotted === key && place.firstChild)) return;
    this.plot?.destroy();
    this.plotted = key;
    const { t, size } = found.cache;
    if (!t.length) return;
    const axis = { stroke: app.colours.text.text, grid: { stroke: app.colours.edge.text, width: 1 }, ticks: { show: false } };
    this.plot = new uPlot({
      width: place.clientWidth || 320, height: 110, legend: { show: false }, scales: { x: { time: false } },
      cursor: { drag: { x: false, y: false } }, axes: [{ ...axis, size: 30, values: ticks }, { ...axis, size: 44 }],
      series: [{}, { label: "messages", stroke: app.colours.node.text, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
      hooks: { ready: [(plot) => plot.over.addEventListener("click", () => app.seek(plot.posToVal(plot.cursor.left, "x")))] },
    }, [[...t, app.run.info.end], [...size, size.at(-1)]], place);
  }

  draw() {
    const { app, found } = this;
    const names = app.run.info.nodes;
    const typed = (event) => {
      const number = app.run.numbers.get(event.target.value);
      if (number !== undefined || event.target.value === "") app.choose({ node: number ?? -1 });
    };
    render(html`
      <h2>Node</h2>
      <input id="node" type="search" list="nodes" aria-label="node" placeholder=${`one of ${count(names.length)} nodes`}
        value=${app.node < 0 ? "" : app.run.called(names[app.node])} onChange=${typed}/>
      <datalist id="nodes">${names.slice(0, 500).map((name) => html`<option value=${app.run.called(name)}/>`)}</datalist>
      ${this.error && html`<p class="bad" role="alert">${plain(this.error)}</p>`}
      ${app.node >= 0 && found && found.name === names[app.node] ? this.#about() : null}`, this.box);
  }

  #about() {
    const { app, found } = this;
    const at = (t, text) => html`<button class="link" onClick=${() => app.seek(t)}>${text ?? `${seconds(t)}`}</button>`;
    const other = (name) => html`<button class="link" onClick=${() => app.choose({ node: app.run.numbers.get(name) })}>
      ${plain(clipped(app.run.called(name), 20))}</button>`;
    const message = (name) => html`<button class="link" onClick=${() => app.choose({ message: name })}>${plain(clipped(name, 26))}</button>`;
    const tied = (title, list, more = () => "") => list.length > 0 && html`<details open=${list.length < 9}>
      <summary>${title} <span class="number">${list.length}</span></summary><ul class="list">${list.map((each) => html`
        <li>${other(each.node)} <span>${plain(clipped(more(each), 30))}</span> since ${at(each.start)}</li>`)}</ul></details>`;
    const reasons = (title, counts) => {
      const all = Object.entries(counts).sort((a, b) => b[1][0] - a[1][0]);
      return all.length > 0 && html`<details open><summary>${title} <span class="number">${count(all.reduce((sum, [, [n]]) => sum + n, 0))}</span></summary>
        <ul class="list">${all.map(([reason, [number, last]]) => html`<li>${plain(clipped(reason || "no reason", 40))}
          <span class="number">${count(number)}</span>, last ${at(last)}</li>`)}</ul></details>`;
    };
    const listed = (title, { total, messages }) => html`<details>
      <summary>${title} <span class="number">${count(total)}</span></summary><ul class="list">
      ${messages.map(([name, t]) => html`<li>${message(name)} ${at(t)}</li>`)}</ul>
      ${total > messages.length && html`<p class="faint">showing ${messages.length} of ${count(total)}</p>`}</details>`;
    return html`
      <p class="faint">there ${found.lives.slice(0, 6).map(([from, to], place) => html`${place ? ", " : ""}${at(from)} to
        ${to === null ? " the end" : at(to)}`)}${found.lives.length > 6 ? `, and ${found.lives.length - 6} times more` : ""}</p>
      ${found.cache.t.length > 0 && html`<h3>Messages here over time</h3>`}<div class="curve"></div>
      ${listed("has", found.holds)}
      ${listed("delivered by now", found.delivered)}
      ${tied("neighbours", found.neighbours, (each) => each.label ?? "")}
      ${tied("home brokers", found.homes, (each) => each.label ?? "")}
      ${tied("in reach", found.island, (each) => `${each.label} hops`)}
      ${reasons("dropped in the run", found.dropped)}
      ${reasons("refused in the run", found.refused)}`;
  }
}

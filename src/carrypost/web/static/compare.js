// Comparison with another run: a second map on the same clock, figures of both, and nodes that one alone reached.
import { clipped, count, element, html, json, plain, render } from "/static/api.js";
import { touch } from "/static/controls.js";
import { NodeMap } from "/static/map.js";
import { copiesOf } from "/static/message.js";
import { Run } from "/static/spans.js";

const FIGURES = ["nodes", "contacts", "contact_s", "published", "received", "delivered", "hops_mean", "share", "control_bytes", "data_bytes"];
const LISTED = 60;

export class Compare {
  constructor(app) {
    Object.assign(this, { app, runs: [], figures: [null, null], said: "" });
  }

  async recall(id) {
    this.runs = (await json("/runs").catch(() => [])).filter((run) => run.id !== this.app.run.id);
    await this.choose(this.runs.some((run) => run.id === id) ? id : null);
  }

  async choose(id) {
    const { app } = this;
    if ((app.other?.id ?? null) === id) return;
    element("maps").querySelectorAll(".map:not(#map)").forEach((box) => box.remove());
    Object.assign(app, { other: null, otherMap: null, otherCopies: null });
    if (id) {
      try {
        const run = await new Run(id).open();
        await run.load(app.t);
        const box = element("maps").appendChild(document.createElement("div"));
        box.className = "map";
        Object.assign(app, { other: run, otherMap: new NodeMap(box, run) });
        touch(app, app.otherMap);
        if (app.message) app.otherCopies = await copiesOf(run, app.message).catch(() => null);
        this.#compute();
      } catch (error) {
        app.fail(error);
      }
    }
    app.resized();
    app.panels.message.plotAnew();
  }

  async #compute() {
    const { app } = this;
    this.said = "";
    const both = await Promise.all(app.runs.map((run) => json(`${run.path}/summary`).catch((error) => {
      this.said = error.message;
      return null;
    })));
    this.figures = both;
    this.draw();
  }

  draw() {
    const { app, runs } = this;
    const box = element("compare");
    box.hidden = !runs.length;
    render(html`<h2>Compare</h2>
      <select id="with" aria-label="other run" onChange=${(event) => this.choose(event.target.value || null)}>
        <option value="" selected=${!app.other}>with no other run</option>
        ${runs.map(({ id, run, source }) => html`<option value=${id} selected=${id === app.other?.id}>${plain(clipped(`${run} · ${source}`, 60))}</option>`)}</select>
      ${app.other && this.#both()}`, box);
  }

  #both() {
    const { app } = this;
    const shown = (value) => (typeof value === "number" ? count(Math.round(value * 1000) / 1000) : "–");
    const [one, two] = this.figures;
    return html`<table id="figures"><tbody><tr><td></td><th>this run</th><th>other</th></tr>
      ${FIGURES.filter((name) => one?.[name] !== undefined || two?.[name] !== undefined).map((name) => html`<tr><td>${name}</td>
        <td class="number">${shown(one?.[name])}</td><td class="number">${shown(two?.[name])}</td></tr>`)}</tbody></table>
      ${this.said && html`<p class="faint">${plain(this.said)}</p>`}
      ${app.message && !app.otherCopies && html`<p class="faint">The other run has no such message.</p>`}
      ${app.copies && app.otherCopies && this.alone().map((names, at) => html`<p class="alone">
        Reached by now in ${at ? "the other run" : "this run"} only: ${names.length ? "" : "none"}
        ${plain(names.slice(0, LISTED).map((name) => clipped(app.run.called(name), 20)).join(", "))}${names.length > LISTED ? ` and ${names.length - LISTED} more` : ""}</p>`)}`;
  }

  /** Names of nodes that one of the runs alone has reached by now. */
  alone() {
    const { app } = this;
    const [one, two] = [app.copies, app.otherCopies].map((copies) => !copies ? [] : copies.reached(app.t).map((node) => copies.run.name(node)));
    const [inOne, inTwo] = [new Set(one), new Set(two)];
    return [one.filter((name) => !inTwo.has(name)), two.filter((name) => !inOne.has(name))];
  }
}

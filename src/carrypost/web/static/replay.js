// The page of a run: what is chosen, the address, keys, and who draws what. All panels read from `App`.
import { clipped, clock, element, html, json, plain, render } from "/static/api.js";
import { SPEEDS, controls, head, key, touch } from "/static/controls.js";
import { Compare } from "/static/compare.js";
import { EXPORTS } from "/static/export.js";
import { Layers } from "/static/layers.js";
import { LogPanel } from "/static/log.js";
import { NodeMap, palette } from "/static/map.js";
import { MessagePanel } from "/static/message.js";
import { NodePanel } from "/static/node.js";
import { Run } from "/static/spans.js";
import { showTally } from "/static/tally.js";
import { Axis, Clock } from "/static/time.js";

const FOLLOW_MS = 1000;
const PANELS_MS = 400; // While time plays, panels follow now and then.

class App {
  constructor(run) {
    this.run = run;
    Object.assign(this, { message: null, node: -1, kinds: new Set(), playing: false, copies: null, other: null, span: null,
      names: true, trails: false, showLinks: true, waiting: 0, drawn: false, told: 0, failed: "" });
    const { start, end } = run.info;
    this.t = start;
    this.speed = [...SPEEDS].reverse().find((speed) => (end - start) / speed >= 30) ?? SPEEDS[0];
    this.colours = palette();
    this.map = new NodeMap(element("map"), run);
    this.clock = new Clock(this);
    this.axis = new Axis(element("time"), this);
    this.panels = { message: new MessagePanel(element("message"), this), node: new NodePanel(element("inspector"), this),
      log: new LogPanel(element("log"), this) };
    this.layers = new Layers(this);
    this.compare = new Compare(this);
  }

  fail(error) {
    this.failed = error.message;
    this.head();
  }

  // --- what is shown -------------------------------------------------------------------------------------------------

  get runs() {
    return this.other ? [this.run, this.other] : [this.run];
  }

  loadedAt(t) {
    return this.runs.every((run) => run.chunk(t));
  }

  async load(t) {
    try {
      await Promise.all(this.runs.map((run) => run.load(t)));
      this.failed = "";
    } catch (error) {
      this.fail(error);
    }
    if (!this.playing) this.draw();
  }

  /** Loads the part that comes next, before it is needed. */
  ahead(t) {
    for (const run of this.runs) {
      const next = t + Math.max(0.6 * run.info.chunk_s, 2 * this.speed);
      if (run.part(next) !== run.part(t)) run.load(Math.min(next, t + run.info.chunk_s)).catch(() => {});
    }
  }

  look(run, map, copies) {
    return { t: this.t, node: run === this.run ? this.node : run.numbers.get(this.run.name(this.node)) ?? -1, names: this.names,
      trails: this.trails, trail_s: Math.max(60, 3 * this.speed), links: this.showLinks, copies, states: copies?.at(this.t),
      source: copies?.about.source ?? -1, moment: Math.max(1, 0.5 * this.speed),
      strokes: [...this.panels.message.journey(run), ...this.layers.strokes(run, copies)],
      ...this.layers.look(run, copies) };
  }

  /** Draws the maps and the axis at this moment; false if something is not loaded yet. */
  draw() {
    const [run, other] = this.runs;
    this.drawn = run.at(this.t) && (!other || other.at(this.t));
    if (this.drawn) {
      this.map.draw(this.look(run, this.map, this.copies));
      if (other) this.otherMap.draw(this.look(other, this.otherMap, this.otherCopies));
      if (document.documentElement.dataset.ready === undefined) document.documentElement.dataset.ready = "";
    }
    this.axis.draw();
    element("now").textContent = clock(this.t);
    const now = performance.now();
    if (this.playing && now - this.told > PANELS_MS) {
      this.told = now;
      this.follow();
    }
    return this.drawn;
  }

  /** Lets the panels show this moment. */
  follow() {
    element("hint").textContent = this.node >= 0 || !this.run.info.nodes.length ? "" : this.message
      ? "Play to see the message spread. Click a node to learn how it came there, or why not. Drag the axis to another time."
      : "Choose a message to see it spread, or a node to see what it has. Drag the axis to another time.";
    this.panels.message.draw();
    this.panels.log.refresh(this.t);
    this.panels.node.refresh(this.t);
    this.compare.draw();
  }

  /** Once a second: shows what was added to a run that is still written. */
  async grow() {
    const { run } = this;
    if (document.hidden || !run.info.follows) return;
    const info = await json(run.path).catch(() => null);
    if (!info || info.unfinished || info.rows === run.info.rows) return;
    const atEnd = this.following || (!this.playing && this.t >= run.info.end);
    const name = this.node < 0 ? null : run.name(this.node);
    await run.open();
    this.node = run.numbers.get(name) ?? -1;
    if (atEnd || this.t < run.info.start) this.t = run.info.end;
    if (!this.map.zoomed) this.map.fit();
    await this.layers.load(true);
    this.panels.message.anew();
    this.axis.prepare();
    this.head();
    this.changed();
  }

  /** Something that is shown has changed. */
  changed() {
    if (!this.loadedAt(this.t)) this.load(this.t);
    this.draw();
    this.follow();
    this.controls();
    this.remember();
  }

  get ready() {
    const { message, node, log } = this.panels;
    return !this.playing && this.settled && this.drawn && this.run.shown === this.t && this.layers.ready && message.ready && node.ready(this.t) && log.ready(this.t);
  }

  // --- what people do ------------------------------------------------------------------------------------------------

  seek(t) {
    const { start, end } = this.run.info;
    this.t = Math.max(start, Math.min(end, Number.isFinite(t) ? t : start));
    this.changed();
  }

  play() {
    if (this.t >= this.run.info.end) this.t = this.run.info.start;
    this.playing = true;
    this.clock.start();
    this.controls();
  }

  pause() {
    this.playing = false;
    this.changed();
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  choose({ message = this.message, node = this.node, t = this.t }, keep = true) {
    const differs = [message !== this.message, node !== this.node];
    if (keep && differs.some(Boolean)) this.remember(true);
    [this.message, this.node, this.t] = [message, node ?? -1, t];
    if (differs[0]) this.panels.message.choose(message);
    else if (differs[1]) this.panels.message.ask();
    if (differs[1]) this.axis.prepare();
    this.changed();
  }

  // --- the address ---------------------------------------------------------------------------------------------------

  query() {
    const found = new URLSearchParams({ t: String(Math.round(this.t * 1e6) / 1e6) });
    const given = { message: this.message, node: this.node < 0 ? null : this.run.name(this.node), speed: this.speed,
      links: this.showLinks ? this.run.linkKinds.length > 1 && this.run.links_of : "none", kinds: [...this.kinds].join(","),
      layers: [...this.layers.on].join(","), with: this.other?.id };
    for (const [key, value] of Object.entries(given)) if (value) found.set(key, value);
    return `?${found}`;
  }

  /** Writes what is shown to the address; as a new entry of the history if people chose something else. */
  remember(fresh = false) {
    clearTimeout(this.later);
    if (fresh) {
      history.replaceState(null, "", this.query());
      this.fresh = true;
    }
    this.later = setTimeout(() => {
      const query = this.query();
      if (query !== location.search) history[this.fresh ? "pushState" : "replaceState"](null, "", query);
      this.fresh = false;
    }, 300);
  }

  /** The time at which a message begins to spread; nodes may come long after the start of a run. */
  async published(message) {
    const found = message ? await json(`${this.run.path}/messages`, { query: message, control: 1 }).catch(() => []) : [];
    return found.find((each) => each.message === message)?.t ?? this.run.info.start;
  }

  /** Shows what the address says. */
  async recall() {
    this.settled = false;
    const asked = new URLSearchParams(location.search);
    const { info, numbers } = this.run;
    const message = asked.get("message") ?? (asked.has("t") ? null : info.first);
    const t = Number(asked.get("t") ?? await this.published(message)), speed = Number(asked.get("speed"));
    if (speed >= SPEEDS[0] && speed <= SPEEDS.at(-1)) this.speed = speed;
    this.kinds = new Set((asked.get("kinds") ?? "").split(",").filter((kind) => info.kinds.includes(kind)));
    this.showLinks = asked.get("links") !== "none";
    if (this.run.linkKinds.includes(asked.get("links"))) this.run.links_of = asked.get("links");
    this.layers.recall(asked.get("layers") ?? "");
    await this.compare.recall(asked.get("with"));
    this.t = Math.max(info.start, Math.min(info.end, Number.isFinite(t) ? t : info.start));
    this.settled = true;
    if (asked.has("play")) this.play();
    this.choose({ message, node: numbers.get(asked.get("node")) ?? -1 }, false);
  }

  head() {
    head(this);
  }

  controls() {
    controls(this);
  }

  listen() {
    touch(this, this.map);
    window.addEventListener("keydown", (event) => key(this, event));
    setInterval(() => this.grow(), FOLLOW_MS);
    window.addEventListener("popstate", () => this.recall());
    new ResizeObserver(() => this.resized()).observe(element("map"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colours = palette();
      for (const map of [this.map, this.otherMap]) if (map) map.colours = this.colours;
      this.resized();
    });
  }

  resized() {
    this.map.resize();
    this.otherMap?.resize();
    this.axis.prepare();
    this.changed();
  }
}

function forTests(app) {
  const names = (nodes) => nodes.map((node) => app.run.name(node));
  window.carrypost = {
    state: () => ({ t: app.t, playing: app.playing, speed: app.speed, message: app.message,
      node: app.node < 0 ? null : app.run.name(app.node), ready: app.ready }),
    seek: (t) => app.seek(t),
    choose: ({ message, node }) => app.choose({ message, node: node === undefined ? undefined : app.run.numbers.get(node) ?? -1 }),
    stats: () => ({ gaps_ms: app.clock.gaps, script_ms: app.clock.scripts }),
    place: (name) => {
      const node = app.run.numbers.get(name) ?? -1;
      return node >= 0 && app.run.here[node] && !Number.isNaN(app.run.x[node]) ? [app.run.x[node], app.run.y[node]] : null;
    },
    links: () => app.run.pairs(),
    reached: (run = 0) => {
      const copies = run ? app.otherCopies : app.copies;
      return copies ? copies.reached(app.t).map((node) => copies.run.name(node)) : [];
    },
    holding: () => (app.copies ? (app.copies.at(app.t), names([...app.copies.present.keys()].filter((node) => app.copies.present[node]))) : []),
    ...app.layers.forTests(),
    exported: async (name) => {
      const blob = await EXPORTS[name](app);
      return { type: blob.type, size: blob.size, text: /video|png/.test(blob.type) ? "" : await blob.text() };
    },
    alone: () => app.compare.alone(),
  };
}

async function main() {
  const run = new Run(decodeURIComponent(location.pathname.split("/")[2]));
  const head = element("head");
  render(html`<p>reading…</p>`, head);
  try {
    await run.open((share) => render(html`<p>reading: <progress value=${share}/> ${Math.round(100 * share)} %</p>`, head));
  } catch (error) {
    render(html`<p class="bad" role="alert">${plain(error.message)}</p><p><a href="/">all runs</a></p>`, head);
    document.documentElement.dataset.ready = "";
    return;
  }
  document.title = `${clipped(plain(run.info.run), 60)} – carrypost`;
  const app = new App(run);
  app.listen();
  app.head();
  app.controls();
  forTests(app);
  app.panels.message.find("");
  await app.recall();
  await showTally(app).catch((error) => app.fail(error));
  app.axis.prepare();
}

main();

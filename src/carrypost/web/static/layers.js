// Layers: the paths and recipients of a message, home brokers and their loads, what queues hand out, and islands.
import { columns, html } from "/static/api.js";

const NAMES = { paths: "paths", homes: "homes and brokers", queues: "queues", reach: "island of the node" };
const PAGES_MAX = 10;

/** All rows of a kind, as far as they fit. */
async function rowsOf(run, kinds) {
  const found = [];
  for (let after = -1, page = 0; after !== null && page < PAGES_MAX; page++) {
    const rows = await columns(`${run.path}/rows`, { kinds, limit: 5000, after });
    for (let row = 0; row < rows.length; row++) {
      found.push({ t: rows.t[row], from: run.numbers.get(rows.node[row]) ?? -1,
        to: run.numbers.get(rows.peer[row] ?? rows.detail[row]) ?? -1 });
    }
    after = rows.about.next;
  }
  return found;
}

const LOADS = {
  homes: async (run) => ({ spans: await columns(`${run.path}/spans`, { of: "home" }),
    loads: await columns(`${run.path}/samples`, { of: "load" }),
    moves: run.info.kinds.includes("relocate") ? await rowsOf(run, "relocate") : [] }),
  queues: async (run) => ({ moves: await rowsOf(run, "assign") }),
  reach: async (run) => ({ spans: await columns(`${run.path}/spans`, { of: "reach" }) }),
  paths: async () => ({}),
};

export class Layers {
  constructor(app) {
    Object.assign(this, { app, on: new Set(), data: new Map(), waiting: 0 });
  }

  get ready() {
    return this.waiting === 0;
  }

  recall(text) {
    this.on = new Set(text.split(",").filter((name) => this.app.run.info.layers.includes(name)));
    this.load();
  }

  /** Loads what the chosen layers need; `anew` where rows were added. */
  async load(anew = false) {
    if (anew) this.data.clear();
    for (const name of this.on) {
      if (this.data.has(name)) continue;
      this.data.set(name, null);
      this.waiting++;
      try {
        this.data.set(name, await LOADS[name](this.app.run));
      } catch (error) {
        this.on.delete(name);
        this.app.fail(error);
      }
      this.waiting--;
      this.app.changed();
    }
  }

  controls() {
    return this.app.run.info.layers.map((name) => html`<label class="chip"><input type="checkbox" checked=${this.on.has(name)}
      onChange=${(event) => {
        if (event.target.checked) this.on.add(name);
        else this.on.delete(name);
        this.load();
        this.app.changed();
      }}/>${NAMES[name]}</label>`);
  }

  #shown(name) {
    return this.on.has(name) ? this.data.get(name) : null;
  }

  /** Rows of spans that hold now. */
  #now({ start, end, length }, chosen = () => true) {
    const found = [], { t } = this.app;
    for (let row = 0; row < length && start[row] <= t; row++) if (end[row] > t && chosen(row)) found.push(row);
    return found;
  }

  homes() {
    const { spans } = this.#shown("homes") ?? {};
    return spans ? this.#now(spans, (row) => spans.b[row] >= 0).map((row) => [spans.a[row], spans.b[row], spans.about.labels[spans.label[row]]]) : [];
  }

  /** Brokers with their last load. */
  brokers() {
    const { loads } = this.#shown("homes") ?? {};
    if (!loads) return [];
    const found = new Map(this.app.run.info.brokers.map((node) => [node, 0]));
    for (let row = 0; row < loads.length && loads.t[row] <= this.app.t; row++) found.set(loads.node[row], loads.value[row]);
    return [...found].filter(([node]) => node >= 0).sort((a, b) => a[0] - b[0]);
  }

  paths(copies) {
    if (!this.on.has("paths") || !copies) return [];
    return Object.entries(copies.about.paths).filter(([row]) => copies.received[row] <= this.app.t).map(([, nodes]) => nodes);
  }

  island() {
    const { spans } = this.#shown("reach") ?? {};
    const { node } = this.app;
    return spans && node >= 0 ? this.#now(spans, (row) => spans.a[row] === node).map((row) => [spans.b[row], spans.about.labels[spans.label[row]]]) : [];
  }

  /** Seats that moved, or messages that queues gave to receivers, within the last moments. */
  #recent(name) {
    const { t: now, speed } = this.app;
    const { moves } = this.#shown(name) ?? {};
    return (moves ?? []).filter(({ t, from, to }) => t <= now && t > now - Math.max(2, speed) && from >= 0 && to >= 0);
  }

  /** Lines of the chosen layers, for the map. */
  strokes(run, copies) {
    if (run !== this.app.run) return [];
    return [
      ...this.homes().filter(([client, broker]) => client !== broker).map(([client, broker]) => ({ nodes: [client, broker], colour: "broker", dash: [3, 4] })),
      ...this.#recent("homes").map(({ from, to }) => ({ nodes: [from, to], colour: "mark", width: 2.5, arrow: true })),
      ...this.#recent("queues").filter(({ from, to }) => from !== to).map(({ from, to }) => ({ nodes: [from, to], colour: "delivered", width: 2.5, arrow: true })),
      ...this.paths(copies).map((nodes) => ({ nodes, colour: "acknowledged", width: 2.5, arrow: true })),
    ];
  }

  look(run, copies) {
    if (run !== this.app.run) return {};
    const waiting = this.on.has("paths") && copies
      ? copies.about.recipients.filter((node) => node >= 0 && copies.at(this.app.t)[node] !== 3) : [];
    return { squares: this.on.has("homes") ? new Map(this.brokers()) : null, ringed: waiting, hops: new Map(this.island()),
      served: this.#recent("queues").filter(({ from, to }) => from === to).map(({ to }) => to) };
  }

  forTests() {
    const { app } = this;
    const name = (node) => app.run.name(node) ?? null;
    return {
      paths: () => this.paths(app.copies).map((nodes) => nodes.map(name)),
      homes: () => this.homes().map(([client, broker, label]) => [name(client), name(broker), label]),
      brokers: () => this.brokers().map(([node, load]) => [name(node), load]),
      assigned: () => this.#recent("queues").map(({ from, to }) => [name(from), name(to)]),
      island: () => this.island().map(([node, hops]) => [name(node), Number(hops)]),
    };
  }
}

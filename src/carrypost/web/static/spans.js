// A run: places, presences and links of its nodes at any instant. Tracks and contacts are loaded in parts of the run.
import { columns, json } from "/static/api.js";

const KEPT = 10;
const LINK = ["a", "b", "oneWay", "until"];
const TOGETHER = 0.6; // Share of the way to those that a node is with, where places are a layout.

export class Run {
  constructor(id) {
    this.id = id;
    this.path = `/runs/${id}`;
  }

  /** Asks for what is known of the run, until it was read; `tell` hears how far that is. */
  async open(tell = () => {}) {
    let info = await json(this.path);
    while (info.unfinished) {
      tell(info.progress);
      info = await json(this.path);
    }
    const [lives, density] = await Promise.all([
      columns(`${this.path}/spans`, { of: "presence" }), json(`${this.path}/density`, { bins: 512 }),
    ]);
    Object.assign(this, { info, lives, density, chunks: new Map(), current: null });
    this.names = new Map(Object.entries(info.names));
    this.numbers = new Map(info.nodes.map((name, number) => [name, number]));
    info.nodes.forEach((name, number) => this.numbers.has(this.called(name)) || this.numbers.set(this.called(name), number));
    this.parts = Math.max(1, Math.ceil((info.end - info.start) / info.chunk_s));
    const kinds = (...names) => names.some((name) => info.kinds.includes(name));
    this.linkKinds = [kinds("contact") && "contact", kinds("up", "oneway") && "seen"].filter(Boolean);
    this.links_of = this.linkKinds.includes(this.links_of) ? this.links_of : this.linkKinds[0] ?? "contact";
    const size = info.nodes.length;
    Object.assign(this, {
      x: new Float64Array(size), y: new Float64Array(size), here: new Uint8Array(size), cursor: new Int32Array(size),
      a: new Int32Array(64), b: new Int32Array(64), oneWay: new Uint8Array(64), until: new Float64Array(64), links: 0, shown: null,
      steady: [Infinity, -Infinity], linked: null,
    });
    return this;
  }

  name(number) {
    return this.info.nodes[number];
  }

  /** The name of a node for people. */
  called(name) {
    return this.names.get(name) ?? name;
  }

  part(t) {
    return Math.max(0, Math.min(this.parts - 1, Math.floor((t - this.info.start) / this.info.chunk_s)));
  }

  /** The part of the run that a time is in; null until it is loaded. */
  chunk(t) {
    const key = `${this.part(t)} ${this.links_of}`;
    const found = this.chunks.get(key);
    if (found?.columns) {
      this.chunks.delete(key);
      this.chunks.set(key, found); // The last used one is the last to go.
    }
    return found?.columns ?? null;
  }

  load(t) {
    const part = this.part(t);
    const key = `${part} ${this.links_of}`;
    if (!this.chunks.has(key)) {
      const from = this.info.start + part * this.info.chunk_s;
      const span = { from, to: from + this.info.chunk_s };
      const chunk = { columns: null };
      const failed = () => this.chunks.delete(key);
      chunk.loading = Promise.all([
        columns(`${this.path}/tracks`, span), columns(`${this.path}/spans`, { of: this.links_of, ...span }),
      ]).then(([tracks, spans]) => {
        tracks.first = firsts(tracks.node, this.info.nodes.length);
        chunk.columns = { tracks, spans, key };
        while (this.chunks.size > KEPT) this.chunks.delete(this.chunks.keys().next().value);
      }, (error) => {
        failed();
        throw error;
      });
      this.chunks.set(key, chunk);
    }
    return this.chunks.get(key).loading;
  }

  /** Computes where everybody is at an instant; false if that is not loaded yet. */
  at(t) {
    const chunk = this.chunk(t);
    if (!chunk) return false;
    if (this.shown === t && this.current === chunk) return true;
    if (!(this.steady[0] <= t && t < this.steady[1])) this.#presence(t);
    if (this.current !== chunk) this.cursor.set(chunk.tracks.first.subarray(0, this.here.length));
    this.current = chunk;
    this.#places(chunk.tracks, t);
    this.#links(chunk.spans, t);
    if (this.info.positions === "layout") this.#together();
    this.shown = t;
    return true;
  }

  /** Finds who is there, and how long that stays so. */
  #presence(t) {
    const { lives: { a, start, end, length }, here, info } = this;
    let since = -Infinity, until = t === info.end ? t : info.end;
    here.fill(0);
    for (let row = 0; row < length; row++) {
      if (start[row] <= t && (t < end[row] || (t === end[row] && t === info.end))) here[a[row]] = 1;
      for (const change of [start[row], end[row]]) {
        if (change <= t) since = Math.max(since, change);
        else until = Math.min(until, change);
      }
    }
    this.steady = [since, until];
  }

  #places({ node, t: times, x, y, first }, t) {
    const { here, cursor, x: xs, y: ys } = this;
    for (let each = 0; each < here.length; each++) {
      xs[each] = NaN;
      if (!here[each]) continue;
      const end = first[each + 1];
      let at = cursor[each];
      if (at < first[each] || (at < end && times[at] > t)) at = first[each];
      if (at >= end || times[at] > t) continue;
      if (at + 8 < end && times[at + 8] <= t) {
        let high = end;
        while (high - at > 1) {
          const middle = (at + high) >> 1;
          if (times[middle] <= t) at = middle;
          else high = middle;
        }
      } else while (at + 1 < end && times[at + 1] <= t) at++;
      cursor[each] = at;
      if (times[at] === t) {
        xs[each] = x[at];
        ys[each] = y[at];
      } else if (at + 1 < end && node[at + 1] === each) {
        const share = (t - times[at]) / (times[at + 1] - times[at]);
        xs[each] = x[at] + share * (x[at + 1] - x[at]);
        ys[each] = y[at] + share * (y[at + 1] - y[at]);
      }
    }
  }

  /** Finds the links of an instant: when time goes on, those of the instant before and what has begun since. */
  #links(spans, t) {
    const { a, b, start, end, label, length } = spans;
    const before = this.linked?.spans === spans && this.linked.t <= t ? this.links : 0;
    while (this.a.length < before + length) this.#grow();
    const { a: as, b: bs, oneWay, until } = this;
    let found = 0, row = before ? this.linked.row : 0;
    for (let link = 0; link < before; link++) {
      if (until[link] <= t) continue;
      as[found] = as[link];
      bs[found] = bs[link];
      until[found] = until[link];
      oneWay[found++] = oneWay[link];
    }
    for (; row < length && start[row] <= t; row++) {
      if (end[row] <= t || b[row] < 0) continue;
      as[found] = a[row];
      bs[found] = b[row];
      until[found] = end[row];
      oneWay[found++] = label[row] >= 0 ? 1 : 0;
    }
    this.links = found;
    this.linked = { spans, t, row };
  }

  #grow() {
    for (const name of LINK) {
      const longer = new this[name].constructor(2 * this[name].length);
      longer.set(this[name]);
      this[name] = longer;
    }
  }

  /** Moves nodes towards those that they are with, so that contacts alone show movement. */
  #together() {
    const size = this.here.length;
    const sum = { x: new Float64Array(size), y: new Float64Array(size), n: new Int32Array(size) };
    for (let link = 0; link < this.links; link++) {
      for (const [one, other] of [[this.a[link], this.b[link]], [this.b[link], this.a[link]]]) {
        if (Number.isNaN(this.x[other])) continue;
        sum.x[one] += this.x[other];
        sum.y[one] += this.y[other];
        sum.n[one]++;
      }
    }
    for (let each = 0; each < size; each++) {
      if (!sum.n[each]) continue;
      this.x[each] += TOGETHER * (sum.x[each] / sum.n[each] - this.x[each]);
      this.y[each] += TOGETHER * (sum.y[each] / sum.n[each] - this.y[each]);
    }
  }

  /** Pairs of nodes that are linked, by name, each once. */
  pairs() {
    const found = new Map();
    for (let link = 0; link < this.links; link++) {
      const names = [this.name(this.a[link]), this.name(this.b[link])];
      if (!this.oneWay[link]) names.sort();
      found.set(JSON.stringify(names), names);
    }
    return [...found.keys()].sort().map((key) => found.get(key));
  }

  /** Places of a node in the last seconds, as far as they are loaded. */
  trail(node, t, length) {
    const { tracks } = this.current;
    const found = [];
    for (let row = tracks.first[node]; row < tracks.first[node + 1] && tracks.t[row] < t; row++) {
      if (tracks.t[row] >= t - length && !Number.isNaN(tracks.x[row])) found.push([tracks.x[row], tracks.y[row]]);
    }
    return found;
  }
}

/** By node, the first of its rows, and behind the last node their number. */
export function firsts(node, nodes) {
  const found = new Int32Array(nodes + 1);
  for (const each of node) found[each + 1]++;
  for (let each = 0; each < nodes; each++) found[each + 1] += found[each];
  return found;
}

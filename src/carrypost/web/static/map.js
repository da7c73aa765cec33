// The map: dots and lines as pixels of a picture, which is fast with ten thousand of them; names, rings, arrows and the
// tree of a message on a canvas above.
import { plain } from "/static/api.js";
import { Ink } from "/static/ink.js";
import { STATES } from "/static/message.js";

const PIXELS_MAX = 3e6;
const NEAR = 14;
const APART_MAX = 3_000;

/** Colours as the page has them, for canvases and as pixels. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const found = {};
  for (const name of ["back", "text", "faint", "node", "link", "carries", "delivered", "acknowledged", "ended", "none",
    "mark", "broker", "edge"]) {
    const text = style.getPropertyValue(`--${name}`).trim();
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
    found[name] = { text, pixel: (255 << 24 | blue << 16 | green << 8 | red) >>> 0, parts: [red, green, blue] };
  }
  return found;
}

const mixed = (one, other, share) => {
  const [red, green, blue] = one.parts.map((part, at) => Math.round(part + share * (other.parts[at] - part)));
  return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
};

export class NodeMap {
  constructor(box, run) {
    Object.assign(this, { box, run, shapes: new Map(), scale: 1, left: 0, top: 0, zoomed: false });
    this.below = box.appendChild(document.createElement("canvas"));
    this.above = box.appendChild(document.createElement("canvas"));
    this.above.className = "above";
    this.above.tabIndex = 0;
    this.above.setAttribute("aria-label", `map of ${plain(run.info.run)}`);
    this.colours = palette();
    this.stamps = new Int32Array(1 << 16);
    this.over = new Ink(this);
    this.resize();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!width || !height) return;
    this.ratio = Math.min(window.devicePixelRatio || 1, Math.sqrt(PIXELS_MAX / (width * height)));
    Object.assign(this, { width, height, wide: Math.round(width * this.ratio), high: Math.round(height * this.ratio) });
    for (const canvas of [this.below, this.above]) {
      canvas.width = this.wide;
      canvas.height = this.high;
    }
    this.pen = this.below.getContext("2d", { alpha: false, willReadFrequently: false });
    this.ink = this.above.getContext("2d");
    this.picture = this.pen.createImageData(this.wide, this.high);
    this.pixels = new Uint32Array(this.picture.data.buffer);
    if (!this.zoomed) this.fit();
  }

  fit() {
    const [left, bottom, right, top] = this.run.info.box;
    const room = 36;
    const across = Math.max(right - left, 1e-9), up = Math.max(top - bottom, 1e-9);
    this.scale = Math.min((this.width - 2 * room) / across, (this.height - 2 * room) / up);
    if (!(this.scale > 0) || !Number.isFinite(this.scale)) this.scale = 1;
    this.left = left - (this.width / this.scale - across) / 2;
    this.top = top + (this.height / this.scale - up) / 2;
    this.zoomed = false;
  }

  zoom(by, x = this.width / 2, y = this.height / 2) {
    this.left += (x / this.scale) * (1 - 1 / by);
    this.top -= (y / this.scale) * (1 - 1 / by);
    this.scale *= by;
    this.zoomed = true;
  }

  pan(x, y) {
    this.left -= x / this.scale;
    this.top += y / this.scale;
    this.zoomed = true;
  }

  /** The place of a node on the page, in pixels of the page. */
  spot(node) {
    return [(this.run.x[node] - this.left) * this.scale, (this.top - this.run.y[node]) * this.scale];
  }

  nearest(x, y) {
    let found = -1, least = NEAR;
    for (let node = 0; node < this.run.x.length; node++) {
      const [at, down] = this.spot(node);
      const far = Math.hypot(at - x, down - y);
      if (far < least) [found, least] = [node, far];
    }
    return found;
  }

  /** Draws the run as it was computed; `look` says what is chosen. */
  draw(look) {
    if (!this.pixels) return;
    const { run, pixels, colours, ratio } = this;
    const size = run.x.length;
    pixels.fill(colours.back.pixel);
    this.sx ??= new Float32Array(0);
    if (this.sx.length !== size) [this.sx, this.sy] = [new Float32Array(size), new Float32Array(size)];
    const { sx, sy } = this;
    const scale = this.scale * ratio, left = this.left, top = this.top;
    const { x, y } = run;
    for (let node = 0; node < size; node++) {
      sx[node] = (x[node] - left) * scale;
      sy[node] = (top - y[node]) * scale;
    }
    this.#apart(size);
    if (look.links) this.#lines();
    if (look.copies) this.#tree(look.copies, look.t);
    this.#dots(look);
    this.pen.putImageData(this.picture, 0, 0);
    this.over.draw(look);
  }

  /** Moves nodes that are on one spot apart, around it. */
  #apart(size) {
    const { sx, sy, stamps, run } = this;
    if (size > APART_MAX) return; // In a crowd dots are too small for that.
    stamps.fill(0);
    const mask = stamps.length - 1, step = 2 * this.radius(size) + 2;
    for (let node = 0; node < size; node++) {
      if (!run.here[node] || sx[node] !== sx[node]) continue;
      let at = (Math.imul(sx[node] * 64, 73856093) ^ Math.imul(sy[node] * 64, 19349663)) & mask;
      let other;
      while ((other = stamps[at] - 1) >= 0 && (run.x[other] !== run.x[node] || run.y[other] !== run.y[node])) {
        at = (at + 1) & mask;
      }
      if (other < 0) {
        stamps[at] = node + 1;
        this.crowd ??= new Uint16Array(size);
        if (this.crowd.length !== size) this.crowd = new Uint16Array(size);
        this.crowd[node] = 0;
      } else {
        const turn = ++this.crowd[other], far = step * Math.sqrt(turn);
        sx[node] += far * Math.cos(turn * 2.4);
        sy[node] += far * Math.sin(turn * 2.4);
      }
    }
  }

  radius(size) {
    return (size <= 60 ? 6 : size <= 300 ? 4.5 : size <= 1500 ? 3 : size <= 4000 ? 2 : size <= 8000 ? 1.5 : 1) * this.ratio;
  }

  #lines() {
    const { run, sx, sy, colours } = this;
    const pixel = mixed(colours.back, colours.link, Math.max(0.25, Math.min(1, 30 / Math.sqrt(run.links + 1))));
    const { pixels, wide, high } = this, { a, b, links } = run;
    for (let link = 0; link < links; link++) {
      let x = sx[a[link]], y = sy[a[link]];
      const x2 = sx[b[link]], y2 = sy[b[link]];
      if (!(x >= 0 && y >= 0 && x < wide && y < high && x2 >= 0 && y2 >= 0 && x2 < wide && y2 < high)) {
        this.line(x, y, x2, y2, pixel);
        continue;
      }
      // Nearly all links are short and on the map: without a call for each, ten thousand take half of the time.
      const across = x2 - x, down = y2 - y, steps = Math.max(Math.abs(across), Math.abs(down)) | 0;
      const dx = steps ? across / steps : 0, dy = steps ? down / steps : 0;
      for (let step = 0; step <= steps; step++, x += dx, y += dy) pixels[(y | 0) * wide + (x | 0)] = pixel;
    }
  }

  #tree(copies, t) {
    const { sx, sy, colours } = this;
    const pixel = mixed(colours.back, colours.carries, 0.75);
    for (let row = 0; row < copies.length && copies.received[row] <= t; row++) {
      const a = copies.peer[row], b = copies.node[row];
      if (a >= 0 && b >= 0) this.line(sx[a], sy[a], sx[b], sy[b], pixel);
    }
  }

  /** A line of one pixel, as far as it is on the map. */
  line(x, y, x2, y2, pixel) {
    const { wide, high, pixels } = this;
    if (!(x === x && x2 === x2 && y === y && y2 === y2)) return;
    if (x < 0 || y < 0 || x >= wide || y >= high || x2 < 0 || y2 < 0 || x2 >= wide || y2 >= high) {
      let from = 0, to = 1;
      const across = x2 - x, down = y2 - y;
      for (const [by, room] of [[-across, x], [across, wide - 1 - x], [-down, y], [down, high - 1 - y]]) {
        if (by === 0) {
          if (room < 0) return;
        } else if (by < 0) from = Math.max(from, room / by);
        else to = Math.min(to, room / by);
      }
      if (from > to) return;
      [x, y, x2, y2] = [x + from * across, y + from * down, x + to * across, y + to * down];
    }
    const steps = Math.max(Math.abs(x2 - x), Math.abs(y2 - y)) | 0;
    const dx = steps ? (x2 - x) / steps : 0, dy = steps ? (y2 - y) / steps : 0;
    for (let step = 0; step <= steps; step++, x += dx, y += dy) pixels[(y | 0) * wide + (x | 0)] = pixel;
  }

  #dots(look) {
    const { run, colours, sx, sy, pixels, wide, high } = this;
    const states = look.states;
    const byState = STATES.map((name) => colours[name].pixel);
    const shape = this.#shape(this.radius(run.x.length)), { most, steps } = shape;
    for (let node = 0; node < sx.length; node++) {
      if (!run.here[node]) continue;
      if (look.squares?.has(node)) continue;
      const pixel = states ? byState[states[node]] : colours.node.pixel;
      const x = sx[node] | 0, y = sy[node] | 0;
      if (x >= most && y >= most && x < wide - most && y < high - most) {
        const at = y * wide + x; // Most dots are inside, and steps are much faster than filling short rows.
        for (let step = 0; step < steps.length; step++) pixels[at + steps[step]] = pixel;
      } else this.#edge(sx[node], sy[node], shape, pixel);
    }
  }

  /** Rows of a dot: half of their widths, and all its pixels as steps from its middle. */
  #shape(radius) {
    const key = `${radius} ${this.wide}`;
    let found = this.shapes.get(key);
    if (!found) {
      const most = Math.ceil(radius);
      const widths = Array.from({ length: 2 * most + 1 }, (_, row) => Math.floor(Math.sqrt(Math.max(0, (radius + 0.5) ** 2 - (row - most) ** 2))));
      const steps = widths.flatMap((half, row) => Array.from({ length: 2 * half + 1 }, (_, at) => (row - most) * this.wide + at - half));
      this.shapes.set(key, found = { most: Math.max(most, ...widths), widths, steps: Int32Array.from(steps) });
    }
    return found;
  }

  /** A dot that may be cut by the edge of the map. */
  #edge(x, y, { most, widths }, pixel) {
    const { wide, high, pixels } = this;
    if (!(x > -most && y > -most && x < wide + most && y < high + most)) return;
    const middle = x | 0, down = y | 0;
    for (let row = 0; row < widths.length; row++) {
      const at = down + row - (widths.length - 1) / 2;
      if (at < 0 || at >= high) continue;
      const from = Math.max(0, middle - widths[row]), to = Math.min(wide - 1, middle + widths[row]);
      if (to >= from) pixels.fill(pixel, at * wide + from, at * wide + to + 1);
    }
  }
}

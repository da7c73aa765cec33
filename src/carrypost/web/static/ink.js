// Above the map: names, rings, arrows, trails, the tree of a message, and the scale bar, drawn by the canvas.
import { clipped, plain } from "/static/api.js";

const NAMES_MAX = 60;

export class Ink {
  constructor(map) {
    this.map = map;
  }

  /** Draws on the map, or by another pen. */
  draw(look, ink = this.map.ink) {
    const { map } = this;
    Object.assign(this, {
      ink, run: map.run, colours: map.colours, sx: map.sx, sy: map.sy, ratio: map.ratio, wide: map.wide,
      high: map.high, scale: map.scale, left: map.left, top: map.top,
    });
    this.#above(look);
  }

  #above(look) {
    const { ink, run, colours, sx, sy, ratio } = this;
    ink.setTransform(1, 0, 0, 1, 0, 0);
    ink.clearRect(0, 0, this.wide, this.high);
    const radius = this.map.radius(run.x.length);
    if (look.trails) this.#trails(look);
    if (look.links && run.links < 5_000) this.#arrows(radius);
    for (const stroke of look.strokes ?? []) this.#stroke(stroke);
    if (look.copies) this.#passing(look);
    for (const [node, share] of look.squares ?? []) this.#square(sx[node], sy[node], radius, share);
    for (const node of look.ringed ?? []) this.#ring(sx[node], sy[node], radius + 3 * ratio, colours.mark.text, [3, 2]);
    for (const node of look.served ?? []) this.#ring(sx[node], sy[node], radius + 3 * ratio, colours.delivered.text);
    if (look.copies && look.source >= 0) this.#ring(sx[look.source], sy[look.source], radius + 2 * ratio, colours.text.text);
    if (look.node >= 0) {
      this.#ring(sx[look.node], sy[look.node], radius + 5 * ratio, colours.mark.text);
      if (run.info.range_m) {
        this.#ring(sx[look.node], sy[look.node], run.info.range_m * this.scale * ratio, colours.faint.text, [4, 4]);
      }
    }
    this.#names(look, radius);
    for (const [node, hops] of look.hops ?? []) this.#hops(sx[node], sy[node], radius, hops);
    this.#scaleBar();
  }

  #ring(x, y, radius, colour, dash = []) {
    const { ink, ratio } = this;
    if (!(x === x)) return;
    ink.beginPath();
    ink.setLineDash(dash.map((each) => each * ratio));
    ink.arc(x, y, radius, 0, 2 * Math.PI);
    ink.strokeStyle = colour;
    ink.lineWidth = 2 * ratio;
    ink.stroke();
    ink.setLineDash([]);
  }

  #square(x, y, radius, share) {
    const { ink, colours, ratio } = this;
    if (!(x === x)) return;
    const half = radius + 2 * ratio, filled = 2 * half * Math.max(0, Math.min(1, share));
    ink.fillStyle = colours.back.text;
    ink.fillRect(x - half, y - half, 2 * half, 2 * half);
    ink.fillStyle = colours.broker.text;
    ink.fillRect(x - half, y + half - filled, 2 * half, filled);
    ink.strokeStyle = colours.broker.text;
    ink.lineWidth = 1.5 * ratio;
    ink.strokeRect(x - half, y - half, 2 * half, 2 * half);
  }

  #hops(x, y, radius, hops) {
    const { ink, colours, ratio } = this;
    if (!(x === x)) return;
    this.#ring(x, y, radius + 2 * ratio, colours.acknowledged.text);
    ink.fillStyle = colours.text.text;
    ink.font = `${11 * ratio}px system-ui, sans-serif`;
    ink.fillText(hops, x - radius - 9 * ratio, y + radius);
  }

  /** Lines of layers: `{nodes, colour, dash, width, arrow}`. */
  #stroke({ nodes, colour, dash = [], width = 1.5, arrow = false }) {
    const { ink, sx, sy, ratio, colours } = this;
    ink.beginPath();
    ink.setLineDash(dash.map((each) => each * ratio));
    let last = -1;
    for (const node of nodes) {
      if (node < 0 || !(sx[node] === sx[node])) continue;
      if (last < 0) ink.moveTo(sx[node], sy[node]);
      else ink.lineTo(sx[node], sy[node]);
      if (last >= 0 && arrow) this.#head(sx[last], sy[last], sx[node], sy[node], 8 * ratio);
      last = node;
    }
    ink.strokeStyle = colours[colour].text;
    ink.lineWidth = width * ratio;
    ink.stroke();
    ink.setLineDash([]);
  }

  #head(x, y, x2, y2, back) {
    const { ink, ratio } = this;
    const turn = Math.atan2(y2 - y, x2 - x), length = 8 * ratio;
    const [tipX, tipY] = [x2 - back * Math.cos(turn), y2 - back * Math.sin(turn)];
    for (const side of [2.6, -2.6]) {
      ink.moveTo(tipX + length * Math.cos(turn + side), tipY + length * Math.sin(turn + side));
      ink.lineTo(tipX, tipY);
    }
    ink.moveTo(x2, y2);
  }

  #arrows(radius) {
    const { ink, run, sx, sy, colours, ratio } = this;
    ink.beginPath();
    for (let link = 0; link < run.links; link++) {
      const a = run.a[link], b = run.b[link];
      if (run.oneWay[link] && sx[a] === sx[a] && sx[b] === sx[b]) this.#head(sx[a], sy[a], sx[b], sy[b], radius + ratio);
    }
    ink.strokeStyle = colours.link.text;
    ink.lineWidth = 1.5 * ratio;
    ink.stroke();
  }

  /** Links that a copy passed within the last moment. */
  #passing({ copies, t, moment }) {
    const { ink, sx, sy, colours, ratio } = this;
    ink.beginPath();
    for (let row = copies.until(t) - 1; row >= 0 && copies.received[row] >= t - moment; row--) {
      const a = copies.peer[row], b = copies.node[row];
      if (a < 0 || b < 0 || !(sx[a] === sx[a] && sx[b] === sx[b])) continue;
      ink.moveTo(sx[a], sy[a]);
      ink.lineTo(sx[b], sy[b]);
    }
    ink.strokeStyle = colours.carries.text;
    ink.lineWidth = 3 * ratio;
    ink.stroke();
  }

  #trails({ t, node, trail_s: length }) {
    const { ink, run, sx, sy, ratio, colours } = this;
    const size = run.x.length;
    ink.beginPath();
    for (let each = 0; each < size; each++) {
      if (!run.here[each] || (size > 300 && each !== node) || !(sx[each] === sx[each])) continue;
      run.trail(each, t, length).forEach(([x, y], at) => {
        ink[at ? "lineTo" : "moveTo"]((x - this.left) * this.scale * ratio, (this.top - y) * this.scale * ratio);
      });
      ink.lineTo(sx[each], sy[each]);
    }
    ink.strokeStyle = colours.faint.text;
    ink.lineWidth = 1.5 * ratio;
    ink.stroke();
  }

  #names({ node, names }, radius) {
    const { ink, run, sx, sy, ratio, colours } = this;
    let shown = [];
    for (let each = 0; each < sx.length && shown.length <= NAMES_MAX; each++) {
      const inside = sx[each] >= 0 && sx[each] < this.wide && sy[each] >= 0 && sy[each] < this.high;
      if (run.here[each] && inside) shown.push(each);
    }
    if (shown.length > NAMES_MAX || !names) shown = node >= 0 && run.here[node] ? [node] : [];
    ink.font = `${12 * ratio}px system-ui, sans-serif`;
    ink.textBaseline = "middle";
    ink.lineWidth = 3 * ratio;
    ink.strokeStyle = colours.back.text;
    ink.fillStyle = colours.text.text;
    for (const each of shown) {
      const text = clipped(plain(run.called(run.name(each))), 18);
      const x = sx[each] + radius + 4 * ratio, y = sy[each] - radius;
      ink.strokeText(text, x, y);
      ink.fillText(text, x, y);
    }
  }

  #scaleBar() {
    const { ink, run, ratio, colours } = this;
    if (run.info.positions === "layout") return;
    const most = 140 / this.scale, power = 10 ** Math.floor(Math.log10(most));
    const length = [5, 2, 1].find((each) => each * power <= most) * power;
    const unit = length >= 1000 ? `${length / 1000} km` : `${length} m`;
    const range = run.info.range_m ? `${unit}; radio range ${run.info.range_m} m` : unit;
    const x = 12 * ratio, y = this.high - 14 * ratio, right = x + length * this.scale * ratio;
    ink.beginPath();
    ink.moveTo(x, y - 4 * ratio);
    ink.lineTo(x, y);
    ink.lineTo(right, y);
    ink.lineTo(right, y - 4 * ratio);
    ink.strokeStyle = colours.text.text;
    ink.lineWidth = 1.5 * ratio;
    ink.stroke();
    ink.fillStyle = colours.text.text;
    ink.font = `${12 * ratio}px system-ui, sans-serif`;
    ink.fillText(range, x, y - 12 * ratio);
  }
}

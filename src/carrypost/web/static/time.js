// Time: the clock that plays, and the axis below the map with events by kind, the lives of the chosen node and the
// curve of the chosen message.
const GROUPS = [
  ["publish", ["publish"]], ["receive", ["receive", "pass"]], ["deliver", ["deliver", "receipt"]],
  ["drop", ["drop", "expire", "refuse", "failure"]], ["contact", ["contact", "up", "down", "oneway", "reach", "unreach"]],
];
const COLOURS = { publish: "mark", receive: "carries", deliver: "delivered", drop: "ended", contact: "link", other: "faint" };

/** Advances a time while it plays, one frame after the other. */
export class Clock {
  constructor(app) {
    Object.assign(this, { app, before: null, gaps: [], scripts: [] });
  }

  /** One frame: the next time, and everything drawn. */
  frame = (now) => {
    const { app } = this;
    if (!app.playing) return;
    const begun = performance.now();
    if (this.before !== null) this.gaps.push(now - this.before);
    const passed = this.before === null ? 0 : Math.min(now - this.before, 250) / 1000;
    this.before = now;
    const { start, end } = app.run.info;
    const next = Math.max(start, Math.min(end, app.t + passed * app.speed));
    if (app.loadedAt(next)) app.t = next; // Where data is still under way the clock waits.
    else app.load(next);
    app.draw();
    app.ahead(next);
    if (app.t >= end && !app.run.info.follows) app.pause();
    this.scripts.push(performance.now() - begun);
    if (this.gaps.length > 6000) [this.gaps, this.scripts] = [this.gaps.slice(-3000), this.scripts.slice(-3000)];
    requestAnimationFrame(this.frame);
  };

  start() {
    this.before = null;
    requestAnimationFrame(this.frame);
  }
}

export class Axis {
  constructor(canvas, app) {
    Object.assign(this, { canvas, app, from: null });
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("pointermove", (event) => event.buttons === 1 && this.#drag(event));
    this.back = document.createElement("canvas");
  }

  #begin(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.from = event.shiftKey ? this.timeAt(event) : null;
    this.#drag(event);
  }

  #drag(event) {
    const t = this.timeAt(event);
    if (this.from === null) this.app.seek(t);
    else {
      this.app.span = [Math.min(this.from, t), Math.max(this.from, t)];
      this.draw();
    }
  }

  timeAt(event) {
    const { start, end } = this.app.run.info;
    const share = (event.clientX - this.canvas.getBoundingClientRect().left) / this.canvas.clientWidth;
    return start + Math.max(0, Math.min(1, share)) * (end - start);
  }

  place(t) {
    const { start, end } = this.app.run.info;
    return end > start ? ((Math.min(t, end) - start) / (end - start)) * this.canvas.width : 0;
  }

  /** Draws what does not move with time. */
  prepare() {
    const { canvas, back, app } = this;
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
    if (!width || !height) return;
    for (const each of [canvas, back]) [each.width, each.height] = [width, height];
    const pen = back.getContext("2d");
    const { bins, counts } = app.run.density;
    const groups = [...GROUPS, ["other", Object.keys(counts).filter((kind) => !GROUPS.some(([, kinds]) => kinds.includes(kind)))]];
    const chosen = app.kinds.size ? (kind) => app.kinds.has(kind) : () => true;
    const stacks = groups.map(([name, kinds]) => {
      const sums = new Float64Array(bins);
      for (const kind of kinds.filter(chosen)) counts[kind]?.forEach((number, bin) => { sums[bin] += number; });
      return [name, sums];
    });
    const totals = new Float64Array(bins);
    for (const [, sums] of stacks) sums.forEach((number, bin) => { totals[bin] += number; });
    const most = Math.max(1, ...totals), lift = new Float64Array(bins);
    for (const [name, sums] of stacks) {
      pen.fillStyle = app.colours[COLOURS[name]].text;
      for (let bin = 0; bin < bins; bin++) {
        if (!sums[bin]) continue;
        // Roots: a burst must not make everything else vanish.
        const tall = (Math.sqrt(totals[bin] / most) * (sums[bin] / totals[bin])) * (height - 8 * ratio);
        pen.fillRect((bin * width) / bins, height - lift[bin] - tall, Math.max(1, width / bins), tall);
        lift[bin] += tall;
      }
    }
    this.#lives(pen, ratio);
    this.#curve(pen, height, ratio);
    this.draw();
  }

  #lives(pen, ratio) {
    const { app } = this;
    if (app.node < 0) return;
    const { a, start, end, length } = app.run.lives;
    pen.fillStyle = app.colours.mark.text;
    for (let row = 0; row < length; row++) {
      if (a[row] !== app.node) continue;
      const from = this.place(start[row]);
      pen.fillRect(from, 0, Math.max(1, this.place(end[row]) - from), 4 * ratio);
    }
  }

  #curve(pen, height, ratio) {
    const { curve } = this.app.copies ?? {};
    if (!curve?.t.length) return;
    const most = Math.max(1, ...curve.reached);
    pen.beginPath();
    pen.moveTo(this.place(curve.t[0]), height);
    curve.t.forEach((t, at) => {
      pen.lineTo(this.place(t), height - ((at ? curve.reached[at - 1] : 0) / most) * (height - 8 * ratio));
      pen.lineTo(this.place(t), height - (curve.reached[at] / most) * (height - 8 * ratio));
    });
    pen.lineTo(this.canvas.width, height - (curve.reached.at(-1) / most) * (height - 8 * ratio));
    pen.strokeStyle = this.app.colours.text.text;
    pen.lineWidth = 1.5 * ratio;
    pen.stroke();
  }

  draw() {
    const { canvas, app, back } = this;
    if (!back.width) return;
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    if (app.span) {
      pen.fillStyle = app.colours.edge.text;
      pen.fillRect(this.place(app.span[0]), 0, this.place(app.span[1]) - this.place(app.span[0]), canvas.height);
    }
    pen.drawImage(back, 0, 0);
    pen.fillStyle = app.colours.mark.text;
    pen.fillRect(Math.round(this.place(app.t)) - 1, 0, 2, canvas.height);
    canvas.setAttribute("aria-valuenow", app.t.toFixed(1));
  }
}

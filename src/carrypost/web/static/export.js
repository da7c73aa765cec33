// Pictures, tables and films of what is shown, made by the browser and kept as files.
import { STATES } from "/static/message.js";

const FILM_FPS = 30;

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);

function keep(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** The map as it is, both of its canvases on a third one. */
function flattened(map, canvas = document.createElement("canvas")) {
  [canvas.width, canvas.height] = [map.wide, map.high];
  const pen = canvas.getContext("2d");
  pen.drawImage(map.below, 0, 0);
  pen.drawImage(map.above, 0, 0);
  return canvas;
}

/** Draws as the pen of a canvas does, and writes SVG. */
class SvgPen {
  constructor() {
    Object.assign(this, { parts: [], path: "", dash: [] });
  }

  setTransform() {}

  clearRect() {}

  setLineDash(dash) {
    this.dash = dash;
  }

  beginPath() {
    this.path = "";
  }

  moveTo(x, y) {
    this.path += `M${x.toFixed(2)} ${y.toFixed(2)}`;
  }

  lineTo(x, y) {
    this.path += `L${x.toFixed(2)} ${y.toFixed(2)}`;
  }

  arc(x, y, radius) {
    this.moveTo(x + radius, y);
    for (const way of [-2, 2]) this.path += `a${radius} ${radius} 0 1 0 ${way * radius} 0`;
  }

  stroke() {
    if (this.path) this.parts.push(`<path d="${this.path}" fill="none" ${this.#stroked()}/>`);
  }

  #stroked() {
    return `stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}" stroke-dasharray="${this.dash}"`;
  }

  #rect(x, y, width, height, style) {
    this.parts.push(`<rect x="${x}" y="${y}" width="${width}" height="${height}" ${style}/>`);
  }

  fillRect(x, y, width, height) {
    this.#rect(x, y, width, height, `fill="${this.fillStyle}"`);
  }

  strokeRect(x, y, width, height) {
    this.#rect(x, y, width, height, `fill="none" ${this.#stroked()}`);
  }

  #text(text, x, y, style) {
    const baseline = this.textBaseline === "middle" ? "middle" : "auto";
    this.parts.push(`<text x="${x}" y="${y}" style="font: ${this.font}" dominant-baseline="${baseline}" ${style}>${escaped(String(text))}</text>`);
  }

  fillText(text, x, y) {
    this.#text(text, x, y, `fill="${this.fillStyle}"`);
  }

  strokeText(text, x, y) {
    this.#text(text, x, y, this.#stroked());
  }
}

export function mapSvg(app) {
  const { map, run, colours, copies } = app, { sx, sy, wide, high } = map;
  const look = app.look(run, map, copies), pen = new SvgPen();
  const lines = (from, to, length, colour) => {
    pen.beginPath();
    for (let row = 0; row < length; row++) {
      const x = sx[from[row]], x2 = sx[to[row]];
      if (!Number.isFinite(x) || !Number.isFinite(x2)) continue; // One is nowhere, or there is none.
      pen.moveTo(x, sy[from[row]]);
      pen.lineTo(x2, sy[to[row]]);
    }
    Object.assign(pen, { strokeStyle: colours[colour].text, lineWidth: map.ratio });
    pen.stroke();
  };
  pen.fillStyle = colours.back.text;
  pen.fillRect(0, 0, wide, high);
  if (look.links) lines(run.a, run.b, run.links, "link");
  if (copies) lines(copies.peer, copies.node, copies.until(app.t), "carries");
  const radius = map.radius(run.x.length);
  for (let node = 0; node < sx.length; node++) {
    if (!run.here[node] || !(sx[node] === sx[node]) || look.squares?.has(node)) continue;
    const colour = colours[look.states ? STATES[look.states[node]] : "node"].text;
    pen.parts.push(`<circle cx="${sx[node].toFixed(2)}" cy="${sy[node].toFixed(2)}" r="${radius}" fill="${colour}"/>`);
  }
  map.over.draw(look, pen);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${map.width}" height="${map.height}" viewBox="0 0 ${wide} ${high}">${pen.parts.join("\n")}</svg>\n`;
}

export function curveCsv({ curve }) {
  return `t,reached,delivered\n${curve.t.map((t, at) => `${t},${curve.reached[at]},${curve.delivered[at]}`).join("\n")}\n`;
}

export function curveSvg({ copies, run, colours }) {
  const { curve } = copies, { start, end } = run.info;
  const most = Math.max(1, ...curve.reached);
  const path = (values) => curve.t.map((t, at) => {
    const x = 50 + ((t - start) / Math.max(1e-9, end - start)) * 530;
    return `${at ? `H${x.toFixed(1)}` : `M${x.toFixed(1)} 260`}V${(260 - (values[at] / most) * 240).toFixed(1)}`;
  }).join("");
  const label = (x, y, text) => `<text x="${x}" y="${y}" font-family="sans-serif" font-size="12">${text}</text>`;
  const curves = [["reached", "carries"], ["delivered", "delivered"]].map(([name, colour], at) => {
    const stroke = `fill="none" stroke="${colours[colour].text}" stroke-width="2"`;
    return `<path d="${path(curve[name])}H580" ${stroke}/><path d="M450 ${36 + 16 * at}h24" ${stroke}/>${label(480, 40 + 16 * at, name)}`;
  });
  const texts = [[10, 28, most], [30, 264, 0], [50, 280, start], [540, 280, end], [280, 294, "seconds"]];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="600" height="300"><rect width="600" height="300" fill="#fff"/>
<path d="M50 20V260H580" fill="none" stroke="#000"/>${texts.map((each) => label(...each)).join("")}
${curves.join("\n")}</svg>\n`;
}

/** Records the chosen span, or all that is left, at the speed that is chosen. */
async function film(app) {
  const [from, to] = app.span ?? [app.t, app.run.info.end];
  const canvas = flattened(app.map);
  const recorder = new MediaRecorder(canvas.captureStream(FILM_FPS), { mimeType: "video/webm" });
  const pieces = [];
  recorder.ondataavailable = ({ data }) => pieces.push(data);
  const ended = new Promise((resolve) => { recorder.onstop = resolve; });
  app.seek(from);
  recorder.start(1000);
  app.play();
  await new Promise((resolve) => {
    const frame = () => {
      flattened(app.map, canvas);
      if (app.t >= to || !app.playing) resolve();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  app.pause();
  recorder.stop();
  await ended;
  return new Blob(pieces, { type: "video/webm" });
}

const text = (kind, content) => new Blob([content], { type: kind });

export const EXPORTS = {
  "map.png": (app) => new Promise((resolve) => { flattened(app.map).toBlob(resolve); }),
  "map.svg": (app) => text("image/svg+xml", mapSvg(app)),
  "curve.svg": (app) => app.copies && text("image/svg+xml", curveSvg(app)),
  "curve.csv": (app) => app.copies && text("text/csv", curveCsv(app.copies)),
  "film.webm": film,
};

export async function exported(app, name) {
  const blob = await EXPORTS[name](app);
  if (blob) keep(name, blob);
}

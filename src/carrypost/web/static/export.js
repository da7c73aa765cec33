// Pictures, tables and films of what is shown, made by the browser and kept as files.
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

export function mapSvg(app) {
  const { map, run, colours, copies } = app;
  const states = copies?.at(app.t);
  const byState = ["none", "carries", "delivered", "acknowledged", "ended"].map((name) => colours[name].text);
  const parts = [`<rect width="100%" height="100%" fill="${colours.back.text}"/>`];
  const at = (node) => map.spot(node).map((value) => value.toFixed(2));
  const line = (a, b, colour, width) => {
    const [x, y] = at(a), [x2, y2] = at(b);
    if (![x, y, x2, y2].includes("NaN")) parts.push(`<path d="M${x} ${y}L${x2} ${y2}" stroke="${colour}" stroke-width="${width}" fill="none"/>`);
  };
  if (app.showLinks) for (let link = 0; link < run.links; link++) line(run.a[link], run.b[link], colours.link.text, 1);
  for (let row = 0; copies && row < copies.until(app.t); row++) {
    if (copies.peer[row] >= 0 && copies.node[row] >= 0) line(copies.peer[row], copies.node[row], colours.carries.text, 1);
  }
  const radius = map.radius(run.x.length) / map.ratio;
  for (let node = 0; node < run.x.length; node++) {
    if (!run.here[node] || Number.isNaN(run.x[node])) continue;
    const [x, y] = at(node);
    parts.push(`<circle cx="${x}" cy="${y}" r="${radius}" fill="${states ? byState[states[node]] : colours.node.text}"/>`);
    if (run.x.length <= 60 && app.names) {
      parts.push(`<text x="${Number(x) + radius + 4}" y="${Number(y) - radius}" font-family="sans-serif" font-size="12" fill="${colours.text.text}">${escaped(run.called(run.name(node)))}</text>`);
    }
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${map.width}" height="${map.height}">${parts.join("\n")}</svg>\n`;
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

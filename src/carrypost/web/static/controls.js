// What people touch: the head of the page, the controls of time, keys, and the mouse on a map.
import { clipped, clock, count, element, html, plain, render } from "/static/api.js";
import { EXPORTS, exported } from "/static/export.js";

const SHAPES = { play: "M3 1 13 7 3 13z", pause: "M2 1h4v12H2zM8 1h4v12H8z", step: "M1 1 9 7 1 13zM10 1h3v12h-3z",
  back: "M13 1 5 7l8 6zM1 1h3v12H1z" };
const shape = (name) => html`<svg viewBox="0 0 14 14" aria-hidden="true"><path d=${SHAPES[name]}/></svg>`;
export const SPEEDS = [0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 3600];
const KEYS = [["space", "play, pause"], ["← →", "step to the event before, after"], ["+ −", "zoom"], ["f", "show all nodes"],
  ["esc", "choose nothing"], ["?", "this list"]];

export function head(app) {
  const { info } = app.run;
  const where = { file: "places from the file", mobility: "places by scenario and seed" }[info.positions]
    ?? `layout: ${info.why}`;
  render(html`<a href="/" class="brand" title="all runs">carrypost</a>
    <h1>${plain(clipped(info.run || "run without a name", 60))}</h1>
    <span class="faint">${info.mode ?? ""} ${info.seed !== null ? `seed ${plain(clipped(info.seed, 20))}` : ""}</span>
    <span class="faint">${count(info.nodes.length)} nodes, ${count(info.rows)} rows</span>
    <span class="faint" id="where">${plain(clipped(where, 160))}</span>
    ${info.notes.map((note) => html`<span class="bad note">${plain(clipped(note, 160))}</span>`)}
    ${app.failed && html`<span class="bad note" role="alert">${plain(app.failed)}</span>`}
    <span class="right"><button title="keys" aria-label="help" onClick=${() => help()}>?</button></span>`, element("head"));
}

export function controls(app) {
  const button = (id, text, title, act) => html`<button id=${id} title=${title} aria-label=${title} onClick=${act}>${text}</button>`;
  const check = (text, on, act) => html`<label class="chip"><input type="checkbox" checked=${on}
    onChange=${(event) => { act(event.target.checked); app.changed(); }}/>${text}</label>`;
  render(html`
    ${button("step-back", shape("back"), "event before", () => app.panels.log.step(false))}
    ${button("play", shape(app.playing ? "pause" : "play"), app.playing ? "pause" : "play", () => app.toggle())}
    ${button("step", shape("step"), "next event", () => app.panels.log.step(true))}
    <select id="speed" aria-label="speed" onChange=${(event) => { app.speed = Number(event.target.value); app.changed(); }}>
      ${SPEEDS.map((speed) => html`<option value=${speed} selected=${speed === app.speed}>${count(speed)} ×</option>`)}</select>
    <output id="now">${clock(app.t)}</output>
    ${button("fit", "fit", "show all nodes", () => { app.map.fit(); app.changed(); })}
    ${check("names", app.names, (on) => { app.names = on; })} ${check("trails", app.trails, (on) => { app.trails = on; })}
    ${check("links", app.showLinks, (on) => { app.showLinks = on; })}
    ${app.run.linkKinds.length > 1 && html`<select aria-label="kind of links" onChange=${(event) => {
      app.run.links_of = event.target.value;
      app.changed();
    }}>${app.run.linkKinds.map((kind) => html`<option value=${kind} selected=${kind === app.run.links_of}>
      ${{ contact: "true contacts", seen: "as nodes saw it" }[kind]}</option>`)}</select>`}
    ${app.layers.controls()}
    ${app.run.info.follows && check("follow", Boolean(app.following), (on) => {
      app.following = on;
      if (on) app.t = app.run.info.end;
    })}
    <select id="export" aria-label="save" title="a film is of the span chosen with the shift key, or from now on" onChange=${(event) => {
      if (event.target.value) exported(app, event.target.value).catch((error) => app.fail(error));
      event.target.value = "";
    }}><option value="">save…</option>${Object.keys(EXPORTS).map((name) => html`<option value=${name}>${name}</option>`)}</select>`, element("controls"));
}

export function help() {
  render(html`<h2>Keys</h2><dl>${KEYS.map(([key, text]) => html`<dt>${key}</dt><dd>${text}</dd>`)}</dl>
    <p>Drag the axis to another time; with the shift key, to choose a span. Click a node or a message anywhere to choose it.</p>
    <form method="dialog"><button>close</button></form>`, element("help"));
  element("help").showModal();
}

export function key(app, event) {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { " ": () => app.toggle(), ArrowRight: () => app.panels.log.step(true), ArrowLeft: () => app.panels.log.step(false),
    "+": () => app.map.zoom(1.25), "-": () => app.map.zoom(0.8), f: () => app.map.fit(), "?": () => help(),
    Escape: () => app.choose({ message: null, node: -1 }) }[event.key];
  if (!act || (event.key === " " && event.target.matches("button, summary"))) return;
  event.preventDefault();
  act();
  if (!app.playing) app.draw();
}

/** Lets a mouse zoom, pan and choose on a map. */
export function touch(app, map) {
  let from = null;
  map.above.addEventListener("wheel", (event) => {
    event.preventDefault();
    map.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    if (!app.playing) app.draw();
  }, { passive: false });
  map.above.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY, false]; });
  map.above.addEventListener("pointermove", (event) => {
    if (!from || event.buttons !== 1) return;
    const [x, y, moved] = from;
    if (!moved && Math.hypot(event.clientX - x, event.clientY - y) < 4) return;
    map.pan(event.clientX - x, event.clientY - y);
    from = [event.clientX, event.clientY, true];
    if (!app.playing) app.draw();
  });
  map.above.addEventListener("pointerup", (event) => {
    if (from && !from[2]) {
      const node = map.nearest(event.offsetX, event.offsetY);
      app.choose({ node: node < 0 ? -1 : app.run.numbers.get(map.run.name(node)) ?? -1 });
    }
    from = null;
  });
}

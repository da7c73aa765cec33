// Charts of a population whose rows were not kept: what the record's counts say of delays and hops.
import uPlot from "/static/vendor/uPlot.esm.js";
import { columns, count, element, html, plain, render } from "/static/api.js";

const PLOTS = [["delay", "delay, s"], ["hops", "hops"]];

/** Shows the counts of a run that has them, in place of messages. */
export async function showTally(app) {
  if (!app.run.info.kinds.includes("tally")) return;
  const rows = await columns(`${app.run.path}/rows`, { kinds: "tally", limit: 5000 });
  const counts = [], bars = { delay: [[], []], hops: [[], []] };
  for (let row = 0; row < rows.length; row++) {
    const [detail, size, attrs] = [rows.detail[row], Number(rows.size[row]), new Map(rows.attrs[row] ?? [])];
    if (!bars[detail]) {
      counts.push([detail, size]);
      continue;
    }
    bars[detail][0].push(detail === "hops" ? rows.hops[row] : Number(attrs.get("from_s")));
    bars[detail][1].push(size);
  }
  const box = element("tally");
  box.hidden = false;
  render(html`<h2>Counts of the run</h2>${app.run.info.kinds.includes("receive") ? null
    : html`<p class="faint">Rows about messages were not kept.</p>`}
    <dl>${counts.map(([name, size]) => html`<dt>${plain(name.replace(/_us$/, ""))}</dt><dd class="number">
      ${name.endsWith("_us") ? `${count(Math.round(size / 1e6))} s` : count(size)}</dd>`)}</dl>
    ${PLOTS.map(([name, label]) => html`<h3>Receptions by ${label}</h3><div class="curve" id=${`tally-${name}`}></div>`)}`, box);
  const axis = { stroke: app.colours.text.text, grid: { stroke: app.colours.edge.text, width: 1 }, ticks: { show: false } };
  for (const [name] of PLOTS) {
    if (!bars[name][0].length) continue;
    const place = element(`tally-${name}`);
    new uPlot({ // eslint-disable-line no-new
      width: place.clientWidth || 320, height: 140, legend: { show: false }, scales: { x: { time: false } },
      cursor: { drag: { x: false, y: false } }, axes: [{ ...axis, size: 30 }, { ...axis, size: 60 }],
      series: [{}, { stroke: app.colours.node.text, fill: app.colours.node.text, paths: uPlot.paths.bars({ size: [0.9] }), points: { show: false } }],
    }, bars[name], place);
  }
}

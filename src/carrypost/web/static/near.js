// Who is near: this node in the middle, linked neighbours around it, relayed hosts behind their next hop.
import { clipped, count, html, plain } from "/static/api.js";
import { lasting } from "/static/live.js";

const [WIDTH, HEIGHT] = [440, 300];
const DRAWN = 60;

export function near(live) {
  const { peers, status } = live.found;
  const brokers = new Set(status.overlay?.brokers ?? []);
  const homes = new Set(Object.values(status.overlay?.homes ?? {}));
  const direct = peers.filter((each) => each.state !== "relayed").slice(0, DRAWN);
  const relayed = peers.filter((each) => each.state === "relayed").slice(0, DRAWN);
  const places = new Map([[status.node, [WIDTH / 2, HEIGHT / 2]]]);
  direct.forEach((each, at) => {
    const angle = (2 * Math.PI * at) / Math.max(1, direct.length) + Math.PI;
    places.set(each.node, [WIDTH / 2 + 110 * Math.cos(angle), HEIGHT / 2 + 80 * Math.sin(angle)]);
  });
  const behind = new Map();
  relayed.forEach((each) => {
    const [x, y] = places.get(each.next) ?? places.get(status.node);
    const number = behind.get(each.next) ?? 0;
    behind.set(each.next, number + 1);
    const angle = Math.atan2(y - HEIGHT / 2, x - WIDTH / 2) + ((number % 2 ? 1 : -1) * Math.ceil(number / 2)) / 3;
    places.set(each.node, [x + 60 * Math.cos(angle), y + 42 * Math.sin(angle)]);
  });
  const line = (each) => {
    const [x1, y1] = places.get(each.state === "relayed" ? each.next : status.node) ?? places.get(status.node);
    const [x2, y2] = places.get(each.node);
    return html`<line class=${each.state} x1=${x1} y1=${y1} x2=${x2} y2=${y2}/>`;
  };
  const dot = (node, state, broker) => {
    const [x, y] = places.get(node);
    const kind = `${state} ${homes.has(node) ? "home" : ""}`;
    return html`<g>${broker ? html`<rect class=${kind} x=${x - 8} y=${y - 8} width="16" height="16"/>` : html`<circle class=${kind} cx=${x} cy=${y} r="8"/>`}
      <text x=${x} y=${y + 21}>${plain(clipped(live.called(node), 14))}</text></g>`;
  };
  const row = (each) => html`<tr><td>${plain(clipped(each.name || "–", 20))}</td><td>${plain(clipped(each.node, 30))}</td>
    <td class=${each.state === "linked" || each.state === "relayed" ? "" : "warn"}>${each.state}${brokers.has(each.node) ? ", broker" : ""}${homes.has(each.node) ? ", home" : ""}</td>
    <td>${each.state === "relayed" ? html`${each.hops} hop${each.hops === 1 ? "" : "s"} by ${plain(live.called(each.next))}` : lasting(each.since_s)}</td>
    <td class="number">${each.state === "relayed" ? "" : lasting(each.heard_s)}</td>
    <td class="number">${each.queued || each.wanted ? `${count(each.queued)}/${count(each.wanted)}` : ""}</td></tr>`;
  return html`<h2>Near</h2>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label="nodes in reach">
      ${[...direct, ...relayed].map(line)}${[...direct, ...relayed].map((each) => dot(each.node, each.state, brokers.has(each.node)))}
      ${dot(status.node, "self", status.overlay?.broker)}</svg>
    ${peers.length === 0 ? html`<p class="faint">No other node is in reach; <code>carrypost doctor</code> finds out why.</p>` : html`<div class="table"><table id="peers">
      <thead><tr><th>name</th><th>node</th><th>state</th><th>since</th><th>silent</th><th>to/from</th></tr></thead><tbody>${peers.map(row)}</tbody></table></div>`}
    <p class="faint">Squares are brokers; a ring marks a home broker; dashed: only this node hears the other.</p>`;
}

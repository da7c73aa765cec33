// Messaging of a node: queues, dead letters, held topics, subscriptions, channels, and sends that are followed.
import { clipped, count, html, plain } from "/static/api.js";
import { bytes, date, lasting } from "/static/live.js";

const long = (text, length = 44) => html`<span title=${plain(text)}>${plain(clipped(text, length))}</span>`;

function table(id, title, head, rows, total, row) {
  const more = total > rows.length ? html`<p class="faint">the first ${count(rows.length)} of ${count(total)}</p>` : "";
  return rows.length > 0 && html`<h3>${title}</h3><div class="table"><table id=${id}><thead>
    <tr>${head.map((each) => html`<th class=${each.startsWith("#") ? "number" : ""}>${each.replace("#", "")}</th>`)}</tr></thead>
    <tbody>${rows.map(row)}</tbody></table></div>${more}`;
}

export function messaging(live) {
  const { messaging: all, lacks } = live.found;
  const title = html`<h2>Messaging</h2>`;
  if (lacks) return html`${title}<p class="warn">${plain(lacks)}</p>`;
  const { messaging: found, channels } = all;
  if (!found) return html`${title}<p>Messaging is off on this node: set messaging.enabled = true.</p>`;
  const { counts } = found;
  const letters = new Map(found.queues.filter((each) => each.letters_of).map((each) => [each.name, each]));
  const some = (number) => html`<td class="number">${count(number)}</td>`;
  const message = (name, label) => html`<button class="link" onClick=${() => live.choose(name)}>${plain(clipped(label || name, 36))}</button>`;
  const look = (queue) => html`<button class="small" onClick=${() => live.acting.browse(queue)}>browse</button>`;

  const queue = (each) => {
    const assigned = each.assigned.reduce((sum, one) => sum + one.messages, 0);
    const silent = each.demands.filter((one) => one.silent).map((one) => live.called(one.node));
    const alone = each.waiting > 0 && each.demands.length === 0;
    const whom = [...new Set(each.demands.map((one) => live.called(one.node)))];
    const taken = each.demands.map((one) => `${live.called(one.node)}: ${one.taken} of ${one.credit}${one.selector ? `, ${one.selector}` : ""}`).join("\n");
    const leased = each.assigned.map((one) => `${live.called(one.node)}: ${one.messages}${one.lease_us ? `, lease until ${date(one.lease_us)}` : ""}`).join("\n");
    const { name } = each;
    const [short, node] = [name.slice(6).split("@")[0], name.split("@")[1]];
    const dead = letters.get(`queue/DLQ.${short}@${node}`);
    return html`<tr class=${alone || silent.length ? "warn" : ""}>
      <td>${long(name)} ${look(name)}${each.temporary ? " temporary" : ""}</td>${some(each.waiting)}${some(each.delayed)}${some(each.handed)}
      <td class="number" title=${plain(leased)}>${count(assigned)}</td><td class="number">${bytes(each.bytes)} of ${bytes(each.bytes_max)}</td>
      <td title=${plain(taken)}>${alone ? "no consumer" : plain(clipped(whom.join(", ") || "–", 40))}${silent.length ? `, silent: ${plain(clipped(silent.join(", "), 30))}` : ""}</td>
      <td>${each.oldest_us === null ? "–" : lasting((found.now_us - each.oldest_us) / 1e6)}</td>
      <td>${dead ? html`${count(dead.waiting + dead.handed)} ${look(dead.name)}` : "–"}</td></tr>`;
  };
  const dead = (each) => html`<tr class=${each.waiting ? "warn" : ""}><td>${long(each.letters_of)}</td>${some(each.waiting)}${some(each.handed)}<td>${look(each.name)}</td>
    </tr>`;
  const subscriber = ([node, , selector]) => live.called(node) + (selector ? ` (${selector})` : "");
  const held = (each) => html`<tr><td>${long(each.name)}</td>${some(each.subscribers)}<td>${plain(clipped(each.nodes.map(subscriber).join(", "), 120))}</td></tr>`;
  const subscription = (each) => html`<tr class=${each.waiting && !each.consumers ? "warn" : ""}>
    <td>${long(each.name)}${each.durable ? ", durable" : ""}${each.shared ? ", shared" : ""}</td>
    <td>${long(each.selector || "–", 30)}</td>${some(each.waiting)}${some(each.handed)}${some(each.consumers)}<td>${date(each.lease_us)}</td></tr>`;
  const channel = (each) => html`<tr class=${each.home === null || each.faults || each.lost ? "warn" : ""}><td>${long(each.channel, 30)}</td>
    <td>${each.role}${each.role === "broker" ? html` for ${plain(live.called(each.client))}` : ""}</td>
    <td>${each.home === null ? "no home broker" : html`${plain(live.called(each.home))}${each.hops ? `, ${each.hops} hop${each.hops === 1 ? "" : "s"}` : ""}`}
      ${" "}${plain(clipped(each.refusal, 60))}</td><td>${date(each.since_us)}</td>
    <td>${plain(each.modulator || "–")}</td>${some(each.events)}${some(each.results)}${some(each.lost)}
    <td class="number" title=${plain(each.fault)}>${count(each.faults)} ${plain(clipped(each.fault, 60))}</td>
    <td class="number">${(each.busy_us / 1e6).toFixed(3)} s</td>${some(each.discarded)}</tr>`;
  const send = (each) => html`<tr><td>${message(each.message, each.label)}</td><td>${long(each.destination)}</td>
    <td class=${each.state === "FAILED" || each.state === "EXPIRED" ? "warn" : ""}>${each.state}${each.reason ? html`: ${plain(clipped(each.reason, 60))}` : ""}</td>
    <td>${each.left ? html`${count(each.left)} left: ${plain(clipped(each.left_nodes.map((one) => live.called(one)).join(", "), 60))}` : "–"}</td>
      <td>${date(each.sent_us)}</td><td>${date(each.expires_us)}</td></tr>`;

  const { overlay } = live.found.status;
  const paths = Object.values(overlay?.paths ?? {}).map((path) => path.map((each) => live.called(each)).join(" → ")).join("; ");
  const usual = found.queues.filter((each) => !each.letters_of);
  const topics = [...letters.values()].filter((each) => each.letters_of.startsWith("topic/") || !usual.some((one) => one.name === each.name.replace("/DLQ.", "/")));
  const tables = [
    table("queues", "Queues", ["queue", "#waiting", "#delayed", "#handed", "#assigned", "#bytes", "consumers", "oldest", "dead letters"], usual, counts.queues - letters.size, queue),
    table("letters", "Dead letters of subscriptions and of ended queues", ["of", "#waiting", "#handed", ""], topics, topics.length, dead),
    table("held-topics", "Held topics", ["topic", "#subscribers", ""], found.held, counts.held, held),
    table("subscriptions", "Subscriptions", ["subscription", "selector", "#waiting", "#handed", "#consumers", "ends"], found.subscriptions, counts.subscriptions, subscription),
    table("channels", "Channels", ["channel", "role", "home", "since", "modulator", "#events", "#results", "#lost", "#faults", "#worked", "#discarded"], channels ?? [], channels?.length, channel),
    table("sends", "Sends, newest first", ["message", "destination", "state", "recipients", "sent", "expires"], found.sends, counts.sends, send),
  ];
  return html`${title}${tables}
    ${channels === null && html`<p class="faint">The overlay is off on this node, so it has no channels (overlay.enabled).</p>`}
    ${overlay?.broker && html`<p>This node is a broker: load ${Math.round(overlay.load * 100)} %, ${count(overlay.clients)} clients of ${count(overlay.channels)} channels,${" "}
      ${count(overlay.seats.length)} seats, paths to ${plain(clipped(paths || "no other broker", 200))}.</p>`}
    ${tables.every((each) => !each) && html`<p class="faint">No queues, subscriptions or followed sends yet.</p>`}`;
}

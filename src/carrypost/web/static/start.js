// The start page: running nodes, runs and campaigns, and an example.
import { clipped, count, element, html, json, plain, render } from "/static/api.js";

const PERIOD_MS = 2000;
const shown = { runs: [], campaigns: [], nodes: [], lacks: "", failed: "" };

async function ask(kind) {
  try {
    const found = await json(`/${kind}`);
    shown[kind] = found.lacks ? [] : Object.values(found);
    shown.lacks = found.lacks ?? shown.lacks;
  } catch (error) {
    shown.failed = error.message;
  }
}

function draw() {
  const { runs, campaigns, nodes, lacks, failed } = shown;
  const run = ({ id, run: name, rows, source, example }) => html`<tr><td>
    <a href=${`/replay/${id}${example ? "?play" : ""}`}>${plain(clipped(name || "run without a name", 60))}</a></td>
    <td class="number">${rows === null ? "" : `${count(rows)} rows`}</td><td class="faint">${plain(clipped(source, 120))}</td></tr>`;
  const node = (each) => html`<tr><td><a href=${`/live/${each.id}`}>${plain(clipped(each.node || each.folder, 40))}</a></td>
    <td class=${each.state === "up" ? "good" : "bad"}>${each.state === "up" ? "running" : "not running"}</td>
    <td class="number">${each.neighbours === null ? "" : `${count(each.neighbours)} neighbours`}</td>
      <td class="number">${each.messages === null || each.messages === undefined ? "" : `${count(each.messages)} messages`}</td>
    <td class=${each.findings ? "bad" : "faint"}>${each.findings ? `${count(each.findings)} to look at` : ""}</td><td class="faint">${plain(clipped(each.folder, 80))}</td>
      </tr>`;
  const campaign = (each) => html`<tr><td><a href=${`/campaign/${each.id}`}>${plain(clipped(each.folder, 60))}</a></td><td class="number">${count(each.runs)} runs</td>
    <td>${each.report && html`<a href=${`/report/${each.id}`}>report</a>`}</td></tr>`;
  render(html`<h1>carrypost</h1>
    ${failed && html`<p class="bad" role="alert">${plain(failed)}</p>`}
    ${nodes.length > 0 && html`<h2>Running nodes</h2><p>See who is near, what became of a message, and what waits; send and receive.</p><table id="nodes">
      <tbody>${nodes.map(node)}</tbody></table>`}
    ${campaigns.length > 0 && html`<h2>Campaigns</h2><table id="campaigns"><tbody>${campaigns.map(campaign)}</tbody></table>`}
    ${runs.length > 0 && html`<h2>Runs</h2><p>Choose a run to see where its nodes were, how its messages spread, and why one did not arrive.</p>
    <table id="runs"><tbody>${runs.map(run)}</tbody></table>`}
    ${lacks && html`<p class="faint">${plain(lacks)}</p>`}
    <p class="faint">Show others: <code>carrypost web RECORD</code>, or a node: <code>carrypost web --node FOLDER</code>. Make some: <code>carrypost node</code>,${" "}
      <code>carrypost demo</code>, or <code>carrypost emu run SCENARIO.toml --out records.parquet</code>.</p>`, element("start"));
}

async function follow() {
  if (!document.hidden) {
    await ask("nodes");
    draw();
  }
  setTimeout(follow, PERIOD_MS);
}

async function main() {
  await Promise.all(["runs", "campaigns", "nodes"].map(ask));
  draw();
  document.documentElement.dataset.ready = "";
  if (shown.nodes.length) setTimeout(follow, PERIOD_MS);
}

main();

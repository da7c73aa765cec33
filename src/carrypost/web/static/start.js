// The start page: the runs that there are, and an example.
import { clipped, count, element, html, json, plain, render } from "/static/api.js";

async function main() {
  let runs = [], failed = "";
  try {
    runs = await json("/runs");
  } catch (error) {
    failed = error.message;
  }
  const row = ({ id, run, rows, source, example }) => html`<tr><td><a href=${`/replay/${id}${example ? "?play" : ""}`}>${plain(clipped(run || "run without a name", 60))}</a></td>
    <td class="number">${rows === null ? "" : `${count(rows)} rows`}</td><td class="faint">${plain(clipped(source, 120))}</td></tr>`;
  render(html`<h1>carrypost</h1>
    <p>Choose a run to see where its nodes were, how its messages spread, and why one did not arrive.</p>
    ${failed && html`<p class="bad" role="alert">${plain(failed)}</p>`}
    <table id="runs"><tbody>${runs.map(row)}</tbody></table>
    <p class="faint">Show others: <code>carrypost web RECORD</code>. Make one: <code>carrypost demo</code>, or${" "}
      <code>carrypost emu run SCENARIO.toml --out records.parquet</code>.</p>`, element("start"));
  document.documentElement.dataset.ready = "";
}

main();

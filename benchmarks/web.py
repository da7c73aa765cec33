"""Web pages: the work of the server by question, and the frames of a page, for a crowd of 10,000 with 15 million rows.

*Server*: CPU seconds of a question, beside those of reading the columns that it needs by pyarrow, in one thread, as
plain texts. *Lines*: a million JSON lines, beside decoding them by msgspec and making Arrow columns. *Page*: Chromium
without a window or a graphics processor; scripts are compared with filling and showing an empty picture of the same
size, on the same page. All ratios are of one run, since machines differ and are busy. `benchmarks._web_live` has the
parts *live*, *growth* and *campaign*.

Run: carrypost bench web [--only PART] [--quick] [--json]
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import _report, _web_live
from carrypost import emu
from carrypost.emu.records import ARROW_SCHEMA
from carrypost.web import run_copies
from carrypost.web.run_copies import Inquiry
from carrypost.web.run_files import LinesSource, within
from carrypost.web.run_rows import Filter, columns_answer
from carrypost.web.run_rows import page as page_of
from carrypost.web.runs import Runs
from tools import chromium

Row = dict[str, object]
T = TypeVar("T")
CROWD = """
name = "crowd"
duration_s = {duration_s}
mode = "population"
[mobility]
model = "random-waypoint"
count = {nodes}
side_m = {side_m}
speed_min_m_per_s = 0.6
speed_max_m_per_s = 2.0
pause_min_s = 0
pause_max_s = 0
[radio]
range_m = 50
[population]
delays = "zero"
[[workload]]
kind = "broadcast"
first_s = 10
period_s = 100000
lifetime_s = {lifetime_s}
size = 1000
"""
PARTS = ("server", "lines", "page", "live", "growth", "campaign")
SIDE_M = 62.6
"""Side of the square for one node: each has two links on average, so there are as many links as nodes."""
SIZE = {"width": 1280, "height": 900}
SEEKS = 40
_PLAY_S = 20.0
_WAIT_S = 120.0
_EMPTY = """async () => {
  const shown = document.querySelector("#map canvas"), canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [shown.width, shown.height];
  const pen = canvas.getContext("2d", { alpha: false }), picture = pen.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(picture.data.buffer), found = [];
  shown.parentElement.append(canvas);
  for (let time = 0; time < 300; time++) {
    await new Promise(requestAnimationFrame);
    const begun = performance.now();
    pixels.fill(0xffffffff);
    pen.putImageData(picture, 0, 0);
    found.push(performance.now() - begun);
  }
  canvas.remove();
  return found;
}"""
# One picture a frame: one right after the other they would be in the processor's cache, and not be shown.


def crowd(folder: Path, *, quick: bool) -> Path:
    """Emulate a crowd; return its record."""
    nodes, duration_s, lifetime_s = (500, 120, 60) if quick else (10_000, 600, 290)
    text = CROWD.format(nodes=nodes, duration_s=duration_s, lifetime_s=lifetime_s, side_m=round(SIDE_M * nodes**0.5))
    emu.run(emu.Scenario.parse(text, folder), out=folder / "crowd.parquet")
    return folder / "crowd.parquet"


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the CPU seconds of something, and what it returns."""
    begun_s = time.process_time()
    found = work()
    return time.process_time() - begun_s, found


def server_rows(record: Path) -> Iterator[Row]:
    """Yield the cost of each question, beside that of reading what it needs."""

    def reading_s(*columns: str) -> float:
        return timed(lambda: pq.read_table(record, columns=list(columns), use_threads=False))[0]

    run = next(iter(Runs([record])))
    opening_s, opened = timed(run.opened)
    messages, nodes = opened.messages.names.shown, len(opened.scan.names)
    middle = messages[len(messages) // 2]
    yield _row("open", opening_s, reading_s("t", "kind", "node", "peer", "attrs"), 3, opened.scan.rows)
    message_s, found = timed(lambda: run_copies.copies_table(opened.scan, opened.messages, middle))
    yield _row("copies", message_s, reading_s("message"), 2, len(found))
    node_s, about = timed(lambda: opened.node(nodes // 3).about(opened.scan.end / 2))
    yield _row("node", node_s, reading_s("node"), 4, about["delivered"]["total"])
    inquiry = Inquiry(opened.scan, opened.messages, opened.meetings, {})
    yield _row("why", timed(lambda: inquiry.answer(middle, nodes - 1))[0], opening_s, 1, None)
    start = opened.scan.end / 3
    groups = list(within(opened.scan.source, start, start + 10))
    file = pq.ParquetFile(record)
    group_s = timed(lambda: [file.read_row_group(each, use_threads=False) for each in groups])[0]
    rows_s, page = timed(lambda: page_of(opened.scan, opened.matches(Filter(start, start + 10)), -1, 200))
    size = len(bytes(columns_answer(page).body))
    yield _row("10 s of rows", rows_s, group_s, 2, len(page)) | {"bytes": size, "goal, bytes": 200_000}


def _row(question: str, took_s: float, reading_s: float, goal: int, rows: int | None) -> Row:
    return {
        "question": question, "rows": rows, "CPU s": took_s, "of reading": took_s / reading_s, "goal": goal,
        "met": took_s <= goal * reading_s, "bytes": None, "goal, bytes": None,
    }  # fmt: skip


class _Line(msgspec.Struct):
    """A row, as the baseline decodes it."""

    run: str
    t: float
    kind: str
    node: str
    peer: str | None = None
    message: str | None = None
    source: str | None = None
    hops: int | None = None
    size: int | None = None
    detail: str | None = None
    attrs: dict[str, str] | None = None


def line_rows(folder: Path, count: int) -> Iterator[Row]:
    """Yield the cost of reading JSON lines, beside decoding them and making columns."""
    file = folder / "lines.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for number in range(count):
            row = {"run": "lines", "t": number / 1_000, "kind": "receive", "node": f"n{number % 97}", "hops": 3}
            more = {"peer": f"n{number % 89}", "message": f"m{number % 5_003}", "source": f"n{number % 7}", "size": 100}
            lines.write(json.dumps(row | more) + "\n")

    def plain() -> pa.Table:
        rows = msgspec.json.Decoder(_Line).decode_lines(file.read_bytes())
        arrays = [
            pa.array([getattr(row, each.name) for row in rows], each.type)
            if each.name != "attrs"
            else pa.nulls(len(rows), each.type)
            for each in ARROW_SCHEMA
        ]
        return pa.Table.from_arrays(arrays, schema=ARROW_SCHEMA)

    plain_s = timed(plain)[0]
    took_s, _ = timed(lambda: LinesSource(file).changed())
    yield {"lines": count, "CPU s": took_s, "of decoding": took_s / plain_s, "goal": 2, "met": took_s <= 2 * plain_s}


def page_rows(record: Path) -> Iterator[Row]:
    """Yield figures of a page in a browser: frames, scripts, seeks, memory."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - needed by this part only

    command = [sys.executable, "-m", "carrypost", "web", str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:  # noqa: S603 - ours
        assert server.stdout is not None
        browser = playwright.chromium.launch(executable_path=chromium.executable(), args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type] # a literal
            page.goto(msgspec.json.decode(server.stdout.readline())["url"])
            _settled(page)
            yield from _frames(page)
            yield from _seeks(page)
            found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
            own = [psutil.Process(each["id"]).memory_full_info().uss for each in found if each["type"] == "renderer"]
            yield _figure("memory of the page, MB", max(own) / 1e6, at_most=300)
            yield _figure("memory of the server, MB", psutil.Process(server.pid).memory_info().rss / 1e6, at_most=700)
        finally:
            browser.close()
            server.terminate()


def _settled(page: Any) -> None:  # noqa: ANN401 - of playwright
    deadline = time.monotonic() + _WAIT_S
    while not page.evaluate("() => Boolean(window.carrypost?.state().ready)"):
        if time.monotonic() > deadline:
            raise TimeoutError("the page was not ready in time")
        page.wait_for_timeout(5)


def _frames(page: Any) -> Iterator[Row]:  # noqa: ANN401 - of playwright
    empty_ms = statistics.median(page.evaluate(_EMPTY))
    page.select_option("#speed", "60" if page.evaluate("() => carrypost.state().speed") > 1 else "1")
    page.click("#play")
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + _PLAY_S and page.evaluate("() => carrypost.state().playing"):
        page.wait_for_timeout(500)
    if page.evaluate("() => carrypost.state().playing"):
        page.click("#play")
    found = page.evaluate("() => carrypost.stats()")
    gaps, scripts = sorted(found["gaps_ms"]), sorted(found["script_ms"])
    yield _figure("frames per s", 1_000 * len(gaps) / sum(gaps), at_least=30)
    yield _figure("script, median, of an empty picture", statistics.median(scripts) / empty_ms, at_most=5)
    yield _figure("gaps over 150 ms, %", 100 * sum(gap > 150 for gap in gaps) / len(gaps), at_most=1)
    yield _figure("script, median, ms", statistics.median(scripts))
    yield _figure("empty picture, median, ms", empty_ms)
    _settled(page)


def _seeks(page: Any) -> Iterator[Row]:  # noqa: ANN401 - of playwright
    chance, took_ms = random.Random(1), []
    run = page.evaluate("() => location.pathname.split('/')[2]")
    end = page.evaluate("run => fetch(`/api/runs/${run}`).then((each) => each.json())", run)["end"]
    for _ in range(SEEKS):
        begun_s = time.monotonic()
        page.evaluate("t => carrypost.seek(t)", chance.random() * end)
        _settled(page)
        took_ms.append(1_000 * (time.monotonic() - begun_s))
    yield _figure("seek until ready, median, ms", statistics.median(took_ms))
    yield _figure("seek until ready, p95, ms", statistics.quantiles(took_ms, n=20)[-1], at_most=300)


def _figure(what: str, value: float, *, at_most: float | None = None, at_least: float | None = None) -> Row:
    goal = at_least if at_most is None else at_most
    met = None if goal is None else value <= goal if at_least is None else value >= goal
    return {"what": what, "value": value, "goal": goal, "met": met}


_LIVE = {"live": _web_live.live_rows, "growth": _web_live.growth_rows, "campaign": _web_live.campaign_rows}


def main(argv: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = _report.parser("web", __doc__.partition("\n")[0], "--only server")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--quick", action="store_true", help="a crowd of 500 and 20,000 lines: whether it runs")
    given = parser.parse_args(argv)
    parts = [given.only] if given.only else list(PARTS)
    if "page" in parts and chromium.executable() is None:
        print(f"the part `page` is left out: there is no Chromium: {chromium.INSTALL}", file=sys.stderr)
        parts.remove("page")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="carrypost-bench-") as name:
        record = crowd(Path(name), quick=given.quick) if {"server", "page"} & set(parts) else None
        for part in parts:
            if part == "lines":
                rows = line_rows(Path(name), 20_000 if given.quick else 1_000_000)
            elif part in _LIVE:
                rows = _LIVE[part](Path(name), quick=given.quick)
            else:
                assert record is not None
                rows = server_rows(record) if part == "server" else page_rows(record)
            _report.show(f"{part}: web pages", list(rows), json=given.json)
    return 0

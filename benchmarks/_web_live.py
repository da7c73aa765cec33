"""Web pages beside a running node, and about campaigns: what pages cost a node, and how soon they show a change.

*live*: a node and the server of pages are processes of their own; pages are programs here that ask once a second, as
scripts do. CPU time is that of the process, over a period, beside the same without pages. *growth*: a day of samples
goes through one watched node, and thousands of rounds through a page in Chromium. *campaign*: CPU time beside reading
the states, or the first row group, alone.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from carrypost import ConnectionFactory, DeliveryMode, Queue
from carrypost.attach.client import Client
from carrypost.lab.campaign.folder import CampaignFolder
from carrypost.lab.metrics import FAMILIES
from carrypost.node.settings import parse
from carrypost.web.campaigns import Campaign
from carrypost.web.nodes import Samples
from tools import chromium

Row = dict[str, object]
T = TypeVar("T")
PAGES = 5
DAY = 86_400
_SETTINGS = ("udp.interfaces=lo", "udp.port=19971")


def _row(what: str, value: float, goal: float | None, unit: str) -> Row:
    return {"what": what, "value": value, "unit": unit, "goal": goal, "met": None if goal is None else value <= goal}


@contextmanager
def _program(*command: str) -> Iterator[tuple[psutil.Process, dict[str, Any]]]:
    """Run a command of carrypost; yield its process, and its first line."""
    argv = [sys.executable, "-m", "carrypost", *command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), json.loads(process.stdout.readline())
        finally:
            process.terminate()


class _Page(threading.Thread):
    """A page: asks for a sample once a second, as `live.js` does."""

    def __init__(self, url: str, node: str, delay_s: float) -> None:
        super().__init__(daemon=True)
        self._place, self._node, self._delay_s = urlsplit(url), node, delay_s
        self._over = threading.Event()
        self.last: dict[str, Any] = {}

    def run(self) -> None:
        token = parse_qs(self._place.query)["token"][0]
        headers = {"Cookie": f"carrypost-{self._place.port}={token}"}
        connection = http.client.HTTPConnection("127.0.0.1", self._place.port or 0, timeout=30)
        serial = -1
        self._over.wait(self._delay_s)
        while not self._over.is_set():
            try:
                connection.request("GET", f"/api/nodes/{self._node}/sample?after={serial}", headers=headers)
                body = connection.getresponse().read()
            except (http.client.HTTPException, ConnectionError):  # It was idle for too long: a browser asks again, too.
                connection.close()
                continue
            found = msgspec.json.decode(body)
            serial = found["serial"]
            if "status" in found:
                self.last = found
            self._over.wait(1)
        connection.close()

    def close(self) -> None:
        self._over.set()
        self.join()


def _cpu_s(process: psutil.Process, period_s: float) -> float:
    """Return the CPU time of a process, as a share of one core."""
    before, begun_s = process.cpu_times(), time.monotonic()
    time.sleep(period_s)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - begun_s)


def live_rows(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Yield what pages cost a node and how soon they show changes."""
    period_s, changes = (2.0, 2) if quick else (30.0, 20)
    queues, sends, copies = (8, 20, 30) if quick else (256, 1_000, 10_000)
    data = str(folder / "node")
    sets = [each for setting in _SETTINGS for each in ("--set", setting)]
    with (
        _program("node", "--data", data, "--json", *sets) as (node, _),
        _program("web", "--node", data) as (server, ready),
    ):
        name = Samples(parse("", {}, {"node.data": data})).id
        time.sleep(min(3.0, period_s))
        alone, closed, idle = _cpu_s(node, period_s), 0.0, 0.0
        for what, goal in (("without queues", 1.0), (f"{queues} queues and {sends:,} sends", 2.0)):
            if goal > 1.0:
                asyncio.run(_fill(data, queues, sends))
                time.sleep(min(5.0, period_s))
                alone = _cpu_s(node, period_s)
            pages = [_Page(ready["url"], name, 0.2 * number) for number in range(PAGES)]
            for page in pages:
                page.start()
            time.sleep(2)
            shown, serving = _cpu_s(node, period_s), _cpu_s(server, period_s)
            yield _row(
                f"CPU of a node with {PAGES} pages beyond none, {what}", 100 * (shown - alone), goal, "% of a core"
            )
            yield _row(f"CPU of the server, {what}", 100 * serving, None, "% of a core")
            if goal > 1.0:
                took = asyncio.run(_changes(data, pages[0], changes))
                yield _row("change at the node until shown, median", statistics.median(took), None, "s")
                yield _row("change at the node until shown, longest", max(took), 2.5, "s")
            for page in pages:
                page.close()
            time.sleep(6)
            closed, idle = _cpu_s(node, period_s), _cpu_s(server, period_s)
        yield _row("CPU of the node with no page open, beyond before", 100 * (closed - alone), 0.3, "% of a core")
        yield _row("CPU of the server with no page open", 100 * idle, 0.3, "% of a core")
        yield from asyncio.run(_cache(data, ready["url"], name, copies))


async def _fill(data: str, queues: int, sends: int) -> None:
    async with ConnectionFactory(data=data, attach=True).create_context() as ctx:
        for number in range(queues):
            await ctx.declare_queue(f"queue-{number}")
        own = (await ctx.declare_queue("queue-0")).queue_name
        for number in range(sends):
            place = Queue(own.replace("queue-0", f"queue-{number % queues}"))
            await ctx.send(place, "x" * 100, delivery_mode=DeliveryMode.PERSISTENT)


async def _changes(data: str, page: _Page, count: int) -> list[float]:
    """Return the times from sends until a page has a sample with them."""
    found, chance = [], random.Random(1)
    async with ConnectionFactory(data=data, attach=True).create_context() as ctx:
        for _ in range(count):
            await asyncio.sleep(chance.random() * 2)
            before: int = page.last["status"]["cache"]["messages"]
            await ctx.send("topic/change", "x")  # From then on the node has it.
            begun_s = time.monotonic()
            await asyncio.to_thread(_until_more, page, before)
            found.append(time.monotonic() - begun_s)
    return found


def _until_more(page: _Page, messages: int) -> None:
    while page.last["status"]["cache"]["messages"] <= messages:
        time.sleep(0.005)


async def _cache(data: str, url: str, name: str, copies: int) -> list[Row]:
    """Return the time of the first page of the cache, beside that of the call."""
    async with ConnectionFactory(data=data, attach=True).create_context() as ctx:
        await asyncio.gather(*[ctx.send("topic/cache", "x") for _ in range(copies)])
    place = urlsplit(url)
    headers = {"Cookie": f"carrypost-{place.port}={parse_qs(place.query)['token'][0]}"}

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=60)
        connection.request("GET", f"/api/nodes/{name}/cache", headers=headers)
        connection.getresponse().read()
        connection.close()

    client = await Client.connect(parse("", {}, {"node.data": data}).control)
    alone, shown = [], []
    for _ in range(7):
        begun_s = time.monotonic()
        await client.cache_page(0)
        alone.append(time.monotonic() - begun_s)
        begun_s = time.monotonic()
        await asyncio.to_thread(ask)
        shown.append(time.monotonic() - begun_s)
    await client.close()
    ratio = statistics.median(shown) / statistics.median(alone)
    return [
        _row(f"first page of a cache of {copies:,} messages, of the call `cache`", ratio, 3, "times"),
        _row("the call `cache`, first page", 1_000 * statistics.median(alone), None, "ms"),
    ]


# --- growth -----------------------------------------------------------------------------------------------------------


class _Answers(Samples):
    """A watched node whose answers are made here, without waiting."""

    answers: dict[str, Any]

    async def _look(self) -> None:
        self.last = msgspec.msgpack.decode(self._packed)
        self.note()

    @property
    def _packed(self) -> bytes:
        return msgspec.msgpack.encode(self.answers)


def growth_rows(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Yield how much a day of samples leaves in the server, and thousands of rounds in a page."""
    hour, day = (100, 400) if quick else (3_600, DAY)
    process = psutil.Process()
    settings = parse("", {}, {"node.data": str(folder / "grown")})
    status = {
        "dropped": {}, "refused": {}, "cache": {"messages": 1, "bytes": 2},
        "udp": {"counters": {"sent_bytes": 1, "received_bytes": 1, "sent": 1, "received": 1}},
    }  # fmt: skip

    async def watch() -> tuple[float, float]:
        watched = _Answers(settings)
        watched.answers = {"status": status, "peers": [], "messaging": {"messaging": None}, "padding": ["x" * 50] * 200}
        sizes = {}
        for number in range(1, day + 1):
            await watched._look()  # noqa: SLF001 - the round itself, without its pause
            if number in {hour, day}:
                gc.collect()
                sizes[number] = process.memory_info().rss / 1e6
        assert len(watched.history) <= hour
        return sizes[hour], sizes[day]

    before, after = asyncio.run(watch())
    yield _row(f"growth of the server from sample {hour:,} to {day:,}", after - before, 2, "MB")
    if chromium.executable() is not None:
        yield from _page_growth(folder, *((30, 60) if quick else (1_000, 4_000)))


def _page_growth(folder: Path, early: int, late: int) -> Iterator[Row]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - needed by this part only

    data = str(folder / "grown-node")
    sets = [each for setting in _SETTINGS for each in ("--set", setting)]
    with (
        _program("node", "--data", data, "--json", *sets),
        _program("web", "--node", data) as (_, ready),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=chromium.executable(), args=["--no-sandbox", "--js-flags=--expose-gc"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        # Rounds follow each other at once: what a day does is done by their number.
        page.add_init_script(
            "const later = setTimeout; let rounds = 0;"
            "window.setTimeout = (work, ms) => later(() => { rounds++; work(); }, ms === 1000 ? 1 : ms);"
            "window.rounds = () => rounds;"
        )
        page.goto(ready["url"])
        sizes = []
        for count in (early, late):
            while page.evaluate("() => rounds()") < count:
                page.wait_for_timeout(200)
            page.evaluate("() => gc()")
            sizes.append(page.evaluate("() => performance.memory.usedJSHeapSize") / 1e6)
        browser.close()
    yield _row(f"growth of the page from round {early:,} to {late:,}", sizes[1] - sizes[0], 1, "MB")
    yield _row("memory of scripts in the page", sizes[1], None, "MB")


# --- campaigns --------------------------------------------------------------------------------------------------------


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    begun_s = time.process_time()
    found = work()
    return time.process_time() - begun_s, found


def campaign_rows(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Yield the cost of the list of runs, and of the first page of a family."""
    runs, rows = (20, 20_000) if quick else (1_000, 1_000_000)
    place = CampaignFolder(folder / "campaign")
    place.make()
    for number in range(runs):
        state = {"run": f"s/t/{number}", "scenario": "s", "settings": "t", "seed": str(number), "status": "done"}
        more = {"version": "0.1.0", "fingerprint": "f" * 64, "rows": 1_000, "cpu_s": 1.0, "elapsed_s": 2.0}
        (place.states / f"s-t-{number}.json").write_bytes(msgspec.json.encode(state | more))
    campaign = Campaign(place.root)
    campaign.info()
    reading_s = min(_timed(place.states_there)[0] for _ in range(5))
    info_s = min(_timed(lambda: msgspec.json.encode(campaign.info()))[0] for _ in range(5))
    yield _row(f"{runs:,} runs, of reading their states", info_s / reading_s, 2, "times")
    table = next(each for each in FAMILIES if each.name == "processing_by_node")
    columns = {
        each.name: pa.array([f"x{number % 1_000}" for number in range(rows)])
        if each.type == "string"
        else pa.array(range(rows), pa.type_for_alias(each.type))
        for each in table.columns
    }
    home = place.root / "metrics" / table.name
    home.mkdir(parents=True)
    pq.write_table(pa.table(columns), home / "part-0.parquet", row_group_size=65_536)
    group_s = min(_timed(lambda: pq.ParquetFile(home / "part-0.parquet").read_row_group(0))[0] for _ in range(5))
    page_s = min(_timed(lambda: msgspec.json.encode(campaign.rows(table.name, "", 0, 200)))[0] for _ in range(5))
    yield _row(f"first page of a family of {rows:,} rows, of reading its first row group", page_s / group_s, 2, "times")

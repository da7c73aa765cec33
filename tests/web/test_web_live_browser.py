"""Live pages in a real browser, beside real nodes: what people see, and what tabs that are closed leave behind."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Asked
from tests.support import browsers
from tests.support.browsers import Shown
from tests.support.nodes import PATIENCE_S
from tests.support.served import Scene, Served

from carrypost import ConnectionFactory, DeliveryMode, Queue
from carrypost.web import nodes
from carrypost.web.nodes import LiveRoutes
from carrypost.web.server import Access, App
from tools import chromium

pytestmark = pytest.mark.skipif(chromium.executable() is None, reason=f"there is no Chromium: {chromium.INSTALL}")
T = TypeVar("T")
EVIL = '<img src=x onerror="alert(1)">\u202e'
SIZE = ViewportSize(width=1200, height=860)


class World:
    """Nodes and their pages, on a loop in a thread of its own; a browser's calls block."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.scene = Scene(folder, **settings)
        self.complaints: list[str] = []
        self.answers: list[tuple[str, str, int]] = []
        """Method and path of each request that came, and the status that it was answered with."""

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def __enter__(self) -> Self:
        self._thread.start()
        self.nodes: list[Served] = []
        return self

    def start(self, name: str, **settings: object) -> Served:
        self.nodes.append(self.do(self.scene.start(name, **settings)))
        return self.nodes[-1]

    def serve(self) -> None:
        """Serve the pages of the nodes that were started by now."""
        listening = socket.create_server(("127.0.0.1", 0))
        self.live = LiveRoutes({str(each.settings.data): each.settings for each in self.nodes})
        self.access = Access(App(self.live).asgi, listening.getsockname()[1])
        config = uvicorn.Config(self._answer, interface="asgi3", http="h11", ws="none", lifespan="off", log_config=None)
        self._server = uvicorn.Server(config)
        self._serving = asyncio.run_coroutine_threadsafe(self._server.serve([listening]), self._loop)

    async def _answer(self, scope: Asked, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answers.append((scope["method"], scope["path"], message["status"]))
            await send(message)

        await self.access(scope, receive, noted)

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._serving.result(30)
        self.do(self.live.close())
        self.do(self.scene.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.access.port}"

    def open(self, browser: Browser, node: int = 0, rest: str = "") -> Shown:
        """Open the page of a node; it must not complain."""
        context = browser.contexts[0] if browser.contexts else browser.new_context(viewport=SIZE)
        page = context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        name = list(self.live.all)[node]
        page.goto(f"{self.origin}/live/{name}?token={self.access.token}{rest}")
        return Shown(page).wait("window.carrypost?.state().ready")

    def _said(self, message: ConsoleMessage) -> None:
        # The browser notes each answer of 4xx by itself.
        if "Failed to load resource" not in message.text:
            self.complaints.append(f"{message.type}: {message.text}")


def eventually(page: Page, found: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Return what is found once it is true."""
    deadline = time.monotonic() + patience_s
    while not (value := found()):
        assert time.monotonic() < deadline, page.inner_text("body")[:3_000]
        page.wait_for_timeout(50)
    return value


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.chromium() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as found:
        yield found
        assert found.complaints == []


def test_a_new_user_finds_out_why_a_message_did_not_arrive(world: World, browser: Browser) -> None:
    anna, bert = world.start("anna"), world.start("bert")
    world.do(anna.linked("bert"))
    world.serve()
    shown = world.open(browser)
    page = shown.page
    page.fill("#send input[name=to]", "village.roads")
    page.fill("#send textarea[name=body]", "The bridge is closed.")
    page.fill("#send input[name=label]", "bridge")
    page.fill("#send textarea[name=properties]", "level:short=3\nwho=anna")
    page.click("#send-button")
    said = eventually(page, lambda: page.inner_text("#said") if page.query_selector("#said") else "")
    assert said.startswith("stored, 1 neighbour, expires at ")
    verdict = eventually(page, lambda: page.inner_text("#verdict") if page.query_selector("#verdict") else "")
    assert (
        verdict
        == "Stored; your only neighbour, bert, neither subscribes to topic/village.roads nor carries for others."
    )
    # What follows its remedy helps: the neighbour subscribes, and the page says so by itself.
    inbox = world.do(consumer(bert, "topic/village.roads"))
    eventually(page, lambda: page.get_attribute("#verdict", "data-verdict") == "carried")
    message = world.do(inbox.receive(timeout=10))
    assert message is not None
    assert (message.text, message.get_short_property("level")) == ("The bridge is closed.", 3)
    assert "passed to bert" in page.inner_text("#history")
    other = world.open(browser, 1, f"&message={message.jms_message_id}")
    assert eventually(other.page, lambda: other.page.query_selector("#verdict"))
    assert "received from anna, hop 1" in other.text("#history")
    assert "anna" in other.text("#near")
    for each in (page, other.page):
        each.close()


async def consumer(node: Served, of: str) -> Any:  # noqa: ANN401 - a consumer
    return await node.ctx.create_consumer(of)


def test_queues_are_looked_into_held_and_retried_and_a_closed_tab_leaves_nothing(
    world: World, browser: Browser
) -> None:
    anna = world.start("anna")

    async def fill() -> None:
        box = await anna.ctx.declare_queue("box")
        for number in range(4):
            await anna.ctx.send(box, f'{{"n": {number}}}', label=f"{EVIL}{number}", properties={"n": number})
        await anna.ctx.send("topic/x", "x", label=EVIL, recipients=["zoe"], delivery_mode=DeliveryMode.PERSISTENT)

    world.do(fill())
    world.serve()
    shown = world.open(browser)
    page = shown.page
    row = shown.text("#queues tbody tr")
    assert "queue/box@anna" in row
    assert "no consumer" in row
    assert "1 left: zoe" in shown.text("#sends")
    assert shown.js("() => document.querySelectorAll('img').length") == 0
    page.click("#queues button")
    eventually(page, lambda: len(page.query_selector_all("#browsed .letter")) == 4)
    page.fill("#browse-select", "n >")
    page.click("#browse")
    assert "character" in eventually(
        page, lambda: page.inner_text("#look [role=alert]") if page.query_selector("#look [role=alert]") else ""
    )
    page.fill("#browse-select", "n > 2")
    page.click("#browse")
    eventually(page, lambda: len(page.query_selector_all("#browsed .letter")) == 1)
    page.select_option("#consume select", "queue/")
    page.fill("#consume input[name=from]", "box@anna")
    page.click("#consume button[value=hold]")
    eventually(page, lambda: len(page.query_selector_all("#holding .letter")) == 4)
    assert world.do(anna.client.messaging())["messaging"]["queues"][0]["handed"] == 4
    page.click("#holding .letter:first-child button:has-text('acknowledge')")
    eventually(page, lambda: len(page.query_selector_all("#holding .letter")) == 3)
    page.goto("about:blank")

    def returned() -> bool:
        (queue,) = world.do(anna.client.messaging())["messaging"]["queues"]
        return (queue["waiting"], queue["handed"], queue["demands"]) == (3, 0, [])

    eventually(page, returned, 15)
    inbox = world.do(consumer(anna, "queue/box@anna"))
    message = world.do(inbox.receive(timeout=10))
    assert message is not None
    assert message.jms_redelivered
    page.close()


def test_a_letter_of_a_topic_goes_to_every_subscriber_again_only_after_a_warning(
    world: World, browser: Browser
) -> None:
    anna = world.start("anna", messaging={"tries": 1})

    async def dead_letter() -> None:
        def fail(_: object) -> None:
            raise ValueError("no such village")

        async with ConnectionFactory(f"unix:{anna.settings.control}").create_context() as failing:
            consumer = await failing.create_consumer("topic/news")
            consumer.set_message_listener(fail)
            await anna.ctx.send("topic/news", "bad", label="bad")
            await anna.becomes("bad", "dead-letter")

    world.do(dead_letter())
    inbox = world.do(consumer(anna, "topic/news"))
    world.serve()
    shown = world.open(browser)
    page = shown.page
    page.click("#letters button")
    eventually(page, lambda: page.query_selector("#retry-all"))
    page.click("#retry-all")
    eventually(page, lambda: page.query_selector("#retry-anyway"))
    assert "every subscriber gets them again" in shown.text("#look")
    assert world.do(inbox.receive(timeout=0.3)) is None
    page.click("#retry-anyway")
    message = world.do(inbox.receive(timeout=10))
    assert message is not None
    assert message.text == "bad"
    eventually(page, lambda: "0 messages" in shown.text("#look"))
    page.close()


def test_a_node_that_ends_is_greyed_within_three_seconds_and_resumes(world: World, browser: Browser) -> None:
    anna = world.start("anna")
    world.serve()
    shown = world.open(browser)
    page = shown.page
    assert "running" in shown.text("#head")
    serial = shown.state["serial"]
    eventually(page, lambda: shown.state["serial"] > serial + 1, 5)
    world.do(world.scene.stop(anna))
    world.nodes.clear()
    begun = time.monotonic()
    eventually(page, lambda: shown.js("() => document.querySelector('main').classList.contains('old')"), 5)
    assert time.monotonic() - begun < 4, "it takes three seconds at most; this machine may be busy"
    assert "not running" in shown.text("#head")
    assert page.is_disabled("#send-button")
    world.start("anna")
    eventually(page, lambda: not shown.js("() => document.querySelector('main').classList.contains('old')"), 10)
    page.close()


@pytest.mark.parametrize("count", [8, pytest.param(40, marks=pytest.mark.soak)])
def test_many_tabs_work_and_leave_nothing(world: World, browser: Browser, count: int) -> None:
    anna = world.start("anna")
    world.serve()
    world.do(anna.ctx.declare_queue("box"))
    before = world.do(anna.client.status())["messaging"]
    tabs = [world.open(browser) for _ in range(count)]
    assert [tab.state["node"] for tab in tabs] == ["anna"] * len(tabs)
    folders = len(list(Path("/proc/self/fd").iterdir()))
    serial = tabs[0].state["serial"]
    eventually(tabs[-1].page, lambda: tabs[-1].state["serial"] > serial + 1, 10)
    assert world.do(anna.client.status())["messaging"] == before
    for tab in tabs:
        tab.page.close()
    (watched,) = world.live.all.values()
    deadline = time.monotonic() + 15
    while watched.is_awake:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= folders


FAST = "const wait = window.setTimeout; window.setTimeout = (work, ms, ...given) => wait(work, ms / 1000, ...given);"


@pytest.mark.soak
def test_a_page_that_stays_open_does_not_grow(world: World, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds follow each other at once: 5,400 of them, of which a page keeps 300."""
    monkeypatch.setattr(nodes, "PERIOD_S", 0.001)  # Each round of the page has a sample of its own.
    world.start("anna")
    world.serve()
    page = world.open(browser).page
    page.add_init_script(FAST)
    page.reload()
    shown = Shown(page).wait("window.carrypost?.state().ready")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    (watched,) = world.live.all.values()
    sizes: list[dict[str, float]] = []
    for _ in range(9):
        serial = watched.serial + 600
        while watched.serial < serial:
            page.wait_for_timeout(500)
        session.send("HeapProfiler.collectGarbage")
        found = session.send("Performance.getMetrics")["metrics"]
        sizes.append({each["name"]: each["value"] for each in found})
    assert shown.js("() => window.carrypost.kept().history") == len(watched.history) == nodes.HISTORY
    for name, more in (("JSHeapUsedSize", 100_000), ("Nodes", 50), ("JSEventListeners", 10)):
        values = [each[name] for each in sizes]
        assert max(values[-3:]) <= max(values[:3]) + more, (name, values)
    page.close()


PICTURES = os.environ.get("CARRYPOST_PICTURES")


@pytest.mark.skipif(PICTURES is None, reason="CARRYPOST_PICTURES names no folder for the pictures of docs/web.md")
def test_the_picture_of_the_documents_is_made(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CARRYPOST_PICTURES")  # Nodes take such names for settings.
    with World(tmp_path, island=True, overlay={"enabled": True}) as world:
        anna, bert = world.start("anna"), world.start("bert", overlay={"enabled": True, "broker": True})
        carl = world.start("carl")
        world.do(anna.linked("bert", "carl"))
        world.do(_fill(anna, bert, carl))
        world.serve()
        shown = world.open(browser, rest="&message=bridge")
        shown.page.wait_for_timeout(8_000)
        shown.js("() => document.querySelector('#head .right').replaceChildren('~/.local/share/carrypost')")
        shown.page.screenshot(path=Path(str(PICTURES)) / "web-live.png")
        shown.page.close()


async def _fill(anna: Served, bert: Served, carl: Served) -> None:
    box = await anna.ctx.declare_queue("orders")
    for number in range(12):
        await anna.ctx.send(box, str(number), label=f"order-{number}", properties={"level": number})
    await bert.ctx.create_consumer(Queue("orders@anna"), "level < 3")
    await carl.ctx.create_consumer("topic/village.weather")
    await anna.ctx.create_consumer("channel/flood")
    await anna.ctx.send("topic/village.roads", "The bridge is closed.", label="bridge")

"""Live pages against strangers: sites of another origin in the same browser, and names that neighbours made up."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.support import browsers
from tests.support.browsers import Shown
from tests.web.test_web_live_browser import World, consumer, eventually

from tools import chromium

pytestmark = pytest.mark.skipif(chromium.executable() is None, reason=f"there is no Chromium: {chromium.INSTALL}")
EVIL = "<mark>"
ATTACK = """<!doctype html><title>stranger</title><body>
<iframe name="answers"></iframe>
<form id="form" method="post" target="answers" enctype="text/plain" action="{target}">
<input name='{{"to":"topic/x","body":"' value='"}}'></form>
<img src="{target}?to=topic/x&body=x">
<script>
const body = JSON.stringify({{to: "topic/x", body: "x"}});
const json = {{"content-type": "application/json"}};
document.getElementById("form").submit();
window.tried = Promise.allSettled([
  fetch("{target}", {{method: "POST", body, headers: json, credentials: "include"}}),
  fetch("{target}", {{method: "POST", body, mode: "no-cors", credentials: "include"}}),
  fetch("{sample}", {{credentials: "include"}}).then((answer) => answer.text()),
  new Promise((done) => {{ navigator.sendBeacon("{target}", body); setTimeout(done, 300); }}),
]).then((all) => all.map((each) => each.status + (each.value?.type ?? "")));
</script>"""


class Stranger:
    """A site on another port of this machine, whose only page does what it can to a node's page."""

    def __init__(self) -> None:
        self.page = ""
        stranger = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(stranger.page.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    made = Stranger()
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.chromium() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as found:
        yield found
        assert found.complaints == []


def _shows(shown: Shown) -> bool:
    return EVIL in shown.text("main")


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("localhost", marks=pytest.mark.soak)])
def test_another_site_in_the_same_browser_sends_and_reads_nothing(
    world: World, browser: Browser, stranger: Stranger, host: str
) -> None:
    anna = world.start("anna")
    world.serve()
    shown = world.open(browser)  # The browser has the cookie now; cookies do not tell ports apart.
    (name,) = world.live.all
    target = f"{world.origin}/api/nodes/{name}/send"
    stranger.page = ATTACK.format(target=target, sample=f"{world.origin}/api/nodes/{name}/sample")
    other = shown.page.context.new_page()
    world.answers.clear()
    other.goto(f"http://{host}:{stranger.port}/")
    tried = other.evaluate("() => window.tried")
    assert (tried[0], tried[2]) == ("rejected", "rejected"), "what this page asked was answered"
    send = f"/api/nodes/{name}/send"
    asked = eventually(other, lambda: [each for each in world.answers if each[1] == send])
    eventually(other, lambda: {method for method, path, _ in world.answers if path == send} >= {"GET", "POST"})
    other.close()
    assert {status for *_, status in asked} <= {401, 403, 405, 415}, asked
    assert world.do(anna.client.cache()) == []
    shown.page.fill("#send input[name=to]", "topic/x")
    shown.page.click("#send-button")
    assert eventually(shown.page, lambda: world.do(anna.client.cache())), "the node's own page sends"
    shown.page.close()


@pytest.mark.soak
def test_names_that_neighbours_made_up_are_text(world: World, browser: Browser) -> None:
    anna, bert = world.start("anna"), world.start("bert")
    world.do(anna.linked("bert"))
    box = world.do(bert.ctx.declare_queue(EVIL))
    world.do(bert.ctx.send(box, "x", label=EVIL, properties={"n": EVIL}))
    world.do(consumer(anna, f"queue/{EVIL}@bert"))
    world.do(consumer(anna, f"topic/{EVIL}"))
    world.do(bert.ctx.send(f"topic/{EVIL}", EVIL, label=EVIL, properties={"text": EVIL}))
    world.serve()
    for node in range(2):
        shown = world.open(browser, node, f"&message={EVIL}")
        eventually(shown.page, functools.partial(_shows, shown))
        assert shown.js("() => document.querySelectorAll('mark').length") == 0
        shown.page.close()

"""The system's Chromium, without a window, and a server of pages for it.

Both live as long as the tests of a file: it takes seconds to start a browser. Pages keep their security policy, so
tests ask again and again instead of waiting for text as playwright would, which needs `eval`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import uvicorn
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import ConsoleMessage, Page, Request, Response, ViewportSize, sync_playwright
from tools.chromium import executable

from carrypost.web.runs import Run, RunRoutes, Runs
from carrypost.web.server import Access, App

SIZE = ViewportSize(width=1024, height=640)
"""As small as pages may be: every pixel costs, as there is no graphics processor."""
_WAIT_S = 60.0


@contextmanager
def chromium() -> Iterator[Chromium]:
    """Start the browser."""
    with sync_playwright() as playwright:
        # As root it cannot make the namespaces of its sandbox; it opens our pages only.
        browser = playwright.chromium.launch(
            executable_path=executable(), args=["--no-sandbox", "--disable-gpu", "--renderer-process-limit=1"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Site:
    """Pages of runs, served to a real browser; complains of whatever a page does that it must not."""

    def __init__(self, browser: Chromium, runs: Runs) -> None:
        self.browser = browser
        self.runs = runs
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.access = Access(App(RunRoutes(runs)).asgi, self._listening.getsockname()[1])
        config = uvicorn.Config(self.access, http="h11", ws="none", lifespan="off", log_config=None)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.access.port}"

    def run(self, name: str) -> Run:
        """Return a run by its name."""
        return next(each for each in self.runs if each.opened().info["run"] == name)

    @contextmanager
    def page(self, path: str = "/", **options: Any) -> Iterator[Shown]:  # noqa: ANN401 - of the browser's context
        """Open a page; at its end it must not have complained, nor asked anybody else."""
        # Pages in one context share a process, which takes long to start.
        shared = self.browser.contexts[0] if self.browser.contexts and not options else None
        context = shared or self.browser.new_context(**({"viewport": SIZE} | options))
        page = context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._asked)
        page.on("response", self._answered)
        mark = "&" if "?" in path else "?"
        page.goto(f"{self.origin}{path}{mark}token={self.access.token}")
        try:
            yield Shown(page)
            complaints, self.complaints = self.complaints, []
            assert complaints == []
        finally:
            page.close()
            if options:
                context.close()

    def _said(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "blob:", "data:")):
            self.complaints.append(f"asked for {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"{response.status} for {response.url}")


class Shown:
    """A page, as tests look at it."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def js(self, expression: str, argument: object = None) -> Any:  # noqa: ANN401 - whatever it is
        return self.page.evaluate(expression, argument)

    def wait(self, expression: str = "window.carrypost?.state().ready === true") -> Shown:
        """Wait until something holds; by default, until everything shown is of the chosen time."""
        deadline = time.monotonic() + _WAIT_S
        while not self.js(f"() => Boolean({expression})"):
            assert time.monotonic() < deadline, (expression, self.js("() => window.carrypost?.state()"), self.text())
            self.page.wait_for_timeout(40)
        return self

    def seek(self, t: float) -> Shown:
        self.js("t => carrypost.seek(t)", t)
        return self.wait()

    def text(self, selector: str = "body") -> str:
        found: str = self.page.inner_text(selector)
        return found

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.js("() => carrypost.state()")
        return found


@contextmanager
def site(browser: Chromium, paths: Sequence[Path], **more: Any) -> Iterator[Site]:  # noqa: ANN401 - of `Runs`
    """Serve the pages of some records."""
    with Runs(paths, **more) as runs, Site(browser, runs) as found:
        yield found

"""The pages: static files, and the routes of what there is to show, runs, running nodes and campaigns.

Pages about runs and campaigns need the emulator's packages; those about running nodes do not, so whoever makes an `App`
passes what it has.
"""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from carrypost.errors import CarrypostError
from carrypost.web.answers import NotFoundError, error_answer, json_answer

STATIC = Path(__file__).parent / "static"
_PAGES = {"replay": "runs", "live": "nodes", "campaign": "campaigns"}
"""Pages, and the questions that they are about."""
_log = logging.getLogger("carrypost.web")
# Some systems have others for these endings, and browsers would not run the scripts.
for _ending in (".js", ".mjs"):
    mimetypes.add_type("text/javascript", _ending)


class Shown(Protocol):
    """The routes of one kind of things to show."""

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The routes about them."""

    @property
    def only(self) -> str | None:
        """The page of the only thing of its kind; None: there are several, or none."""


class App:
    """The pages of everything that is to be shown."""

    def __init__(self, *shown: Shown, opens: str | None = None, lacks: str = "") -> None:
        """Make the pages.

        `opens`: the page that opens at once, because there is nothing else to choose; None: the start page. `lacks`: a
        sentence about the kinds of things that are not shown, for want of packages.
        """
        self._static = StaticFiles(directory=STATIC, check_dir=False)
        self._opens, self._lacks = opens, lacks
        self.asgi = Starlette(
            routes=[
                Route("/", self._start),
                *(Route(f"/{name}/{{id}}", self._page(f"{name}.html")) for name in _PAGES),
                *(route for each in shown for route in each.routes),
                Route("/api/{kind}", self._nothing),
                Mount("/static", self._static),
            ],
            exception_handlers={CarrypostError: _refused, HTTPException: _failed, Exception: _failed},
        )

    async def _start(self, request: Request) -> Response:
        return RedirectResponse(self._opens, 303) if self._opens else await self._page("start.html")(request)

    def _page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await self._static.get_response(name, request.scope)

        return answer

    async def _nothing(self, request: Request) -> Response:
        """Answer for kinds of things that are not shown."""
        if request.path_params["kind"] not in _PAGES.values():
            raise HTTPException(404)
        return json_answer({"lacks": self._lacks} if self._lacks else [])


async def _refused(_: Request, error: Exception) -> Response:
    return error_answer(404 if isinstance(error, NotFoundError) else 400, str(error))


async def _failed(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return error_answer(error.status_code, error.detail)
    _log.error("a page asked for something that failed", exc_info=error)
    return error_answer(500, f"the server failed: {type(error).__name__}")

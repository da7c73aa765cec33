"""The server of the pages: who may read them, static files, the routes of what there is to show, and its answers.

Only browsers on this machine that were given the token have access, and only for our own pages. Any program on this
machine can reach the port, and so can pages of other sites in the user's browser. So every request needs the cookie,
which a browser gets once by the token in the address that the command prints; a `Host` that is this machine, since
other names may lead here; and, where the browser tells which site asks, that it is ours. The cookie is named by the
port: browsers share cookies between ports, and two servers must not take each other's away. The one invariant: no
answer, an error included, leaves without the headers below.

What there is to show are runs, running nodes and campaigns. Pages about runs and campaigns need the emulator's
packages; those about running nodes do not, so whoever makes an `App` passes what it has. Answers are values as JSON, or
mistakes as sentences.
"""

from __future__ import annotations

import asyncio
import logging
import math
import mimetypes
import secrets
import threading
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carrypost.errors import CarrypostError, LocalError

_TEXT_MAX = 1_000
_T = TypeVar("_T")


class NotFoundError(LocalError):
    """A name that is not there: a run, a node, a message."""


def json_answer(value: object, status: int = 200) -> Response:
    """Return a value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_answer(status: int, text: str) -> Response:
    """Return a mistake, as pages show it."""
    return json_answer({"error": text}, status)


async def in_thread(work: Callable[[], _T]) -> _T:
    """Return what a function returns that runs in a thread of its own.

    The thread is a daemon: Ctrl-C need not wait until a large file is read.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: object) -> None:
        if not done.cancelled():
            set_it(value)

    def run() -> None:
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcome: tuple[Any, Any] = done.set_exception, error
        else:
            outcome = done.set_result, found
        try:
            loop.call_soon_threadsafe(settle, *outcome)
        except RuntimeError:
            return  # The loop is closed: nobody waits.

    threading.Thread(target=run, daemon=True).start()
    return await done


def seconds(request: Request, name: str, otherwise: float) -> float:
    """Return a time among the parameters."""
    text = request.query_params.get(name)
    try:
        found = otherwise if text is None else float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) or text is None):
        raise LocalError(f"{name} must be a number of seconds, not {text[:40]!r}" if text else f"{name} is empty")
    return found


def whole(request: Request, name: str, otherwise: int, most: int, least: int = 0) -> int:
    """Return a whole number among the parameters."""
    text = request.query_params.get(name)
    if text is None:
        return otherwise
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 16):  # noqa: PLR2004
        raise LocalError(f"{name} must be a whole number, not {text[:40]!r}")
    if not least <= int(text) <= most:
        raise LocalError(f"{name} must be from {least:,} to {most:,}, not {int(text):,}")
    return int(text)


def text_of(request: Request, name: str) -> str:
    """Return a text among the parameters."""
    found = request.query_params.get(name, "")
    if len(found) > _TEXT_MAX:
        raise LocalError(f"{name} must have at most {_TEXT_MAX:,} characters, not {len(found):,}")
    return found


HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_REPORT = "/report/"
REPORT_HEADERS = HEADERS | {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
}
"""Headers of reports, which have styles and pictures of their own, and may do nothing."""
_SITES = {"none", "same-origin"}
_METHODS = {"GET", "HEAD", "POST"}
_LOCKED = "This address needs the token: open the address that `carrypost web` printed.\n"


class Access:
    """Lets requests through to the pages that may see them."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self.port = port
        self.token = secrets.token_urlsafe(32)
        self._codes: set[str] = set()
        """Codes that may be used once, in place of the token."""
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        self._cookie = f"carrypost-{port}"

    @property
    def url(self) -> str:
        """The address that people open."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def url_once(self) -> str:
        """Return an address for one use: those that list the processes of this machine see it."""
        self._codes.add(code := secrets.token_urlsafe(32))
        return f"http://{HOST}:{self.port}/?token={code}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the pages answer it."""
        if scope["type"] != "http":
            return

        is_report = scope["path"].startswith(_REPORT)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(REPORT_HEADERS if is_report else HEADERS)
            await send(message)

        refusal = self._refusal(scope, Headers(scope=scope))
        await (self._app if refusal is None else refusal)(scope, receive, with_headers)

    def _refusal(self, scope: MutableMapping[str, Any], headers: Headers) -> Response | None:
        """Return the answer to a request that the pages must not see; None: they may."""
        if len(headers.getlist("host")) != 1 or headers["host"].lower() not in self._hosts:
            return PlainTextResponse("The address must be 127.0.0.1 or localhost, with this port.\n", 421)
        if headers.get("sec-fetch-site", "none") not in _SITES:
            return PlainTextResponse("Other sites have no access.\n", 403)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("Only GET and POST are supported.\n", 405)
        if scope["method"] == "POST" and (refusal := self._no_order(headers)) is not None:
            return refusal
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if tokens := [value for key, value in query if key == "token"]:
            return self._enter(scope["path"], query) if self._known(tokens[0]) else PlainTextResponse(_LOCKED, 403)
        cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        return None if _same(cookie, self.token) else PlainTextResponse(_LOCKED, 403)

    def _no_order(self, headers: Headers) -> Response | None:
        """Return the refusal of a POST that one of our own scripts did not make; None: one did.

        Forms and scripts of other sites, and of other servers on this machine, have another `Origin`; and forms cannot
        send JSON.
        """
        if headers.get("origin", "").lower() not in {f"http://{host}" for host in self._hosts}:
            return PlainTextResponse("Only our own pages may change anything.\n", 403)
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return PlainTextResponse("A POST must have application/json.\n", 415)
        return None

    def _known(self, token: str) -> bool:
        for code in [each for each in self._codes if _same(each, token)]:
            self._codes.remove(code)
            return True
        return _same(token, self.token)

    def _enter(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Give the browser its cookie, and let it ask again without the token, which no history is to keep."""
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        # A path that begins with two slashes would be another host.
        answer = RedirectResponse("/" + path.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self._cookie, self.token, httponly=True, samesite="strict")
        return answer


def _same(one: str, other: str) -> bool:
    """Compare secrets in constant time."""
    return secrets.compare_digest(one.encode(), other.encode())


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

"""Routes of the pages: static files, and answers to questions about runs.

Questions are answered in threads, since reading millions of rows takes a while, one thread at a time for each run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import mimetypes
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from carrypost.errors import CarrypostError, LocalError
from carrypost.web import arrow
from carrypost.web.arrow import NotFoundError
from carrypost.web.replay import copies, inspect
from carrypost.web.replay.inspect import Filter
from carrypost.web.replay.runs import Opened, Runs
from carrypost.web.replay.scan import BINS, SPANS
from carrypost.web.replay.why import Inquiry

STATIC = Path(__file__).parent / "static"
LIMIT_MAX = 5_000
SPANS_MAX = 2_000_000
_TEXT_MAX = 1_000
_OPENING_S = 0.4
"""Time after which an answer says how far the opening of a run is."""
_T = TypeVar("_T")
_log = logging.getLogger("carrypost.web")
# Some systems have others for these endings, and browsers would not run the scripts.
for _ending in (".js", ".mjs"):
    mimetypes.add_type("text/javascript", _ending)
Endpoint = Callable[[Opened, Request], Response]


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


class App:
    """The pages of some runs."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self._static = StaticFiles(directory=STATIC, check_dir=False)
        answers = {
            "tracks": tracks, "spans": spans, "density": density, "messages": messages, "copies": message_copies,
            "rows": rows, "samples": samples, "node": node_at, "why": why_not, "summary": summary,
        }  # fmt: skip
        self.asgi = Starlette(
            routes=[
                Route("/", self._start),
                Route("/replay/{id}", self._page("replay.html")),
                Route("/api/runs", self._list),
                Route("/api/runs/{id}", self._info),
                *(Route(f"/api/runs/{{id}}/{name}", self._about(answer)) for name, answer in answers.items()),
                Mount("/static", self._static),
            ],
            exception_handlers={CarrypostError: _refused, HTTPException: _failed, Exception: _failed},
        )

    async def _start(self, request: Request) -> Response:
        if (run := self.runs.only) is not None:
            return RedirectResponse(f"/replay/{run.id}", 303)
        return await self._page("start.html")(request)

    def _page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await self._static.get_response(name, request.scope)

        return answer

    async def _list(self, _: Request) -> Response:
        return arrow.json_answer([each._asdict() for each in self.runs.entries])

    async def _info(self, request: Request) -> Response:
        run = self.runs.find(request.path_params["id"])
        opening = asyncio.ensure_future(in_thread(lambda: run.opened().info))
        done, _ = await asyncio.wait([opening], timeout=_OPENING_S)
        if not done:
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            return arrow.json_answer({"progress": round(run.progress, 3)}, 202)
        return arrow.json_answer(opening.result())

    def _about(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            run = self.runs.find(request.path_params["id"])

            def work() -> Response:
                with run.lock:
                    return endpoint(run.opened(), request)

            return await in_thread(work)

        return answer


async def _refused(_: Request, error: Exception) -> Response:
    return arrow.error_answer(404 if isinstance(error, NotFoundError) else 400, str(error))


async def _failed(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return arrow.error_answer(error.status_code, error.detail)
    _log.error("a page asked for something that failed", exc_info=error)
    return arrow.error_answer(500, f"the server failed: {type(error).__name__}")


# --- parameters ------------------------------------------------------------------------------------------------------


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


def _node(run: Opened, request: Request, name: str = "node") -> int | None:
    text = text_of(request, name)
    return run.scan.names.find(text, "node") if text else None


def _span(run: Opened, request: Request) -> tuple[float, float]:
    return seconds(request, "from", run.scan.start), seconds(request, "to", run.scan.end)


# --- answers ---------------------------------------------------------------------------------------------------------


def tracks(run: Opened, request: Request) -> Response:
    """Return samples of the movement of all nodes."""
    found = run.places
    rows = found.within(*_span(run, request))
    columns = {"node": found.node[rows], "t": found.t[rows], "x": found.x[rows], "y": found.y[rows]}
    return arrow.columns_answer(arrow.table(columns))


def spans(run: Opened, request: Request) -> Response:
    """Return spans of one kind, of all nodes or of one."""
    of = request.query_params.get("of", SPANS[0])
    if of not in SPANS:
        raise LocalError(f"of must be one of {', '.join(SPANS)}, not {of[:40]!r}")
    found = run.scan.spans[of]
    rows = found.overlapping(*_span(run, request), _node(run, request))
    if len(rows) > SPANS_MAX:
        raise LocalError(f"these are {len(rows):,} spans; ask for a shorter time, or for one node")
    columns = {name: getattr(found, name)[rows] for name in ("a", "b", "start", "end", "label")}
    return arrow.columns_answer(arrow.table(columns, {"labels": found.labels}))


def density(run: Opened, request: Request) -> Response:
    """Return the number of rows of each kind over time."""
    asked = whole(request, "bins", 512, BINS, 1)
    bins = 1 << (asked.bit_length() - 1)
    counts = run.scan.density(bins)
    return arrow.json_answer({"start": run.scan.start, "end": run.scan.end, "bins": bins, "counts": counts})


def messages(run: Opened, request: Request) -> Response:
    """Return messages whose id, label, author or destination has a text in it."""
    found = run.messages.found(text_of(request, "query"), control=request.query_params.get("control") == "1")
    after, limit = whole(request, "after", 0, 1 << 31), whole(request, "limit", 200, LIMIT_MAX, 1)
    return arrow.json_answer([run.messages.shown(place) for place in found[after : after + limit].tolist()])


def message_copies(run: Opened, request: Request) -> Response:
    """Return the copies of a message, and of those that descend from it."""
    return arrow.columns_answer(copies.copies_table(run.scan, run.messages, text_of(request, "message")))


def rows(run: Opened, request: Request) -> Response:
    """Return rows, a page at a time."""
    kinds = frozenset(filter(None, text_of(request, "kinds").split(",")))
    if unknown := sorted(kinds - set(run.scan.kinds)):
        raise NotFoundError(f"this run has no rows of kind {unknown[0][:40]!r}")
    node = _node(run, request)
    message = text_of(request, "message")
    family = run.messages.family(run.messages.names.texts[run.messages.place(message)]) if message else ()
    wanted = Filter(
        *_span(run, request), kinds, "" if node is None else run.scan.names.texts[node], frozenset(family),
        text_of(request, "detail"),
    )  # fmt: skip
    found = run.matches(wanted)
    if request.query_params.get("all") == "1":
        tables = inspect.whole(run.scan, found)
        # Rows that are followed may be ordered anew while they are sent.
        parts = arrow.parts(inspect.SHOWN, iter(list(tables)) if run.scan.source.follows else tables)
        return StreamingResponse(parts, headers=arrow.stream_headers("rows.arrows"))
    after, limit = whole(request, "after", -1, 1 << 62, -1), whole(request, "limit", 200, LIMIT_MAX, 1)
    if request.query_params.get("last") == "1":
        after = inspect.last(run.scan, found, limit)
    return arrow.columns_answer(inspect.page(run.scan, found, after, limit))


def samples(run: Opened, request: Request) -> Response:
    """Return samples of one kind, of all nodes or of one."""
    of = request.query_params.get("of", "load")
    if of not in inspect.SAMPLES:
        raise LocalError(f"of must be one of {', '.join(inspect.SAMPLES)}, not {of[:40]!r}")
    return arrow.columns_answer(inspect.samples(run.scan, of, _node(run, request)))


def _one_node(run: Opened, request: Request, name: str) -> int:
    if (node := _node(run, request, name)) is None:
        raise LocalError(f"{name} must be the name of a node")
    return node


def node_at(run: Opened, request: Request) -> Response:
    """Return what is known of a node at an instant."""
    node = _one_node(run, request, "name")
    return arrow.json_answer(run.node(node).about(seconds(request, "at", run.scan.end)))


def why_not(run: Opened, request: Request) -> Response:
    """Return the reason for which a message is not at a node."""
    inquiry = Inquiry(run.scan, run.messages, run.meetings, run.info["names"])
    return arrow.json_answer(inquiry.answer(text_of(request, "message"), _one_node(run, request, "node")))


def summary(run: Opened, _: Request) -> Response:
    """Return the figures of a run."""
    return arrow.json_answer(run.summary)

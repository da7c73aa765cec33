"""Routes about runs: what their files hold, as columns and as values.

Questions are answered in threads, since reading millions of rows takes a while, one thread at a time for each run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from carrypost.errors import LocalError
from carrypost.web import arrow
from carrypost.web.answers import NotFoundError, in_thread, json_answer, seconds, text_of, whole
from carrypost.web.replay import copies, inspect
from carrypost.web.replay.inspect import Filter
from carrypost.web.replay.runs import Opened, Runs
from carrypost.web.replay.scan import BINS, SPANS
from carrypost.web.replay.why import Inquiry

LIMIT_MAX = 5_000
SPANS_MAX = 2_000_000
_OPENING_S = 0.4
"""Time after which an answer says how far the opening of a run is."""
Endpoint = Callable[[Opened, Request], Response]


class RunRoutes:
    """The routes about some runs."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        answers = {
            "tracks": tracks, "spans": spans, "density": density, "messages": messages, "copies": message_copies,
            "rows": rows, "samples": samples, "node": node_at, "why": why_not, "summary": summary,
        }  # fmt: skip
        self.routes = [
            Route("/api/runs", self._list),
            Route("/api/runs/{id}", self._info),
            *(Route(f"/api/runs/{{id}}/{name}", self._about(answer)) for name, answer in answers.items()),
        ]

    @property
    def only(self) -> str | None:
        """The page of the run at the one path that was given."""
        return None if self.runs.only is None else f"/replay/{self.runs.only.id}"

    async def _list(self, _: Request) -> Response:
        return json_answer([each._asdict() for each in self.runs.entries])

    async def _info(self, request: Request) -> Response:
        run = self.runs.find(request.path_params["id"])
        opening = asyncio.ensure_future(in_thread(lambda: run.opened().info))
        done, _ = await asyncio.wait([opening], timeout=_OPENING_S)
        if not done:
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            return json_answer({"progress": round(run.progress, 3)}, 202)
        return json_answer(opening.result())

    def _about(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            run = self.runs.find(request.path_params["id"])

            def work() -> Response:
                with run.lock:
                    return endpoint(run.opened(), request)

            return await in_thread(work)

        return answer


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
    return json_answer({"start": run.scan.start, "end": run.scan.end, "bins": bins, "counts": counts})


def messages(run: Opened, request: Request) -> Response:
    """Return messages whose id, label, author or destination has a text in it."""
    found = run.messages.found(text_of(request, "query"), control=request.query_params.get("control") == "1")
    after, limit = whole(request, "after", 0, 1 << 31), whole(request, "limit", 200, LIMIT_MAX, 1)
    return json_answer([run.messages.shown(place) for place in found[after : after + limit].tolist()])


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
    return json_answer(run.node(node).about(seconds(request, "at", run.scan.end)))


def why_not(run: Opened, request: Request) -> Response:
    """Return the reason for which a message is not at a node."""
    inquiry = Inquiry(run.scan, run.messages, run.meetings, run.info["names"])
    return json_answer(inquiry.answer(text_of(request, "message"), _one_node(run, request, "node")))


def summary(run: Opened, _: Request) -> Response:
    """Return the figures of a run."""
    return json_answer(run.summary)

"""Routes about running nodes: samples, one message, browsing and, unless pages may only look, sending and receiving."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from carrypost.errors import CarrypostError, InvalidSelectorException, LocalError
from carrypost.model.selector import Selector
from carrypost.node.settings import NodeSettings
from carrypost.web.answers import json_answer, text_of, whole
from carrypost.web.live.messages import Messages
from carrypost.web.live.samples import Nodes, Samples
from carrypost.web.live.verdict import sentence, verdict, written

BODY_BYTES_MAX = 24 << 20
"""Length of what pages send: a message of 16 MiB in base64 fits."""
_LISTED_MAX = 500
_Look = Callable[[Samples, Request], Awaitable[object]]


class LiveRoutes:
    """The routes about some nodes."""

    def __init__(self, nodes: Mapping[str, NodeSettings], *, read_only: bool = False) -> None:
        self.nodes = Nodes(nodes)
        self.messages = {name: Messages(each.settings) for name, each in self.nodes.all.items()}
        self.read_only = read_only
        looks: dict[str, _Look] = {
            "sample": self._sample, "cache": _cache, "trace": _trace, "verdict": _verdict, "browse": self._browse,
        }  # fmt: skip
        acts = {} if read_only else {
            "send": Messages.send, "consume": Messages.consume, "settle": Messages.settle, "retry": Messages.retry,
        }  # fmt: skip
        if not read_only:
            looks["held"] = self._held
        self.routes = [
            Route("/api/nodes", self._list),
            *(Route(f"/api/nodes/{{id}}/{name}", self._looking(look)) for name, look in looks.items()),
            *(Route(f"/api/nodes/{{id}}/{name}", self._acting(act), methods=["POST"]) for name, act in acts.items()),
        ]

    @property
    def only(self) -> str | None:
        """The page of the only node."""
        return f"/live/{next(iter(self.nodes.all))}" if len(self.nodes.all) == 1 else None

    async def close(self) -> None:
        """Leave all nodes."""
        await asyncio.gather(
            *(each.close() for each in self.nodes.all.values()), *(each.close() for each in self.messages.values())
        )

    # --- looking -------------------------------------------------------------------------------------------

    async def _list(self, _: Request) -> Response:
        return json_answer(await asyncio.gather(*map(self._entry, self.nodes.all.values())))

    async def _entry(self, node: Samples) -> dict[str, Any]:
        found = await node.sample(-1)
        status = found.get("status", {})
        return {
            "id": node.id, "folder": str(node.settings.data), "state": node.state, "reason": node.reason,
            "node": status.get("node", ""), "neighbours": status.get("neighbours"),
            "messages": status.get("cache", {}).get("messages"), "findings": len(found.get("findings", ())),
            "entries": (status.get("messaging") or {}).get("entries"),
        }  # fmt: skip

    def _looking(self, look: _Look) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return json_answer(await look(self.nodes.find(request.path_params["id"]), request))

        return answer

    async def _sample(self, node: Samples, request: Request) -> object:
        found = await node.sample(whole(request, "after", -1, 1 << 53, -1))
        return {**found, "read_only": self.read_only, "folder": str(node.settings.data)}

    async def _browse(self, node: Samples, request: Request) -> object:
        limit = whole(request, "limit", 50, 200, 1)
        return await self.messages[node.id].browse(text_of(request, "queue"), text_of(request, "select"), limit)

    async def _held(self, node: Samples, request: Request) -> object:
        return await self.messages[node.id].held(text_of(request, "consumer"))

    # --- acting --------------------------------------------------------------------------------------------

    def _acting(
        self, act: Callable[[Messages, Mapping[str, Any]], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        made = 201 if act in {Messages.send, Messages.consume} else 200

        async def answer(request: Request) -> Response:
            node = self.nodes.find(request.path_params["id"])
            found = await act(self.messages[node.id], await _order(request))
            if act is Messages.send:
                with suppress(CarrypostError):  # It is stored, even if the node ended since.
                    found["neighbours"] = (await node.ask("status"))["neighbours"]
            return json_answer(found, made)

        return answer


async def _order(request: Request) -> Mapping[str, Any]:
    """Return the JSON object that a page sent; raises `HTTPException` for anything else."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, f"a page may send {BODY_BYTES_MAX >> 20} MiB at most")
    try:
        return msgspec.json.decode(bytes(body), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body must be a JSON object: {error}") from None


async def _cache(node: Samples, request: Request) -> object:
    """Return a page of copies that match a selector over the columns of the list, the oldest first."""
    text, destination = text_of(request, "select"), text_of(request, "destination")
    try:
        selector = Selector(text) if text else None
    except InvalidSelectorException as error:
        raise LocalError(f"{error} (character {error.position})") from None
    after: int | None = whole(request, "after", 0, 1 << 62)
    rows: list[dict[str, Any]] = []
    while after is not None and len(rows) < _LISTED_MAX:
        page = await node.ask("cache_page", after, destination=destination)
        rows += [row for row in page if selector is None or selector.matches(_columns(row))]
        after = page[-1]["serial"] if page else None
    return {"rows": rows, "next": after}


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a selector may name of a copy."""
    return {name: value for name, value in row.items() if isinstance(value, str | int | float | bool)}


async def _trace(node: Samples, request: Request) -> object:
    found = await node.ask("trace", text_of(request, "message"))
    rows = [*map(written, found["rows"]), *({"kind": "held", "t": each["received"], **each} for each in found["held"])]
    return {
        "kept": found["kept"],
        "rows": [{"t": row["t"], "kind": row["kind"], "sentence": sentence(row)} for row in rows],
    }


async def _verdict(node: Samples, request: Request) -> object:
    message = text_of(request, "message")
    if not message:
        raise LocalError("message must be the id or the label of a message")
    found = await node.ask("trace", message)
    if "sends" not in found:
        raise LocalError("this node runs an earlier version, which does not say enough for a verdict")
    return verdict(message, found, await node.ask("peers"), await node.ask("messaging"))

"""Pages about running nodes without a browser: requests as scripts make them, on the loop of the nodes of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.support.pages import PORT, Answer, asked
from tests.support.served import Served

from carrypost.node.settings import NodeSettings
from carrypost.web.nodes import LiveRoutes
from carrypost.web.server import Access, App

ORIGIN = f"http://127.0.0.1:{PORT}"


class Pages:
    """The pages of some nodes, and a page that asks."""

    def __init__(self, live: LiveRoutes, access: Access, node: str) -> None:
        self.live, self.access, self.id = live, access, node

    def about(self, node: str) -> Pages:
        """Return a page of the same server about another node."""
        return Pages(self.live, self.access, node)

    async def ask(
        self,
        path: str,
        order: object = None,
        headers: Mapping[str, str | None] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Ask a question, or give an order, as JSON."""
        given: dict[str, str | None] = {
            "host": f"127.0.0.1:{PORT}", "cookie": f"carrypost-{PORT}={self.access.token}", "origin": ORIGIN,
            "content-type": "application/json", **(headers or {}),
        }  # fmt: skip
        method = "GET" if order is None and body is None else "POST"
        sent = msgspec.json.encode(order) if body is None and order is not None else body or b""
        return await asked(self.access, path, given, method, sent)

    async def node(self, path: str, order: object = None) -> Any:  # noqa: ANN401 - whatever it is
        """Return the answer to a question about the first node; it must succeed."""
        answer = await self.ask(f"/api/nodes/{self.id}/{path}", order)
        assert answer.status in {200, 201}, answer
        return answer.json

    async def refused(self, path: str, order: object) -> str:
        """Return the sentence with which an order is refused."""
        answer = await self.ask(f"/api/nodes/{self.id}/{path}", order)
        assert 400 <= answer.status < 500, answer
        return str(answer.json["error"])


@asynccontextmanager
async def served(nodes: Sequence[NodeSettings], *, read_only: bool = False) -> AsyncIterator[Pages]:
    """Serve the pages of the nodes with these settings; yield the page of the first one."""
    live = LiveRoutes({str(each.data): each for each in nodes}, read_only=read_only)
    try:
        yield Pages(live, Access(App(live).asgi, PORT), next(iter(live.all)))
    finally:
        await live.close()


@asynccontextmanager
async def pages(*nodes: Served, read_only: bool = False) -> AsyncIterator[Pages]:
    """Serve the pages of some nodes."""
    async with served([each.settings for each in nodes], read_only=read_only) as shown:
        yield shown

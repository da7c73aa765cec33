"""A browser's requests to the pages, without a browser or a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
import pyarrow as pa

from carrypost.web.runs import RunRoutes, Runs
from carrypost.web.server import Access, App

PORT = 7007


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever it is
        return msgspec.json.decode(self.body)

    @property
    def table(self) -> pa.Table:
        return pa.ipc.open_stream(self.body).read_all()

    @property
    def columns(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = self.table.to_pydict()
        return found

    @property
    def metadata(self) -> Any:  # noqa: ANN401 - likewise
        return msgspec.json.decode(self.table.schema.metadata[b"carrypost"])


async def asked(
    access: Access, path: str, headers: Mapping[str, str | None], method: str = "GET", body: bytes = b""
) -> Answer:
    """Return the answer to one request; a header that is None is left out."""
    path, _, rest = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": rest.encode(),
        "headers": [(key.encode(), value.encode()) for key, value in headers.items() if value is not None],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", PORT),
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:  # noqa: ANN401 - a message of ASGI
        await asyncio.sleep(0)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:  # noqa: ANN401 - likewise
        sent.append(message)

    await access(scope, receive, send)
    head = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], head, b"".join(each.get("body", b"") for each in sent[1:]))


class Browser:
    """One that was given the token."""

    def __init__(self, *paths: Path, positions: Path | None = None, scenario: Path | None = None) -> None:
        self.runs = Runs(paths, positions, scenario)
        self.app = App(RunRoutes(self.runs))
        self.access = Access(self.app.asgi, PORT)
        self.cookie = f"carrypost-{PORT}={self.access.token}"

    def get(self, path: str, headers: dict[str, str | None] | None = None, method: str = "GET") -> Answer:
        """Ask; a header that is None is left out."""
        given = {"host": f"127.0.0.1:{PORT}", "cookie": self.cookie, **(headers or {})}
        return asyncio.run(asked(self.access, path, given, method))

    def api(self, path: str, **query: object) -> Answer:
        """Ask about the first run; it is opened."""
        run = next(iter(self.runs))
        run.opened()
        asked = urlencode({key.rstrip("_"): each for key, each in query.items()})
        return self.get(f"/api/runs/{run.id}{path}?{asked}")

"""Rows of the checklist in the classic API, by calls that block, on a real node."""

from __future__ import annotations

import inspect
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from tests.support import classic_rows
from tests.support.classic_world import World
from tests.support.loopback import apart

from carrypost import Message, Sent
from carrypost.classic import InitialContext as AwaitedNames
from carrypost.classic import connections, parts, sessions
from carrypost.jms.declarations import Temporary
from carrypost.sync import classic
from carrypost.sync.blocking_calls import Blocking

OWNERS = (
    connections.QueueConnection, connections.TopicConnection, sessions.QueueSession, sessions.TopicSession,
    parts.TopicPublisher, parts.MessageConsumer, parts.QueueBrowser, parts.Enumeration, sessions.QueueRequestor,
    AwaitedNames, Message, Temporary, Sent,
)  # fmt: skip
AWAITED = {
    name
    for owner in OWNERS
    for name in dir(owner)
    if (member := inspect.getattr_static(owner, name, None))
    and (inspect.iscoroutinefunction(member) or "Openable" in str(getattr(member, "__annotations__", {}).get("return")))
}
"""Names of calls that are awaited in the classic API."""


class Blocked:
    """An object of `carrypost.sync.classic` whose calls can be awaited. They have been done by then."""

    blocking = True

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - whatever it is
        object.__setattr__(self, "_inner", inner)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - likewise
        found = getattr(self._inner, name)
        if not callable(found) or isinstance(inspect.getattr_static(type(self._inner), name, None), property):
            return wrapped(found)

        def call(*given: object) -> Any:  # noqa: ANN401 - likewise
            if name not in AWAITED:
                return wrapped(found(*map(unwrapped, given)))

            async def awaited() -> Any:  # noqa: ANN401 - likewise
                return wrapped(found(*map(unwrapped, given)))

            return awaited()

        vars(call)["blocking"] = found
        return call

    async def __aiter__(self) -> AsyncIterator[object]:
        for item in self._inner:
            yield wrapped(item)


def wrapped(value: object) -> object:
    awaits = isinstance(value, Blocking | Message | Temporary | classic.ConnectionFactory)
    return Blocked(value) if awaits else value


def unwrapped(value: object) -> object:
    return value._inner if isinstance(value, Blocked) else value  # noqa: SLF001 - defined above


def driven(coroutine: Any) -> Any:  # noqa: ANN401 - likewise
    """Run a coroutine that waits for nothing, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


class BlockingWorld:
    """Connections to a real node, by calls that block."""

    def __init__(self, settings: Path, stack: ExitStack) -> None:
        self._settings, self._stack = settings, stack

    async def connect(self, client_id: str | None = None, domain: str | None = None) -> Blocked:
        given: dict[str, Any] = {"config": self._settings, "client_id": client_id}
        if domain == "queue":
            made: classic.Connection = classic.QueueConnectionFactory(**given).create_queue_connection()
        elif domain == "topic":
            made = classic.TopicConnectionFactory(**given).create_topic_connection()
        else:
            made = classic.ConnectionFactory(**given).create_connection()
        return Blocked(self._stack.enter_context(made))

    def begin(self, work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        results: list[object] = []
        thread = threading.Thread(target=lambda: results.append(driven(work())), daemon=True)
        thread.start()

        async def end() -> object:
            thread.join(30)
            return results[0]

        return end

    async def until(self, true: Callable[[], bool]) -> None:
        limit = time.monotonic() + 30
        while not true():
            assert time.monotonic() < limit
            time.sleep(0.002)  # noqa: ASYNC251 - it is no loop

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - likewise

    def requestor(self, domain: str) -> Callable[..., Blocked]:
        kind: Any = {"queue": classic.QueueRequestor, "topic": classic.TopicRequestor}[domain]
        return lambda session, to: Blocked(kind(unwrapped(session), to))

    def names(self, environment: dict[str, str]) -> Blocked:
        return Blocked(classic.InitialContext(environment | {"java.naming.provider.url": str(self._settings)}))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The settings file of a node that runs as long as the module does."""
    found = tmp_path_factory.mktemp("node") / "node.toml"
    udp = "".join(f"{name} = {json.dumps(value)}\n" for name, value in apart().items())
    data = json.dumps(str(found.parent / "data"))
    found.write_text(f"[node]\ndata = {data}\n[messaging]\nredelivery_delay_s = 0.0\n[udp]\n{udp}")
    with classic.ConnectionFactory(found).create_connection():
        yield found


def by_blocking(row: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return the test of a row."""

    @wraps(row)
    def test(settings: Path, **given: object) -> None:
        with ExitStack() as stack:
            world: World = BlockingWorld(settings, stack)
            driven(row(world, **given))

    first, *others = inspect.signature(row).parameters.values()
    vars(test)["__signature__"] = inspect.Signature([first.replace(name="settings"), *others])
    return test


for name, function in vars(classic_rows).items():
    if re.match(r"test_row_\d+_", name):
        globals()[name] = by_blocking(function)

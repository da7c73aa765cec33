"""Random programs of the API, which give the same answers in every way that a program can reach a node.

A program is text, which `drawn` makes from a seed. `played` runs it by awaiting every call; blocking programs run the
same function, as their calls are wrapped so that they can be awaited (`Awaited`). A way is a function that takes a
program and returns its answers. A further way is a further entry of `ways`.

Nothing in a program waits for time to pass. Before it receives or browses, the program sends a PERSISTENT message
without receivers: when that is on disk, its context has been handed all earlier messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S

import carrypost
from carrypost import DeliveryMode, JMSException, SessionMode, sync, testing
from carrypost.node.settings import CONTROL_FILE

CALLS = 60
SETTINGS: dict[str, Any] = {"messaging": {"redelivery_delay_s": 0.0}}
"""Settings with which a program's returned messages come again at once."""
MODES = (
    SessionMode.AUTO_ACKNOWLEDGE,
    SessionMode.CLIENT_ACKNOWLEDGE,
    SessionMode.INDIVIDUAL_ACKNOWLEDGE,
    SessionMode.SESSION_TRANSACTED,
)
KINDS = ("queue", "topic", "durable", "shelf")
"""Kinds of destinations. A shelf is a queue that is browsed, and received from by a new consumer for each call."""
_TRANSACTED = MODES.index(SessionMode.SESSION_TRANSACTED)
_INSTEAD = {"commit": "acknowledge", "rollback": "recover"}
_ASK_S = 600.0


class Step(NamedTuple):
    """One call of a program."""

    call: str
    at: int
    """The context that makes it."""
    kind: str
    """Kind of the context's destination that it is about."""
    number: int
    """Number that is sent, and by which the rest differs."""


Program = list[Step]
Open = Callable[[SessionMode], Any]
"""Opens a context; what it returns is entered by ``async with``."""

_WEIGHTS = {"send": 20, "receive": 16, "acknowledge": 5, "message": 5, "recover": 3, "commit": 4, "rollback": 2,
            "browse": 4, "ask": 2, "iterate": 3}  # fmt: skip


def drawn(seed: int, calls: int = CALLS) -> Program:
    """Return the program of a seed."""
    chance = random.Random(seed)
    names = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=calls)
    contexts, kinds = chance.sample(range(len(MODES)), 2), chance.sample(KINDS, 2)
    steps = [Step(name, chance.choice(contexts), chance.choice(kinds), number) for number, name in enumerate(names)]
    return [step if chance.random() < 0.1 else step._replace(call=_fitting(step)) for step in steps]


def _fitting(step: Step) -> str:
    """Return a call that the context's mode has."""
    if step.at != _TRANSACTED:
        return _INSTEAD.get(step.call, step.call)
    return next((call for call, instead in _INSTEAD.items() if instead == step.call), step.call)


# --- playing -------------------------------------------------------------------------------------------------


class _Player:
    """A program that runs: a context of each mode, and three consumers in each of them."""

    def __init__(self, contexts: list[Any], consumers: list[dict[str, Any]], spare: Any, name: str) -> None:  # noqa: ANN401 - of either API
        self.contexts, self.consumers, self.spare, self.name = contexts, consumers, spare, name
        self.last: list[Any] = [None] * len(contexts)

    def to(self, step: Step) -> str:
        return f"{'queue' if step.kind in ('queue', 'shelf') else 'topic'}/{self.name}.{step.kind}.{step.at}"

    async def settle(self) -> None:
        await self.spare.send(f"topic/{self.name}.nobody", None)

    async def send(self, step: Step) -> object:
        mode = DeliveryMode.PERSISTENT if step.number % 3 else DeliveryMode.NON_PERSISTENT
        sent = await self.contexts[step.at].send(
            self.to(step), f"text {step.number}", delivery_mode=mode, priority=4 + step.number % 2,
            properties={"n": step.number}, jms_correlation_id=f"c{step.number}",
        )  # fmt: skip
        return sent.state.name, sent.message_id is not None

    async def receive(self, step: Step) -> object:
        await self.settle()
        if step.kind == "shelf":
            consumer = await self.contexts[step.at].create_consumer(self.to(step))
            await self.settle()
            message = await consumer.receive(timeout=0)
            await consumer.close()
        else:
            message = await self.consumers[step.at][step.kind].receive(timeout=0)
        self.last[step.at] = message or self.last[step.at]
        return _told(message)

    async def iterate(self, step: Step) -> object:
        """Take up to three messages, and call something in between."""
        await self.settle()
        found: list[object] = []
        if step.kind == "shelf":
            return found
        async for message in self.consumers[step.at][step.kind].messages(timeout=0):
            found.append(_told(message))
            self.last[step.at] = message
            if len(found) == 2:
                await self.settle()
            if len(found) == 3:
                break
        return found

    async def acknowledge(self, step: Step) -> object:
        return await self.contexts[step.at].acknowledge()

    async def message(self, step: Step) -> object:
        """Acknowledge, or release, the message that came last."""
        last = self.last[step.at]
        if last is None:
            return None
        return await (last.release() if step.number % 4 == 0 else last.acknowledge())

    async def recover(self, step: Step) -> object:
        return await self.contexts[step.at].recover()

    async def commit(self, step: Step) -> object:
        return await self.contexts[step.at].commit()

    async def rollback(self, step: Step) -> object:
        return await self.contexts[step.at].rollback()

    async def browse(self, step: Step) -> object:
        await self.settle()
        browser = self.contexts[step.at].create_browser(f"queue/{self.name}.shelf.{step.at}")
        return [message.get_body(str) async for message in browser]

    async def ask(self, step: Step) -> object:
        reply = await self.contexts[step.at].ask(f"topic/{self.name}.ask", f"question {step.number}", timeout=_ASK_S)
        return reply.get_body(str), reply.jms_correlation_id is not None


def _told(message: Any) -> object:  # noqa: ANN401 - of either API
    """Return what a program sees of a message that does not depend on the node."""
    if message is None:
        return None
    return (
        message.get_body(str), message.jms_redelivered, message.get_int_property("JMSXDeliveryCount"),
        message.get_int_property("n"), message.jms_priority, message.jms_correlation_id, message.jms_delivery_mode.name,
    )  # fmt: skip


async def played(program: Program, opened: Open, name: str) -> list[object]:
    """Run a program, and return the answers of its calls.

    `name` distinguishes its destinations from those of others.
    """
    queues = [f"{name}.{kind}.{at}" for at in range(len(MODES)) for kind in ("queue", "shelf")]
    async with opened(SessionMode.AUTO_ACKNOWLEDGE) as spare:
        for queue in queues:
            await spare.declare_queue(queue)
        async with AsyncExitStack() as stack:
            contexts = [await stack.enter_async_context(opened(mode)) for mode in MODES]
            consumers = [await _consumers(context, name, at) for at, context in enumerate(contexts)]
            spare.responder(f"topic/{name}.ask")(lambda question: f"{question.get_body(str)}!")
            await spare.start()
            player = _Player(contexts, consumers, spare, name)
            answers = [await _answer(player, step) for step in program]
        for queue in queues:
            await spare.end_queue(f"queue/{queue}")
    return answers


async def _consumers(context: Any, name: str, at: int) -> dict[str, Any]:  # noqa: ANN401 - of either API
    return {
        "queue": await context.create_consumer(f"queue/{name}.queue.{at}"),
        "topic": await context.create_consumer(f"topic/{name}.topic.{at}"),
        "durable": await context.create_shared_durable_consumer(f"topic/{name}.durable.{at}", f"{name}.{at}", "n >= 0"),
    }


async def _answer(player: _Player, step: Step) -> object:
    """Return the outcome of a call: a value, or the name of the exception that it raises."""
    try:
        return await getattr(player, step.call)(step)
    except JMSException as error:
        return type(error).__name__


# --- blocking calls, awaited ---------------------------------------------------------------------------------


class Awaited:
    """An object of `carrypost.sync` whose calls can be awaited. They have been done by then."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - whatever it is
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - likewise
        found = getattr(self._inner, name)
        if not callable(found) or name in PLAIN:
            return found

        def call(*given: object, **named: object) -> Any:  # noqa: ANN401 - likewise
            result = found(*given, **named)
            if name in ("messages", "responder"):
                return _each(result) if name == "messages" else result
            return Awaited(result) if name == "create_browser" else _done(result)

        return call

    def __aiter__(self) -> AsyncIterator[object]:
        return _each(self._inner)

    def __bool__(self) -> bool:
        return True


PLAIN = frozenset({"get_body", "get_int_property"})


async def _done(result: object) -> object:
    plain = result is None or isinstance(result, carrypost.Destination)
    return result if plain else Awaited(result)


async def _each(items: Any) -> AsyncIterator[object]:  # noqa: ANN401 - likewise
    for item in items:
        yield Awaited(item)


def driven(coroutine: Coroutine[Any, Any, list[object]]) -> list[object]:
    """Run a coroutine that waits for nothing, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return list(end.value)
    raise AssertionError("it waits for something")


# --- ways ----------------------------------------------------------------------------------------------------


Play = Callable[[Program, str], list[object]]
"""Plays a program, whose destinations have this name, and returns its answers."""


@contextmanager
def virtual(_: Path) -> Iterator[Play]:
    """On a node in memory, in virtual time."""

    def play(program: Program, name: str) -> list[object]:
        found: list[object] = []

        async def scene() -> None:
            async with testing.network("a", seed=1, **SETTINGS) as net:
                found.extend(await played(program, lambda mode: net.context("a", mode), name))

        testing.run(scene)
        return found

    yield play


def awaited(**given: Any) -> Play:  # noqa: ANN401 - as programs give them
    """Play by calls that are awaited, on the real node of a factory."""
    factory = carrypost.ConnectionFactory(**given)
    return lambda program, name: asyncio.run(played(program, factory.create_context, name))


def blocking(**given: Any) -> Play:  # noqa: ANN401 - likewise
    """Play by calls that block, on the real node of a factory."""
    factory = sync.ConnectionFactory(**given)

    @asynccontextmanager
    async def opened(mode: SessionMode) -> AsyncIterator[Awaited]:
        with factory.create_context(mode) as context:
            yield Awaited(context)

    return lambda program, name: driven(played(program, opened, name))


@contextmanager
def running(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that has a node in the folder, until the block is left."""
    given = {"NODE_DATA": str(folder), "MESSAGING_REDELIVERY_DELAY_S": "0.0"}
    given |= {f"UDP_{name.upper()}": json.dumps(value) for name, value in apart().items()}
    environment = os.environ | {f"CARRYPOST_{name}": value for name, value in given.items()}
    log = folder.with_suffix(".log")
    with (
        log.open("wb") as said,
        subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, *command], env=environment, stdin=subprocess.PIPE, stdout=said, stderr=said
        ) as process,
    ):
        try:
            until = time.monotonic() + PATIENCE_S
            while not (folder / CONTROL_FILE).exists():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, "it does not serve its socket"
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


_EMBEDDING = """
import sys
from carrypost.sync import ConnectionFactory
with ConnectionFactory(attach=False).create_context():
    sys.stdin.read()
"""


@contextmanager
def ways(folder: Path) -> Iterator[dict[str, Play]]:
    """Open every way, by name. The first is what the others are compared with."""
    own, node, other = (folder / name for name in ("own", "node", "other"))
    with virtual(folder) as alone, running(node, "-m", "carrypost", "node"), running(other, "-c", _EMBEDDING):
        yield {
            "virtual": alone,
            "embedded": awaited(data=own, udp=apart(), attach=False, **SETTINGS),
            "blocking": blocking(data=own, udp=apart(), attach=False, **SETTINGS),
            "attached to carrypost node": awaited(data=node, attach=True),
            "attached to an embedding program": awaited(data=other, attach=True),
            "blocking, attached": blocking(data=node, attach=True),
        }

"""A provider over the socket of a node that runs in another process, or for another event loop of this one.

Programs use it like a node of their own; `attach.service` is the other side. One connection is shared by all users
of a node in one event loop, and closed with the last of them.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Raw

from carrypost.attach import calls
from carrypost.attach.client import Caller
from carrypost.attach.line import ENVELOPE_BYTES
from carrypost.attach.values import ANSWERS, MESSAGES, NEWS, decode_node_info, encode_command, pack_descriptor
from carrypost.errors import CarrypostError, IllegalArgumentException, IllegalStateException, JMSException, NoNodeError
from carrypost.jms.provider import NODE_ENDED, NODE_LOST, NodeInfo, Perform, Performed, Program, Provider
from carrypost.jms.provider.reconnecting import ReconnectingProvider
from carrypost.log.events import Receipt
from carrypost.messaging import commands as do
from carrypost.model.descriptor import Descriptor

R = TypeVar("R")
N = TypeVar("N")
_decode_sent = ANSWERS[Perform].decode
_CLOSERS: Mapping[type, Callable[[int], do.Command[None]]] = {
    do.Connect: do.Disconnect, do.OpenSession: do.CloseSession, do.Consume: do.CloseConsumer,
}  # fmt: skip
"""Commands that close what another one opened: a program that was cancelled meanwhile does not know about it."""
_CLOSE_S = 5.0


class _Line(Caller):
    """The program's end of the connection."""

    raises, versions = JMSException, [calls.VERSION]

    def __init__(self, path: Path, provider: AttachedProvider) -> None:
        super().__init__(path)
        self._provider = provider

    def receive(self, frame: calls.AnyReply) -> None:
        """Handle a frame."""
        provider = self._provider
        match frame:
            case calls.News():
                provider.receive_news(frame)
            case calls.Sent():
                provider.sent(frame.number, frame.value)
            case calls.Answer():
                provider.sent(frame.number, frame.value)
                self.answer(frame.number, frame.value)
            case calls.Busy():
                provider.busy(frame.on)
            case calls.Clock():
                provider.ahead_us = frame.ahead_us
            case calls.Ended():
                self.end(IllegalStateException(frame.reason, NODE_ENDED))
            case _:
                super().receive(frame)

    def fail(self, number: int, error: CarrypostError) -> None:
        """End a call with an error: a unit of work that failed before the node had its messages sent none."""
        self._provider.unsent(number, error)
        super().fail(number, error)

    def end(self, error: CarrypostError) -> None:
        """Fail every call, and end what was open on the node. Only before the welcome is that a `NoNodeError`."""
        first = self.ended is None
        if not isinstance(error, JMSException) and (self._provider.welcomed or not isinstance(error, NoNodeError)):
            translated = IllegalStateException(str(error), NODE_ENDED)
            translated.__cause__ = error
            error = translated
        if self._provider.welcomed:
            unanswered = _unanswered(error)
            for number in list(self._open):
                self.fail(number, unanswered)
        super().end(error)
        if first:
            self._provider.node_ended(str(error))


class AttachedProvider(Provider):
    """The messaging of a node at the other end of a socket."""

    ahead_us = 0
    """Time by which the node's clock is ahead of the system's."""

    def __init__(self, path: Path) -> None:
        self.line = _Line(path, self)
        self._programs: dict[int, Program] = {}
        """By connection."""
        self._sent: dict[int, asyncio.Future[Any]] = {}
        """Units of work whose messages the node is not yet known to have."""
        self._abandoned: set[asyncio.Future[Any]] = set()
        """Calls whose tasks were cancelled, until what they opened is closed."""
        self._read = 0
        """The highest number of a message that came."""
        self._room: asyncio.Future[None] | None = None
        """Future that is set when the disk is not behind any more; None: it is not behind."""
        self._node_info: NodeInfo | None = None

    @classmethod
    async def open(cls, path: Path) -> AttachedProvider:
        """Attach to a node; raises `NoNodeError`, or a `JMSException` with the reason."""
        made = cls(path)
        welcome = await made.line.greet()
        if welcome.place == calls.NOTHING:
            await made.close()
            raise JMSException("messaging is switched off on this node: set messaging.enabled = true")
        made.begin(welcome)
        return made

    def begin(self, welcome: calls.Welcome) -> None:
        """Store the node's description of itself."""
        node_info: NodeInfo = decode_node_info(welcome.place)
        self._node_info, self.ahead_us = node_info, welcome.now_us - welcome.system_us
        self.line.parts.bytes_max = node_info.limits.message_bytes_max + ENVELOPE_BYTES

    @property
    def welcomed(self) -> bool:
        """True if the node has introduced itself."""
        return self._node_info is not None

    @property
    def is_over(self) -> bool:
        """True if the node is gone, or the connection to it is closed."""
        return self.line.ended is not None

    def end(self, reason: str) -> None:
        """Disconnect, and inform everything that waits."""
        self.line.end(IllegalStateException(reason, NODE_ENDED))

    async def close(self) -> None:
        """Disconnect, once the node has answered everything."""
        await self.line.answered(_CLOSE_S)
        self.line.end(IllegalStateException("this program is no longer attached to the node: create a new context"))
        await asyncio.shield(self.line.over)

    @property
    def node_info(self) -> NodeInfo:
        """Name of the node, and its limits and settings."""
        if self._node_info is None:
            raise IllegalStateException("this program is not attached to a node")
        return self._node_info

    def now_us(self) -> int:
        """Return the node's time in microseconds, which never goes back."""
        return time.time_ns() // 1_000 + self.ahead_us

    # --- commands ------------------------------------------------------------------------------------------

    def _call(self, command: do.Command[Any], number: int) -> calls.Call:
        try:
            encoded = encode_command(command)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise IllegalArgumentException(f"the call cannot be encoded for the node: {error}") from None
        return calls.Call(number, Raw(encoded), read=self._read)

    def _ask(self, command: do.Command[Any]) -> tuple[int, asyncio.Future[Any]]:
        """Send a command; return its number, and a future for the answer."""
        number = self.line.next()
        return number, self.line.expect(number, self._call(command, number))

    async def execute(self, command: do.Command[R]) -> R:
        """Carry out a command, and wait for its answer."""
        kind = type(command)
        closer = _CLOSERS.get(kind)
        while closer and self._abandoned:
            await asyncio.wait(self._abandoned)
        _, answer = self._ask(command)
        try:
            value = await (asyncio.shield(answer) if closer else answer)
        except asyncio.CancelledError:
            if closer:
                self._abandon(answer, kind, closer)
            raise
        if isinstance(command, do.Disconnect):
            self._programs.pop(command.connection, None)
        return ANSWERS[kind].decode(value)  # type: ignore[no-any-return]  # as the class of the command says

    def _abandon(self, answer: asyncio.Future[Any], kind: type, closer: Callable[[int], do.Command[None]]) -> None:
        """Close what an abandoned command opens."""

        def close(_: object) -> None:
            if answer.exception() is None:
                _, closing = self._ask(closer(ANSWERS[kind].decode(answer.result())))
                self._abandoned.add(closing)
                closing.add_done_callback(self._abandoned.discard)
            self._abandoned.discard(answer)

        self._abandoned.add(answer)
        answer.add_done_callback(close)

    def tell(self, command: do.Credit | do.GoOn) -> None:
        """Send a command that has no answer."""
        self.line.write(self._call(command, 0))

    async def connect(self, client: str, program: Program) -> int:
        """Connect a program."""
        number = await self.execute(do.Connect(client))
        self._programs[number] = program
        return number

    async def payload(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message."""
        return await self.execute(do.ReadPayload(pack_descriptor(descriptor)))

    def perform(self, asked: Perform) -> Performed:
        """Carry out a unit of work."""
        sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number, done = self._ask(asked)
        if not asked.sends:
            sent.set_result(())
        elif self.line.ended is None:
            self._sent[number] = sent
        else:
            _fail(sent, self.line.ended)
        return Performed(sent, done)

    def sent(self, number: int, value: Raw) -> None:
        """Note that the node has the messages of a unit of work, if this answers one."""
        sent = self._sent.pop(number, None)
        if sent is not None and not sent.done():
            sent.set_result(_decode_sent(value))

    def unsent(self, number: int, error: CarrypostError) -> None:
        """Note that a call failed: of a unit of work that sends, nothing was sent."""
        sent = self._sent.pop(number, None)
        if sent is not None and not sent.done():
            _fail(sent, error)

    # --- events of the node --------------------------------------------------------------------------------

    def receive_news(self, frame: calls.News) -> None:
        """Pass an event to its program."""
        program, codec = self._programs.get(frame.connection), NEWS.get(frame.name)
        if codec is None:
            return  # A later version has further news.
        together = codec.decode(frame.args)
        if frame.name == MESSAGES and together:
            self._read = together[-1][0].number
        if program is None:
            return
        for news in together:
            if frame.name == MESSAGES:
                program.deliver(*news)
            elif isinstance(news, Receipt):
                program.note(news)
            else:  # The program may not know yet what it is about: the answer is behind it.
                asyncio.get_running_loop().call_soon(program.note, news)

    def busy(self, on: bool) -> None:
        """Note that the disk is behind, or no longer."""
        if on and self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        elif not on and self._room is not None:
            self._room.set_result(None)
            self._room = None

    async def room(self) -> None:
        """Wait while too much waits for the node's disk."""
        while self._room is not None:
            await asyncio.shield(self._room)

    def node_ended(self, reason: str) -> None:
        """End all that was open on the node."""
        self.busy(on=False)
        programs, self._programs = list(self._programs.values()), {}
        for program in programs:
            program.node_ended(reason)


def _unanswered(error: CarrypostError) -> IllegalStateException:
    """Return the error of a call that the node was to answer when it ended."""
    made = IllegalStateException(f"{error}: it is not known whether this call, which it did not answer, had an effect")
    made.error_code, made.__cause__ = NODE_LOST, error
    return made


def _fail(future: asyncio.Future[Any], error: CarrypostError) -> None:
    future.set_exception(error)
    future.exception()  # It counts as seen: its caller may be gone.


class _Use:
    """The use of a node by one event loop."""

    def __init__(self, settings: object) -> None:
        self.settings, self.users = settings, 0
        self.opened: Any = None
        self.changing = asyncio.Lock()


_uses: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, _Use]] = WeakKeyDictionary()


class SharedNode(ABC, Generic[N]):
    """Source of a node that its users in one event loop share: the first one opens it, and the last one closes it."""

    def __init__(self, key: object, settings: object = None) -> None:
        self._key, self._with = key, settings
        """Sources with equal keys have the same node, and must have the same settings."""

    @property
    def in_use(self) -> bool:
        """True if this event loop uses the node."""
        return self._key in _uses.get(asyncio.get_running_loop(), {})

    async def acquire(self) -> Provider:
        """Return the node's provider."""
        use = _uses.setdefault(asyncio.get_running_loop(), {}).setdefault(self._key, _Use(self._with))
        if use.settings != self._with:
            raise IllegalStateException(
                f"this program uses the node in {self._key} with other settings: give both factories the same"
            )
        use.users += 1
        try:
            async with use.changing:
                use.opened = await self._present(use.opened)
                return self._provider(use.opened)
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        """Release the provider."""
        uses = _uses[asyncio.get_running_loop()]
        use = uses[self._key]
        use.users -= 1
        async with use.changing:
            if use.users:
                return  # Another user came meanwhile.
            opened, use.opened = use.opened, None
            if opened is not None:
                await self._close(opened)
            if not use.users:  # A user that came while it closed waits for the lock, and opens it again.
                uses.pop(self._key, None)

    @abstractmethod
    async def _present(self, opened: N | None) -> N:
        """Return the node that is open, or a new one if it is not, or over."""

    @abstractmethod
    def _provider(self, opened: N) -> Provider:
        """Return the provider of an open node."""

    @abstractmethod
    async def _close(self, opened: N) -> None:
        """Close a node."""


class AttachedNode(SharedNode[AttachedProvider | ReconnectingProvider]):
    """Source from which contexts get a node that runs elsewhere; `acquire` raises `NoNodeError` if none answers.

    `reconnect_s` is the time for which they wait for that node when it is gone; 0: it is gone for good.
    """

    def __init__(self, path: Path, reconnect_s: float = 0.0) -> None:
        super().__init__((path, reconnect_s))
        self._path, self._reconnect_s = path, reconnect_s

    async def _present(
        self, opened: AttachedProvider | ReconnectingProvider | None
    ) -> AttachedProvider | ReconnectingProvider:
        if opened is not None and not opened.is_over:
            if isinstance(opened, ReconnectingProvider):
                opened.check_present()
            return opened
        first = await AttachedProvider.open(self._path)
        if not self._reconnect_s:
            return first
        return ReconnectingProvider(
            first, lambda: AttachedProvider.open(self._path), str(self._path), self._reconnect_s
        )

    def _provider(self, opened: AttachedProvider | ReconnectingProvider) -> Provider:
        return opened

    async def _close(self, opened: AttachedProvider | ReconnectingProvider) -> None:
        await opened.close()

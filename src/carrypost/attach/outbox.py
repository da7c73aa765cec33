"""News of a node for the programs at its socket: it waits here, within the credit of their consumers, and is written.

Messages wait as descriptors, and a body is read when it is written. So a program that does not read costs little, and
slows no other program. To wake a program, and to take what it acknowledges, costs more than a message does. So what
comes after a pause is written at once, and what comes soon after that is gathered, for all programs together
(`Rounds`).

What waits is bounded. A program may give its consumers any credit. The provider gets only so much of it that little
more than `WAITING_MAX` messages wait for the program, and the rest when some of them were written. Bodies that
were read are kept for other programs, within a bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from carrypost.attach import calls
from carrypost.attach.line import PART_BYTES
from carrypost.attach.values import MESSAGES, NEWS
from carrypost.errors import JMSException
from carrypost.jms.provider import Program
from carrypost.log.events import Browsed, ClaimLost, GivenUp, Receipt

if TYPE_CHECKING:
    from carrypost.attach.line import Line
    from carrypost.jms.provider import News, Provider
    from carrypost.log.events import Handed
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId


WAITING_MAX = 10_000
_BODIES_BYTES = 1024 * 1024


class _Credit:
    """Credit of one consumer: `given` to the provider, and `owed` until some of that was written."""

    __slots__ = ("given", "owed", "session")

    def __init__(self, session: int) -> None:
        self.session, self.given, self.owed = session, 0, 0


class Credits:
    """Credit of all consumers of one program; `give` is the provider's `credit`."""

    def __init__(self, give: Callable[[int, int, int], None]) -> None:
        self._give = give
        self._consumers: dict[int, _Credit] = {}
        self._given = 0
        """Credit that the provider has, for all of them."""

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._consumers

    def open(self, consumer: int, session: int) -> None:
        """Note one more consumer, without credit."""
        self._consumers[consumer] = _Credit(session)

    def close(self, consumer: int) -> None:
        """Forget a consumer."""
        credit = self._consumers.pop(consumer, None)
        if credit is not None:
            self._given -= credit.given

    def close_session(self, session: int) -> None:
        """Forget the consumers of a session."""
        for consumer in [number for number, credit in self._consumers.items() if credit.session == session]:
            self.close(consumer)

    def add(self, consumer: int, messages: int, nbytes: int) -> None:
        """Let a consumer take more; one that is closed takes nothing."""
        credit = self._consumers.get(consumer)
        if credit is not None:
            credit.owed += messages
            self._grant(consumer, credit, nbytes)

    def written(self, consumer: int, messages: int) -> None:
        """Note that this many messages of a consumer were written."""
        credit = self._consumers.get(consumer)
        if credit is not None:
            credit.given -= messages
            self._given -= messages
            self._grant(consumer, credit, 0)

    def _grant(self, consumer: int, credit: _Credit, nbytes: int) -> None:
        """Pass on credit that is owed, within the bounds; a consumer without any gets one message."""
        messages = min(credit.owed, max(WAITING_MAX - self._given, 0 if credit.given > 0 else 1))
        if messages or nbytes:
            credit.owed -= messages
            credit.given += messages
            self._given += messages
            self._give(consumer, messages, nbytes)


class Bodies:
    """Bodies as they are read from a provider, up to `bytes_max` each; the last ones are kept for other programs."""

    def __init__(self, provider: Provider, bytes_max: int) -> None:
        self._provider, self._bytes_max = provider, bytes_max
        self._kept: dict[MessageId, bytes] = {}
        self._bytes = 0

    def kept(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message that was read lately."""
        return self._kept.get(descriptor.id)

    async def read(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message if it is short enough to come along with it, and not gone."""
        if descriptor.size + len(descriptor.wire) > self._bytes_max:
            return None
        body = await self._provider.payload(descriptor)
        if body is not None and descriptor.id not in self._kept:
            self._kept[descriptor.id] = body
            self._bytes += len(body)
            while self._bytes > _BODIES_BYTES:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))
        return body


_log = logging.getLogger("carrypost.native")
_WAKE_S, _ROUND_S_MAX = 0.0025, 0.05
"""Time that each program adds to a round, and the bound of that."""


class Rounds:
    """Rounds, at whose ends all programs get the news that was gathered for them."""

    def __init__(self) -> None:
        self._behind: list[ProgramOutbox] = []
        self._woken = 1
        """Programs that got news at the end of the last round: the more there are to wake, the longer a round."""

    @property
    def length_s(self) -> float:
        """Time for which news are gathered."""
        return min(self._woken * _WAKE_S, _ROUND_S_MAX)

    def add(self, outbox: ProgramOutbox) -> None:
        """Add a program that gets its news at the end of the round; the first one begins a round."""
        if not self._behind:
            asyncio.get_running_loop().call_later(self.length_s, self._end)
        self._behind.append(outbox)

    def _end(self) -> None:
        behind, self._behind, self._woken = self._behind, [], len(self._behind)
        for outbox in behind:
            outbox.now()


class ProgramOutbox:
    """News and answers that wait for one program; `wrote` is called when none waits any more."""

    def __init__(
        self, line: Line, bodies: Bodies, consumers: Credits, rounds: Rounds, wrote: Callable[[], None]
    ) -> None:
        self._line, self._bodies, self._consumers, self._rounds, self._wrote = line, bodies, consumers, rounds, wrote
        self.beyond: deque[int] = deque()
        """The numbers of messages that the program may not have read."""
        self._untaken: dict[int, dict[int, None]] = {}
        """By consumer, the numbers of messages behind the last one that the program's code is known to get."""
        self._announced: dict[int, int] = {}
        """By consumer, the number up to which it may get more without saying so."""
        self._waiting: deque[tuple[int, str, Any]] = deque()
        """Connection, name and contents of news; a frame has no name."""
        self._receipts: dict[tuple[int, MessageId], Receipt] = {}
        """By connection and message."""
        self._wake = asyncio.Event()
        """Set when what waits is to be written."""
        self._is_behind = False
        """True if that will be done at the end of the round."""

    @property
    def is_full(self) -> bool:
        """True if so much waits that no further calls of the program should be read."""
        return len(self._waiting) >= 2 * WAITING_MAX

    def unseen(self) -> list[int]:
        """Return the numbers of the messages that the program's code did not get, written or not."""
        self.forget_closed()
        announced = self._announced
        return [each for consumer, some in self._untaken.items() for each in some if each > announced.get(consumer, 0)]

    def message(self, connection: int, handed: Handed, body: bytes | None) -> None:
        """Let a message for a consumer of the program wait."""
        self.beyond.append(handed.number)
        self._untaken.setdefault(handed.consumer, {})[handed.number] = None
        self._wait(connection, MESSAGES, (handed, body))

    def announced(self, consumer: int, number: int, through: int) -> None:
        """Note that the program's code gets a message of a consumer, and perhaps those behind it, up to `through`."""
        self._announced[consumer] = through
        some = self._untaken.get(consumer, {})
        while some and (first := next(iter(some))) <= number:
            del some[first]

    def forget_closed(self) -> None:
        """Forget the messages of closed consumers. Those that were returned otherwise go with the next announcement."""
        self._untaken = {each: some for each, some in self._untaken.items() if each in self._consumers}
        self._announced = {each: through for each, through in self._announced.items() if each in self._consumers}

    def was_read(self, through: int) -> None:
        """Note that the program has read all messages up to this number."""
        while self.beyond and self.beyond[0] <= through:
            self.beyond.popleft()

    def news(self, connection: int, news: News) -> None:
        """Let something wait until it can be written; of what is only good to know, not too much."""
        if not isinstance(news, ClaimLost | GivenUp) or len(self._waiting) < WAITING_MAX:
            self._wait(connection, type(news).__name__, news)

    def _wait(self, connection: int, name: str, news: object) -> None:
        self._waiting.append((connection, name, news))
        self._soon()

    def receipt(self, connection: int, receipt: Receipt) -> None:
        """Let the latest receipt of a message wait: it says all that those before it did."""
        self._receipts[connection, receipt.message] = receipt
        self._soon()

    def answer(self, frame: calls.AnyReply, *, patient: bool = False) -> None:
        """Answer behind all that was handed over before: a program that asked knows then what there is.

        `patient`: no caller waits for the answer, so it is sent with other news.
        """
        if self._waiting or self._receipts:
            self._waiting.append((0, "", frame))
        else:
            self._line.write(frame, soon=not patient)
        if patient:
            self._later()
        elif self._waiting:
            self.now()

    def _soon(self) -> None:
        """Write at once after a pause, and else with what more comes in this round."""
        if self._is_behind or self._wake.is_set():
            return
        if self._line.wrote_s + self._rounds.length_s < asyncio.get_running_loop().time():
            self._wake.set()
        else:
            self._later()

    def _later(self) -> None:
        if not self._is_behind:
            self._is_behind = True
            self._rounds.add(self)

    def now(self) -> None:
        """Write the waiting frames to the program at once."""
        self._is_behind = False
        if self._waiting or self._receipts:
            self._wake.set()
        else:
            self._line.flush()

    def end(self, reason: str) -> None:
        """Notify the program that the node ends, and hang up."""
        self._line.hang_up(calls.Ended(reason))

    # --- writing -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what waits, whenever it is time, for as long as the program is there."""
        try:
            while True:
                await self._wake.wait()
                while self._waiting or self._receipts:
                    await self._write_next()
                    if self._line.is_full:
                        await self._line.drained()
                self._wake.clear()
                self._wrote()
        except JMSException:
            pass  # The node ends, and says so.
        except Exception:  # noqa: BLE001 - A program that misses an event would wait for it for ever.
            _log.exception("an event could not be sent to a program; closing its connection")
            self._line.hang_up()

    async def _write_next(self) -> None:
        if self._receipts:  # First: an answer that waits comes behind the receipts that there were.
            first = next(iter(self._receipts))
            self.write_news(first[0], self._receipts.pop(first))
        elif self._waiting[0][1] == MESSAGES:
            await self._write_messages()
        else:
            connection, name, news = self._waiting.popleft()
            if name:
                self.write_news(connection, news)
            else:
                self._line.write(news)

    async def _write_messages(self) -> None:
        """Write the messages that wait first: those of one connection go in one frame, of little more than a part."""
        nbytes, connection = 0, self._waiting[0][0]
        run: list[tuple[Handed, bytes | None]] = []
        for of, name, message in self._waiting:
            if of != connection or name != MESSAGES or nbytes >= PART_BYTES:
                break
            run.append(message)
            nbytes += message[0].descriptor.size + message[0].descriptor.wire_bytes
        bodies = self._bodies
        for at, (handed, body) in enumerate(run):
            if body is None:
                run[at] = handed, bodies.kept(handed.descriptor) or await bodies.read(handed.descriptor)
        for _ in run:
            self._waiting.popleft()
        counts = Counter([handed.consumer for handed, _ in run])
        if gone := {each for each in counts if each not in self._consumers}:
            # A consumer that closed meanwhile gave it back.
            run = [each for each in run if each[0].consumer not in gone]
        if run:
            self._write(connection, MESSAGES, tuple(run))
        for consumer, count in counts.items():
            self._consumers.written(consumer, count)

    def write_news(self, connection: int, news: News) -> None:
        """Write news at once."""
        self._write(connection, type(news).__name__, (news,))

    def _write(self, connection: int, name: str, together: tuple[object, ...]) -> None:
        self._line.write(calls.News(connection, name, Raw(NEWS[name].encode(together))))


def cut(part: Browsed) -> Iterator[Browsed]:
    """Yield what a browsing reports in several parts, each of which fits into a frame."""
    some: list[Descriptor] = []
    nbytes = 0
    for descriptor in part.descriptors:
        if some and nbytes + descriptor.wire_bytes > PART_BYTES:
            yield Browsed(part.number, tuple(some), part.taken_us, complete=False)
            some, nbytes = [], 0
        some.append(descriptor)
        nbytes += descriptor.wire_bytes
    yield Browsed(part.number, tuple(some), part.taken_us, part.complete)


class ProgramConnection(Program):
    """One connection of a program, to which the provider reports events."""

    def __init__(self, outbox: ProgramOutbox) -> None:
        self.number = 0
        self._outbox = outbox

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:
        """Let a message wait until it can be written."""
        self._outbox.message(self.number, handed, body)

    def note(self, news: News) -> None:
        """Let news wait; a part of what waits in a queue is cut into parts that fit into a frame."""
        if isinstance(news, Receipt):
            self._outbox.receipt(self.number, news)
            return
        for each in cut(news) if isinstance(news, Browsed) else (news,):
            self._outbox.news(self.number, each)

    def node_ended(self, reason: str) -> None:
        """Tell the program, and hang up."""
        self._outbox.end(reason)

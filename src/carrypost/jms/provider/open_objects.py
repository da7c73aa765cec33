"""Objects that a program which outlives its node has open there, under numbers that do not change.

A restarted node gives connections, sessions, consumers and messages other numbers, and may give a number to something
else. So programs know all of them by numbers of this module, none of which is used twice.
"""

# A message has the node's own number plus `through`, the highest number that any message had when
# the last node was lost. So all messages of a node that is gone are at most `through`. They are
# void: no call for them may reach the present node.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from carrypost.errors import IllegalStateException
from carrypost.gossip.draft import Draft
from carrypost.jms.provider import NODE_LOST, Perform, Program
from carrypost.messaging import commands as do

T = TypeVar("T")
C = TypeVar("C", bound=do.Command[Any])
VOID = (
    "the message was received before the connection to the node was lost, and cannot be acknowledged: it comes again, "
    "flagged as redelivered"
)


@dataclass(slots=True, eq=False)
class OpenedConnection:
    """A connection of a program: the number by which the program knows it, and the `real` one on the node."""

    client: str
    program: Program
    real: int = 0
    number: int = 0
    temporaries: dict[str, do.Declare] = field(default_factory=dict)
    """The temporary queues of the connection, by destination."""


@dataclass(slots=True, eq=False)
class OpenedSession:
    """A session."""

    connection: OpenedConnection
    real: int
    number: int = 0


@dataclass(slots=True, eq=False)
class OpenedConsumer:
    """A consumer, and the request that opened it."""

    session: OpenedSession
    asked: do.Subscribe | do.Receive
    real: int
    number: int = 0

    @property
    def shown(self) -> str:
        """The consumer as an error message names it."""
        name = self.asked.destination if isinstance(self.asked, do.Receive) else self.asked.name
        return f"the consumer of {name}" if name else "a consumer of a topic"


Opened = OpenedConnection | OpenedSession | OpenedConsumer


class OpenObjects:
    """Everything that the programs of one provider have open."""

    def __init__(self) -> None:
        self.connections: dict[int, OpenedConnection] = {}
        self.sessions: dict[int, OpenedSession] = {}
        self.consumers: dict[int, OpenedConsumer] = {}
        self.through = 0
        """Messages up to this number are void."""
        self.highest = 0
        """The highest number of a message."""
        self._number = 0
        """The highest number of anything else."""
        self._by_real: dict[int, OpenedConsumer] = {}
        """Consumers by their numbers on the present node."""
        self._same = True
        """True while all numbers are those of the node: then nothing has to be translated."""

    # --- entries -------------------------------------------------------------------------------------------

    def add(self, made: Opened) -> int:
        """Enter an object; return its number: that of the node, if possible."""
        made.number = self._number = max(self._number + 1, made.real)
        self._same = self._same and made.number == made.real
        self._all(made)[made.number] = made
        if isinstance(made, OpenedConsumer):
            self._by_real[made.real] = made
        return made.number

    def _all(self, made: Opened) -> dict[int, Any]:
        if isinstance(made, OpenedConnection):
            return self.connections
        return self.sessions if isinstance(made, OpenedSession) else self.consumers

    def has(self, made: Opened) -> bool:
        """Return True if an object is open."""
        return made.number in self._all(made)

    def remove(self, closed: Opened) -> None:
        """Remove an object with everything in it. Idempotent."""
        self._all(closed).pop(closed.number, None)
        for session in [each for each in self.sessions.values() if each.connection is closed]:
            self.remove(session)
        for consumer in [each for each in self.consumers.values() if each.session is closed]:
            self.remove(consumer)
        if isinstance(closed, OpenedConsumer) and self._by_real.get(closed.real) is closed:
            del self._by_real[closed.real]

    def closed_by(self, command: do.Disconnect | do.CloseSession | do.CloseConsumer) -> Opened | None:
        """Return the open object that a command closes; None if there is none."""
        if isinstance(command, do.Disconnect):
            return self.connections.get(command.connection)
        if isinstance(command, do.CloseSession):
            return self.sessions.get(command.session)
        return self.consumers.get(command.consumer)

    def connection(self, number: int) -> OpenedConnection:
        """Return an open connection; raises `IllegalStateException` if it is closed, as do the next two."""
        return _found(self.connections, number, "connection")

    def session(self, number: int) -> OpenedSession:
        """Return an open session."""
        return _found(self.sessions, number, "session")

    def consumer(self, number: int) -> OpenedConsumer:
        """Return an open consumer."""
        return _found(self.consumers, number, "consumer")

    # --- the node goes, and returns ------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Make all messages void, because their node is gone, and forget its numbers of consumers."""
        self.through = self.highest
        self._by_real.clear()
        self._same = False

    def reopened(self, consumer: OpenedConsumer, real: int) -> None:
        """Note the number of a consumer on another node."""
        consumer.real = real
        self._by_real[real] = consumer

    # --- numbers of the node -------------------------------------------------------------------------------

    def consumer_at(self, real: int) -> int | None:
        """Return the number of the consumer that the node knows by this one; None if there is none."""
        found = self._by_real.get(real)
        return None if found is None else found.number

    def message(self, real: int) -> int:
        """Return the number of a message that the node handed over under this one."""
        self.highest = max(self.highest, self.through + real)
        return self.through + real

    def real(self, command: C) -> C:
        """Return a command as the node knows it; raises for what is closed, and for void messages.

        Of several messages, the void ones are left out: they come again in any case.
        """
        changes: dict[str, Any] = {}
        for name in command.__struct_fields__:
            given = getattr(command, name)
            match name:
                case "connection":
                    changes[name] = self.connection(given).real
                case "session":
                    changes[name] = self.session(given).real
                case "consumer":
                    changes[name] = self.consumer(given).real
                case "unread" | "numbers" if given:
                    changes[name] = [number - self.through for number in given if number > self.through]
                case "number":
                    changes[name] = self._real_message(given)
                case "through":
                    changes[name] = given - self.through
                case "asked" if isinstance(given, do.Declare) and given.connection:
                    changes[name] = msgspec.structs.replace(given, connection=self.connection(given.connection).real)
                case "draft":
                    changes[name] = self._real_draft(given)
                case _:
                    pass
        return msgspec.structs.replace(command, **changes) if changes else command

    def real_unit(self, asked: Perform) -> Perform:
        """Return a unit of work as the node knows its parts; raises for what is closed, and for void messages."""
        if self._same:
            return asked
        sends = tuple([each if isinstance(each, int) else self._real_draft(each) for each in asked.sends])
        acks = tuple([self._real_ack(each) for each in asked.acks])
        session = self.session(asked.session).real if asked.session else 0
        return Perform(session, sends, acks, asked.durability, asked.early)

    def _real_ack(self, ack: do.Ack) -> do.Ack:
        numbers = tuple([self._real_message(number) for number in ack.numbers])
        return do.Ack(self.session(ack.session).real, numbers, max(0, ack.through - self.through), ack.late)

    def _real_message(self, number: int) -> int:
        if number <= self.through:
            raise IllegalStateException(VOID, NODE_LOST)
        return number - self.through

    def _real_draft(self, draft: Draft) -> Draft:
        """Return a draft whose headers name connection and session as the node knows them."""
        headers = draft.headers
        if headers is None or (session := self.sessions.get(headers.session)) is None:
            return draft
        real = session.connection.real, session.real
        if (headers.connection, headers.session) == real:
            return draft
        headers = msgspec.structs.replace(headers, connection=real[0], session=real[1])
        return msgspec.structs.replace(draft, headers=headers)


def _found(opened: dict[int, T], number: int, what: str) -> T:
    try:
        return opened[number]
    except KeyError:
        raise IllegalStateException(f"this {what} is closed: create another") from None

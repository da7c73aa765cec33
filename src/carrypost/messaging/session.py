"""Connections, their sessions, and the consumers of those: what each is handed, and how much of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from carrypost.errors import IllegalStateException, InvalidClientIDException
from carrypost.messaging.state import Connection, Consumer, Session
from carrypost.model.headers import TEXT_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from carrypost.messaging.commands import Ack
    from carrypost.messaging.state import Claim, Claimant

T = TypeVar("T")


class Sessions:
    """The connections to one node's messaging."""

    def __init__(self) -> None:
        self._connections: dict[int, Connection] = {}
        self._sessions: dict[int, Session] = {}
        self._consumers: dict[int, Consumer] = {}
        self._number = 0

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def _next(self) -> int:
        self._number += 1
        return self._number

    def connect(self, client: str) -> Connection:
        """Open a connection. A client id belongs to one at a time."""
        if len(client) > TEXT_MAX:  # It travels with messages.
            raise InvalidClientIDException(f"a client id has at most {TEXT_MAX:,} characters, not {len(client):,}")
        if client and any(each.client == client for each in self._connections.values()):
            raise InvalidClientIDException(
                f"the client id {client!r} is in use on this node: close the connection that has it, or choose another"
            )
        connection = Connection(self._next(), client)
        self._connections[connection.number] = connection
        return connection

    def disconnect(self, connection: Connection) -> None:
        """Remove a connection, whose sessions are closed already."""
        del self._connections[connection.number]

    def open(self, connection: Connection) -> Session:
        """Open a session."""
        session = Session(self._next(), connection)
        self._sessions[session.number] = connection.sessions[session.number] = session
        return session

    def close(self, session: Session) -> None:
        """Remove a session, whose consumers are closed already."""
        session.closed = True
        del self._sessions[session.number], session.connection.sessions[session.number]

    def consume(self, session: Session, claimant: Claimant) -> Consumer:
        """Add a consumer."""
        consumer = Consumer(self._next(), session, claimant)
        self._consumers[consumer.number] = session.consumers[consumer.number] = consumer
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        del self._consumers[consumer.number], consumer.session.consumers[consumer.number]

    def handed(self, numbers: Collection[int]) -> list[Claim]:
        """Return the claims that sessions have under these numbers."""
        sessions = self._sessions.values()
        return [claim for session in sessions for number, claim in session.handed.items() if number in numbers]

    def handed_for(self, claimant: Claimant) -> list[Claim]:
        """Return the claims of one subscription that sessions have."""
        sessions = self._sessions.values()
        return [claim for each in sessions for claim in each.handed.values() if claim.claimant is claimant]

    def connection_of(self, *, session: int = 0, consumer: int = 0) -> int:
        """Return the number of the connection that a session or a consumer belongs to; 0 if that is closed."""
        found = self._consumers.get(consumer)
        of = self._sessions.get(session) if found is None else found.session
        return 0 if of is None else of.connection.number

    def connection(self, number: int) -> Connection:
        """Return the connection of this number; raises `IllegalStateException`."""
        return _open(self._connections, number, "connection", "connect again")

    def session(self, number: int) -> Session:
        """Return the session of this number; raises `IllegalStateException`."""
        return _open(self._sessions, number, "session", "open another")

    def check(self, ack: Ack, last: int) -> None:
        """Raise `IllegalStateException` for numbers that cannot be acknowledged; `last`: the last number handed over.

        Claims that ended meanwhile are valid: they expired, or were acknowledged before.
        """
        session = self.session(ack.session)
        for number in (*ack.numbers, ack.through):
            if not 0 <= number <= last:
                raise IllegalStateException(
                    f"no message was handed over with the number {number}: acknowledge by `Handed.number`"
                )
        for number in ack.numbers:
            if number not in session.handed and self.handed((number,)):
                raise IllegalStateException(
                    f"the number {number} was handed to another session than {ack.session}: acknowledge it there"
                )

    def consumer(self, number: int) -> Consumer:
        """Return the consumer of this number; raises `IllegalStateException`."""
        return _open(self._consumers, number, "consumer", "create another")


def _open(things: Mapping[int, T], number: int, what: str, advice: str) -> T:
    if number not in things:
        raise IllegalStateException(f"{what} {number} is closed: {advice}")
    return things[number]

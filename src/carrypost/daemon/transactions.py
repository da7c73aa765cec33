"""Transactions of one client: what it asked for between begin and commit, in memory and bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from carrypost.errors import IllegalArgumentException, ResourceAllocationException

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from carrypost.daemon.subscription import Subscription
    from carrypost.errors import CarrypostError
    from carrypost.gossip.draft import Draft
    from carrypost.log.events import Handed

S = TypeVar("S", bound="Subscription")
TRANSACTIONS_MAX: Final = 16
"""Transactions that one client may have open."""
MESSAGES_MAX: Final = 10_000
"""Messages that one transaction may send, and messages that it may acknowledge or refuse."""


class Transaction(Generic[S]):
    """One transaction; a message is acknowledged or refused once, however often its client says so."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self._sent_bytes = 0
        self.acknowledged: dict[S, dict[int, Handed]] = {}
        """By number, as each subscription was handed them."""
        self.refused: dict[S, dict[int, Handed]] = {}
        """Refused messages, likewise."""
        self.dead: set[int] = set()
        """Numbers of refused messages that must not come again."""
        self._settled = 0
        """Number of messages that are acknowledged or refused."""
        self.failure: CarrypostError | None = None
        """An error that the client was not told of; the transaction cannot be committed."""

    def send(self, draft: Draft, nbytes: int, bytes_max: int) -> None:
        """Add a message of this size, headers included, if there is room."""
        self._sent_bytes += nbytes
        if self._sent_bytes > bytes_max:
            raise ResourceAllocationException(
                f"a transaction has at most {bytes_max:,} bytes (messaging.draft_bytes_max)"
            )
        if len(self.drafts) >= MESSAGES_MAX:
            raise ResourceAllocationException(f"a transaction sends at most {MESSAGES_MAX:,} messages")
        self.drafts.append(draft)

    def acknowledge(self, subscription: S, handed: Iterable[Handed]) -> None:
        """Add acknowledged messages."""
        self._settle(self.acknowledged.setdefault(subscription, {}), handed)

    def refuse(self, subscription: S, handed: Collection[Handed], *, dead: bool) -> None:
        """Add refused messages; `dead`: they must not come again."""
        self._settle(self.refused.setdefault(subscription, {}), handed)
        if dead:
            self.dead.update(each.number for each in handed)

    def _settle(self, settled: dict[int, Handed], handed: Iterable[Handed]) -> None:
        before = len(settled)
        settled.update((each.number, each) for each in handed)
        self._settled += len(settled) - before
        if self._settled > MESSAGES_MAX:
            raise ResourceAllocationException(
                f"a transaction acknowledges or refuses at most {MESSAGES_MAX:,} messages: commit more often"
            )


class Transactions(Generic[S]):
    """The open ones of one client, by the names that it gave them."""

    def __init__(self) -> None:
        self._open: dict[str, Transaction[S]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._open

    def begin(self, name: str) -> None:
        """Open one more."""
        if name in self._open:
            raise IllegalArgumentException(f"the transaction {name!r} has begun already"[:200])
        if len(self._open) >= TRANSACTIONS_MAX:
            raise ResourceAllocationException(f"a client has at most {TRANSACTIONS_MAX} transactions open")
        self._open[name] = Transaction()

    def get(self, name: str | None) -> Transaction[S] | None:
        """Return the transaction of this name; None for no name."""
        return None if name is None else self._named(name)

    def end(self, name: str) -> Transaction[S]:
        """Remove the one that is committed or rolled back, and return it."""
        found = self._named(name)
        del self._open[name]
        return found

    def _named(self, name: str) -> Transaction[S]:
        found = self._open.get(name)
        if found is None:
            raise IllegalArgumentException(f"there is no transaction {name!r}: begin it first"[:200])
        return found

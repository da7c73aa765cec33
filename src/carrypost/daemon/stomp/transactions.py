"""Transactions of one STOMP client: what its frames asked for between BEGIN and COMMIT, in memory and bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.errors import IllegalArgumentException, ResourceAllocationException

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from carrypost.daemon.stomp.codec import Frame
    from carrypost.daemon.stomp.subscriptions import Subscription
    from carrypost.events import Handed
    from carrypost.gossip.layer import Draft

TRANSACTIONS_MAX: Final = 16
"""Transactions that one client may have open."""
MESSAGES_MAX: Final = 10_000
"""Messages that one transaction may send, and messages that it may acknowledge or refuse."""


class Transaction:
    """One transaction; a message is acknowledged or refused once, however often its frames say so."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self._sent_bytes = 0
        self.acknowledged: dict[Subscription, dict[int, Handed]] = {}
        """By number, as each subscription was handed them."""
        self.refused: dict[Subscription, dict[int, Handed]] = {}
        """Refused messages, likewise."""
        self.dead: set[int] = set()
        """Numbers of refused messages that must not come again."""
        self._settled = 0
        """Number of messages that are acknowledged or refused."""

    def send(self, draft: Draft, frame: Frame, bytes_max: int) -> None:
        """Add the message of a SEND, if there is room."""
        # Headers count, too: a frame without a body may have 64 KiB of them.
        self._sent_bytes += len(frame.body) + sum(len(name) + len(value) for name, value in frame.headers.items())
        if self._sent_bytes > bytes_max:
            raise ResourceAllocationException(
                f"a transaction has at most {bytes_max:,} bytes (messaging.draft_bytes_max)"
            )
        if len(self.drafts) >= MESSAGES_MAX:
            raise ResourceAllocationException(f"a transaction sends at most {MESSAGES_MAX:,} messages")
        self.drafts.append(draft)

    def acknowledge(self, subscription: Subscription, handed: Iterable[Handed]) -> None:
        """Add acknowledged messages."""
        self._settle(self.acknowledged.setdefault(subscription, {}), handed)

    def refuse(self, subscription: Subscription, handed: Collection[Handed], *, dead: bool) -> None:
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
                f"a transaction acknowledges or refuses at most {MESSAGES_MAX:,} messages: COMMIT more often"
            )


class Transactions:
    """The open ones of one client, by the names that it gave them."""

    def __init__(self) -> None:
        self._open: dict[str, Transaction] = {}

    def begin(self, headers: Mapping[str, str]) -> None:
        """Open one more."""
        name = headers["transaction"]
        if name in self._open:
            raise IllegalArgumentException(f"the transaction {name!r} has begun already"[:200])
        if len(self._open) >= TRANSACTIONS_MAX:
            raise ResourceAllocationException(f"a client has at most {TRANSACTIONS_MAX} transactions open")
        self._open[name] = Transaction()

    def get(self, headers: Mapping[str, str]) -> Transaction | None:
        """Return the transaction that a frame belongs to; None if it belongs to none."""
        name = headers.get("transaction")
        return None if name is None else self._named(name)

    def end(self, headers: Mapping[str, str]) -> Transaction:
        """Remove the one that a COMMIT or ABORT names, and return it."""
        found = self._named(headers["transaction"])
        del self._open[headers["transaction"]]
        return found

    def _named(self, name: str) -> Transaction:
        found = self._open.get(name)
        if found is None:
            raise IllegalArgumentException(f"there is no transaction {name!r}: BEGIN it first"[:200])
        return found

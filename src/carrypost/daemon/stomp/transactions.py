"""Transactions of one STOMP client: what its frames asked for between BEGIN and COMMIT, in memory and bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.errors import IllegalArgumentException, ResourceAllocationException

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from carrypost.daemon.stomp.subscriptions import Subscription
    from carrypost.events import Handed
    from carrypost.gossip.layer import Draft

TRANSACTIONS_MAX: Final = 16
"""Transactions that one client may have open."""
SENDS_MAX: Final = 10_000
"""Messages that one transaction may send."""


class Transaction:
    """One transaction; a message is acknowledged or refused once, however often its frames say so."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self._payload_bytes = 0
        self.acknowledged: dict[Subscription, dict[int, Handed]] = {}
        """By number, as each subscription was handed them."""
        self.refused: list[tuple[Subscription, list[Handed], bool]] = []

    def send(self, draft: Draft, bytes_max: int) -> None:
        """Add a message, if there is room."""
        self._payload_bytes += len(draft.payload) if isinstance(draft.payload, bytes) else 0
        if self._payload_bytes > bytes_max:
            raise ResourceAllocationException(
                f"a transaction has at most {bytes_max:,} bytes (messaging.draft_bytes_max)"
            )
        if len(self.drafts) >= SENDS_MAX:
            raise ResourceAllocationException(f"a transaction sends at most {SENDS_MAX:,} messages")
        self.drafts.append(draft)

    def acknowledge(self, subscription: Subscription, handed: Iterable[Handed]) -> None:
        """Add acknowledged messages."""
        self.acknowledged.setdefault(subscription, {}).update({each.number: each for each in handed})


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

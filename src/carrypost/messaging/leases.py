"""Acknowledgements that come after the leases of their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.errors import IllegalStateException
from carrypost.messaging.commands import Late

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.messaging.commands import Ack
    from carrypost.messaging.state import Claim, Session

LEASE_OVER: Final = "LEASE_OVER"
"""The error code of a unit of work that is refused because leases are over."""


def lapsed(claims: Iterable[Claim], now: int) -> list[Claim]:
    """Return the claims that were handed over with a lease that is over: others may have their messages by now."""
    return [claim for claim in claims if claim.leased and claim.is_lapsed(now)]


def check(acks: Iterable[tuple[Session, Ack]], now: int) -> None:
    """Raise `IllegalStateException` if leases are over whose acknowledgements must not be late."""
    over = count = 0
    for session, ack in acks:
        if session.leased and ack.late is Late.REFUSE:
            named, overtaken = session.named(ack), session.named_overtaken(ack)
            count += len(named) + len(overtaken)
            over += len(lapsed(named, now)) + len(overtaken)
    if over:
        which = "the lease of the message is" if count == 1 else f"the leases of {over} of {count} messages are"
        raise IllegalStateException(
            f"{which} over, and the messages may have been redelivered elsewhere: declare the queue with a longer "
            "lease_s",
            LEASE_OVER,
        )

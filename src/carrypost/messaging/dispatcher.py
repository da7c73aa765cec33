"""Handing messages to consumers, a limited number of times.

A message that was handed over `messaging.tries` times and never acknowledged becomes a dead letter the next time: its
consumers may have failed with it, or crashed because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.log.events import GivenUp, Reason
from carrypost.messaging.dead_letters import letters_of, letters_of_topic
from carrypost.model import address

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.messaging.claims import Claims
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.queues.queues import Queues
    from carrypost.messaging.state import Claim, Session


class Dispatcher:
    """The messages that sessions of one host are handed, and those that they give up."""

    def __init__(self, context: MessagingContext, claims: Claims, queues: Queues) -> None:
        self._emit, self._node = context.outputs.emit, context.node
        self._claims, self._queues = claims, queues

    def hand_out(self, now: int) -> None:
        """Hand waiting messages to consumers; those handed over too often become dead letters instead."""
        while self._claims.ready:
            spent = self._claims.hand_out()
            if not spent:
                return
            for claim, consumer in spent:
                self._emit(GivenUp(consumer.number, claim.copy.readable, claim.count))
                self._give_up(claim, now, "")
            self._queues.follow_up(now)

    def _give_up(self, claim: Claim, now: int, error: str) -> str:
        """Make a dead letter of a message, for a queue at its manager; return the address of the queue that it enters.

        `error`: what a program failed with; empty if that is not known.
        """
        pattern, tenure = claim.claimant.pattern, claim.tenure
        if tenure is None and not self._queues.manager.bury(claim.copy, pattern, now, claim.count, error):
            self._claims.lose(claim, Reason.DEAD_LETTER)
        self._claims.give_up(claim, error)
        if tenure is None:
            return address.queue(letters_of_topic(pattern, self._node), self._node)
        return letters_of(tenure.queue)

    def release(self, session: Session, numbers: Collection[int], now: int, *, dead: bool, error: str = "") -> str:
        """Release messages that a session does not take any more: dead letters go into a queue of their own.

        Returns the address of that queue for the last of them; an empty text if none is a dead letter.
        """
        letters = ""
        for claim in [session.handed[number] for number in numbers if number in session.handed]:  # Others ended.
            if dead and not claim.is_of_dead_letters:
                letters = self._give_up(claim, now, error)
            elif claim.tenure is not None and not dead:
                self._claims.withdraw(claim)
                claim.tenure.release(dead=False)
            # A dead letter would come again at once: it stays with the session, and comes again when that ends.
        self._queues.follow_up(now)
        return letters

    def defer(self, session: Session, number: int, until_us: int, now: int) -> None:
        """Return a message that a session has, to be handed out again only after `until_us`."""
        claim = session.handed.get(number)
        if claim is not None:  # Else it expired, or its subscription ended.
            self._claims.defer(claim, until_us)
            self._queues.follow_up(now)

    def retry(self, session: Session, number: int) -> int:
        """Count another try of a message that a session has; return the number of tries, 0 if it has it no more."""
        claim = session.handed.get(number)
        return 0 if claim is None else self._claims.count_again(claim)

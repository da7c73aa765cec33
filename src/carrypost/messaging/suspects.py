"""Doubtful messages, which perhaps ended the program that had them: handed over one at a time."""

# After a crash nobody knows which of the messages that the program had caused it. Handed over
# together again, one bad message would use up the tries of all. So each comes alone, and the next
# one follows when
# 1. the program acknowledged or returned it, or
# 2. the program asks for more (`MessagingCommands.go_on`): some acknowledge in groups, or
# 3. a second has passed and the program still lives: a STOMP client cannot ask.
# By 2 and 3 a session may have several doubtful messages. Another crash counts against the first of
# them alone: otherwise a bad message that needs some seconds to end its program would make dead
# letters of innocent ones.

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.agenda import Agenda

if TYPE_CHECKING:
    from carrypost.messaging.state import Claim, Session

_ALONE_US = 1_000_000


class Suspects:
    """The doubtful messages that sessions of one host have."""

    def __init__(self) -> None:
        self.agenda: Agenda[Session] = Agenda(_has_one_alone)
        """Sessions that are handed another message beside a doubtful one, because their programs still live."""

    def hand(self, claim: Claim, session: Session, now: int) -> None:
        """Note a message that a session is handed."""
        claim.accompanied = claim.doubtful and bool(session.doubtful)
        if claim.doubtful:
            session.alone = session.doubtful[claim.number] = claim
            session.alone_until_us = now + _ALONE_US
            self.agenda.add(session, session.alone_until_us)

    def release(self, session: Session) -> None:
        """Let a session be handed more than the message that came alone."""
        if session.alone is not None:
            session.alone = None
            self.agenda.note_ended()


def _has_one_alone(session: Session, due_us: int) -> bool:
    # A message that came alone may be returned, and come alone again, before the first second is over.
    return session.alone is not None and session.alone_until_us == due_us

"""One node whose programs send messages with receipts, and the receipts that they get."""

from __future__ import annotations

import msgspec
from tests.support.one_node import OneNode, S

from carrypost.gossip.draft import Draft
from carrypost.log.events import Receipt
from carrypost.log.journal import MOM
from carrypost.messaging import receipts as rows
from carrypost.messaging.commands import UnitOfWork
from carrypost.messaging.control import DELIVERED, Outcome
from carrypost.model import address
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId

NEWS = "topic/news"
MAIL = address.queue("mail", NodeId("m"))
LONG_S = 500
OUTLIVE_S = 300


def a_draft(
    to: str = MAIL, *, life_s: float | None = 60, timeout_s: float | None = None, persistent: bool = True
) -> Draft:
    topic = to == NEWS
    return Draft(
        to,
        b"x",
        lifetime_us=None if life_s is None else round(life_s * S),
        persistent=persistent,
        headers=Headers(receipt=True) if topic else None,
        receipt=topic,
        receipt_timeout_us=None if timeout_s is None else round(timeout_s * S),
    )


class Author(OneNode):
    """A node whose programs send, and the receipts that they get."""

    def send(self, draft: Draft) -> MessageId:
        (message,) = self.send_all(draft)
        return message

    def send_all(self, *drafts: Draft) -> list[MessageId]:
        made = self.host.perform(UnitOfWork(self.next_number(), drafts), self.now)
        return [each.id for each in made]

    @property
    def receipts(self) -> rows.Receipts:
        messaging = self.host.messaging._messaging  # noqa: SLF001 - what other nodes do by control messages
        assert messaging is not None
        return messaging.receipts

    def hear(self, message: MessageId, kind: int = DELIVERED, by: str = "m", reason: str = "") -> None:
        """Report the outcome of a message, as a control message does, in a step of the host."""
        with self.host.step(self.now):
            self.receipts.handle_outcome(Outcome(message, kind, reason), NodeId(by))

    def carry(self, message: MessageId) -> None:
        """A neighbour has it, as an acknowledgement says."""
        with self.host.step(self.now):
            holdings = self.host._holdings  # noqa: SLF001 - where an acknowledgement is noted
            copy = holdings.cache.get(message)
            if copy is not None:
                holdings.mark_carried(1 << copy.slot)

    def told(self) -> list[Receipt]:
        self.collect()
        found = [each for each in self.events if isinstance(each, Receipt)]
        self.events = [each for each in self.events if each not in found]
        return found

    def states(self) -> list[str]:
        return [each.state.name for each in self.told()]

    def followed(self) -> dict[MessageId, rows.Send]:
        """Return the rows on disk."""
        found = {name[1:]: value for (kind, name, _), value in self.disk.items() if kind == MOM and name[:1] == b"W"}
        return {
            MessageId(name): msgspec.msgpack.decode(value, type=rows.Send)
            for name, value in found.items()
            if isinstance(value, bytes)
        }

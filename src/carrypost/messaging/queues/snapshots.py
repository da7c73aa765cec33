"""The answers to other nodes that browse the queues of this one: snapshots, one after the other.

A browse costs one item, and its answer up to a thousand ids, which travel to every carrier. So a node gets one answer
at a time, and the next one when waiting has paid for the last (`messaging.admission`). All nodes together wait for each
other in the same way, in turn. A browse that has to wait is not lost. The number of waiting browses is bounded, for a
node and for all; the node with most of them loses one first.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from carrypost.application.control_outbox import UnstoredItem
from carrypost.errors import PatternError
from carrypost.gossip.composite import Part
from carrypost.gossip.interest.matcher import Matcher
from carrypost.messaging import admission, control
from carrypost.model.pattern import entry
from carrypost.model.selector import Selector
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.security.sealing import SECRET_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.config import Limits
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.queues.demands import Demands
    from carrypost.messaging.queues.queue import Queue
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


def visible(queue: Queue, selector: str | None, limits: Limits, date_us: int) -> list[Descriptor]:
    """Return the live waiting messages of a queue, in order; delayed messages are not visible before their time."""
    waiting = [each.descriptor for each in queue.waiting if each.descriptor.alive(date_us)]
    if not selector:
        return waiting
    matcher = Matcher((entry(".*", selector),), limits, own=True)
    return [each for each in waiting if matcher.matches(each)]


def _glimpse(queue: Queue, selector: str, limits: Limits, date_us: int) -> tuple[list[Descriptor], int]:
    """Return the messages shown to a node, within its bounds, and the steps that its selector took."""
    try:
        weight = Selector(selector).weight if selector else 0
        matcher = Matcher((entry(".*", selector),), limits, own=True) if weight else None
    except PatternError:
        return [], 0  # Programs get errors for such selectors on their own node: this is a stranger's.
    seen = queue.waiting[: admission.BROWSE_STEPS_MAX // weight] if weight else queue.waiting
    alive = (each.descriptor for each in seen if each.descriptor.alive(date_us))
    matching = (each for each in alive if matcher is None or matcher.matches(each))
    return list(islice(matching, admission.SNAPSHOT_MAX)), weight * len(seen)


class Snapshots(Part):
    """The snapshots of this node's queues for other nodes."""

    def __init__(self, context: MessagingContext, demands: Demands) -> None:
        self._holdings, self._outputs, self._limits = context.holdings, context.outputs, context.limits
        self._demands, self._outbox, self._keyring = demands, context.outbox, context.keyring
        self._waiting: dict[NodeId, dict[int, control.Browse]] = {}
        """Browses by node, in turn, and by their numbers."""
        self._free_us: dict[NodeId, int] = {}
        """Times at which the next browse of each node may be answered."""
        self._all_free_us = 0
        """Time at which the next browse of any node may be answered."""

    def ask(self, item: control.Browse, node: NodeId, now: int) -> None:
        """Queue a node's browse of a queue."""
        if self._demands.open_to(item.queue, node) is None:
            return
        mine = self._waiting.get(node, {})
        if item.number not in mine and not self._has_room(node, len(mine)):
            self._outputs.refuse("looks", node)
            return
        self._waiting.setdefault(node, {})[item.number] = item
        self.expire(now)

    def _has_room(self, node: NodeId, mine: int) -> bool:
        if mine >= admission.BROWSES_MAX:
            return False
        if sum(map(len, self._waiting.values())) < admission.BROWSES_ALL_MAX:
            return True
        other = admission.greediest(self._waiting, node)
        if other is None:
            return False
        self._waiting[other].popitem()
        self._outputs.refuse("looks", other)
        return True

    def expire(self, now: int) -> None:
        """Answer the browses whose turn has come."""
        self._free_us = {node: at for node, at in self._free_us.items() if at > now}
        while self._all_free_us <= now:
            node = next((each for each in self._waiting if each not in self._free_us), None)
            if node is None:
                break
            browses = self._waiting.pop(node)
            units = self._show(browses.pop(next(iter(browses))), node, now)
            if browses:
                self._waiting[node] = browses  # The others are next.
            self._free_us[node] = now + units * MICROSECONDS // admission.UNITS_PER_S
            self._all_free_us = now + units * MICROSECONDS // admission.UNITS_ALL_PER_S
        dues = [self._free_us.get(node, 0) for node in self._waiting]
        self.due_us = max(min(dues), self._all_free_us) if dues else NEVER

    def _wrapped_secrets(self, part: Sequence[Descriptor], key: bytes) -> bytes:
        """Return the secrets of these messages for the node that asked; empty if none is sealed, or it has no key."""
        if not key or all(each.unsealed is None for each in part):
            return b""
        secrets = [bytes(SECRET_BYTES) if each.unsealed is None else each.unsealed.secret for each in part]
        return self._keyring.wrap_secrets(key, b"".join(secrets))

    def _show(self, item: control.Browse, node: NodeId, now: int) -> int:
        """Answer one browse; return its cost."""
        queue = self._demands.open_to(item.queue, node)
        if queue is None:
            return admission.ITEM_UNITS  # It ended meanwhile.
        date_us = self._holdings.date_of(now)
        found, steps = _glimpse(queue, item.selector, self._limits, date_us)
        for first in range(0, len(found) or 1, admission.SNAPSHOT_PART):
            part = found[first : first + admission.SNAPSHOT_PART]
            shown, secrets = tuple([each.id for each in part]), self._wrapped_secrets(part, item.key)
            listed = control.Snapshot(item.queue, item.number, date_us, first, len(found), shown, secrets)
            self._outbox.add(node, UnstoredItem(listed), until_us=now + admission.ANSWER_US)
        read = admission.ITEM_UNITS + admission.SELECTOR_UNITS * len(item.selector)
        return read + steps // admission.STEPS_PER_UNIT + admission.ID_UNITS * len(found)

"""State that the OpenWire clients of one node share: stored messages, temporary destinations, and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from carrypost.daemon.connection import Client
    from carrypost.jms.destinations import Destination
    from carrypost.model.descriptor import Descriptor

T = TypeVar("T")
_KEPT_MAX = 10_000


class Latest(dict[str, T], Generic[T]):
    """A dictionary of the last few keys that were set."""

    def __setitem__(self, key: str, value: T) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > _KEPT_MAX:
            del self[next(iter(self))]


class Shared:
    """State of all clients of a node. It outlives their connections, and is made anew from what the node holds."""

    def __init__(self, held: Iterable[tuple[str, str]]) -> None:
        self.labels = Latest[str]()
        """By the node's id of a message, its label, the id that its Java sender knows."""
        self._stored = Latest[tuple[int, asyncio.Future[None] | None]]()
        """By producer, the number of its last message, and what is set when that is stored; None: it is."""
        self.temporaries: dict[str, Destination] = {}
        """By the names that clients gave them."""
        self.clients: dict[str, Client] = {}
        """By the ids of their connections."""
        for own, label in held:
            producer, _, number = label.rpartition(":")
            if producer.startswith("ID:") and number.isdigit():
                self.labels[own] = label
                last, _ = self._stored.get(producer, (0, None))
                self._stored[producer] = max(last, int(number)), None

    def resent(self, producer: str, number: int) -> asyncio.Future[None] | bool:
        """Return False for a message that was not sent before; else True, or a future that is set when it is stored.

        A client that lost its connection sends again what was not answered.
        """
        last, done = self._stored.get(producer, (0, None))
        if number > last or (done is not None and done.done() and (done.cancelled() or done.exception())):
            return False
        return True if done is None else done

    def note(self, producer: str, number: int, done: asyncio.Future[None]) -> None:
        """Note that a message is being stored."""
        self._stored[producer] = number, done

    def name(self, descriptors: Iterable[Descriptor]) -> None:
        """Note the labels of messages that are here."""
        for each in descriptors:
            if each.label:
                self.labels[each.id_text] = each.label

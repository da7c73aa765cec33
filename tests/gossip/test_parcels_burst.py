"""A burst of small messages of all sorts: it leads to the same whether messages are signed or not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.support.hostile import Attacker, Message, Scene, message, scene

from carrypost.gossip.wire.frames import Frame
from carrypost.log.events import Delivered, Event, Received
from carrypost.security.identity import Identity

Maker = Callable[[Identity, Identity], Message]
"""Function of an author and of the victim."""
SORTS: dict[str, tuple[Maker, str]] = {
    "wanted": (lambda author, _: message(author, b"one"), ""),
    "wanted, too": (lambda author, _: message(author, b"two"), ""),
    "empty": (lambda author, _: message(author, b""), ""),
    "expired": (lambda author, _: message(author, deadline_us=4_000_000), "expired"),
    "carried": (lambda author, _: message(author, b"three", destination="other"), ""),
    "from the future": (lambda author, _: message(author, created_us=10**12), "created"),
    "carried, too": (lambda author, _: message(author, b"four", destination="other"), ""),
    "wanted after that": (lambda author, _: message(author, b"five"), ""),
    "for ever": (lambda author, _: message(author, deadline_us=None), "deadline"),
    "not wanted": (lambda author, _: message(author, destination="advertisements"), "interest"),
    "too long a label": (lambda author, _: message(author, label="x" * 2_000), "descriptor-size"),
    "the victim for author": (lambda _, victim: message(victim), "own-message"),
    "wanted at last": (lambda author, _: message(author, b"six"), ""),
}
SETTINGS: list[dict[str, object]] = [
    {},
    {"cache_messages_max": 4},
    {"cache_bytes_max": 12, "cache_messages_max": 100},
]


class Told:
    """The receptions and deliveries of one host, in order."""

    def __init__(self, stage: Scene, node: str) -> None:
        self._node = node
        self.events: list[tuple[str, tuple[str, ...]]] = []
        stage.net.watch(self._take)

    def _take(self, _t: float, node: str, event: Event) -> None:
        if node != self._node:
            return
        if isinstance(event, Received):
            self.events.append(("received", tuple(each.descriptor.label for each in event.receptions)))
        elif isinstance(event, Delivered):
            self.events.append(("delivered", tuple(each.descriptor.label for each in event.deliveries)))


def _labelled(given: Message, label: str, identity: Identity) -> Message:
    found = identity.sign(msgspec.structs.replace(given.descriptor, label=label))
    return Message(found, given.pieces, given.hashes)


def _burst(mallory: Attacker, victim: Identity) -> list[Frame]:
    author = mallory.identity
    offers: list[Frame] = []
    parcels: list[Frame] = []
    for handle, (name, (make, _)) in enumerate(SORTS.items(), 1):
        given = make(author, victim)
        if not given.descriptor.label:
            given = _labelled(given, name, victim if name == "the victim for author" else author)
        offers.append(mallory.offer(given, handle))
        parcels.append(mallory.parcel(given, handle))
        if name == "wanted, too":  # Twice in one burst.
            parcels.append(mallory.parcel(given, handle))
    return [*offers, *parcels]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_burst_leads_to_the_same_events_and_refusals_signed_or_not(settings: dict[str, object]) -> None:
    told, refused, stored = [], [], []
    for security in ("off", "signed"):
        with scene(security=security, altruistic=["news", "other"], **settings) as stage:
            victim = Identity.plain("b") if security == "off" else Identity.derived(1, "b")
            mallory = stage.attacker("b")
            events = Told(stage, "b")
            mallory.say("b", *_burst(mallory, victim))
            stage.net.advance(5)
            told.append(events.events)
            refused.append(stage.refused())
            stored.append([(each.payload, each.descriptor.label) for each in stage.net.deliveries("b")])
    assert told[0] == told[1]
    assert refused[0] == refused[1]
    assert stored[0] == stored[1]
    if not settings:
        assert refused[0] == {reason: 1 for _, reason in SORTS.values() if reason}
        received = next(labels for kind, labels in told[0] if kind == "received")
        assert received == tuple(name for name, (_, reason) in SORTS.items() if not reason)

"""Faults that a search found in offers and wake-ups, each pinned."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.support.proofs import tell

from carrypost import testing
from carrypost.config import Settings
from carrypost.emu.engine.radio import Radio
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.wire.frames import (
    Ack,
    Announce,
    Digest,
    Frame,
    Offer,
    OfferEntry,
    OpenParcel,
    Profile,
    Request,
    kind,
)
from carrypost.gossip.wire.pieces import Blank
from carrypost.host import Host
from carrypost.log.events import Event, NeighbourDown
from carrypost.log.journal import StoredMessage
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.pattern import encode_entries, entry, profile_digest
from carrypost.security.identity import Identity

SECOND = 1_000_000
ME = node_prefix(NodeId("a"))


class Scene:
    """A host that pushes nothing, with one neighbour, `b`, which wants news and sends what a test asks for."""

    def __init__(self, **settings: object) -> None:
        self.now = 0
        offering = Settings.emulated(altruistic=True, push_bytes_max=0, **settings)
        self.host = Host(Identity.plain("a"), offering, random.Random(1))
        self.host.start(0)
        self.counter = 0
        self.passes(1)
        self.encoded = encode_entries((entry("news"),))
        self.digest = profile_digest(self.encoded)
        self.announce(60_000, Profile(self.digest, 0, 1, self.encoded))

    def announce(self, period_ms: int, *frames: Frame, begins: bytes = b"") -> bool:
        self.counter += 1
        said = Announce(NodeId("b"), 1, self.counter, period_ms, self.digest, (ME,), begins)
        return tell(self.host, said, "b", self.now, *frames)

    def says(self, *frames: Frame) -> bool:
        return self.host.receive(frames, "b", self.now)

    def passes(self, seconds: float) -> list[Frame]:
        """Let time pass as a driver does; return the frames that were sent to the neighbour, or to all."""
        end = self.now + round(seconds * SECOND)
        sent = self.settle()
        while (due := self.host.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.host.tick(self.now)
            sent += self.settle()
        self.now = end
        return sent

    def settle(self) -> list[Frame]:
        sent: list[Frame] = []
        while self.host.busy:
            while (batch := self.host.changes()) is not None:
                self.host.durable(batch.serial, self.now)
            sent += [frame for transmission in self.host.outgoing() for frame in transmission.frames]
            self.host.events()
        return sent


def offered(frames: Sequence[Frame]) -> list[OfferEntry]:
    return [each for frame in frames if isinstance(frame, Offer) for each in frame.entries]


def compared_or_offered(frames: Sequence[Frame]) -> set[str]:
    """Return the kinds of frames by which a host compares sets with a neighbour, or offers it something."""
    return {kind(frame) for frame in frames} & {"Digest", "Offer"}


def test_a_neighbour_that_begins_anew_soon_after_it_had_begun_is_met_anew() -> None:
    scene = Scene()
    scene.passes(1)
    scene.announce(60_000, begins=ME)
    scene.host.publish("news", Blank(1), now=scene.now)
    (offer,) = [frame for frame in scene.passes(0.2) if isinstance(frame, Offer)]
    scene.says(Request(ME, (offer.serial,)))  # It wants none of it: for this contact that is known.
    assert not compared_or_offered(scene.passes(0.3))
    scene.announce(60_000, begins=ME)
    assert compared_or_offered(scene.passes(0.2)) == {"Digest"}


def test_a_neighbour_that_compares_often_does_not_keep_a_host_from_repeating_its_own_lost_comparison() -> None:
    scene = Scene()
    scene.announce(60_000, begins=ME)
    scene.host.publish("news", Blank(1), now=scene.now)
    scene.passes(1)
    scene.announce(60_000, begins=ME)  # A contact begins, with something to compare.
    sent = scene.passes(3)  # What it asks first is lost, and asked again.
    (own,) = {frame.profile for frame in sent if isinstance(frame, Announce)}
    lost = [frame for frame in sent if isinstance(frame, Digest)]
    assert lost
    again: list[Frame] = []
    for run in range(1, 5):
        scene.says(Digest(own, 0, run=run))
        again += [frame for frame in scene.passes(3) if isinstance(frame, Digest) and frame.buckets]
    assert again


def test_a_neighbour_that_only_now_begins_the_contact_has_forgotten_nothing() -> None:
    scene = Scene()
    scene.host.publish("news", Blank(1), now=scene.now)
    (offer,) = [frame for frame in scene.passes(5) if isinstance(frame, Offer)][:1]  # The link is slow.
    scene.announce(60_000, begins=ME)
    scene.says(Request(ME, (offer.serial,)))
    assert not compared_or_offered(scene.passes(5))


def test_what_a_neighbour_says_in_a_contact_may_overtake_the_word_that_the_contact_begins() -> None:
    scene = Scene()
    scene.host.publish("news", Blank(1), now=scene.now)
    (offer,) = [frame for frame in scene.passes(0.2) if isinstance(frame, Offer)]
    scene.says(Request(ME, (offer.serial,)))
    scene.passes(0.1)
    scene.announce(60_000, begins=ME)
    assert not compared_or_offered(scene.passes(5))


def test_a_neighbour_that_forgot_what_vouches_for_the_data_is_sent_it_again() -> None:
    scene = Scene()
    scene.host.publish("news", random.Random(1).randbytes(300_000), now=scene.now)
    ((entry,), *_) = [frame.entries for frame in scene.passes(0.2) if isinstance(frame, Offer)]
    scene.says(Request(ME, (), (entry.handle,)))
    assert "DescriptorPart" in map(kind, scene.passes(0.1))
    scene.says(Ack(0, b"\xff" * 32))
    # From now on it acknowledges nothing, as one that forgot the contact and whose word of that was lost.
    assert {"Data"} <= (kinds := {kind(frame) for frame in scene.passes(0.1)})
    assert "DescriptorPart" not in kinds
    assert "DescriptorPart" in map(kind, scene.passes(3))


def test_what_waited_for_open_offers_goes_out_once_the_neighbour_offers_the_same_itself() -> None:
    scene = Scene()
    scene.passes(5)
    messages = {scene.host.publish("news", Blank(1), now=scene.now) for _ in range(1_200)}
    first = offered(scene.passes(0.2))
    assert len({each.message for each in first}) == len(first)
    assert 500 < len(first) < len(messages)
    again = [OfferEntry(each.message, number, 1, each.privilege) for number, each in enumerate(first, 1)]
    scene.says(*(Offer(at + 1, tuple(again[at : at + 100])) for at in range(0, len(again), 100)))
    rest = offered(scene.passes(0.2))
    assert {each.message for each in rest} == messages - {each.message for each in first}


def test_a_lost_offer_of_a_half_received_message_is_made_anew_without_waiting_for_a_review(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[str] = []
    send = Radio.send

    def losing(radio: Radio, sender: str, frames: Sequence[Frame], to: str | None, mtu_bytes: int) -> None:
        if sender == "a" and not lost and any(kind(frame) == "Offer" for frame in frames):
            lost.append(sender)
        else:
            send(radio, sender, frames, to, mtu_bytes)

    with testing.network("a", "b", "c", altruistic=True, compress=False) as net:
        message = net.publish("c", "news", bytes(range(256)) * 200)
        net.link("a", "c", rate_bytes_per_s=10_000)
        net.advance(4.5)
        net.unlink("a", "c")
        net.advance(30)
        assert net.host("a").state_of(message) is CopyState.PARTIAL
        monkeypatch.setattr(Radio, "send", losing)
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(5)
        assert lost == ["a"]
        assert net.host("b").state_of(message) is CopyState.PARTIAL


def test_a_driver_is_told_to_look_at_its_timer_when_a_neighbour_will_be_missed_sooner() -> None:
    scene = Scene()
    scene.passes(1)
    assert not scene.announce(60_000)
    scene.passes(1)
    assert scene.announce(1_000, begins=node_prefix(NodeId("c")))
    missed = scene.host.next_deadline()
    assert missed is not None
    assert missed <= scene.now + 3 * SECOND
    scene.passes(0.1)
    assert not scene.announce(1_000)
    assert scene.announce(500)


@pytest.mark.parametrize("seed", range(4))
def test_an_emulated_neighbour_is_missed_by_its_last_period_though_that_was_a_shorter_one(seed: int) -> None:
    gone: list[float] = []

    def note(t: float, node: str, event: Event) -> None:
        if node == "a" and isinstance(event, NeighbourDown):
            gone.append(t)

    with testing.network("a", "b", "c", seed=seed, announce_s_max=60.0) as net:
        net.watch(note)
        net.link("a", "b")
        net.advance(600)
        net.link("b", "c")
        net.kill("c")
        net.restart("c")  # It says so, and b announces itself often again.
        net.advance(0.5)
        net.unlink("a", "b")
        last = net.now
        net.advance(200)
        assert [t - last < 6 for t in gone] == [True]


def test_offers_of_something_new_are_kept_apart_also_while_they_are_answered() -> None:
    with testing.network("a", "b", delay_s=0.05, offer_s_min=5.0) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(5)
        for _ in range(100):
            net.publish("a", "news", b"x")
            net.advance(0.03)
        net.advance(10)
        assert net.sent("a").frames["Offer"] <= 4  # What has waited may need several frames.
        assert len(net.deliveries("b")) == 100


def test_what_does_not_fit_into_the_first_offers_does_not_wait_for_the_time_between_offers() -> None:
    with testing.network("a", "b", offer_s_min=60.0) as net:
        net.subscribe("b", "news")
        for _ in range(3_000):
            net.publish("a", "news", testing.Blank(10))
        net.link("a", "b")
        net.advance(20)
        assert len(net.deliveries("b")) == 3_000


def test_parcels_are_acknowledged_at_once_though_the_end_of_their_burst_came_first() -> None:
    scene = Scene()
    scene.host.subscribe("news", now=scene.now)
    scene.passes(1)
    there = Host(Identity.plain("c"), Settings.emulated(), random.Random(2))
    there.start(0)
    found: list[Descriptor] = []
    for _ in range(3):
        message = there.publish("news", Blank(10), now=0)
        batch = there.changes()
        assert batch is not None
        stored = batch.puts["message", message, 0]
        assert isinstance(stored, StoredMessage)
        found.append(stored.descriptor)
    entries = [OfferEntry(each.id, number, 10, 0) for number, each in enumerate(found)]
    scene.says(Offer(1, tuple(entries)))
    assert "Request" in {kind(frame) for frame in scene.settle()}
    scene.says(*(OpenParcel(number, number, 1, 0, number == 1, each) for number, each in enumerate(found)))
    assert "Ack" in {kind(frame) for frame in scene.settle()}

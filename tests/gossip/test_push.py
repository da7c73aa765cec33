"""Fresh messages are sent without a request: to which neighbours, within which bounds; confirmations and losses."""

from __future__ import annotations

import random

import msgspec
import pytest
from tests.support.hostile import Attacker, message, scene
from tests.support.proofs import tell

from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Ack, Announce, Frame, Offer, OpenParcel, Profile, Receipt, Request, kind
from carrypost.gossip.wire.pieces import Blank, from_bitmap
from carrypost.host.host import Host
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.pattern import encode_entries, entry, profile_digest
from carrypost.security.identity import Identity

SECOND = 1_000_000
ME = node_prefix(NodeId("a"))
WANTS_NEWS = encode_entries((entry("news"),))
DIGEST = profile_digest(WANTS_NEWS)
PERIOD_MS = 60_000


class Scene:
    """A host, `a`, and neighbours that want news, have finished reconciliation, and send what a test asks for."""

    def __init__(self, *names: str, **settings: object) -> None:
        self.now = 0
        self.host = Host(Identity.plain("a"), Settings.emulated(altruistic=True, **settings), random.Random(1))
        self.host.start(0)
        self.counter = 0
        self.passes(1)
        for name in names:
            self.announce(name, Profile(DIGEST, 0, 1, WANTS_NEWS))
        self.passes(2)

    def announce(self, name: str, *frames: Frame, hears: str = "", receipts: tuple[Receipt, ...] = ()) -> None:
        self.counter += 1
        heard = (ME, *(node_prefix(NodeId(each)) for each in hears))
        said = Announce(NodeId(name), 1, self.counter, PERIOD_MS, DIGEST, heard, b"", receipts)
        tell(self.host, said, name, self.now, *frames)

    def passes(self, seconds: float) -> list[tuple[str | None, Frame]]:
        """Let time pass as for a driver; return the frames that were sent, and their receivers."""
        end = self.now + round(seconds * SECOND)
        sent = self._settle()
        while (due := self.host.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.host.tick(self.now)
            sent += self._settle()
        self.now = end
        return sent

    def _settle(self) -> list[tuple[str | None, Frame]]:
        sent: list[tuple[str | None, Frame]] = []
        while self.host.busy:
            while (batch := self.host.changes()) is not None:
                self.host.durable(batch.serial, self.now)
            for transmission in self.host.outgoing():
                sent += [(transmission.to, frame) for frame in transmission.frames]
            self.host.events()
        return sent

    def publish(self, nbytes: int = 100, count: int = 1) -> list[tuple[str | None, OpenParcel]]:
        """Return the transmissions that go out at once, unasked."""
        for _ in range(count):
            self.host.publish("news", Blank(nbytes), now=self.now)
        return [(to, each) for to, each in self.passes(0) if isinstance(each, OpenParcel)]

    def offers(self, seconds: float) -> list[str | None]:
        """Return the receivers of offers in this time."""
        return [to for to, frame in self.passes(seconds) if isinstance(frame, Offer)]

    def gets(self, giver: str, serial: int) -> None:
        """A neighbour sends a new message unasked."""
        descriptor = Descriptor(
            author="x", incarnation=1, sequence=serial, created_us=self.now, deadline_us=None, destination="news",
            label="", size=100, length=100, codec=PayloadCodec.BLANK, root=b"", fragment_bytes=1_000,
        )  # fmt: skip
        self.host.receive([OpenParcel(serial, serial, 1, 0, False, descriptor)], giver, self.now)


def receipt(serial: int, giver: bytes = ME) -> tuple[Receipt, ...]:
    return (Receipt(giver, serial, b"\x01"),)


def test_one_broadcast_serves_all_who_hear_each_other_and_nothing_else_is_said() -> None:
    names = [f"n{number}" for number in range(8)]
    with testing.network(*names, altruistic=True) as net:
        for at, name in enumerate(names):
            for other in names[:at]:
                net.link(name, other)
        net.advance(60)
        before = {kind: sum(net.sent(name).frames[kind] for name in names) for kind in ("Offer", "Request", "Ack")}
        net.publish(names[0], "news", b"hello")
        net.advance(30)
        assert [len(net.deliveries(name)) for name in names[1:]] == [0] * 7  # carried
        assert sum(net.sent(name).frames["Parcel"] for name in names) == 1
        assert {kind: sum(net.sent(name).frames[kind] for name in names) for kind in before} == before


def test_a_message_is_pushed_from_node_to_node() -> None:
    with testing.network("a", "b", "c", "d", delay_s=0.01) as net:
        for one, other in ("ab", "bc", "cd"):
            net.link(one, other)
        for name in "bcd":
            net.subscribe(name, "news")
        net.advance(60)
        net.publish("a", "news", b"hello")
        net.advance(1)
        (delivery,) = net.deliveries("d")
        assert delivery.time < 60.05
        net.advance(60)
        assert all(net.sent(name).frames["Offer"] == 0 for name in "abcd")


def test_what_is_confirmed_by_an_announcement_is_not_offered() -> None:
    stage = Scene("b")
    ((to, parcel),) = stage.publish()
    assert to == "b"
    stage.passes(0.5)
    stage.announce("b", receipts=receipt(parcel.serial))
    stage.passes(5)
    stage.announce("b")
    assert stage.offers(10) == []


def test_what_a_later_announcement_does_not_name_is_offered() -> None:
    stage = Scene("b")
    stage.publish()
    stage.passes(0.05)
    stage.announce("b")  # It may have crossed.
    assert stage.offers(0.5) == []
    stage.passes(1)
    stage.announce("b", receipts=receipt(999))
    assert stage.offers(0.1) == ["b"]


def test_an_acknowledgement_confirms_pushes_and_what_three_later_ones_overtake_is_lost() -> None:
    stage = Scene("b")
    parcels = [parcel for _, parcel in stage.publish(count=5)]
    assert len(parcels) == 5
    stage.host.receive([Ack(parcels[1].serial, b"\x07")], "b", stage.now)
    (offer,) = [frame for _, frame in stage.passes(0.3) if isinstance(frame, Offer)]
    assert [each.message for each in offer.entries] == [parcels[0].descriptor.id]
    stage.passes(2)
    stage.announce("b")
    offered = [frame for _, frame in stage.passes(0.3) if isinstance(frame, Offer)]
    assert parcels[4].descriptor.id in [each.message for frame in offered for each in frame.entries]


def test_whom_the_giver_hears_is_not_sent_it_again_unless_it_did_not_come() -> None:
    stage = Scene("b", "c", "d", coalesce_s=0.5)
    stage.announce("b", hears="c")
    stage.gets("b", 7)
    assert [to for to, frame in stage.passes(0) if isinstance(frame, OpenParcel)] == ["d"]
    stage.passes(2)
    stage.announce("c", receipts=receipt(7, node_prefix(NodeId("b"))))
    assert "c" not in stage.offers(2)
    stage.gets("b", 8)
    stage.passes(2)
    stage.announce("c", receipts=receipt(7, node_prefix(NodeId("b"))))
    assert "c" not in stage.offers(0.4)
    assert "c" in stage.offers(0.4)


def test_what_came_unasked_is_reported_within_a_second_and_sixteen_are_acknowledged() -> None:
    stage = Scene("b")
    stage.passes(20)
    stage.gets("b", 100)
    said = [frame for _, frame in stage.passes(1.1) if isinstance(frame, Announce)]
    assert said
    (found,) = said[0].receipts
    assert found.node == node_prefix(NodeId("b"))
    assert from_bitmap(found.bitmap) << found.base == 1 << 100
    for serial in range(101, 115):
        stage.gets("b", serial)
    assert not [frame for _, frame in stage.passes(0) if isinstance(frame, Ack)]
    stage.gets("b", 115)
    assert [frame for _, frame in stage.passes(0) if isinstance(frame, Ack)]


def test_receipts_are_repeated_by_two_announcements_more_and_then_left_out() -> None:
    stage = Scene("b")
    stage.passes(20)
    stage.gets("b", 100)
    said = [frame for _, frame in stage.passes(40) if isinstance(frame, Announce)]
    assert [len(each.receipts) for each in said[:5]] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("settings", [{"push_bytes_max": 0}, {"push_bytes_max": 99}, {"paper_mode": True}])
def test_beyond_its_bounds_a_message_is_offered(settings: dict[str, object]) -> None:
    stage = Scene("b", announce_s_max=2.0, **settings)
    assert stage.publish() == []
    assert stage.offers(3)[0] == "b"


def test_a_message_that_does_not_fit_into_a_datagram_is_offered() -> None:
    stage = Scene("b", push_bytes_max=60_000)
    stage.host.publish("news", Blank(2_000), now=stage.now)
    assert [(to, kind(frame)) for to, frame in stage.passes(0.1)] == [("b", "Offer")]


def test_over_a_link_without_a_contact_what_fits_is_pushed_and_the_rest_is_offered() -> None:
    stage = Scene("b", push_bytes_max=500)
    transfers, link = stage.host._steps._transfers, stage.host._links["b"]  # noqa: SLF001 - what layers are given
    for nbytes in (100, 600):
        stage.host.publish("other", Blank(nbytes), now=stage.now)
    copies = [copy for copy in stage.host._holdings.known_copies() if copy.here]  # noqa: SLF001
    assert stage.passes(0.5) == []
    transfers.push(link, copies, stage.now)
    found = [frame for to, frame in stage.passes(0) if to == "b"]
    assert [kind(frame) for frame in found] == ["Parcel", "Offer"]
    assert set(link.outbox.jobs) == {copies[0].slot}  # It is repeated until it arrives.


def test_an_announcement_with_receipts_and_many_neighbours_fits_into_a_datagram() -> None:
    names = [f"n{number:03}" for number in range(50)]
    stage = Scene(*names)
    for number, name in enumerate(names):
        for serial in (1_000 * number + 1, 1_000 * number + 230):
            stage.gets(name, serial)
    said = [frame for _, frame in stage.passes(30) if isinstance(frame, Announce)]
    assert sum(len(each.receipts) for each in said) > 20
    assert max(codec.wire_size(each) for each in said) < Settings().datagram_bytes


def test_no_more_is_pushed_than_the_window_of_a_link_has_room_for() -> None:
    stage = Scene("b", window_bytes_max=1_000_000)
    sent = stage.publish(1_000, count=100)
    assert 10 <= len(sent) <= 16  # The first window of a link has 16 KiB.
    assert stage.offers(1) != []


def test_who_has_not_agreed_or_is_overdue_is_sent_nothing_unasked() -> None:
    stage = Scene("b")
    stage.passes(PERIOD_MS / 1000 * 2)
    assert stage.publish() == []


def test_a_broadcast_spares_whoever_would_refuse_it() -> None:
    with testing.network("a", "b", "c", "d") as net:
        for name in "bcd":
            net.link("a", name)
        net.subscribe("b", "news")
        net.subscribe("c", "news")
        net.advance(60)
        net.publish("a", "news", b"hello")
        net.advance(1)
        assert [net.traffic("a", name).frames["Parcel"] for name in "bcd"] == [1, 1, 0]


def test_what_finds_no_room_is_declined_as_an_offer_is_and_asked_for_once_there_is() -> None:
    with scene(cache_messages_max=2, lifetime_s_default=30) as stage:
        stage.net.publish("b", "news", b"own", lifetime_s=20, priority=9)
        stage.net.publish("b", "news", b"own, too", lifetime_s=20, priority=9)
        mallory = stage.attacker("b")
        given = message(mallory.identity, priority=0)
        mallory.say("b", mallory.parcel(given, 9))
        assert stage.refused() == {"no-room": 1}
        assert not mallory.sends(Request)
        stage.net.advance(10)
        assert receipts_of(mallory) == []
        stage.net.advance(15)
        assert {each.handles for each in mallory.sends(Request)} == {(9,)}


def receipts_of(attacker: Attacker) -> list[Ack | Receipt]:
    """Return the answers to an attacker's Parcels."""
    announced = [each for frame in attacker.sends(Announce) for each in frame.receipts]
    return [*announced, *attacker.sends(Ack)]


def test_only_what_came_in_or_is_here_is_confirmed() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        good, wrong = message(mallory.identity), message(mallory.identity)
        mallory.say("b", msgspec.structs.replace(mallory.parcel(wrong, 8), body=b"forgery"))
        stage.net.advance(5)
        assert stage.refused() == {"digest": 1}
        assert receipts_of(mallory) == []
        for handle in (9, 10):  # It comes, and then it is here.
            mallory.say("b", sent := mallory.parcel(good, handle))
            stage.net.advance(5)
            assert any(from_bitmap(each.bitmap) << each.base >> sent.serial & 1 for each in receipts_of(mallory))


def test_what_is_finished_here_and_comes_again_is_acknowledged() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        good = message(mallory.identity)
        mallory.say("b", mallory.parcel(good, 9))
        stage.net.advance(5)
        stage.net.host("b").purge([good.descriptor.id], round(stage.net.now * SECOND))
        stage.net.advance(5)
        mallory.heard.clear()
        mallory.say("b", sent := mallory.parcel(good, 10))
        stage.net.advance(5)
        assert any(from_bitmap(each.bitmap) << each.base >> sent.serial & 1 for each in receipts_of(mallory))


def test_who_declines_an_unasked_message_is_offered_it_once_and_declines_that() -> None:
    with testing.network("a") as net:
        net.add("b", cache_messages_max=2, altruistic=True)
        net.link("a", "b")
        for _ in range(2):
            net.publish("a", "news", b"x", priority=9)
        net.advance(10)
        before = net.sent("a").frames + net.sent("b").frames
        net.publish("a", "news", b"x")
        net.advance(25)
        found = net.sent("a").frames + net.sent("b").frames - before
        assert {kind: found[kind] for kind in ("Parcel", "Offer", "Request", "Ack")} == {
            "Parcel": 1, "Offer": 1, "Request": 1, "Ack": 0,
        }  # fmt: skip

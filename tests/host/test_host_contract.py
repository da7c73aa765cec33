"""The contract between a host and its driver: batches, answers, outputs that wait for them, and restored state."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from carrypost import testing
from carrypost.config import Settings
from carrypost.errors import ConfigError, IllegalArgumentException, LocalError, PatternError, PayloadError, StateError
from carrypost.gossip.wire.codec import fill_payloads
from carrypost.gossip.wire.frames import Announce, Frame, OpenParcel, ProfileRequest, StoredData
from carrypost.gossip.wire.pieces import Blank
from carrypost.host import Host
from carrypost.log.events import Confirmed, Delivered, Dropped, Event, NeighbourUp, Reason, Refused, Stored
from carrypost.log.journal import INCARNATION, MESSAGE, PIECE, SEEN, Batch, Durability, Key, StoredMessage, Value
from carrypost.model.descriptor import PIECE_BYTES, TIME_US_MAX
from carrypost.model.ids import MessageId, node_prefix
from carrypost.security.identity import Identity

SECOND = 1_000_000


class Hand:
    """A driver in slow motion: every answer of the disk is given by hand."""

    def __init__(self, name: str = "a", state: dict[Key, Value] | None = None, **settings: object) -> None:
        self.name = name
        self.host = Host(Identity.plain(name), Settings.emulated(beacons=False, **settings), random.Random(1))
        self.disk: dict[Key, Value] = dict(state or {})
        self.now = 0
        if state is None:
            self.host.start(0)
        else:
            self.host.restore([(key, value) for key, value in self.disk.items() if key[0] != PIECE], 0)

    def batch(self) -> Batch:
        batch = self.host.changes()
        assert batch is not None
        return batch

    def write(self, batch: Batch | None = None) -> None:
        """Write a batch, or all that wait."""
        while (each := batch or self.host.changes()) is not None:
            for key in each.deletes:
                self.disk.pop(key, None)
            self.disk.update(each.puts)
            self.host.durable(each.serial, self.now)
            if batch is not None:
                return

    def publish(self, payload: bytes | Blank = b"x", **options: object) -> MessageId:
        return self.host.publish("news", payload, now=self.now, **options)  # type: ignore[arg-type]

    def events(self, *kinds: type) -> list[Event]:
        return [event for event in self.host.events() if not kinds or isinstance(event, kinds)]

    def frames(self) -> list[Frame]:
        return [frame for sent in self.host.outgoing() for frame in sent.frames]


def ready(name: str = "a", **settings: object) -> Hand:
    hand = Hand(name, None, **settings)
    hand.write()
    return hand


def exchange(a: Hand, b: Hand, seconds: float = 5.0, *, write: bool = True) -> list[Frame]:
    """Frames go back and forth; what `a` sent, as the host gave it."""
    sent: list[Frame] = []
    for _ in range(round(seconds * 100)):
        for hand, other in ((a, b), (b, a)):
            hand.now += SECOND // 100
            hand.host.tick(hand.now)
            if write:
                hand.write()
            frames = hand.frames()
            if hand is a:
                sent += frames
            other.host.receive(resolved(hand, frames), hand.name, other.now)
            if write:
                other.write()
    return sent


def resolved(hand: Hand, frames: Sequence[Frame]) -> Sequence[Frame]:
    def read(message: MessageId, piece: int) -> bytes:
        body = hand.disk[PIECE, message, piece]
        assert isinstance(body, bytes)
        return body

    found, gone = fill_payloads(frames, read)
    assert not gone
    return found


def meet(a: Hand, b: Hand, seconds: float = 5.0) -> list[Frame]:
    a.host.link(b.name, True, a.now)
    b.host.link(a.name, True, b.now)
    return exchange(a, b, seconds)


# --- life --------------------------------------------------------------------------------------------------


def test_nothing_leaves_a_host_before_its_incarnation_is_durable() -> None:
    hand = Hand()
    first = hand.batch()
    assert first.puts[INCARNATION] == 1
    assert first.durability is Durability.FULL
    hand.publish()
    hand.host.link("b", True, 0)
    heard = (node_prefix(hand.host.node),)
    hand.host.receive([Announce(Identity.plain("b").node, 1, 1, 1_000, bytes(8), heard)], "b", 0)
    hand.host.tick(10 * SECOND)
    assert hand.frames() == []
    assert hand.events(NeighbourUp) == []
    hand.write(first)
    hand.host.link("b", True, 10 * SECOND)
    assert any(isinstance(frame, Announce) for frame in hand.frames())


def test_a_host_begins_once_and_commands_come_after_that() -> None:
    host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1))
    with pytest.raises(StateError, match="start or restore"):
        host.publish("news", b"x", now=0)
    with pytest.raises(StateError, match="start or restore"):
        host.subscribe("news", now=0)
    host.start(0)
    with pytest.raises(StateError, match="once"):
        host.start(0)
    with pytest.raises(StateError, match="once"):
        host.restore([], 0)


def test_ids_differ_for_equal_sends_and_across_restarts_whatever_was_lost() -> None:
    seen: set[MessageId] = set()
    disk: dict[Key, Value] | None = None
    for life in range(4):
        hand = Hand(state=disk)
        hand.write(hand.batch())
        disk = dict(hand.disk)  # The crash comes before anything else is durable.
        for _ in range(3):
            message = hand.publish()
            assert message not in seen
            seen.add(message)
        assert hand.disk[INCARNATION] == life + 1
    assert len(seen) == 12


# --- batches -----------------------------------------------------------------------------------------------


def test_each_key_comes_once_per_batch_and_batches_are_numbered() -> None:
    hand = ready()
    hand.host.subscribe("news", now=0)
    message = hand.publish(b"x" * 10)
    first = hand.batch()
    assert hand.host.changes() is None
    assert set(first.puts) == {(MESSAGE, message, 0), (PIECE, message, 0)}
    assert not set(first.puts) & set(first.deletes)
    hand.host.confirm([message], 0)
    second = hand.batch()
    assert second.serial == first.serial + 1
    assert set(second.puts) == {(SEEN, message, 0)}


def test_what_is_put_and_deleted_before_a_batch_is_taken_is_not_in_it() -> None:
    hand = ready()
    message = hand.publish(b"x" * 10)
    hand.host.discard(message, Reason.WITHDRAWN, 0)
    batch = hand.batch()
    assert batch.puts == {}
    assert set(batch.deletes) == {(MESSAGE, message, 0), (PIECE, message, 0)}


def test_a_persistent_message_asks_for_more_safety_than_another() -> None:
    hand = ready()
    hand.publish()
    assert hand.batch().durability is Durability.NORMAL
    hand.publish(persistent=True)
    assert hand.batch().durability is Durability.FULL


@pytest.mark.parametrize(("persistent", "durability"), [(False, Durability.NORMAL), (True, Durability.FULL)])
def test_a_send_is_complete_when_it_is_as_durable_as_it_asks_for(persistent: bool, durability: Durability) -> None:
    hand = ready()
    sent = hand.publish(persistent=persistent)
    batch = hand.batch()
    assert batch.durability is durability
    assert hand.events(Stored) == []
    hand.write(batch)
    assert hand.events(Stored) == [Stored(sent)]


def test_a_delivery_waits_until_its_copy_is_durable() -> None:
    a, b = ready("a"), ready("b")
    b.host.subscribe("news", now=0)
    a.publish(b"hello")
    meet(a, b, 0.01)
    for _ in range(100):
        exchange(a, b, 0.01, write=False)
        if (batch := b.host.changes()) is not None:
            break
        a.write()
    else:
        pytest.fail("nothing came")
    assert b.events(Delivered) == []
    b.write(batch)
    (delivered,) = b.events(Delivered)
    assert isinstance(delivered, Delivered)
    assert [delivery.redelivered for delivery in delivered.deliveries] == [False]


def test_answers_may_come_in_any_order_and_events_do_not_overtake_older_batches() -> None:
    hand = ready()
    first = hand.publish(persistent=True)
    older = hand.batch()
    second = hand.publish(persistent=True)
    newer = hand.batch()
    hand.write(newer)
    assert hand.events(Stored) == []
    hand.write(older)
    assert hand.events(Stored) == [Stored(first), Stored(second)]


# --- lost --------------------------------------------------------------------------------------------------


# --- confirm -----------------------------------------------------------------------------------------------


def test_a_confirmation_is_told_back_once_it_is_durable() -> None:
    hand = ready()
    hand.host.subscribe("news", now=0)
    messages = [hand.publish(), hand.publish()]
    hand.write()
    hand.events()
    hand.host.confirm(messages, 0)
    batch = hand.batch()
    assert hand.events(Confirmed) == []
    hand.write(batch)
    assert hand.events(Confirmed) == [Confirmed(tuple(messages))]


def test_confirming_again_or_what_is_not_known_changes_nothing() -> None:
    hand = ready()
    hand.host.subscribe("news", now=0)
    message = hand.publish()
    hand.write()
    hand.host.confirm([message], 0)
    hand.write()
    hand.events()
    hand.host.confirm([message, MessageId(b"nobody:1:1")], 0)
    assert hand.host.changes() is None
    assert hand.events(Confirmed) == [Confirmed((message, MessageId(b"nobody:1:1")))]


# --- restore -----------------------------------------------------------------------------------------------


def test_a_restored_host_has_its_messages_and_gives_the_unconfirmed_again() -> None:
    a = ready("a")
    a.host.subscribe("news", now=0)
    confirmed, unconfirmed = a.publish(b"one"), a.publish(b"two")
    a.write()
    a.host.confirm([confirmed], 0)
    a.write()
    again = Hand("a", a.disk)
    again.write()
    again.host.subscribe("news", now=0)
    again.write()
    (event,) = again.events(Delivered)
    assert isinstance(event, Delivered)
    assert [(each.message, each.redelivered) for each in event.deliveries] == [(unconfirmed, True)]
    b = ready("b")
    b.host.subscribe("news", now=0)
    meet(again, b)
    got = [delivery.message for event in b.events(Delivered) for delivery in event.deliveries]  # type: ignore[union-attr]
    assert sorted(got) == sorted([confirmed, unconfirmed])


def test_a_confirmed_message_never_comes_again_even_if_its_copy_is_gone() -> None:
    a, b = ready("a"), ready("b", cache_messages_max=1)
    b.host.subscribe("news", now=0)
    first = a.publish(b"one")
    a.write()
    meet(a, b)
    b.host.confirm([first], b.now)
    b.write()
    b.events()
    b.publish(b"own", priority=9)  # Pushes the other one out.
    b.write()
    b.events()
    again = Hand("b", b.disk)
    again.now = b.now
    again.write()
    again.host.subscribe("news", now=again.now)
    again.write()
    again.events()
    a.host.link("b", False, a.now)
    meet(a, again)
    assert again.events(Delivered) == []


def test_what_expired_while_the_host_was_down_is_not_restored() -> None:
    a = ready("a")
    message = a.publish(lifetime_us=SECOND)
    a.write()
    state = [(key, value) for key, value in a.disk.items() if key[0] != PIECE]
    host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1))
    host.restore(state, 2 * SECOND)
    batch = host.changes()
    assert batch is not None
    assert (MESSAGE, message, 0) in batch.deletes


def test_state_survives_any_number_of_restarts_unchanged() -> None:
    hand = ready()
    hand.host.subscribe("news", now=0)
    kept = [hand.publish(b"x" * 40_000), hand.publish(persistent=True)]
    hand.write()
    hand.host.confirm(kept[:1], 0)
    hand.write()
    disk = dict(hand.disk)
    for life in range(2, 5):
        hand = Hand(state=disk)
        hand.write()
        assert hand.disk == disk | {INCARNATION: life}
        disk = hand.disk


# --- payloads ----------------------------------------------------------------------------------------------


def test_a_host_names_the_stored_bytes_that_are_to_be_sent() -> None:
    a, b = ready("a", compress=False), ready("b")
    b.host.subscribe("news", now=0)
    payload = bytes(range(256)) * 160
    message = a.publish(payload)
    a.write()
    sent = [frame for frame in meet(a, b) if isinstance(frame, StoredData)]
    assert {frame.message for frame in sent} == {message}
    spans = [(frame.piece * PIECE_BYTES + frame.offset, frame.length) for frame in sent]
    assert sorted(spans) == [(at, min(1_024, len(payload) - at)) for at in range(0, len(payload), 1_024)]
    pieces = [b.disk[PIECE, message, piece] for piece in range(3)]
    assert b"".join(piece for piece in pieces if isinstance(piece, bytes)) == payload


def test_a_host_names_the_small_message_that_is_to_be_sent_and_its_bytes_arrive() -> None:
    a, b = ready("a"), ready("b")
    b.host.subscribe("news", now=0)
    message = a.publish(b"hello")
    a.write()
    (sent,) = [frame for frame in meet(a, b) if isinstance(frame, OpenParcel)]
    assert (sent.descriptor.id, sent.body, sent.last) == (message, None, True)
    assert b.disk[PIECE, message, 0] == b"hello"


def test_a_payload_that_is_gone_is_dropped_told_and_not_offered_any_more() -> None:
    a, b = ready("a"), ready("b")
    b.host.subscribe("news", now=0)
    message = a.publish(b"hello")
    a.write()
    a.host.payload_gone(message, a.now)
    a.write()
    (dropped,) = a.events(Dropped)
    assert isinstance(dropped, Dropped)
    assert (dropped.reason, [each.id for each in dropped.descriptors]) == (Reason.PAYLOAD_GONE, [message])
    assert (MESSAGE, message, 0) not in a.disk
    assert not any(isinstance(frame, OpenParcel | StoredData) for frame in meet(a, b))


def test_received_pieces_leave_in_batches() -> None:
    a, b = ready("a", compress=False), ready("b")
    b.host.subscribe("news", now=0)
    message = a.publish(bytes(50_000))
    a.write()
    meet(a, b)
    stored = b.disk[MESSAGE, message, 0]
    assert isinstance(stored, StoredMessage)
    assert (stored.held, stored.own, stored.giver, stored.hops, stored.delivered) == (0b1111, False, "a", 1, True)


# --- deadlines and mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked_s", "default_s", "most_s", "expected_s"),
    [
        (None, None, None, None),
        (5, None, None, 5),
        (None, 10, None, 10),
        (None, 10, 20, 10),
        (5, 10, 20, 5),
        (20, 10, 20, 20),
        (None, None, 20, 20),
        (None, 50, 20, 20),
    ],
)
def test_a_lifetime_is_the_one_asked_for_or_the_default_within_the_longest(
    asked_s: float | None, default_s: float | None, most_s: float | None, expected_s: float | None
) -> None:
    hand = ready(lifetime_s_default=default_s, lifetime_s_max=most_s)
    hand.now = SECOND
    message = hand.publish(lifetime_us=None if asked_s is None else round(asked_s * SECOND))
    stored = hand.batch().puts[MESSAGE, message, 0]
    assert isinstance(stored, StoredMessage)
    expected = None if expected_s is None else SECOND + round(expected_s * SECOND)
    assert stored.descriptor.deadline_us == expected
    assert stored.descriptor.created_us == SECOND


def test_a_longer_lifetime_than_the_longest_is_refused_and_nothing_is_stored() -> None:
    hand = ready(lifetime_s_max=20)
    with pytest.raises(IllegalArgumentException, match=r"at most 20 s on this node \(lifetime_s_max\), not 1 minute"):
        hand.publish(lifetime_us=60 * SECOND)
    assert hand.host.copies == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"payload": bytes(2_000)}, "a payload must have 0 to 1000 bytes, not 2000"),
        ({"payload": "text"}, "a payload must be bytes, not str"),
        ({"payload": bytearray(b"x")}, "a payload must be bytes, not bytearray"),
        ({"payload": Blank(-1)}, "0 to 1000 bytes, not -1"),
        ({"payload": Blank(1.5)}, "a whole number, not float"),  # type: ignore[arg-type]
        ({"destination": ""}, "a destination must have 1 to 256 bytes"),
        ({"destination": "ä" * 129}, "a destination must have 1 to 256 bytes"),
        ({"destination": "\ud800"}, "without lone surrogates"),
        ({"destination": 3}, "a destination must be text, not int"),
        ({"label": "x" * 257}, "a label must have 0 to 256 bytes"),
        ({"label": 3}, "a label must be text, not int"),
        ({"priority": 10}, "a priority must be 0 to 9, not 10"),
        ({"priority": -1}, "a priority must be 0 to 9, not -1"),
        ({"priority": 4.0}, "a priority must be a whole number, not float"),
        ({"priority": True}, "a priority must be a whole number, not bool"),
        ({"persistent": "no"}, "persistent must be true or false, not str"),
        ({"lifetime_us": 0}, "greater than 0"),
        ({"lifetime_us": -5}, "greater than 0"),
        ({"lifetime_us": 1.5}, "whole microseconds, not float"),
        ({"attributes": {"": 1}}, "the name of an attribute must have 1 to 1024 bytes"),
        ({"attributes": {1: "x"}}, "the name of an attribute must be text, not int"),
        ({"attributes": {"x" * 2_000: 1}}, "the name of an attribute must have 1 to 1024 bytes"),
        ({"attributes": {"size": [1]}}, "'size' must be a bool, int, float or str, not list"),
        ({"attributes": {"size": None}}, "'size' must be a bool, int, float or str, not NoneType"),
        ({"attributes": {"size": 2**63}}, "'size' does not fit into 64 bits"),
        ({"attributes": {"size": "x" * 2_000}}, "'size' must have 0 to 1024 bytes"),
        ({"attributes": {str(number): 1 for number in range(65)}}, "at most 64 attributes, not 65"),
        ({"attributes": {str(number): "x" * 1_000 for number in range(20)}}, "descriptor has more than 8192 bytes"),
    ],
)
def test_what_may_not_be_published_is_refused_with_what_is_allowed(options: dict[str, object], text: str) -> None:
    hand = ready(limits={"message_bytes_max": 1_000})
    arguments: dict[str, object] = {"destination": "news", "payload": b"x", "now": 0} | options
    with pytest.raises(PayloadError, match=text):
        hand.host.publish(**arguments)  # type: ignore[arg-type]
    assert hand.host.changes() is None
    assert hand.publish() == b"a:1:1"


def test_a_blank_payload_cannot_be_signed() -> None:
    with testing.network("a", security="signed") as net, pytest.raises(PayloadError, match="cannot be signed"):
        net.publish("a", "news", testing.Blank(10))


def test_any_attribute_name_is_legal_and_every_type_comes_back() -> None:
    attributes: dict[str, bool | int | float | str] = {
        "id": "mine", "destination": "x", "deadline": 1, "ja": True, "π": 3.14, "least": -(2**63), "text": "ä\0",
    }  # fmt: skip
    with testing.network("a", "b", encoded=True, security="signed", lifetime_s_default=60) as net:
        net.subscribe("b", {"destination": "news", "id": "mi.*", "ja": "true", "π": "3.14"})
        net.publish("a", "news", b"x", attributes=attributes)
        net.link("a", "b")
        net.advance(10)
        (delivery,) = net.deliveries("b")
        assert delivery.descriptor.attributes == attributes
        assert delivery.descriptor.deadline_us == 60 * SECOND


def test_subscriptions_that_no_neighbour_could_take_are_refused() -> None:
    host = Host(Identity.plain("a"), Settings.emulated(limits={"profile_bytes_max": 200}), random.Random(1))
    host.start(0)
    host.subscribe("x" * 100, now=0)
    with pytest.raises(LocalError, match="more than 200 bytes"):
        host.subscribe("y" * 100, now=0)


@pytest.mark.parametrize(
    ("identity", "security", "text"),
    [(Identity.plain("a"), "signed", "a plain name"), (Identity.derived(1, "a"), "off", "a key")],
)
def test_security_is_never_lowered_or_raised_silently(identity: Identity, security: str, text: str) -> None:
    with pytest.raises(LocalError, match=text):
        Host(identity, Settings.emulated(security=security), random.Random(1))


def test_a_lifetime_beyond_all_calendars_ends_where_they_do() -> None:
    hand = Hand()
    hand.host.publish("news", b"x", now=0, lifetime_us=10**20)
    (stored,) = [value for value in hand.batch().puts.values() if isinstance(value, StoredMessage)]
    assert stored.descriptor.deadline_us == TIME_US_MAX


@pytest.mark.parametrize("pattern", [None, b"a", 3])
def test_a_subscription_is_text_or_patterns_by_attribute(pattern: object) -> None:
    hand = Hand()
    with pytest.raises(PatternError, match="a pattern must be a str"):
        hand.host.subscribe(pattern, now=0)  # type: ignore[arg-type]


def test_a_pattern_that_nobody_can_carry_by_names_its_setting() -> None:
    with pytest.raises(ConfigError, match="altruistic"):
        Host(Identity.plain("a"), Settings.emulated(altruistic=["("]), random.Random(1))


def test_strangers_cannot_make_the_reports_grow_without_bound() -> None:
    host = Host(Identity.plain("a"), Settings.emulated(limits={"refusals_max": 10}), random.Random(1))
    host.start(0)
    batch = host.changes()
    assert batch is not None
    host.durable(batch.serial, 0)
    for number in range(100):
        host.receive([ProfileRequest(bytes(8))], f"address {number}", 0)
    told = [event for event in host.events() if isinstance(event, Refused)]
    assert len(told) == 11
    assert sum(event.count for event in told) == 100


def test_only_the_incarnation_is_taken_for_it_at_restore() -> None:
    host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1))
    host.restore([(INCARNATION, 7), (("meta", b"something else", 0), 1_000)], 0)
    batch = host.changes()
    assert batch is not None
    assert batch.puts[INCARNATION] == 8


# --- deliveries that confirm themselves ----------------------------------------------------------------------------


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_delivery_comes_again_after_a_crash_unless_it_confirmed_itself_in_its_own_batch(confirmed: bool) -> None:
    hand = ready()
    hand.host.subscribe("news", confirmed=confirmed, now=0)
    message = hand.publish()
    before, batch = dict(hand.disk), hand.batch()
    assert ((SEEN, message, 0) in batch.puts) is confirmed
    assert hand.events(Delivered) == []
    hand.write(batch)
    assert _delivered(hand) == [(message, False, confirmed)]
    assert hand.events(Confirmed) == []
    for disk, comes in ((hand.disk, not confirmed), (before, False)):
        after = Hand("a", disk)
        after.host.subscribe("news", confirmed=confirmed, now=0)
        after.write()
        assert _delivered(after) == ([(message, True, confirmed)] if comes else [])


def test_a_delivery_confirms_itself_only_if_all_who_asked_for_it_say_so() -> None:
    hand = ready()
    hand.host.subscribe("news", confirmed=True, now=0)
    other = hand.host.subscribe("news", now=0)
    message = hand.publish()
    hand.write()
    assert _delivered(hand) == [(message, False, False)]
    after = Hand("a", hand.disk)
    after.host.subscribe("news", confirmed=True, now=0)
    after.write()
    assert _delivered(after) == [(message, True, True)]  # Now it does, though it was pinned until then.
    assert (SEEN, message, 0) in after.disk
    hand.host.unsubscribe(other, 0)
    hand.publish()
    hand.write()
    assert [sure for _, _, sure in _delivered(hand)] == [True]


def test_what_leaves_before_its_delivery_is_told_is_not_delivered_and_not_confirmed() -> None:
    hand = ready()
    message = hand.publish()
    hand.write()
    hand.host.subscribe("news", confirmed=True, now=0)
    hand.host.payload_gone(message, hand.now)
    hand.write()
    assert _delivered(hand) == []
    assert (SEEN, message, 0) not in hand.disk


def _delivered(hand: Hand) -> list[tuple[MessageId, bool, bool]]:
    """Return the deliveries: whether again, and whether they confirmed themselves."""
    events = [event for event in hand.events(Delivered) if isinstance(event, Delivered)]
    return [(each.message, each.redelivered, each.confirmed) for event in events for each in event.deliveries]


def test_an_answer_for_an_unknown_batch_is_ignored() -> None:
    hand = ready()
    hand.host.durable(99, 0)
    hand.host.durable(1, 0)
    assert hand.events() == []

"""Messaging on one host: claims, consumers, acknowledgements, units of work, crashes and failing disks."""

from __future__ import annotations

import gc
import random

import pytest
from tests.support.one_node import OneNode, S

from carrypost.config import Settings
from carrypost.errors import (
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    JMSException,
    LocalError,
    ResourceAllocationException,
    StateError,
)
from carrypost.gossip.draft import Draft
from carrypost.host import Host
from carrypost.log.events import ClaimLost, Delivered, Done, Handed, Stored
from carrypost.messaging.claim_and_claimant import Claim
from carrypost.messaging.commands import (
    Ack,
    CloseConsumer,
    CloseSession,
    Connect,
    Consume,
    Credit,
    Disconnect,
    GoOn,
    OpenSession,
    Recover,
    Retry,
    Rollback,
    Subscribe,
    UnitOfWork,
    Unsubscribe,
)
from carrypost.model import address
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import Headers
from carrypost.model.pattern import entry
from carrypost.security.identity import Identity


@pytest.fixture
def node() -> OneNode:
    return OneNode()


def ids(handed: list[Handed]) -> list[bytes]:
    return [each.message for each in handed]


def claims_in_memory() -> int:
    gc.collect()
    return sum(type(each) is Claim for each in gc.get_objects())


def counts(handed: list[Handed]) -> list[int]:
    return [each.count for each in handed]


# --- consumers ---------------------------------------------------------------------------------------------


def test_a_consumer_is_handed_what_it_asks_for_once_it_is_durable(node: OneNode) -> None:
    consumer = node.consumer("t")
    node.write()
    message = node.publish("t")
    node.publish("other")
    node.collect()
    assert not node.handed()
    node.write()
    (handed,) = node.handed(consumer)
    assert (handed.message, handed.count) == (message, 1)


def test_several_consumers_of_one_topic_have_a_copy_each(node: OneNode) -> None:
    first, second = node.consumer("t"), node.consumer("t")
    message = node.publish("t")
    node.write()
    assert ids(node.handed(first)) == ids(node.handed(second)) == [message]


def test_what_one_acknowledged_others_still_get(node: OneNode) -> None:
    session = node.session()
    first, second = node.consume(session, "t"), node.consumer("t")
    node.credit(first)
    node.publish("t")
    node.write()
    node.acknowledge(session, *node.handed(first))
    node.write()
    assert counts(node.handed(second)) == [1]


def test_no_more_is_handed_over_than_there_is_credit_for(node: OneNode) -> None:
    consumer = node.consume(node.session(), "t")
    sent = [node.publish("t", b"%d" % n) for n in range(5)]
    node.write()
    assert not node.handed()
    node.credit(consumer, 2)
    node.write()
    assert ids(node.handed()) == sent[:2]
    node.credit(consumer, 1)
    node.write()
    assert ids(node.handed()) == sent[2:3]


def test_credit_in_bytes_bounds_too(node: OneNode) -> None:
    consumer = node.consume(node.session(), "t")
    sent = [node.publish("t", b"0123456789") for _ in range(5)]
    node.host.messaging.execute(Credit(consumer, 100, 15), node.now)
    node.write()
    assert ids(node.handed()) == sent[:2]


def test_a_selector_is_applied(node: OneNode) -> None:
    consumer = node.consumer("t", "size > 3")
    node.publish("t", size=3)
    wanted = node.publish("t", size=4)
    node.write()
    assert ids(node.handed(consumer)) == [wanted]


@pytest.mark.parametrize(
    "selector",
    [
        "JMSType = 'news'", "JMSCorrelationID = 'c-1'", "JMSPriority = 4", "JMSDeliveryMode = 'NON_PERSISTENT'",
        "JMSTimestamp >= 0", "JMSMessageID LIKE 'ID:%'", "size = 3 AND JMSType <> 'old'", "JMSXGroupID IS NULL",
    ],
)  # fmt: skip
def test_a_selector_sees_header_fields(node: OneNode, selector: str) -> None:
    consumer = node.consumer("t", selector)
    none = node.consumer("t", f"NOT ({selector})")
    wanted = node.publish("t", size=3, headers=Headers(type="news", correlation="c-1"))
    node.write()
    assert ids(node.handed(consumer)) == [wanted]
    assert not node.handed(none)


def test_a_new_subscription_claims_what_is_here_and_nobody_acknowledged(node: OneNode) -> None:
    session = node.session()
    first = node.consume(session, "t")
    node.credit(first)
    acknowledged, open_one = node.publish("t", b"1"), node.publish("t", b"2")
    node.write()
    handed = node.handed()
    node.acknowledge(session, handed[0])
    node.write()
    second = node.consumer("t")
    node.write()
    assert ids(node.handed(second)) == [open_one]
    assert acknowledged not in ids(node.handed())


def test_what_a_consumer_that_is_gone_had_comes_flagged(node: OneNode) -> None:
    first = node.consumer("t")
    node.publish("t")
    node.write()
    node.handed()
    node.host.messaging.execute(CloseSession(first - 1), node.now)
    second = node.consumer("t")
    node.write()
    assert counts(node.handed(second)) == [2]


def test_what_was_prefetched_and_nobody_saw_comes_without_a_flag(node: OneNode) -> None:
    session = node.session()
    node.credit(node.consume(session, "t"))
    node.publish("t")
    node.write()
    (handed,) = node.handed()
    node.host.messaging.execute(CloseSession(session, [handed.number]), node.now)
    node.consumer("t")
    node.write()
    assert counts(node.handed()) == [1]


def test_recover_brings_again_what_was_not_acknowledged_in_its_order(node: OneNode) -> None:
    session = node.session()
    consumer = node.consume(session, "t")
    node.credit(consumer)
    sent = [node.publish("t", b"%d" % n) for n in range(4)]
    node.write()
    handed = node.handed()
    node.acknowledge(session, handed[1])
    node.host.messaging.execute(Recover(session, [handed[3].number]), node.now)
    node.write()
    again = node.handed()
    assert ids(again) == [sent[0], sent[2], sent[3]]
    assert counts(again) == [2, 2, 1]


def test_acknowledging_through_a_number_takes_all_of_the_session_before_it(node: OneNode) -> None:
    session = node.session()
    for topic in ("t", "u"):
        node.credit(node.consume(session, topic))
    for n in range(3):
        node.publish("t", b"%d" % n)
        node.publish("u", b"%d" % n)
    node.write()
    handed = node.handed()
    node.work(acks=[Ack(session, through=handed[3].number)])
    node.host.messaging.execute(Recover(session), node.now)
    node.write()
    assert ids(node.handed()) == ids(handed[4:])


def test_a_message_is_told_as_delivered_once_per_node(node: OneNode) -> None:
    node.consumer("t")
    node.consumer("t")
    message = node.publish("t")
    node.write()
    node.consumer("t")
    node.write()
    told = [each for event in node.events if isinstance(event, Delivered) for each in event.deliveries]
    assert [each.message for each in told] == [message]


def test_nothing_is_handed_over_that_expired_while_it_was_written(node: OneNode) -> None:
    node.consumer("t")
    node.write()
    node.publish("t", lifetime_s=1)
    node.collect()
    node.now = 2 * S
    node.write()
    assert not node.handed()


def test_what_expires_while_it_waits_is_not_handed_over(node: OneNode) -> None:
    consumer = node.consume(node.session(), "t")
    node.publish("t", b"1", lifetime_s=1)
    lasting = node.publish("t", b"2", lifetime_s=10)
    node.write()
    node.pass_time(2)
    node.credit(consumer)
    node.write()
    assert ids(node.handed()) == [lasting]
    assert not [each for each in node.events if isinstance(each, ClaimLost)]


def test_delivery_waits_for_its_time(node: OneNode) -> None:
    node.consumer("t")
    later = node.publish("t", b"1", headers=Headers(delivery_time_us=10 * S))
    sooner = node.publish("t", b"2")
    node.write()
    assert ids(node.handed()) == [sooner]
    node.pass_time(9)
    assert not node.handed()
    node.pass_time(1)
    assert ids(node.handed()) == [later]


def test_delivery_waits_for_its_time_also_across_a_restart(node: OneNode) -> None:
    node.consumer("t", client="me", name="mail", durable=True)
    later = node.publish("t", headers=Headers(delivery_time_us=10 * S))
    node.write()
    node.crash()
    node.consumer("t", client="me", name="mail", durable=True)
    node.pass_time(9)
    assert not node.handed()
    node.pass_time(1)
    assert [(each.message, each.count) for each in node.handed()] == [(later, 1)]


def test_programs_that_come_and_go_leave_no_claims_to_what_is_due_in_years(node: OneNode) -> None:
    before = claims_in_memory()
    for n in range(3):
        node.publish("t", b"%d" % n, headers=Headers(delivery_time_us=10**15 + n))
    for _ in range(20):
        session = node.session()
        node.credit(node.consume(session, "t"))
        node.write()
        assert node.host.messaging.overview().claims == 3  # type: ignore[union-attr]
        node.host.messaging.execute(CloseSession(session), node.now)
        node.write()
    assert claims_in_memory() <= before + 3


def test_no_local_leaves_out_what_its_own_connection_sent(node: OneNode) -> None:
    messaging = node.host.messaging
    connection = messaging.execute(Connect(), node.now)
    consumer = node.consume(messaging.execute(OpenSession(connection), node.now), "t", no_local=True)
    node.credit(consumer)
    node.publish("t", headers=Headers(connection=connection))
    other = node.publish("t", headers=Headers(connection=connection + 100))
    bare = node.publish("t")
    node.write()
    assert ids(node.handed()) == [other, bare]


def deliveries(node: OneNode) -> list[tuple[bytes, bool]]:
    """Return the deliveries, and whether a record has each already."""
    found = [event for event in node.events if isinstance(event, Delivered)]
    return [(each.message, each.known) for event in found for each in event.deliveries]


@pytest.mark.parametrize("crash", [False, True])
def test_what_was_acknowledged_is_not_delivered_to_who_subscribes_later_without_messaging(
    node: OneNode, crash: bool
) -> None:
    session = node.session()
    node.credit(node.consume(session, "t"))
    node.publish("t", b"1")
    kept = node.publish("t", b"2")
    node.write()
    node.acknowledge(session, node.handed()[0])
    node.write()
    if crash:
        node.crash()
    node.events = []
    node.host.subscribe("t", now=node.now)
    node.write()
    assert deliveries(node) == [(kept, True)]


@pytest.mark.parametrize("durable", [False, True])
def test_what_was_acknowledged_while_a_plain_subscription_did_not_confirm_it_comes_again_to_that_alone(
    node: OneNode, *, durable: bool
) -> None:
    node.host.subscribe("t", now=node.now)
    session = node.session("me")
    node.credit(node.consume(session, "t", name="mail" if durable else "", durable=durable))
    message = node.publish("t")
    node.write()
    node.acknowledge(session, *node.handed())
    node.write()
    for _ in range(2):
        node.crash()
        node.events = []
        node.host.subscribe("t", now=node.now)
        node.consumer("t")
        node.consumer("t", client="me", name="mail", durable=True)
        node.write()
        assert deliveries(node) == [(message, True)]
        assert not node.handed()
    node.host.confirm([message], node.now)
    node.write()
    assert {key[1][:1] for key in node.disk if key[0] == "mom"} == {b"S"}
    node.crash()
    node.events = []
    node.host.subscribe("t", now=node.now)
    node.consumer("t")
    node.write()
    assert not deliveries(node)
    assert not node.handed()


def test_the_note_of_an_acknowledgement_beside_a_plain_subscription_goes_with_the_message(node: OneNode) -> None:
    node.host.subscribe("t", now=node.now)
    session = node.session()
    node.credit(node.consume(session, "t"))
    node.publish("t", lifetime_s=10)
    node.write()
    node.acknowledge(session, *node.handed())
    node.write()
    assert [key for key in node.disk if key[0] == "mom"]
    node.pass_time(11)
    assert not [key for key in node.disk if key[0] == "mom"]


def test_a_message_is_delivered_to_the_record_once_whoever_comes_first(node: OneNode) -> None:
    node.host.subscribe("raw", now=node.now)
    node.consumer("both.*")
    first = node.publish("both")
    second = node.publish("raw")
    node.write()
    assert deliveries(node) == [(first, False), (second, False)]
    node.host.subscribe("both.*", now=node.now)
    node.consumer("raw")
    third = node.publish("both/again")
    node.write()
    assert deliveries(node)[2:] == [(first, True), (third, False)]


# --- shared and durable ------------------------------------------------------------------------------------


def test_of_a_shared_subscription_each_message_goes_to_one(node: OneNode) -> None:
    consumers = [node.consumer("t", name="crew", shared=True) for _ in range(3)]
    sent = {node.publish("t", b"%d" % n) for n in range(9)}
    node.write()
    by_consumer = [ids(node.handed(consumer)) for consumer in consumers]
    assert [len(each) for each in by_consumer] == [3, 3, 3]
    assert {message for each in by_consumer for message in each} == sent


def test_a_durable_subscription_collects_while_nobody_consumes_also_across_a_restart(node: OneNode) -> None:
    consumer = node.consumer("t", client="me", name="mail", durable=True)
    node.write()
    node.host.messaging.execute(CloseSession(consumer - 1), node.now)
    before = node.publish("t", b"1")
    node.write()
    node.crash()
    after = node.publish("t", b"2")
    node.write()
    node.consumer("t", client="me", name="mail", durable=True)
    node.write()
    handed = node.handed()
    assert ids(handed) == [before, after]
    assert counts(handed) == [1, 1]


def test_what_came_while_messaging_slept_is_found_once_for_all_subscriptions(node: OneNode) -> None:
    for client in ("a", "b"):
        node.consume(node.session(client), "t", name="mail", durable=True)
    node.write()
    node.boot(awake=False)
    message = node.publish("t")
    node.write()
    node.events = []
    node.crash()
    assert deliveries(node) == [(message, False)]
    consumers = [node.consumer("t", client=client, name="mail", durable=True) for client in ("a", "b")]
    node.write()
    assert [ids(node.handed(each)) for each in consumers] == [[message], [message]]


def test_after_a_crash_messages_wait_in_the_order_in_which_they_came(node: OneNode) -> None:
    node.consume(node.session("me"), "t", name="mail", durable=True)
    sent = [node.publish("t", b"%d" % n) for n in range(12)]
    assert sent != sorted(sent)
    node.write()
    node.crash()
    node.consumer("t", client="me", name="mail", durable=True)
    node.write()
    assert ids(node.handed()) == sent


def test_after_a_crash_what_was_handed_and_not_acknowledged_comes_flagged_and_the_rest_never(node: OneNode) -> None:
    session = node.session("me")
    node.credit(node.consume(session, "t", name="mail", durable=True))
    sent = [node.publish("t", b"%d" % n) for n in range(3)]
    node.write()
    handed = node.handed()
    node.acknowledge(session, handed[0], handed[2])
    node.write()
    node.crash()
    node.credit(node.consume(node.session("me"), "t", name="mail", durable=True))
    node.write()
    again = node.handed()
    assert ids(again) == [sent[1]]
    assert counts(again) == [2]


def test_after_a_crash_a_live_subscription_finds_what_was_not_acknowledged_flagged(node: OneNode) -> None:
    session = node.session()
    node.credit(node.consume(session, "t"))
    sent = [node.publish("t", b"%d" % n) for n in range(2)]
    node.write()
    node.acknowledge(session, node.handed()[0])
    node.write()
    node.crash()
    node.consumer("t")
    node.write()
    again = node.handed()
    assert (ids(again), counts(again)) == ([sent[1]], [2])


def test_unsubscribing_ends_it_for_good(node: OneNode) -> None:
    consumer = node.consumer("t", client="me", name="mail", durable=True)
    node.publish("t")
    node.write()
    with pytest.raises(IllegalStateException, match="close it before"):
        node.host.messaging.execute(Unsubscribe("me", "mail"), node.now, node.next_number())
    node.host.messaging.execute(CloseSession(consumer - 1), node.now)
    node.host.messaging.execute(Unsubscribe("me", "mail"), node.now, node.next_number())
    node.write()
    assert not [key for key in node.disk if key[0] == "mom"]
    with pytest.raises(InvalidDestinationException, match="no durable subscription 'mail'"):
        node.host.messaging.execute(Unsubscribe("me", "mail"), node.now, node.next_number())


def test_a_lease_that_nobody_renews_ends_a_durable_subscription() -> None:
    node = OneNode(messaging={"subscription_lease_s": 100.0})
    consumer = node.consumer("t", client="me", name="mail", durable=True)
    node.write()
    node.pass_time(1000)
    assert node.host.messaging.overview().durable == 1  # type: ignore[union-attr]
    node.host.messaging.execute(CloseSession(consumer - 1), node.now)
    node.write()
    node.crash()
    node.pass_time(99)
    assert node.host.messaging.overview().durable == 1  # type: ignore[union-attr]
    node.pass_time(2)
    assert node.host.messaging.overview().durable == 0  # type: ignore[union-attr]
    assert not [key for key in node.disk if key[0] == "mom"]


def test_another_topic_or_selector_makes_a_durable_subscription_anew(node: OneNode) -> None:
    consumer = node.consumer("t", client="me", name="mail", durable=True)
    node.publish("t")
    node.write()
    node.handed()
    node.host.messaging.execute(Disconnect(consumer - 2), node.now)
    node.consumer("u", client="me", name="mail", durable=True)
    node.publish("t", b"2")
    wanted = node.publish("u")
    node.write()
    assert ids(node.handed()) == [wanted]


def test_a_node_may_keep_subscriptions_that_are_not_durable_as_if_they_were() -> None:
    node = OneNode(messaging={"non_durable": "as_durable"})
    session = node.session()
    consumers = [node.consume(session, "t") for _ in range(2)]
    node.write()
    assert node.host.messaging.overview().durable == 2  # type: ignore[union-attr]
    for consumer in consumers:
        node.host.messaging.execute(CloseConsumer(consumer), node.now)
    sent = node.publish("t")
    node.write()
    node.crash()
    first = node.consumer("t")
    node.write()
    assert ids(node.handed(first)) == [sent]
    assert node.host.messaging.overview().durable == 2  # type: ignore[union-attr]


def test_a_node_may_refuse_subscriptions_that_are_not_durable() -> None:
    node = OneNode(messaging={"non_durable": "reject"})
    with pytest.raises(JMSException, match="give the subscription a name and make it durable"):
        node.consumer("t")
    node.consumer("t", client="me", name="mail", durable=True)


def test_wildcards_take_one_level_or_all_that_follow(node: OneNode) -> None:
    star, rest = node.consumer(address.topic_pattern("a.b.*")), node.consumer(address.topic_pattern("a.>"))
    sent = [node.publish(address.topic(name)) for name in ("a", "a.b", "a.b.c", "a.b.c.d", "ab.c")]
    node.write()
    assert ids(node.handed(star)) == sent[2:3]
    assert ids(node.handed(rest)) == sent[1:4]


def test_a_subscription_may_name_the_header_fields_of_the_papers(node: OneNode) -> None:
    wish = Subscribe(entry({"destination": "topic/.*", "destination_type": "topic", "src": "n"}))
    consumer = node.host.messaging.execute(Consume(node.session(), wish), node.now, node.next_number())
    node.credit(consumer)
    sent = node.publish(address.topic("x"))
    node.publish("elsewhere")
    node.write()
    assert ids(node.handed(consumer)) == [sent]


# --- misuse ------------------------------------------------------------------------------------------------


def test_misuse_is_told_with_what_to_do(node: OneNode) -> None:
    node.session("me")
    with pytest.raises(InvalidClientIDException, match="choose another"):
        node.session("me")
    with pytest.raises(InvalidClientIDException, match=r"at most [\d,]+ characters, not 100,000"):
        node.session("x" * 100_000)
    with pytest.raises(JMSException, match="leave no_local out, or do not share"):
        node.consumer("t", name="crew", shared=True, no_local=True)
    with pytest.raises(IllegalStateException, match="give one to the connection factory"):
        node.consumer("t", name="mail", durable=True)
    with pytest.raises(JMSException, match="letters, digits"):
        node.consumer("t", client="a", name="a b", durable=True)
    node.consumer("t", client="b", name="mail", durable=True)
    with pytest.raises(IllegalStateException, match="session 999 is closed"):
        node.work(acks=[Ack(999, (1,))])
    with pytest.raises(IllegalStateException, match="consumer 999 is closed"):
        node.credit(999)
    node.consumer("t", name="crew", shared=True)
    with pytest.raises(JMSException, match="in use for another topic"):
        node.consumer("u", name="crew", shared=True)


def test_a_topic_that_is_open_with_an_ordering_is_not_opened_with_another(node: OneNode) -> None:
    node.consumer("t", ordering=Ordering.CAUSAL)
    with pytest.raises(JMSException, match="with the ordering 'causal': open it so here, too"):
        node.consumer("t")
    with pytest.raises(JMSException, match="'causal'"):
        node.work(Draft("t", b"x"))


# --- order -------------------------------------------------------------------------------------------------


def test_selectors_of_ordered_topics_are_applied_at_the_claim(node: OneNode) -> None:
    consumer = node.consumer("t", "n > 1", ordering=Ordering.CAUSAL)
    sent = [node.publish("t", ordering=Ordering.CAUSAL, n=n) for n in range(4)]
    node.write()
    assert ids(node.handed(consumer)) == sent[2:]


def test_what_has_no_place_in_the_order_is_flagged(node: OneNode) -> None:
    node.consumer("t", ordering=Ordering.CAUSAL)
    node.publish("t", b"1", ordering=Ordering.CAUSAL)
    node.publish("t", b"2")
    node.write()
    assert [each.unordered for each in node.handed()] == [False, True]


def test_a_later_subscription_to_an_ordered_topic_gets_what_nobody_acknowledged_in_order(node: OneNode) -> None:
    node.consumer("t", ordering=Ordering.CAUSAL)
    sent = [node.publish("t", b"%d" % n, ordering=Ordering.CAUSAL) for n in range(3)]
    node.write()
    node.handed()
    second = node.consumer("t", ordering=Ordering.CAUSAL)
    node.write()
    assert ids(node.handed(second)) == sent
    node.crash()
    node.consumer("t", ordering=Ordering.CAUSAL)
    node.write()
    assert ids(node.handed()) == sent


def test_what_comes_after_a_later_one_of_its_session_says_so(node: OneNode) -> None:
    node.consumer("t")
    for number in (1, 3, 2, 4):
        node.publish("t", b"%d" % number, headers=Headers(session=7, number=number))
    node.publish("t", headers=Headers(session=8, number=1))
    node.write()
    assert [each.out_of_order for each in node.handed()] == [False, False, True, False, False]


@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.CAUSAL])
def test_a_new_subscription_claims_what_a_plain_one_was_given_and_did_not_confirm(
    node: OneNode, ordering: Ordering
) -> None:
    node.host.subscribe("t", ordered=bool(ordering), now=node.now)
    confirmed, open_one = (node.publish("t", body, ordering=ordering) for body in (b"1", b"2"))
    node.write()
    node.host.confirm([confirmed], node.now)
    node.consumer("t", ordering=ordering)
    node.write()
    assert ids(node.handed()) == [open_one]


def test_messaging_is_not_opened_before_what_an_earlier_life_left_is_known() -> None:
    host = Host(Identity.plain("n"), Settings.emulated(), random.Random(1))
    with pytest.raises(StateError, match="start or restore the host first"):
        host.messaging.open(0)
    host.start(now=0)
    host.messaging.open(0)
    assert host.messaging.is_open


def test_no_local_leaves_out_what_its_own_connection_sent_also_where_the_node_makes_it_durable() -> None:
    node = OneNode(messaging={"non_durable": "as_durable"})
    messaging = node.host.messaging
    for _ in range(2):
        connection = messaging.execute(Connect(), node.now)
        session = messaging.execute(OpenSession(connection), node.now)
        node.credit(node.consume(session, "t", no_local=True))
        node.publish("t", headers=Headers(connection=connection))
        others = node.publish("t", headers=Headers(connection=connection + 100))
        node.write()
        handed = node.handed()
        assert ids(handed) == [others]
        node.acknowledge(session, *handed)
        messaging.execute(Disconnect(connection), node.now)


# --- works -------------------------------------------------------------------------------------------------


def test_a_work_is_one_batch_and_told_alone(node: OneNode) -> None:
    session = node.session()
    node.credit(node.consume(session, "in"))
    node.publish("in")
    node.write()
    node.answers()
    (handed,) = node.handed()
    node.events = []
    number = node.work(Draft("out", b"1"), Draft("out", b"2"), acks=[Ack(session, (handed.number,))])
    node.collect()
    assert len(node.batches) == 1
    assert not node.answers()
    node.write()
    assert node.answers() == [Done(number)]
    assert not [each for each in node.events if isinstance(each, Stored)]


def test_a_draft_has_its_id_at_once_and_is_sent_by_the_commit(node: OneNode) -> None:
    session = node.session()
    consumer = node.consumer("t")
    draft, made = node.host.draft(session, Draft("t", b"1"), node.now)
    node.write()
    assert not node.handed()
    node.work(draft)
    node.write()
    assert made is not None
    assert ids(node.handed(consumer)) == [made.id]
    with pytest.raises(IllegalStateException, match="there is no draft"):
        node.work(draft)


def test_an_ordered_draft_gets_its_id_at_the_commit(node: OneNode) -> None:
    session = node.session()
    consumer = node.consumer("t", ordering=Ordering.CAUSAL)
    draft, made = node.host.draft(session, Draft("t", b"1", ordering=Ordering.CAUSAL), node.now)
    assert made is None
    node.publish("t", b"2", ordering=Ordering.CAUSAL)
    node.work(draft)
    node.write()
    assert [each.descriptor.size for each in node.handed(consumer)] == [1, 1]


def test_drafts_go_with_their_session(node: OneNode) -> None:
    session = node.session()
    draft, _ = node.host.draft(session, Draft("t", b"1"), node.now)
    node.host.messaging.execute(Rollback(session), node.now)
    with pytest.raises(IllegalStateException, match="there is no draft"):
        node.work(draft)


def test_a_work_for_which_there_is_no_room_changes_nothing() -> None:
    node = OneNode(cache_messages_max=3)
    consumer = node.consumer("t")
    for n in range(2):
        node.publish("t", b"%d" % n)
    node.write()
    node.handed()
    with pytest.raises(ResourceAllocationException, match="no room for 2 messages"):
        node.work(Draft("t", b"1"), Draft("t", b"2"))
    node.write()
    assert not node.handed(consumer)
    assert node.host.copies == 2
    node.work(Draft("t", b"1"))
    node.write()
    assert len(node.handed(consumer)) == 1


@pytest.mark.parametrize("wrong", [Draft("", b"1"), Draft("t", b"1", priority=12), Draft("t", b"1", lifetime_us=0)])
def test_a_work_with_something_wrong_in_it_changes_nothing(node: OneNode, wrong: Draft) -> None:
    consumer = node.consumer("t")
    node.write()
    with pytest.raises(Exception, match="a "):
        node.work(Draft("t", b"1"), wrong)
    node.write()
    assert not node.handed(consumer)
    assert node.host.copies == 0


# --- bounds ------------------------------------------------------------------------------------------------


def test_a_dead_subscription_does_not_use_up_the_pins_of_others() -> None:
    node = OneNode(cache_messages_max=20, limits={"unconfirmed_max": 8})
    node.consumer("old", client="gone", name="dead", durable=True)
    node.write()
    node.host.messaging.execute(CloseSession(2), node.now)
    for n in range(12):
        node.publish("old", b"%d" % n)
    node.write()
    live = node.consume(node.session(), "new")
    sent = [node.publish("new", b"%d" % n) for n in range(4)]
    node.write()
    for n in range(30):
        node.now += 1
        node.publish("noise", b"%d" % n)
        node.write()
    lost = [each for each in node.events if isinstance(each, ClaimLost)]
    assert {each.subscription for each in lost} == {"dead"}
    assert node.host.messaging.overview().lost == len(lost) > 0  # type: ignore[union-attr]
    node.credit(live)
    node.write()
    assert ids(node.handed()) == sent


# --- what was handed over, and is not told yet -------------------------------------------------------------


def test_what_a_consumer_was_about_to_get_when_it_closed_goes_to_the_next_one_uncounted(node: OneNode) -> None:
    session = node.session("me")
    consumer = node.consume(session, "t", name="mail", durable=True)
    node.credit(consumer)
    node.publish("t")
    node.collect()
    node.host.messaging.execute(CloseConsumer(consumer), node.now)
    node.write()
    assert not node.handed()
    other = node.consume(session, "t", name="mail", durable=True)
    node.credit(other)
    node.write()
    assert [(each.consumer, each.count) for each in node.handed()] == [(other, 1)]


def test_recover_starts_with_what_is_not_told_yet_and_does_not_count_it(node: OneNode) -> None:
    session = node.session()
    node.credit(node.consume(session, "t"), 2)
    node.credit(node.consume(session, "t"))
    sent = [node.publish("t", b"%d" % n) for n in range(3)]
    node.collect()
    node.host.messaging.execute(Recover(session), node.now)
    node.write()
    handed = node.handed()
    assert ids(handed) == sent[:2] + sent
    assert counts(handed) == [1] * 5


def test_credit_for_what_expired_before_it_was_told_is_there_for_the_next(node: OneNode) -> None:
    node.credit(node.consume(node.session(), "t"), 1)
    node.publish("t", b"1", lifetime_s=1)
    lasting = node.publish("t", b"2")
    node.collect()
    node.now += 2 * S
    node.write()
    assert ids(node.handed()) == [lasting]


# --- commands whose batch is lost --------------------------------------------------------------------------


# --- the order of sending ----------------------------------------------------------------------------------


def test_after_a_restart_a_durable_subscription_has_everything_in_the_order_of_sending(node: OneNode) -> None:
    consumer = node.consume(node.session("me"), "t", name="mail", durable=True)
    node.credit(consumer, 3)
    sent = [node.publish("t", b"%d" % n) for n in range(12)]
    node.write()
    assert ids(node.handed()) == sent[:3]
    node.crash()
    session = node.session("me")
    node.credit(node.consume(session, "t", name="mail", durable=True))
    handed = []
    for _ in range(3):  # What was handed over comes one at a time, the rest behind it.
        node.write()
        (one,) = node.handed()
        assert one.alone
        node.acknowledge(session, one)
        handed.append(one)
    node.write()
    handed += node.handed()
    assert ids(handed) == sent
    assert counts(handed) == [2] * 3 + [1] * 9


@pytest.mark.parametrize("crashed", [False, True])
def test_what_a_program_saw_that_crashed_comes_one_at_a_time(node: OneNode, crashed: bool) -> None:
    messaging = node.host.messaging

    def attach() -> tuple[int, int]:
        connection = messaging.execute(Connect("me"), node.now)
        session = messaging.execute(OpenSession(connection), node.now)
        node.credit(node.consume(session, "t", name="mail", durable=True), 4)
        node.write()
        return connection, session

    sent = [node.publish("t", b"%d" % n) for n in range(5)]
    connection, _ = attach()
    seen = node.handed()
    assert ids(seen) == sent[:4]
    messaging.execute(Disconnect(connection, [seen[3].number], crashed=crashed), node.now)
    _, session = attach()
    if crashed:
        for expected in sent[:3]:
            (one,) = node.handed()
            assert (one.message, one.count, one.alone) == (expected, 2, True)
            node.acknowledge(session, one)
            node.write()
    rest = node.handed()
    assert ids(rest) == (sent[3:4] if crashed else sent[:4])
    assert counts(rest) == ([1] if crashed else [2, 2, 2, 1])
    assert not any(each.alone for each in rest)


def test_a_program_that_lives_a_second_longer_gets_the_next_of_what_comes_one_at_a_time(node: OneNode) -> None:
    def attach() -> int:
        session = node.session("me")
        node.credit(node.consume(session, "t", name="mail", durable=True), 9)
        node.write()
        return session

    sent = [node.publish("t", b"%d" % n) for n in range(3)]
    session = attach()
    handed = node.handed()
    assert ids(handed) == sent
    for _ in range(2):
        node.crash()
        session = attach()
        handed = node.handed()
        for number in range(2):
            assert ids(handed) == sent[: number + 1]
            node.pass_time(0.999)
            assert node.handed() == []
            node.pass_time(0.001)
            handed += node.handed()
        assert ids(handed) == sent
        assert all(each.alone for each in handed)
    assert counts(handed) == [3, 2, 2], "a crash counts against the first of those that a program had"
    node.host.messaging.execute(GoOn(session), node.now)
    fresh = node.publish("t", b"new")
    node.write()
    assert ids(node.handed()) == [fresh]


def test_a_first_subscription_to_an_ordered_topic_claims_what_is_here(node: OneNode) -> None:
    sent = [node.publish("t", b"%d" % n, ordering=Ordering.CAUSAL) for n in range(3)]
    node.write()
    node.consumer("t", ordering=Ordering.CAUSAL)
    node.write()
    assert ids(node.handed()) == sent


# --- subscriptions that are replaced or end -----------------------------------------------------------------


def test_what_a_session_has_of_a_durable_subscription_comes_flagged_to_the_one_that_replaces_it(node: OneNode) -> None:
    session = node.session("me")
    consumer = node.consume(session, "t", name="mail", durable=True)
    node.credit(consumer)
    node.publish("t", n=1)
    node.write()
    assert counts(node.handed()) == [1]
    node.host.messaging.execute(CloseConsumer(consumer), node.now)
    node.credit(node.consume(session, "t", "n = 1", name="mail", durable=True))
    node.write()
    assert counts(node.handed()) == [2]


def test_an_acknowledgement_after_the_lease_ended_does_not_bring_the_subscription_back() -> None:
    node = OneNode(messaging={"subscription_lease_s": 10.0})
    session = node.session("me")
    consumer = node.consume(session, "t", name="mail", durable=True)
    node.credit(consumer)
    node.publish("t")
    node.write()
    (handed,) = node.handed()
    node.host.messaging.execute(CloseConsumer(consumer), node.now)
    node.pass_time(11)
    node.acknowledge(session, handed)
    node.write()
    assert not [key for key in node.disk if key[0] == "mom"]
    node.crash()
    assert node.host.messaging.overview().subscriptions == 0  # type: ignore[union-attr]


def test_another_try_after_the_subscription_ended_writes_no_row() -> None:
    node = OneNode(messaging={"subscription_lease_s": 10.0})
    session = node.session("me")
    consumer = node.consume(session, "t", name="mail", durable=True)
    node.credit(consumer)
    node.publish("t")
    node.write()
    (handed,) = node.handed()
    node.host.messaging.execute(CloseConsumer(consumer), node.now)
    node.pass_time(11)
    assert node.host.messaging.execute(Retry(session, handed.number), node.now, node.next_number()) == 2
    node.write()
    assert not [key for key in node.disk if key[0] == "mom"]


# --- misuse that loses nothing -----------------------------------------------------------------------------


def test_a_draft_is_sent_once(node: OneNode) -> None:
    session = node.session()
    consumer = node.consumer("t")
    node.write()
    draft, made = node.host.draft(session, Draft("t", b"1"), node.now)
    with pytest.raises(IllegalStateException, match="names one twice"):
        node.work(draft, draft)
    node.write()
    assert not node.handed()
    node.work(draft)
    node.write()
    assert made is not None
    assert ids(node.handed(consumer)) == [made.id]


def test_a_draft_belongs_to_a_session_that_is_open(node: OneNode) -> None:
    session = node.session()
    node.host.messaging.execute(CloseSession(session), node.now)
    with pytest.raises(IllegalStateException, match=f"session {session} is closed: open another"):
        node.host.draft(session, Draft("t", b"1"), node.now)


def test_a_number_is_not_given_to_another_command_before_it_is_answered(node: OneNode) -> None:
    session = node.session("me")
    node.consume(session, "t", name="mail", durable=True)
    wish = Subscribe(entry("u"), name="post", durable=True)
    with pytest.raises(IllegalStateException, match="number 1 is in use: choose another"):
        node.host.messaging.execute(Consume(session, wish), node.now, 1)
    with pytest.raises(IllegalStateException, match="number 1 is in use"):
        node.host.messaging.execute(Unsubscribe("me", "mail"), node.now, 1)
    with pytest.raises(IllegalStateException, match="number 1 is in use"):
        node.host.perform(UnitOfWork(1), node.now)
    assert node.host.messaging.overview().subscriptions == 1  # type: ignore[union-attr]
    node.write()
    assert node.answers() == [Done(1)]


def test_an_acknowledgement_names_what_its_session_was_handed(node: OneNode) -> None:
    first, second = node.session(), node.session()
    consumers = [node.consume(session, "t") for session in (first, second)]
    for consumer in consumers:
        node.credit(consumer)
    sent = [node.publish("t", b"%d" % n) for n in range(2)]
    node.write()
    handed = node.handed()
    mine = [each for each in handed if each.consumer == consumers[0]]
    with pytest.raises(IllegalStateException, match="acknowledge it there"):
        node.acknowledge(second, mine[0])
    for wrong in (Ack(first, (99,)), Ack(first, (-1,)), Ack(first, through=99)):
        with pytest.raises(IllegalStateException, match=r"acknowledge by `Handed\.number`"):
            node.work(Draft("u", b"x"), acks=[wrong])
    assert node.host.copies == 2
    number = mine[0].number
    node.work(acks=[Ack(first, (number, number)), Ack(first, (number,))])
    node.write()
    node.acknowledge(first, mine[0])
    node.host.messaging.execute(Recover(first), node.now)
    node.write()
    assert ids(node.handed()) == sent[1:]


def test_credit_is_not_taken_back(node: OneNode) -> None:
    consumer = node.consume(node.session(), "t")
    for messages, nbytes in ((-1, 1), (1, -1)):
        with pytest.raises(JMSException, match="the credit of a consumer must not be negative"):
            node.host.messaging.execute(Credit(consumer, messages, nbytes), node.now)
    node.host.messaging.execute(Credit(consumer, 0, 0), node.now)
    node.publish("t")
    node.write()
    assert not node.handed()


def test_a_live_subscription_has_no_name(node: OneNode) -> None:
    with pytest.raises(JMSException, match="out, or make the subscription durable or shared"):
        node.consumer("t", name="mail")


def test_a_subscription_for_which_there_is_no_room_does_not_end_the_one_that_it_replaces() -> None:
    node = OneNode(limits={"profile_entries_max": 2})  # One of them is for advertisements.
    session = node.session("me")
    consumer = node.consume(session, "t", name="mail", durable=True)
    node.write()
    node.host.messaging.execute(CloseConsumer(consumer), node.now)
    with pytest.raises(LocalError, match="more than 2 subscriptions"):
        node.consume(session, "u", name="mail", durable=True)
    assert node.host.messaging.overview().durable == 1  # type: ignore[union-attr]
    message = node.publish("t")
    node.write()
    node.credit(node.consume(session, "t", name="mail", durable=True))
    node.write()
    assert ids(node.handed()) == [message]


def test_what_a_session_has_of_a_durable_subscription_that_was_replaced_leaves_no_row(node: OneNode) -> None:
    session = node.session("me")
    consumer = node.consume(session, "t", name="mail", durable=True)
    node.credit(consumer)
    node.publish("t")
    node.write()
    (handed,) = node.handed()
    node.host.messaging.execute(CloseConsumer(consumer), node.now)
    node.consume(session, "u", name="mail", durable=True)
    node.write()
    node.pass_time(0)
    assert not [key for key in node.disk if key[0] == "mom" and key[1][:1] == b"C"]
    node.acknowledge(session, handed)
    node.write()
    node.consumer("t")
    node.write()
    assert not node.handed()


def test_a_later_subscription_gets_what_is_here_in_the_order_of_sending(node: OneNode) -> None:
    sent = [node.publish("t", b"%d" % number) for number in range(3)]
    node.write()
    for _ in range(2):
        node.consumer("t")
        node.write()
        assert ids(node.handed()) == sent
        node.crash()


def test_what_a_session_still_has_of_a_subscription_that_is_gone_comes_flagged_to_the_next(node: OneNode) -> None:
    session = node.session()
    consumer = node.consume(session, "t")
    node.credit(consumer)
    node.publish("t")
    node.write()
    (handed,) = node.handed()
    node.host.messaging.execute(CloseConsumer(consumer), node.now)
    node.consumer("t")
    node.write()
    assert counts(node.handed()) == [2]
    node.acknowledge(session, handed)  # It may still do so.
    node.write()
    node.consumer("t")
    node.write()
    assert not node.handed()

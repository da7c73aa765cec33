"""The directory of one host: the names that it advertises and accepts, and how long it keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.named_node import NamedNode, advert, saying
from tests.support.one_node import S

from carrypost.errors import (
    IllegalStateException,
    InvalidDestinationException,
    InvalidNameException,
    JMSSecurityException,
    NameNotFoundException,
    ResourceAllocationException,
)
from carrypost.log.events import Advertised, Done
from carrypost.messaging import directory
from carrypost.messaging.commands import BindName, CloseConsumer, Connect, Consume, OpenSession, Receive, Subscribe
from carrypost.messaging.namespace import Bind
from carrypost.model import address
from carrypost.model.descriptor import Descriptor, Ordering
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId
from carrypost.model.pattern import entry


@pytest.fixture
def node() -> NamedNode:
    return NamedNode()


# --- own names -----------------------------------------------------------------------------------------------


def test_a_name_is_bound_and_advertised_in_one_batch(node: NamedNode) -> None:
    number = node.bind("news", "topic/village.news")
    assert node.meaning("news") == "topic/village.news"
    assert not node.answers()
    assert len(node.batches) == 1
    node.write()
    assert node.answers() == [Done(number)]
    assert node.advertised() == {"news": "topic/village.news"}


def test_an_advertisement_is_small_has_no_payload_and_lives_as_long_as_the_settings_say(node: NamedNode) -> None:
    node.bind("news", "topic/village.news", ordering=Ordering.CAUSAL)
    node.write()
    (told,) = node.adverts()
    assert (told.length, told.deadline_us, told.destination) == (0, 60 * S, "directory/n/news")
    assert told.headers == saying("topic/village.news", Ordering.CAUSAL)
    assert len(told.wire) < 120


def test_an_advertisement_lives_no_longer_than_messages_may() -> None:
    node = NamedNode(advert_s=1_000, lifetime_s_max=60)
    node.bind("news", "topic/news")
    node.write()
    (told,) = node.adverts()
    assert told.deadline_us == 60 * S
    node.pass_time(400)
    assert len(node.adverts()) == 1


@pytest.mark.parametrize(
    ("destination", "advertised"), [("topic/x", True), ("queue/n/x", True), ("queue/other/x", False)]
)
def test_only_what_is_a_nodes_own_to_say_is_advertised(node: NamedNode, destination: str, advertised: bool) -> None:
    node.bind("x", destination)
    node.bind("kept", destination, advertise=False)
    node.bind("context")
    node.write()
    assert node.advertised() == ({"x": destination} if advertised else {})
    assert [node.meaning(name) for name in ("x", "kept", "context")] == [destination, destination, ""]


def test_a_name_is_renewed_before_its_advertisement_dies_and_one_copy_is_kept(node: NamedNode) -> None:
    node.bind("news", "topic/news")
    node.write()
    first = node.adverts()
    for _ in range(60):
        node.pass_time(5)
        (told,) = node.adverts()
        assert told.deadline_us is not None
        assert told.deadline_us - node.now >= 60 * S // 2
    assert first != node.adverts()
    assert node.messages() == 1
    assert node.adverts()[0].sequence <= 1 + 300 / 20


def test_names_that_were_bound_together_are_renewed_at_different_times(node: NamedNode) -> None:
    for number in range(10):
        node.bind(f"n{number}", f"topic/{number}")
    for _ in range(3):
        node.pass_time(45)
    moments = {each.created_us for each in node.adverts()}
    assert len(moments) == 10
    assert max(moments) - min(moments) > 60 * S / 10


def test_many_names_are_not_said_at_one_moment() -> None:
    node = NamedNode(advert_s=600)
    for number in range(40):
        node.bind(f"n{number}", f"topic/{number}")
    node.write()
    node.now += 700 * S
    node.crash()
    assert len(node.adverts()) == directory.RENEWED_AT_ONCE
    node.pass_time(2)
    assert len(node.adverts()) == 40


def test_unbind_stops_advertising_at_once(node: NamedNode) -> None:
    node.bind("news", "topic/news")
    node.write()
    number = node.unbind("news")
    node.write()
    assert Done(number) in node.answers()
    assert (node.adverts(), node.rows(), node.found("news")) == ([], [], None)
    node.pass_time(200)
    assert node.messages() == 0


def test_rebind_is_told_at_once(node: NamedNode) -> None:
    node.bind("news", "topic/old")
    node.write()
    node.bind("news", "topic/new", replace=True)
    node.write()
    assert node.advertised() == {"news": "topic/new"}
    node.bind("news", "topic/new", replace=True, advertise=False)
    node.write()
    assert (node.adverts(), node.meaning("news")) == ([], "topic/new")


def test_names_survive_a_restart_and_are_not_told_again_before_they_are_due(node: NamedNode) -> None:
    node.bind("office")
    node.bind("office/printer", "queue/n/ink")
    node.bind("friend", "queue/x/Alan")
    node.write()
    before = node.adverts()
    node.crash()
    assert [node.meaning(name) for name in ("office", "office/printer", "friend")] == [
        "",
        "queue/n/ink",
        "queue/x/Alan",
    ]
    assert node.adverts() == before
    node.pass_time(100)
    (told,) = node.adverts()
    assert (told.incarnation, told.alive(node.now)) == (2, True)


def test_a_name_whose_advertisement_died_while_the_node_was_off_is_told_at_its_start(node: NamedNode) -> None:
    node.bind("news", "topic/news")
    node.write()
    node.now += 1_000 * S
    node.crash()
    assert node.advertised() == {"news": "topic/news"}


def test_what_no_name_can_stand_for_is_refused(node: NamedNode) -> None:
    for destination in ("news", "control/all", "directory/n/x", "queue/n", "topic/" + "x" * 300, "topic/a\nb"):
        with pytest.raises(InvalidDestinationException, match="to a topic or a queue"):
            node.bind("x", destination)
    with pytest.raises(InvalidNameException, match="too long for a name, by 45 bytes"):
        node.bind("x" * 289, "topic/x")
    node.bind("x" * 244, "topic/x")
    node.write()
    assert len(node.adverts()) == 1


def test_a_node_has_so_many_names_at_most(node: NamedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "OWNER_MAX", 2)
    node.bind("a", "topic/a")
    node.bind("b")
    with pytest.raises(ResourceAllocationException, match="2 names"):
        node.bind("c", "topic/c")
    node.bind("a", "topic/x", replace=True)
    node.unbind("b", context=True)
    node.bind("c", "topic/c")


def test_a_command_has_a_number_of_its_own(node: NamedNode) -> None:
    node.bind("a", "topic/a")
    with pytest.raises(IllegalStateException, match="choose another"):
        node.host.messaging.execute(BindName(Bind("b", "topic/b")), node.now, node.number)
    assert node.found("b") is None


def test_what_an_application_publishes_in_its_nodes_name_tells_nobody_of_names(node: NamedNode) -> None:
    node.bind("a", "topic/a")
    node.write()
    node.publish("directory/n/b", b"", lifetime_s=60, headers=saying("topic/b"))
    node.publish("directory/n/a", b"", lifetime_s=60, headers=saying("topic/b"))
    node.write()
    assert (node.advertised(), node.listed()) == ({"a": "topic/a"}, ["a"])


# --- a disk that fails -----------------------------------------------------------------------------------------


def test_an_advertisement_for_which_there_is_no_room_is_told_when_there_is() -> None:
    node = NamedNode(cache_messages_max=1)
    node.host.publish("t", b"x", now=node.now, persistent=True, priority=9, lifetime_us=30 * S)
    node.write()
    node.bind("news", "topic/news")
    node.write()
    assert (node.adverts(), node.refused()["draft"]) == ([], 1)
    node.pass_time(41)
    assert node.advertised() == {"news": "topic/news"}


STORY: list[Callable[[NamedNode], object]] = [
    lambda node: node.bind("news", "topic/1"),
    lambda node: node.hear_of("x", "Alan", "queue/x/Alan", 1),
    lambda node: node.bind("office"),
    lambda node: node.bind("office/ink", "queue/n/ink"),
    lambda node: node.bind("news", "topic/2", replace=True),
    lambda node: node.hear_of("x", "Alan", "topic/alan", 2),
    lambda node: node.publish("topic/alan"),
    lambda node: node.unbind("Alan"),
    lambda node: node.unbind("office/ink"),
    lambda node: node.unbind("office", context=True),
    lambda node: node.hear_of("x", "Alan", "queue/x/Alan", 3),
    lambda node: node.bind("news", "topic/2", replace=True, advertise=False),
]


@pytest.mark.parametrize("written", range(len(STORY) + 1))
def test_a_crash_after_any_batch_leaves_what_was_written(written: int) -> None:
    node = NamedNode()
    pictures = [picture(node)]
    for number, step in enumerate(STORY, 1):
        step(node)
        node.collect()
        assert len(node.batches) == number, "a command, or what came, is one batch"
        pictures.append(picture(node))
    for _ in range(written):
        node.write_one()
    node.crash()
    assert picture(node) == pictures[written]
    told = {name: meant for name, meant in pictures[written][0].items() if name in ("news", "office/ink") and meant}
    if written == len(STORY):
        told.pop("news")
    assert node.advertised() == told


def picture(node: NamedNode) -> tuple[dict[str, str | None], list[str]]:
    """Return the bindings of names, and the lists."""
    names = ("news", "office", "office/ink", "Alan", "Alan@x")
    return {name: node.meaning(name) for name in names}, node.listed()


# --- names of others -------------------------------------------------------------------------------------------


def test_what_others_advertise_is_known_until_it_dies(node: NamedNode) -> None:
    node.hear_of("x", "news", "topic/news", 1, life_s=30)
    node.write()
    assert node.told() == [Advertised("news", "topic/news")]
    node.pass_time(29)
    assert node.found("news").deadline_us == 30 * S  # type: ignore[union-attr]
    node.pass_time(1)
    assert (node.found("news"), node.rows()) == (None, [])


def test_what_others_advertise_survives_a_restart(node: NamedNode) -> None:
    node.hear_of("x", "news", "topic/news", 1, headers=saying("topic/news", Ordering.DELTA_CAUSAL))
    before = node.found("news")
    node.write()
    node.crash()
    assert node.found("news") == before
    assert before is not None
    assert before.ordering is Ordering.DELTA_CAUSAL
    node.now += 60 * S
    node.crash()
    assert (node.found("news"), node.rows()) == (None, [])


def test_advertisements_that_came_before_messaging_was_awake_are_taken() -> None:
    node = NamedNode(altruistic=True)
    node.boot(awake=False)
    node.hear_of("x", "news", "topic/news", 1)
    node.write()
    assert not node.rows()
    node.host.messaging.open(node.now)
    node.write()
    assert node.meaning("news") == "topic/news"
    assert len(node.rows()) == 1


@pytest.mark.parametrize(
    ("newer", "known"),
    [((1, 3), True), ((2, 1), True), ((1, 1), False), ((0, 9), False)],
    ids=["a later one", "one of a later life", "an earlier one", "one of an earlier life"],
)
def test_the_newest_of_a_name_counts_whatever_the_order(node: NamedNode, newer: tuple[int, int], known: bool) -> None:
    node.hear_of("x", "news", "topic/1", 2)
    other = node.hear_of("x", "news", "topic/2", newer[1], incarnation=newer[0])
    node.write()
    assert node.meaning("news") == ("topic/2" if known else "topic/1")
    assert ([each.id for each in node.adverts("x")] == [other.id]) is known
    assert len(node.adverts("x")) == len(node.rows()) == 1


def test_what_is_said_again_is_no_news(node: NamedNode) -> None:
    node.hear_of("x", "news", "topic/news", 1)
    node.hear_of("x", "news", "topic/news", 2, life_s=90)
    assert node.told() == [Advertised("news", "topic/news")]
    assert node.found("news").deadline_us == 90 * S  # type: ignore[union-attr]
    node.hear_of("x", "news", "topic/other", 3)
    assert node.told() == [Advertised("news", "topic/other")]


def test_each_node_speaks_for_its_own_names(node: NamedNode) -> None:
    node.hear_of("x", "news", "topic/news", 5)
    node.hear_of("y", "news", "topic/news", 1, life_s=90)
    node.hear_of("x", "Alan", "queue/x/Alan", 6)
    node.hear_of("y", "Alan", "queue/y/Alan", 2)
    assert node.listed() == ["Alan@x", "Alan@y", "news"]


FORGERIES: dict[str, Callable[[int], Descriptor]] = {
    "of a name of another node": lambda now: advert("x", "news", "topic/bad", 9, now=now, author="mallory"),
    "of a name of this node": lambda now: advert("n", "mine", "topic/bad", 9, now=now, author="mallory"),
    "for a queue of another node": lambda now: advert("mallory", "news", "queue/x/Alan", 1, now=now),
    "for no topic and no queue": lambda now: advert("mallory", "news", "control/mallory", 1, now=now),
    "for another name": lambda now: advert("mallory", "news", "directory/mallory/x", 1, now=now),
    "for something very long": lambda now: advert("mallory", "news", "topic/" + 300 * "x", 1, now=now),
    "for a topic that steers a terminal": lambda now: advert("mallory", "news", "topic/\x1b[2Jx", 1, now=now),
    "for a channel of two lines": lambda now: advert("mallory", "news", "channel/a\nb", 1, now=now),
    "for a queue that is shown backwards": lambda now: advert("mallory", "x", "queue/mallory/\u202ex", 1, now=now),
    "of something that is no name": lambda now: advert("mallory", "a//b", "topic/bad", 1, now=now),
    "of a full name": lambda now: advert("mallory", "Alan@x", "topic/bad", 1, now=now),
    "of a topic that is none": lambda now: advert("mallory", "topic/news", "topic/bad", 1, now=now),
    "for ever": lambda now: advert("mallory", "news", "topic/bad", 1, now=now, deadline_us=None),
    "without a word": lambda now: advert("mallory", "news", "", 1, now=now, headers=None),
    "with rubbish": lambda now: advert("mallory", "news", "", 1, now=now, headers=Headers(control=b"\xc1")),
    "with another form": lambda now: advert("mallory", "news", "", 1, now=now, headers=Headers(control=b"\x91\x01")),
    "without a name": lambda now: advert("mallory", "x", "topic/bad", 1, now=now, destination="directory/mallory"),
    "spelt otherwise": lambda now: advert("mallory", "x", "topic/bad", 1, now=now, destination="directory/all/x"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_what_nobody_may_say_changes_nothing_is_counted_and_carried_no_further(node: NamedNode, what: str) -> None:
    node.hear_of("x", "news", "topic/news", 1)
    node.bind("mine", "topic/mine")
    node.write()
    before = node.listed(), node.listed("topic"), node.listed("queue"), node.rows(), node.messages(), node.advertised()
    forged = node.hear(FORGERIES[what](node.now))
    node.write()
    assert node.refused()["directory"] == 1
    after = node.listed(), node.listed("topic"), node.listed("queue"), node.rows(), node.messages(), node.advertised()
    assert after == before
    node.hear(forged)
    node.crash()
    assert node.refused()["directory"] == 1, "it did not come in a second time"


def test_an_advertisement_with_a_payload_is_none(node: NamedNode) -> None:
    node.hear(advert("x", "news", "topic/news", 1, now=node.now, size=4, length=4), b"more")
    node.write()
    assert (node.refused()["directory"], node.listed(), node.messages()) == (1, [], 0)


def test_fields_of_a_later_version_are_passed_over(node: NamedNode) -> None:
    later = Headers(control=b"\x95\xaatopic/news\x00\xc0\x90\xa5later")
    node.hear_of("x", "news", "", 1, headers=later)
    assert node.meaning("news") == "topic/news"


def may_receive(node: NamedNode, destination: str) -> bool:
    messaging = node.host.messaging
    session = messaging.execute(OpenSession(messaging.execute(Connect(), node.now)), node.now)
    try:
        messaging.execute(Consume(session, Receive(destination)), node.now, node.next_number())
    except JMSSecurityException:
        return False
    finally:
        node.write()
    return True


def test_advertisements_say_whom_a_queue_is_for_and_those_that_say_nonsense_are_refused(node: NamedNode) -> None:
    box = address.queue("box", NodeId("x"))

    def hear(name: str, sequence: int, *fields: object) -> None:
        node.hear_of("x", name, "", sequence, headers=Headers(control=msgspec.msgpack.encode([box, 0, *fields])))
        node.write()

    for receivers in (["y"] * 65, [""], ["y" * 300], [1], "y"):
        hear("box", 1, receivers)
        assert node.meaning("box") is None
    assert may_receive(node, box)
    hear("box", 2, ["y"])
    assert node.meaning("box") == box
    assert not may_receive(node, box)
    node.crash()
    assert not may_receive(node, box)
    hear("box", 3, ["y", node.name])
    assert may_receive(node, box)
    hear("box", 4, [])
    hear("other", 5)
    assert may_receive(node, box), "of two names that say different things one may be old"


# --- use -------------------------------------------------------------------------------------------------------


def sends(node: NamedNode) -> None:
    node.publish("topic/news")


def receives(node: NamedNode) -> None:
    node.hear(advert("y", "x", "", node.now, now=node.now, destination="topic/news", headers=None))


def opens(node: NamedNode) -> None:
    session = node.session()
    node.host.messaging.execute(CloseConsumer(node.consume(session, "topic/news")), node.now)


USES: dict[str, Callable[[NamedNode], None]] = {"sending": sends, "receiving": receives, "opening": opens}


@pytest.mark.parametrize("how", USES)
def test_use_prolongs_a_name_here(node: NamedNode, how: str) -> None:
    if how == "receiving":
        node.credit(node.consume(node.session(), "topic/(news|x)"))
    node.hear_of("x", "news", "topic/news", 1, life_s=30)
    node.hear_of("x", "idle", "topic/idle", 2, life_s=30)
    node.pass_time(20)
    USES[how](node)
    node.write()
    node.pass_time(50)
    assert node.listed() == ["news"]
    node.crash()
    assert node.listed() == ["news"]
    node.pass_time(15)
    assert node.listed() == []


def test_who_consumes_keeps_the_name(node: NamedNode) -> None:
    node.hear_of("x", "news", "topic/village.news", 1, life_s=30)
    wish = Subscribe(entry(r"topic/village\.news"))
    consumer = node.host.messaging.execute(Consume(node.session(), wish), node.now, node.next_number())
    node.pass_time(500)
    assert node.listed() == ["news"]
    node.host.messaging.execute(CloseConsumer(consumer), node.now)
    node.pass_time(61)
    assert node.listed() == []


def test_use_is_written_only_now_and_then(node: NamedNode) -> None:
    node.hear_of("x", "news", "topic/news", 1, life_s=30)
    node.write()
    written = []
    for _ in range(300):
        node.publish("topic/news", lifetime_s=1)
        node.collect()
        written += [batch for batch in node.batches if any(name == b"Ddirectory/x/news" for _, name, _ in batch.puts)]
        node.pass_time(0.1)
    assert 10 <= len(written) <= 17
    assert node.listed() == ["news"]


def test_use_tells_nobody(node: NamedNode) -> None:
    node.hear_of("x", "news", "topic/news", 1)
    node.write()
    node.publish("topic/news", lifetime_s=1)
    node.pass_time(2)
    assert [each.deadline_us for each in node.adverts("x")] == [60 * S]


def test_a_newer_advertisement_does_not_shorten_what_use_prolonged(node: NamedNode) -> None:
    node.hear_of("x", "news", "topic/news", 1, life_s=10)
    node.publish("topic/news")
    node.hear_of("x", "news", "topic/news", 2, life_s=20)
    assert node.found("news").deadline_us == 60 * S  # type: ignore[union-attr]
    node.hear_of("x", "news", "topic/other", 3, life_s=20)
    assert node.found("news").deadline_us == 20 * S  # type: ignore[union-attr]


def test_a_name_of_others_that_is_unbound_is_gone_until_it_is_advertised_anew(node: NamedNode) -> None:
    first = node.hear_of("x", "news", "topic/news", 2)
    node.write()
    node.unbind("news")
    node.write()
    node.hear(first)
    node.hear_of("x", "news", "topic/old", 1)
    node.publish("topic/news")
    node.crash()
    assert (node.found("news"), node.listed()) == (None, [])
    with pytest.raises(NameNotFoundException):
        node.unbind("news")
    assert len(node.adverts("x")) == 1, "others are still told"
    node.told()
    node.hear_of("x", "news", "topic/news", 3)
    assert (node.meaning("news"), node.told()) == ("topic/news", [Advertised("news", "topic/news")])


def test_an_unbound_name_of_others_leaves_nothing_when_its_time_is_over(node: NamedNode) -> None:
    node.hear_of("x", "news", "topic/news", 1)
    node.unbind("news")
    node.pass_time(60)
    assert node.rows() == []


# --- leases ----------------------------------------------------------------------------------------------------


def test_with_leases_use_prolongs_nothing_and_the_next_advertisement_does() -> None:
    node = NamedNode(lease_s=60)
    node.hear_of("x", "news", "topic/news", 1, life_s=30)
    node.consume(node.session(), "topic/news")
    node.pass_time(20)
    node.publish("topic/news")
    node.hear_of("x", "talk", "topic/talk", 2, life_s=30)
    node.write()
    node.crash()
    node.pass_time(9)
    assert node.listed() == ["news", "talk"]
    node.pass_time(1)
    assert node.listed() == ["talk"]
    node.hear_of("x", "talk", "topic/talk", 3, life_s=90)
    node.hear_of("x", "talk", "topic/talk", 4, life_s=15)
    node.pass_time(14)
    assert node.listed() == ["talk"]
    node.pass_time(1)
    assert (node.listed(), node.rows()) == ([], [])


def test_with_leases_own_names_are_advertised_for_a_lease_and_renewed_before_it_ends() -> None:
    node = NamedNode(lease_s=12)
    node.bind("news", "topic/news")
    node.write()
    for _ in range(20):
        (told,) = node.adverts()
        assert told.deadline_us == told.created_us + 12 * S
        assert told.deadline_us - node.now >= 6 * S
        node.pass_time(3)
    assert 60 / 6 <= node.adverts()[0].sequence <= 60 / 4 + 1


def test_with_leases_what_is_used_still_gives_way_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "NAMES_MAX", 2)
    node = NamedNode(lease_s=60)
    node.hear_of("x", "a", "topic/a", 1)
    node.publish("topic/a")
    node.write()
    node.crash()
    node.hear_of("x", "b", "topic/b", 2)
    node.hear_of("x", "c", "topic/c", 3)
    assert node.listed() == ["a", "c"]


# --- bounds ----------------------------------------------------------------------------------------------------


def test_one_owner_has_so_many_names_at_most_and_what_is_used_stays(
    node: NamedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "OWNER_MAX", 3)
    node.hear_of("y", "other", "topic/other", 1)
    node.hear_of("x", "n0", "topic/0", 1)
    node.publish("topic/0")
    for number in range(1, 6):
        node.hear_of("x", f"n{number}", f"topic/{number}", number + 1)
    node.write()
    assert node.listed() == ["n0", "n4", "n5", "other"]
    assert len(node.rows()) == 4
    assert len(node.adverts("x")) == 3, "what is not known here is not carried"
    node.hear_of("x", "n4", "topic/4", 9)
    assert node.listed() == ["n0", "n4", "n5", "other"]


@pytest.mark.parametrize("limit", ["in all", "by the cache"])
def test_names_of_all_owners_are_bounded_and_those_never_used_go_first(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {}
    if limit == "in all":
        monkeypatch.setattr(directory, "NAMES_MAX", 3)
    else:
        settings["cache_messages_max"] = 13
    node = NamedNode(**settings)
    node.bind("mine", "topic/mine")
    for number in range(3):
        node.hear_of(f"o{number}", f"n{number}", f"topic/{number}", 1)
    for used in (1, 0):
        node.publish(f"topic/{used}")
        node.pass_time(1)
    node.crash()
    for number in range(3, 5):
        node.hear_of(f"o{number}", f"n{number}", f"topic/{number}", 1)
    assert node.listed() == ["mine", "n0", "n1", "n4"]
    node.publish("topic/4")
    node.hear_of("o9", "n9", "topic/9", 1)
    assert node.listed() == ["mine", "n0", "n4", "n9"]
    node.write()
    assert len(node.rows()) == 4


def test_a_smaller_cache_after_a_restart_has_fewer_names() -> None:
    node = NamedNode()
    for number in range(5):
        node.hear_of(f"o{number}", f"n{number}", f"topic/{number}", 1, life_s=100 - number)
    node.publish("topic/3", lifetime_s=1)
    node.pass_time(2)
    node.settings = node.settings.replace(cache_messages_max=8)
    node.crash()
    assert node.listed() == ["n0", "n3"]
    assert len(node.rows()) == 2

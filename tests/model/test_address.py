"""Addresses: one spelling each, and its inverse; wildcards by the levels of a name."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carrypost.config import Limits
from carrypost.errors import InvalidDestinationException, JMSException, LocalError
from carrypost.gossip.interest.matcher import Matcher
from carrypost.model.address import (
    EVERYBODY,
    OVERLAYS,
    Address,
    Kind,
    address,
    addressee,
    between_nodes,
    channel,
    check_name,
    control,
    directory,
    exactly,
    has_wildcard,
    name_of,
    overlay,
    queue,
    queue_name,
    queue_named,
    results,
    topic,
    topic_pattern,
)
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import NodeId
from carrypost.model.pattern import entry, plain_forms

KEYED = NodeId("mfrggzdfmztwq2lknnwg23tpoa")
names = st.text(min_size=1, max_size=12) | st.text("ab/@%.*>all24560F", min_size=1, max_size=8)
nodes = names.map(NodeId)


def matched(pattern: str, destination: str) -> bool:
    sent = Descriptor("alan", 1, 1, 0, None, destination, 0, 0, PayloadCodec.BLANK, b"", 1024)
    return Matcher((entry(pattern),), Limits(), own=True).matches(sent)


# --- destinations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("destination", "parts", "node", "name"),
    [
        (topic("x"), (Kind.TOPIC, None, "x"), None, "x"),
        (topic("a/b@c%"), (Kind.TOPIC, None, "a/b@c%"), None, "a/b@c%"),
        (queue("Alan", KEYED), (Kind.QUEUE, KEYED, "Alan"), KEYED, f"Alan@{KEYED}"),
        (queue("a/b@c", NodeId("x/y@z%")), (Kind.QUEUE, "x/y@z%", "a/b@c"), "x/y@z%", "a/b@c@x%2Fy%40z%25"),
        (control(KEYED), (Kind.CONTROL, KEYED, ""), KEYED, None),
        (control(NodeId("all")), (Kind.CONTROL, "all", ""), "all", None),
        (queue("Alan", NodeId("all")), (Kind.QUEUE, "all", "Alan"), "all", "Alan@%61ll"),
        (EVERYBODY, (Kind.CONTROL, None, ""), None, None),
        (directory(KEYED, "queue/Alan"), (Kind.DIRECTORY, KEYED, "queue/Alan"), None, None),
        (channel("a/b"), (Kind.CHANNEL, None, "a/b"), None, None),
        (overlay(KEYED), (Kind.OVERLAY, KEYED, ""), KEYED, None),
        (overlay(NodeId("all")), (Kind.OVERLAY, "all", ""), "all", None),
        (OVERLAYS, (Kind.OVERLAY, None, ""), None, None),
        (results(NodeId("x/y"), "a/1"), (Kind.RESULTS, "x/y", "a/1"), "x/y", None),
    ],
)
def test_a_destination_is_taken_apart(
    destination: str, parts: tuple[Kind, NodeId | None, str], node: str | None, name: str | None
) -> None:
    assert address(destination) == Address(*parts)
    assert addressee(destination) == node
    assert name_of(destination) == name


def test_destinations_are_spelt_as_documented() -> None:
    assert topic("x") == "topic/x"
    assert queue("Alan", KEYED) == f"queue/{KEYED}/Alan"
    assert control(KEYED) == f"control/{KEYED}"
    assert directory(KEYED, "topic/x") == f"directory/{KEYED}/topic/x"
    assert queue("Alan", NodeId("a/b@c%")) == "queue/a%2Fb%40c%25/Alan"
    assert control(NodeId("all")) == "control/%61ll" != EVERYBODY
    assert (channel("x"), overlay(KEYED), results(KEYED, "1")) == (
        "channel/x", f"overlay/{KEYED}", f"results/{KEYED}/1",
    )  # fmt: skip


def test_all_but_topics_channels_and_the_directory_is_between_nodes() -> None:
    carried = (queue("x", KEYED), control(KEYED), EVERYBODY, overlay(KEYED), OVERLAYS, results(KEYED, "x"))
    assert all(map(between_nodes, carried))
    assert not any(map(between_nodes, (topic("x"), channel("x"), directory(KEYED, "x"), "overlays", "")))


@pytest.mark.parametrize(
    "destination",
    [
        "", "news", "topic", "topic/", "topics/x", "Topic/x", "queue", "queue/", "queue/x", "queue/x/", "queue//x",
        "queue/a@b/x", "queue/a%/x", "queue/a%2/x", "queue/a%2f/x", "queue/%41/x", "queue/%61ll%/x", "queue/all/x",
        "control", "control/", "control/a/b", "control/a/", "control/%", "control/a@b", "directory/x", "directory/x/",
        "directory//x", "directory/all/x", "control/%61%6Cl", "channel", "channel/", "overlay", "overlay/",
        "overlay/a/b", "overlay/a@b", "results", "results/", "results/a", "results/a/", "results//s", "results/all/s",
    ],
)  # fmt: skip
def test_what_is_spelt_otherwise_is_no_address(destination: str) -> None:
    assert address(destination) is None
    assert addressee(destination) is None
    assert name_of(destination) is None


@given(names, nodes)
@example("Alan", NodeId("all"))
@example("a", NodeId("%61ll"))
@example("/x", NodeId("%2F"))
def test_what_is_made_of_names_gives_them_back(name: str, node: NodeId) -> None:
    assert address(topic(name)) == Address(Kind.TOPIC, None, name)
    assert address(queue(name, node)) == Address(Kind.QUEUE, node, name)
    assert address(control(node)) == Address(Kind.CONTROL, node, "")
    assert address(directory(node, name)) == Address(Kind.DIRECTORY, node, name)
    assert address(channel(name)) == Address(Kind.CHANNEL, None, name)
    assert address(overlay(node)) == Address(Kind.OVERLAY, node, "")
    assert address(results(node, name)) == Address(Kind.RESULTS, node, name)
    assert addressee(overlay(node)) == addressee(results(node, name)) == node
    assert addressee(queue(name, node)) == addressee(control(node)) == node
    assert addressee(topic(name)) is None
    assert addressee(directory(node, name)) is None
    assert queue_named(queue_name(name, node)) == queue(name, node)
    assert name_of(queue(name, node)) == queue_name(name, node)


@given(st.tuples(st.sampled_from(["queue/", "control/"]), st.text("ab/@%2F406l1", max_size=10)).map("".join))
def test_every_address_has_one_spelling(destination: str) -> None:
    found = address(destination)
    if found is not None and found.node is not None:
        again = queue(found.name, found.node) if found.kind is Kind.QUEUE else control(found.node)
        assert again == destination
    assert addressee(destination) == (None if found is None else found.node)


@given(names, nodes, names, nodes)
def test_different_queues_have_different_names_and_destinations(one: str, at: NodeId, other: str, of: NodeId) -> None:
    same = (one, at) == (other, of)
    assert (queue(one, at) == queue(other, of)) is same
    assert (queue_name(one, at) == queue_name(other, of)) is same


@pytest.mark.parametrize("text", ["", "Alan", "@", "Alan@", "@node", "Alan@a/b", "Alan@a%2f", "Alan@all"])
def test_a_queue_without_an_owner_is_refused(text: str) -> None:
    with pytest.raises(InvalidDestinationException, match=re.escape(f"NAME@NODE, not {text!r}")) as refused:
        queue_named(text)
    assert isinstance(refused.value, JMSException)
    assert isinstance(refused.value, LocalError)


@pytest.mark.parametrize("name", ["", None, b"x"])
def test_what_is_no_name_is_refused(name: str) -> None:
    for make in (topic, topic_pattern, lambda name: queue(name, KEYED), lambda name: control(NodeId(name))):
        with pytest.raises(InvalidDestinationException, match="must be text that is not empty"):
            make(name)


@pytest.mark.parametrize(
    ("name", "rule", "meant"),
    [
        ("village roads", "spaces or control characters", "village.roads"),
        (" village", "spaces or control characters", "village"),
        ("village\u00a0. roads\n", "spaces or control characters", "village.roads"),
        ("a\0b", "spaces or control characters", "a.b"),
        ("a\x85b", "spaces or control characters", "a.b"),
        ("village.", "none may be empty", "village"),
        (".village", "none may be empty", "village"),
        ("village..roads", "none may be empty", "village.roads"),
        (".", "none may be empty", None),
        (" ", "spaces or control characters", None),
    ],
)
def test_a_name_with_a_blank_or_an_empty_level_is_refused_with_the_one_that_was_meant(
    name: str, rule: str, meant: str | None
) -> None:
    with pytest.raises(InvalidDestinationException) as refused:
        check_name(name, "topic")
    assert f"{name!r} cannot be the name of a topic" in str(refused.value)
    assert rule in str(refused.value)
    assert str(refused.value).endswith(f"Did you mean {meant!r}?") is (meant is not None)
    if meant is not None:
        check_name(meant, "topic")


@pytest.mark.parametrize(
    "name", ["a", "a.b", "a/b", "a-b_c", "Übung", "می\u200cروم", "a.*", "a.>", "C#", "$x", "what?"]
)
def test_all_other_names_are_allowed(name: str) -> None:
    check_name(name, "topic")


# --- wildcards ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "matches", "others"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "axb", "a.bc", "a/b"]),
        ("a.b.*", ["a.b.c", "a.b.*", "a.b.cc dd", "a.b.c\nd"], ["a.b", "a.b.c.d", "a.bc", "a.x.c", "axb.c"]),
        ("a.*.c", ["a.b.c", "a.x/y.c"], ["a.c", "a.b.b.c", "a.b.d", "a.b.cc"]),
        ("*.*", ["a.b"], ["a", "a.b.c"]),
        ("*", ["a", "a/b"], ["a.b"]),
        ("a.>", ["a.b", "a.b.c", "a.b.c.d"], ["a", "ab", "ab.c", "b.a.c"]),
        ("a.*.>", ["a.b.c", "a.b.c.d"], ["a.b", "a", "b.b.c"]),
        (">", ["a", "a.b", "a.b.c"], []),
        ("a*", ["a*"], ["ab", "a"]),
        ("a>.b", ["a>.b"], ["ab.b", "a.b"]),
        ("a.**", ["a.**"], ["a.b"]),
        ("a+b(c)[d]{2}|^$?\\", ["a+b(c)[d]{2}|^$?\\"], ["aab", "a+b"]),
    ],
)
def test_a_wildcard_matches_the_levels_that_it_stands_for(name: str, matches: list[str], others: list[str]) -> None:
    pattern = topic_pattern(name)
    assert [each for each in matches if not matched(pattern, topic(each))] == []
    assert [each for each in others if matched(pattern, topic(each))] == []
    assert not matched(pattern, queue(name, KEYED))


@pytest.mark.parametrize("name", [">.a", "a.>.b", ">.>"])
def test_nothing_follows_what_stands_for_the_rest(name: str) -> None:
    with pytest.raises(InvalidDestinationException, match="must be the last level"):
        topic_pattern(name)


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("sensors/#", "sensors.>"), ("sensors/+/t", "sensors.*.t"), ("sensors/>", "sensors.>"), ("#", ">"), ("+", "*"),
        ("sensors.#", "sensors.>"), ("sensors.+.t", "sensors.*.t"), ("sensors/*", "sensors.*"), ("*/t", "*.t"),
        ("a.b/+", "a.b.*"), (">/a", None), ("a.#.b", None),
    ],
)  # fmt: skip
def test_wildcards_of_other_systems_are_refused_with_how_they_are_written_here(name: str, here: str | None) -> None:
    with pytest.raises(InvalidDestinationException, match="is not a valid wildcard") as refused:
        topic_pattern(name)
    assert str(refused.value).endswith("'>' for one or more levels at the end" + (f", as in {here!r}" if here else ""))


@pytest.mark.parametrize("name", ["C#", "C#/jobs", "jobs.C++", "a/b", "a#b", "#a", "+1", "a.##", "a>/b", "x/*y"])
def test_characters_within_a_level_are_plain(name: str) -> None:
    assert matched(topic_pattern(name), topic(name))


levels = st.lists(st.sampled_from(["a", "b", "", "*", "a*"]), min_size=1, max_size=4)


@given(levels, st.booleans(), levels)
def test_wildcards_match_by_level(asked: list[str], rest: bool, sent: list[str]) -> None:
    name, other = ".".join([*asked, *[">"] * rest]), ".".join(sent)
    if not other or not name:
        return
    fits = len(sent) > len(asked) if rest else len(sent) == len(asked)
    expected = fits and all(want in ("*", have) for want, have in zip(asked, sent, strict=False))
    assert matched(topic_pattern(name), topic(other)) is expected
    assert has_wildcard(name) is (rest or "*" in asked)


@given(st.text(min_size=1, max_size=40))
def test_a_name_without_wildcards_is_looked_up(name: str) -> None:
    assert plain_forms(exactly(topic(name))) == (frozenset((topic(name),)), frozenset())


def test_all_that_begins_so_is_looked_up_too() -> None:
    assert plain_forms(topic_pattern("a.b.>")) == (frozenset(), frozenset(("topic/a.b.",)))

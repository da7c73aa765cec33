"""The output of a node about the messages that it carries, for which nodes and how long."""

from __future__ import annotations

import msgspec
import pytest

from carrypost.config import Settings
from carrypost.node.settings import Carrying, fruitless

FOR = {
    "neighbours that ask for the same, nothing for others (set altruistic = true to carry for all nodes)": {},
    "all nodes, also what no program here asked for (altruistic = true)": {"altruistic": True, "horizon_hops": 2},
    "neighbours that ask for the same, all nodes, what matches topic/village\\..*, news (altruistic)": {
        "altruistic": [r"topic/village\..*", "news"]
    },
    "neighbours that ask for the same, all nodes, what matches a, b, c and 2 more (altruistic)": {
        "altruistic": list("abcde")
    },
    "neighbours that ask for the same, nodes up to 1 hop away, whatever they ask for (horizon_hops = 2), "
    "nothing for others (set altruistic = true to carry for all nodes)": {"horizon_hops": 2},
    "neighbours that ask for the same, nodes up to 2 hops away, whatever they ask for (horizon_hops = 3), "
    "all nodes, what matches news (altruistic)": {"horizon_hops": 3, "altruistic": ["news"]},
}
UNTIL = {
    "1 day after it was sent, unless the sender gives another, 30 days at most": {},
    "90 minutes after it was sent, unless the sender gives another, 2 hours at most": {
        "lifetime_s_default": 5_400, "lifetime_s_max": 7_200
    },
    "0.5 s after it was sent, unless the sender gives another": {"lifetime_s_default": 0.5, "lifetime_s_max": None},
    "set only if the sender gives one": {"lifetime_s_default": None, "lifetime_s_max": None},
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "changes"), FOR.items())
def test_it_says_for_whom(sentence: str, changes: dict[str, object]) -> None:
    assert dict(Carrying.of(Settings().replace(**changes)).sentences())["carries for"] == sentence


@pytest.mark.parametrize(("sentence", "changes"), UNTIL.items())
def test_it_says_until_when(sentence: str, changes: dict[str, object]) -> None:
    said = dict(Carrying.of(Settings().replace(**changes)).sentences())
    assert said["carries until"] == f"each message's deadline: {sentence}"


def test_it_says_how_much() -> None:
    said = dict(Carrying.of(Settings().replace(cache_messages_max=1_000, cache_bytes_max=3 << 20)).sentences())
    assert said["carries"] == "what programs here publish and subscribe to; at most 1,000 messages and 3 MiB"


@pytest.mark.parametrize("changes", [*FOR.values(), *UNTIL.values()])
def test_what_a_node_tells_at_its_socket_is_understood(changes: dict[str, object]) -> None:
    carrying = Carrying.of(Settings().replace(**changes))
    assert Carrying.of(msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(carrying)))) == carrying


@pytest.mark.parametrize("pattern", ["village/.*", "village.>", "news", "village|roads.*", "topics/.*"])
def test_a_pattern_that_no_topic_and_no_queue_matches_is_named(pattern: str) -> None:
    settings = Settings().replace(altruistic=[r"topic/village\..*", pattern])
    assert fruitless(settings) == (pattern,)
    assert fruitless(settings.replace(messaging={"enabled": False})) == ()


@pytest.mark.parametrize(
    "pattern",
    [".*", "topic/news", "topic/.*", "queue/.*", "control/.*|village", "directory/.*", "t.*", "(topic|news)/a"],
)
def test_a_pattern_that_topics_or_queues_may_match_is_not_named(pattern: str) -> None:
    assert fruitless(Settings().replace(altruistic=[pattern])) == ()

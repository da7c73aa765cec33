"""Messages for connected recipients alone: from route to recipient, and nowhere else."""

from __future__ import annotations

import pytest
from tests.support.islands import Islands, S

from carrypost.errors import PayloadError
from carrypost.gossip.draft import Draft
from carrypost.gossip.wire.frames import OpenParcel
from carrypost.log.events import Dropped, Event, Reason
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId

CONNECTED = Headers(connected=True)


class Stage(Islands):
    """A line of hosts, and the frames that were dropped for want of a path."""

    def __init__(self, names: str = "abcd", **options: object) -> None:
        super().__init__(names, altruistic=True, **options)
        self.dropped: list[tuple[str, MessageId]] = []

    def _watch(self, seconds: float, node: str, event: Event) -> None:
        super()._watch(seconds, node, event)
        if isinstance(event, Dropped) and event.reason is Reason.UNREACHABLE:
            self.dropped += [(node, each.id) for each in event.descriptors]

    def say(self, size: int, *recipients: str, destination: str = "news") -> MessageId:
        host, now = self.net.host("a"), round(self.net.now * S)
        nodes = [self.id(name) for name in recipients] or None
        message = host.publish(destination, bytes(size), now=now, headers=CONNECTED, recipients=nodes)
        self.net.advance(0)
        return message

    def begin(self, *subscribers: str) -> None:
        self.line()
        for name in subscribers:
            self.net.subscribe(name, ".*")
        self.net.advance(3)


@pytest.mark.parametrize("size", [10, 40_000])
def test_it_goes_to_its_recipients_and_stays_there(size: int) -> None:
    with Stage("abcde", confirm=False) as stage:
        stage.begin("c", "d")
        message = stage.say(size, "c", "d")
        stage.net.advance(3)
        assert [stage.delivered(name) for name in "cd"] == [{message: 1}] * 2
        stage.net.advance(30)  # Nobody confirmed it: the sender drops it, and nobody passes it on.
        assert set(stage.copies()) == {"c", "d"}
        assert stage.dropped == [("a", message)]


def test_once_all_acknowledged_it_is_gone_everywhere() -> None:
    with Stage() as stage:
        stage.begin("c", "d")
        stage.say(10, "c", "d")
        stage.net.advance(25)
        assert stage.copies() == {}
        assert stage.dropped == []


def test_it_is_dropped_at_once_if_nobody_it_is_for_is_connected() -> None:
    with Stage("abcdz") as stage:
        stage.names.remove("z")
        stage.begin("c")
        message = stage.say(10, "z")
        assert stage.dropped == [("a", message)]
        assert stage.copies() == {}


def test_those_who_are_connected_get_it_and_the_others_never_do() -> None:
    with Stage("abcz") as stage:
        stage.link("ab", "bc")
        for name in "cz":
            stage.net.subscribe(name, "news")
        stage.net.advance(3)
        message = stage.say(10, "c", "z")
        stage.net.advance(3)
        assert stage.delivered("c") == {message: 1}
        stage.link("cz", "az")
        stage.net.advance(60)
        assert stage.delivered("z") == {}
        assert stage.dropped == [("a", message)]


def test_it_is_dropped_when_its_recipient_leaves_before_it_came() -> None:
    with Stage(rate_bytes_per_s=20_000) as stage:
        stage.begin("d")
        message = stage.say(400_000, "d")
        stage.net.advance(2)
        stage.unlink("cd")
        assert stage.dropped == [("a", message)]
        stage.link("cd")
        stage.net.advance(60)
        assert stage.delivered("d") == {}
        assert [name for name in stage.copies() if name != "d"] == []


def test_to_a_node_it_goes_by_its_destination() -> None:
    with Stage("abc") as stage:
        stage.begin("c")
        message = stage.say(10, destination=f"control/{stage.id('c')}")
        stage.net.advance(2)
        came = [event for name, event in stage.received if name == "c"]
        assert [each.descriptor.id for event in came for each in event.receptions] == [message]
        assert "b" not in stage.copies()


def test_nobody_else_takes_it() -> None:
    with Stage("abc") as stage:
        stage.begin()
        found = Descriptor(
            "x", 1, 1, 0, None, "news", 0, 0, PayloadCodec.PLAIN, b"", 1024,
            headers=Headers(connected=True, recipients=("c",)),
        )  # fmt: skip
        stage.net.inject("b", [OpenParcel(1, 1, 0, 0, True, found, b"")], "a")
        assert stage.net.host("b").overview().refused == {"connected": 1}
        assert stage.copies() == {}


@pytest.mark.parametrize(
    ("settings", "draft"),
    [
        ({"island": False}, Draft("news", b"", headers=CONNECTED, recipients=("b",))),
        ({}, Draft("news", b"", headers=CONNECTED)),
    ],
)
def test_it_needs_an_island_and_recipients(settings: dict[str, object], draft: Draft) -> None:
    with Islands("ab", **settings) as islands:
        host = islands.net.host("a")
        with pytest.raises(PayloadError, match="connected nodes"):
            host.publish(draft.destination, b"", now=0, headers=draft.headers, recipients=draft.recipients)

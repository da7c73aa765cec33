"""Queues among strangers: items from a node that may not send them change nothing, and are counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from tests.support.programs import Program, declare

from carrypost import testing
from carrypost.messaging import control
from carrypost.messaging.commands import Credit, Disconnect, Redelivery
from carrypost.messaging.control import INCARNATION_BITS, Item
from carrypost.model import address
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId

pytestmark = pytest.mark.parametrize("security", ["off", "signed"])
DAY_US = 86_400_000_000


class Scene:
    """A manager with a queue, a receiver, and a node that sends anything; all in reach of each other."""

    def __init__(self, net: testing.Network, **options: object) -> None:
        self.net = net
        net.open_messaging()
        for one, other in (("m", "r"), ("m", "evil"), ("r", "evil")):
            net.link(one, other)
        net.advance(10)
        self.queue = declare(net, "m", "jobs", **options)
        net.advance(1)

    def node(self, name: str) -> NodeId:
        return self.net.host(name).node

    def say(self, to: str | None, *items: Item, author: str = "evil", content: bytes | None = None) -> None:
        """Publish a control message in the name of any author."""
        destination = address.EVERYBODY if to is None else address.control(self.node(to))
        said = msgspec.msgpack.encode(items) if content is None else content
        now_us = round(self.net.now * 1_000_000)
        self.net.host(author).publish(destination, b"", headers=Headers(control=said), now=now_us)
        self.net.advance(5)

    def refused(self, name: str, reason: str) -> int:
        return self.net.host(name).overview().refused.get(reason, 0)

    def send(self, *texts: str) -> list[MessageId]:
        sent = [self.net.publish("m", self.queue, text.encode(), persistent=True) for text in texts]
        self.net.advance(5)
        return sent


@contextmanager
def scene(security: str, **options: object) -> Iterator[Scene]:
    with testing.network("m", "r", "evil", seed=1, security=security) as net:
        yield Scene(net, **options)


def test_only_the_manager_assigns(security: str) -> None:
    with scene(security) as here:
        reader = Program(here.net, "r", here.queue, prefetch=1, acknowledges=False)
        one, two = here.send("one", "two")
        assert reader.texts == ["one"]
        here.say("r", control.Assign("jobs", two, 1, 1), control.Assign("jobs", one, 1, 2))
        reader.messaging.execute(Credit(reader.consumer, 5, 1_000), reader.now)
        here.net.advance(10)
        # Its own word would be about a queue of its own, and no message is addressed to that.
        assert reader.texts == ["one", "two"]
        assert {each.count for each in reader.got} == {1}
        assert here.refused("r", "assignment") == 2


def test_only_the_receiver_acknowledges_and_gives_back(security: str) -> None:
    with scene(security) as here:
        reader = Program(here.net, "r", here.queue, acknowledges=False)
        (one,) = here.send("one")
        here.say("m", control.Acknowledge(one, 1), control.Release(one, 1, 1), control.Release(one, 1, 6, dead=True))
        other = Program(here.net, "m", here.queue)
        here.net.advance(10)
        assert (reader.texts, other.texts) == (["one"], [])
        assert here.refused("m", "assignee") == 3
        reader.acknowledge(1)
        here.net.advance(10)
        assert here.net.host("m").messaging.overview().entries == 0  # type: ignore[union-attr]


def test_what_was_said_in_an_earlier_round_counts_no_more(security: str) -> None:
    with scene(security, redelivery=Redelivery.AFTER_LEASE, lease_us=60_000_000) as here:
        Program(here.net, "r", here.queue, acknowledges=False)
        (one,) = here.send("one")
        here.net.advance(61)
        second = Program(here.net, "m", here.queue, acknowledges=False)
        here.net.advance(1)
        assert second.texts == ["one"]
        for item in (control.Acknowledge(one, 1), control.Release(one, 1)):
            here.say("m", item, author="r")
        assert here.refused("m", "assignee") == 2
        assert here.net.host("m").messaging.overview().entries == 1  # type: ignore[union-attr]


def test_nobody_purges_messages_of_others_queues(security: str) -> None:
    with scene(security) as here:
        (one,) = here.send("one")
        here.say(None, control.Purge(one))
        reader = Program(here.net, "r", here.queue)
        here.net.advance(10)
        assert reader.texts == ["one"]
        assert here.refused("m", "purge-authority") == 1


@pytest.mark.parametrize(
    "content",
    [b"\x91\x93\xa1w\xa2\xff\xfe\x01", b"\x91" * 5_000 + b"\xc0", b"\x91\x92\xa1w" + b"\x91" * 5_000 + b"\xc0"],
    ids=["no UTF-8", "nested", "nested in an item"],
)
def test_what_cannot_even_be_decoded_is_counted(security: str, content: bytes) -> None:
    with scene(security) as here:
        here.say("m", content=content)
        assert here.refused("m", "control") == 1
        here.say("m", control.Browse("nothing", 1))
        assert here.refused("m", "queue") == 1, "it reads on"


def test_what_is_nonsense_is_counted_and_the_rest_of_it_counts(security: str) -> None:
    with scene(security) as here:
        here.say("m", content=b"\x00nonsense")
        here.say("m", content=msgspec.msgpack.encode([["?", 1], ["r"], 7, "text", ["r", "jobs", 1, 5, -1]]))
        assert here.refused("m", "control") == 6
        here.say("m", control.Purge(b"x"))
        here.say(None, control.Withdraw("jobs", 1))
        assert here.refused("m", "control") == 8
        later = ["r", "jobs", 2 << INCARNATION_BITS, 1, DAY_US, "", 0, b"", "of a later version"]
        here.say("m", content=msgspec.msgpack.encode([["of a later version"], later]))
        assert here.refused("m", "control") == 9
        requests = here.net.host("m").messaging._messaging.queues.manager.declared  # type: ignore[union-attr] # noqa: SLF001
        assert [each.node for queue in requests for each in queue] == [here.node("evil")]


def test_a_flood_of_requests_uses_up_the_share_of_its_sender_alone(security: str) -> None:
    with scene(security) as here:
        dear = " OR ".join(f"x LIKE '%{number}%'" for number in range(60))
        floods = [
            [control.Ask("jobs", life << INCARNATION_BITS | number, 10**9, DAY_US, selector) for number in numbers]
            for life, numbers, selector in ((1, range(1, 400), ""), (2, range(1, 30), dear))
        ]
        for flood in floods:
            for at in range(0, len(flood), 50 if len(flood) > 100 else 2):
                here.say("m", *flood[at : at + (50 if len(flood) > 100 else 2)])
        assert here.refused("m", "requests") >= 100
        assert here.refused("m", "selector") >= 1
        reader = Program(here.net, "r", here.queue)
        here.net.advance(5)
        here.send(*map(str, range(8)))
        assert reader.texts, "somebody else has its turn all the same"


def test_what_a_receiver_consumed_does_not_come_again_when_its_assignment_does(security: str) -> None:
    """A carrier has the manager's control message, and the receiver forgets it in a restart."""
    with scene(security) as here:
        reader = Program(here.net, "r", here.queue)
        (one,) = here.send("one")
        here.net.advance(20)
        here.net.kill("r")
        here.net.restart("r")
        here.net.advance(10)
        again = Program(here.net, "r", here.queue)
        here.say("r", control.Assign("jobs", one, 1, 1), author="m")
        here.say("r", control.Assign("jobs", one, 1, 7), author="m")
        assert (reader.texts, again.texts) == (["one"], [])


def test_who_is_reminded_of_what_it_has_or_had_gets_nothing_more_by_that(security: str) -> None:
    with scene(security) as here:
        reader = Program(here.net, "r", here.queue, prefetch=3, acknowledges=False)
        one, two, three, *_ = here.send("one", "two", "three", "four", "five")
        reader.acknowledge(1)
        here.net.advance(5)
        number = next(iter(here.net.host("r").messaging._messaging.queues.receiver._open))  # type: ignore[union-attr] # noqa: SLF001
        for author in ("m", "evil"):
            for _ in range(3):
                here.say(
                    "r", *(control.Assign("jobs", each, number, 1, again=True) for each in (one, two, three)),
                    author=author,
                )  # fmt: skip
        assert reader.texts == ["one", "two", "three"]
        assert {each.count for each in reader.got} == {1}
        assert here.refused("r", "assignment") == 9, "the queue is none of theirs"
        assert here.refused("m", "assignee") == 0
        here.say("r", control.Assign("jobs", two, number, 1, until_us=1, again=True), author="m")
        assert here.net.host("m").messaging.overview().entries == 4  # type: ignore[union-attr]
        other = Program(here.net, "m", here.queue)
        here.net.advance(10)
        assert other.texts == ["four", "five"], "they were kept for nobody"


def test_only_who_gave_a_message_back_is_heard_when_that_is_said_again(security: str) -> None:
    with scene(security) as here:
        reader = Program(here.net, "r", here.queue, prefetch=1, acknowledges=False)
        (one,) = here.send("one")
        number = next(iter(here.net.host("r").messaging._messaging.queues.receiver._open))  # type: ignore[union-attr] # noqa: SLF001
        reader.messaging.execute(Disconnect(reader.connection, (1,)), reader.now)
        other = Program(here.net, "m", here.queue, acknowledges=False)
        here.net.advance(10)
        assert other.texts == ["one"]
        here.say("r", control.Assign("jobs", one, number, 1, again=True), author="m")
        assert here.refused("m", "assignee") == 1, "it answers again, and is not the receiver any more"
        other.acknowledge(*other.numbers)
        here.net.advance(5)
        assert here.net.host("m").messaging.overview().entries == 0  # type: ignore[union-attr]


def test_requests_of_an_earlier_life_and_withdrawn_ones_are_not_brought_back(security: str) -> None:
    with scene(security) as here:
        first = Program(here.net, "r", here.queue)
        here.net.advance(5)
        number = next(iter(here.net.host("r").messaging._messaging.queues.receiver._open))  # type: ignore[union-attr] # noqa: SLF001
        old = control.Ask("jobs", number, 100, round(here.net.now * 1e6) + DAY_US)
        first.close()
        here.net.advance(5)
        here.say("m", old, author="r")
        here.net.kill("m")
        here.net.restart("m")
        here.net.advance(10)
        here.say("m", old, author="r")
        (one,) = here.send("one")
        local = Program(here.net, "m", here.queue)
        here.net.advance(5)
        assert local.texts == ["one"]
        assert one

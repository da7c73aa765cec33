"""Acknowledgements among strangers: forged, replayed, of others' messages, of unknown ones, by a thousand keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from carrypost import testing
from carrypost.gossip.acked import known_acks
from carrypost.gossip.acked.acked import LASTS_US, Acked
from carrypost.gossip.acked.known_acks import KnownAcks
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.transfers import signed
from carrypost.gossip.wire.frames import AckList, AckRecord
from carrypost.model.ids import MessageId
from carrypost.security.identity import Identity

HOUR_US = 3_600_000_000


class Scene:
    """A carrier with a message of `a` for `c`, and a neighbour `m` that sends any frame."""

    def __init__(self, net: testing.Network) -> None:
        self.net = net
        net.link("a", "b")
        net.link("b", "m")
        net.advance(10)
        self.message = net.publish("a", "news", b"x", recipients=["c"])
        net.advance(20)
        assert self.copies == "abm"

    @property
    def now(self) -> int:
        return round(self.net.now * 1e6)

    @property
    def copies(self) -> str:
        here = (CopyState.WHOLE, CopyState.FINISHED)
        return "".join(name for name in "abm" if self.net.host(name).state_of(self.message) in here)

    @property
    def known(self) -> KnownAcks:
        (acked,) = [each for each in self.net.host("b")._layers._all if isinstance(each, Acked)]  # noqa: SLF001
        return acked.known

    @property
    def listed(self) -> int:
        return len(self.known)

    def identity(self, name: str) -> Identity:
        return self.net.host(name)._host_context.identity  # noqa: SLF001

    def record(self, by: Identity, *messages: MessageId, lasts_us: int = HOUR_US) -> AckRecord:
        return known_acks.signed_record(by, self.now + lasts_us, messages or (self.message,))

    def say(self, *frames: AckRecord | AckList) -> None:
        self.net.inject("b", frames, "m")
        self.net.advance(1)

    def refused(self, reason: str) -> int:
        return self.net.host("b").overview().refused.get(reason, 0)


@contextmanager
def scene(security: str = "signed", **settings: object) -> Iterator[Scene]:
    with testing.network(*"abcm", seed=1, altruistic=True, security=security, **settings) as net:  # type: ignore[arg-type]
        yield Scene(net)


def test_a_true_one_counts_whoever_brings_it() -> None:
    with scene() as told:
        told.say(told.record(told.identity("c")))
        told.net.advance(20)
        assert (told.copies, told.listed) == ("", 1)


def test_forged_ones_purge_nothing_and_soon_are_not_checked_any_more() -> None:
    with scene() as told:
        true = told.record(told.identity("c"))
        stranger = told.record(told.identity("m"))
        told.say(msgspec.structs.replace(stranger, author=true.author))
        told.say(msgspec.structs.replace(true, until_us=true.until_us + 1))
        told.say(msgspec.structs.replace(true, messages=(*true.messages, MessageId(bytes(16)))))
        assert (told.refused("signature"), told.listed, told.copies) == (3, 0, "abm")
        told.say(msgspec.structs.replace(true, signature=b""))
        told.say(msgspec.structs.replace(true, author=b"short"))
        assert told.refused("security-level") == 2
        told.say(*[msgspec.structs.replace(true, until_us=true.until_us + number) for number in range(2, 1_000)])
        assert told.refused("signature") < 120
        assert told.refused("muted") > 880
        assert (told.listed, told.copies) == (0, "abm")


@pytest.mark.parametrize("security", ["signed", "off"])
def test_who_is_no_recipient_purges_nothing(security: str) -> None:
    with scene(security) as told:
        told.say(told.record(told.identity("m")))
        told.say(told.record(told.identity("a")))
        assert (told.refused("purge-authority"), told.listed, told.copies) == (2, 0, "abm")
        told.say(told.record(told.identity("m"), told.message, MessageId(b"m:1:99")))
        assert told.copies == "abm"


@pytest.mark.parametrize("security", ["signed", "off"])
def test_one_that_ended_or_would_never_end_is_refused(security: str) -> None:
    with scene(security) as told:
        told.say(told.record(told.identity("c"), lasts_us=0))
        told.say(told.record(told.identity("c"), lasts_us=LASTS_US + 601_000_000))
        assert (told.refused("expired"), told.refused("deadline"), told.copies) == (1, 1, "abm")
        replayed = told.record(told.identity("c"), MessageId(b"c:1:1"), lasts_us=30_000_000)
        told.say(replayed)
        assert told.listed == 1
        told.net.advance(60)
        told.say(replayed)
        assert (told.refused("expired"), told.listed) == (2, 0)


def test_a_host_hears_from_nobody_else_what_it_has() -> None:
    with scene("off") as told:
        net = told.net
        message = net.publish("a", "news", b"y", recipients=["b"])
        net.advance(20)
        told.message = message
        told.say(told.record(Identity.plain("b"), message))
        assert net.host("b").state_of(message) is CopyState.WHOLE
        net.subscribe("b", "news")
        net.advance(5)
        assert len(net.deliveries("b")) == 1


def test_a_thousand_keys_keep_no_true_one_out() -> None:
    with scene(limits={"acked_max": 40, "link_waste_per_s": 10**9}) as told:
        told.net.unlink("b", "m")
        told.net.advance(20)
        told.net.link("b", "m")
        told.net.advance(20)
        second = told.net.publish("a", "news", b"z", recipients=["c"])
        told.net.advance(10)
        told.say(told.record(told.identity("c"), second))
        for first in range(0, 1_000, 50):
            told.say(
                *[
                    told.record(Identity.derived(2, str(number)), MessageId(number.to_bytes(16, "big")))
                    for number in range(first, first + 50)
                ]
            )
        assert told.listed == 1 + 10
        told.say(told.record(told.identity("c")))
        told.net.advance(20)
        assert (told.copies, told.listed) == ("", 2 + 10)
        told.net.link("b", "c")
        told.net.advance(30)
        (there,) = [each for each in told.net.host("c")._layers._all if isinstance(each, Acked)]  # noqa: SLF001
        assert len(there.known) >= 10


def test_those_of_unknown_messages_are_broadcast_at_a_bounded_rate_and_reach_all_nevertheless() -> None:
    with scene() as told:
        for second in range(30):
            keys = [Identity.derived(2, f"{second}/{number}") for number in range(8)]
            told.say(*[told.record(each, MessageId(each.node.encode()[:16])) for each in keys])
        assert told.net.sent("b").frames["AckRecord"] <= 40 + 2 * 30
        assert told.listed == 240
        told.net.advance(10)
        told.say(told.record(told.identity("c")))
        told.net.advance(15)
        assert (told.copies, told.listed) == ("", 241)
        told.net.advance(120)
        (there,) = [each for each in told.net.host("a")._layers._all if isinstance(each, Acked)]  # noqa: SLF001
        assert there.known.xor == told.known.xor


def test_who_writes_to_keys_of_its_own_and_acknowledges_for_them_keeps_no_true_one_out() -> None:
    with scene(limits={"acked_max": 40, "link_waste_per_s": 10**9}) as told:
        net, keys = told.net, [Identity.derived(3, str(number)) for number in range(100)]
        theirs = [net.publish("a", "news", b"z", recipients=["c"]) for _ in range(5)]
        bait = net.host("m").publish("news", b"x", now=told.now, recipients=[each.node for each in keys])
        net.advance(20)
        true = [told.record(told.identity("c"), each) for each in theirs]
        told.say(*true[:3])
        for first in range(0, 99, 11):
            told.say(*[told.record(each, bait) for each in keys[first : first + 11]])
        told.say(*true[3:])
        assert told.listed == 40
        assert all(signed.fingerprint(each) in told.known for each in true)
        net.link("b", "c")
        net.advance(60)
        assert all(net.host("b").state_of(each) is CopyState.DONE for each in theirs)


def test_lists_that_nobody_has_are_answered_a_few_times_and_change_nothing() -> None:
    with scene() as told:
        for number in range(300):
            told.net.inject("b", [AckList(0, number.to_bytes(8, "big"))], "m")
            told.net.inject("b", [AckList(2, bytes([255] * 8), bytes(8 * 100))], "m")
        told.net.advance(1)
        assert told.net.sent("b").frames["AckList"] <= 210
        assert told.refused("rate") + told.refused("muted") >= 390
        assert told.copies == "abm"

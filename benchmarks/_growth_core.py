"""Loads of the core whose cost must grow with their size and no faster.

Each function prepares one load of the given size and returns the work that is to be timed. Where the way through two
hosts would take minutes, the work goes through the class that does it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from benchmarks._pair import Pair

from carrypost.config import Settings
from carrypost.gossip.holdings.cache import Cache
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.holdings.eviction import INTEREST_FIRST
from carrypost.gossip.holdings.holdings import Holdings
from carrypost.gossip.interest.index import ProfileIndex
from carrypost.gossip.interest.own_interests import OwnInterests
from carrypost.gossip.outputs import Outputs
from carrypost.gossip.timers import Schedule, Timers
from carrypost.gossip.transfers.link import HostContext, Link, Links
from carrypost.gossip.transfers.loss import LossRecovery
from carrypost.gossip.transfers.outbox import PARCEL_ITEMS, Job, Outbox
from carrypost.gossip.transfers.wants import Wants
from carrypost.gossip.wire.frames import OfferEntry
from carrypost.gossip.wire.pieces import Blank
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.descriptor_values import privilege
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.pattern import entry
from carrypost.security.identity import Identity

Work = Callable[[], None]

_HERE: Final = NodeId("here")
_WIDE: Final = 2**40
_FRAME_BYTES: Final = 100
_FRAGMENT_BYTES: Final = 1_000
_SHARES: Final = 8
"""A link may fill one in this many parts of the fragment buffer (`gossip.transfers.wants`)."""
_PAGE: Final = 2_048
"""Fingerprints in one frame of a reconciliation."""
_BUCKET_BITS: Final = 6


def _descriptor(number: int, destination: str = "news") -> Descriptor:
    return Descriptor("a", 1, number, 0, None, destination, 100, 100, PayloadCodec.BLANK, b"", 1_024)


def copies(count: int) -> list[Copy]:
    """Return this many small messages that are in a cache."""
    cache = Cache(Settings.emulated(cache_messages_max=count))
    found = []
    for number in range(count):
        copy = cache.admit(_descriptor(number), nbytes=100, privilege=0, interesting=True, held=1, now=0)
        assert isinstance(copy, Copy)
        found.append(copy)
    return found


# --- interests ---------------------------------------------------------------------------------------------


def learning(size: int) -> Work:
    """Remove copies one by one while a costly profile of a neighbour is being learnt."""
    index = ProfileIndex(Settings.emulated().limits)
    index.begin((entry("n.*s"),), b"digest", copies(size))

    def work() -> None:
        for slot in range(size):
            index.release(1 << slot)

    return work


def comparing(size: int) -> Work:
    """Compare sets of ids, of which the neighbour wants every second one."""
    index = ProfileIndex(Settings.emulated().limits)
    cache = Cache(Settings.emulated())
    known = [cache.remember(_descriptor(number, ("news", "else")[number % 2])) for number in range(size)]
    for copy in known:
        index.add(copy)
        index.mark_known(copy)
    view = index.learn((entry("news"),), b"digest", known)

    def work() -> None:
        members = [value for bucket in range(1 << _BUCKET_BITS) for value in view.members(_BUCKET_BITS, bucket)]
        assert len(members) == size // 2
        for first in range(0, len(members), _PAGE):
            found, missing = view.find(members[first : first + _PAGE])
            assert found
            assert not missing

    return work


def remembering(size: int) -> Work:
    """Deliver and confirm messages one by one while as many ids are remembered."""
    settings = Settings.emulated(cache_messages_max=size)
    outputs = Outputs(settings.limits)
    holdings = Holdings(settings, outputs.journal, privilege, random.Random(1), _HERE, ranking=INTEREST_FIRST)
    known = []
    for number in range(size):
        copy = holdings.admit(_descriptor(number), nbytes=100, held=1, interesting=True, now=0)
        assert isinstance(copy, Copy)
        known.append(copy)

    def work() -> None:
        for copy in known:
            holdings.mark_delivered((copy,))
            assert holdings.is_delivered(copy)
            assert holdings.is_given(copy)
            holdings.confirm((copy,))
        outputs.journal.pop_batch()

    return work


# --- sending -----------------------------------------------------------------------------------------------


def _outbox(size: int) -> tuple[Outbox, list[Job]]:
    """Return an outbox with this many messages of one frame each, all in flight."""
    outbox = Outbox(Timers(Schedule()), Settings.emulated().datagram_bytes, _WIDE)
    outbox.recovery.window.nbytes = _WIDE
    jobs = [Job(copy, 1, 0, PARCEL_ITEMS, nbytes=_FRAME_BYTES) for copy in copies(size)]
    for job in jobs:
        outbox.add(job)
    assert len(outbox.send_parcels(1, 0)) == size
    return outbox, jobs


def cancelling(size: int) -> Work:
    """Let messages in flight leave the cache one by one."""
    outbox, jobs = _outbox(size)

    def work() -> None:
        for job in jobs:
            outbox.cancel(job.copy.slot)
        assert not outbox.jobs

    return work


def repeating(size: int) -> Work:
    """Lose everything in flight twice, send it again, and acknowledge it frame by frame."""
    outbox, _ = _outbox(size)
    serial = size

    def send_again(now: int) -> None:
        nonlocal serial
        while outbox.retransmissions:
            content = outbox.retransmissions.popleft()
            serial += 1
            outbox.sent(serial, content, _FRAME_BYTES, now)

    def work() -> None:
        for now in (1, 2):
            outbox.time_out(now)
            if now == 1:
                send_again(now)
        outbox.recovery.window.nbytes = _WIDE
        send_again(3)
        for each in range(serial - size + 1, serial + 1):
            outbox.acknowledge(each, 1, 4)
        assert not outbox.jobs

    return work


def acknowledging(size: int) -> Work:
    """Acknowledge frames in flight one by one, the oldest first."""
    recovery: LossRecovery[int] = LossRecovery(Timers(Schedule()), 1_200, _WIDE)
    for serial in range(size):
        recovery.sent(serial, serial, _FRAME_BYTES, 0)

    def work() -> None:
        for serial in range(size):
            assert recovery.acknowledged(serial, 1, 1).arrived

    return work


def offering(size: int) -> Work:
    """Let one host offer another everything that it has, and send it."""
    pair = Pair(Settings.emulated(cache_messages_max=2 * size, limits={"unconfirmed_max": 2 * size}))
    pair.b.host.subscribe("news", now=0)
    for _ in range(size):
        pair.a.host.publish("news", Blank(100), now=0)
    return lambda: pair.run(size)


# --- receiving ---------------------------------------------------------------------------------------------


def buffering(size: int) -> Work:
    """Receive fragments of as many pieces over one link, which may keep half of them."""
    kept_bytes = size // 2 * _FRAGMENT_BYTES
    settings = Settings.emulated(limits={"fragment_buffer_bytes_max": max(_SHARES * kept_bytes, 2**14)})
    outputs = Outputs(settings.limits)
    links = Links(settings, outputs)
    holdings = Holdings(settings, outputs.journal, privilege, random.Random(1), _HERE, ranking=INTEREST_FIRST)
    ground = HostContext(Identity.plain(_HERE), settings, holdings, outputs, OwnInterests(settings, _HERE), links)
    wants, link = Wants(ground), Link("there", links)
    links.add(link)
    want = wants.add(link, OfferEntry(MessageId(b"message"), 1, size * _FRAGMENT_BYTES, 0), 0)
    assert want is not None

    def work() -> None:
        for piece in range(size):
            want.fragments[piece] = {0: b""}
            wants.charge(link, 1, piece, _FRAGMENT_BYTES)

    return work

"""Strangers that use what a victim has gathered: many waiting messages, a nearly full cache, many remembered ids.

There, one small frame is a reason for much work. Each row has a host in one process, without sockets, with the state
and the clock of CPU time that a node has. Ten linked strangers send a thousand datagrams a second each for some seconds
of the host's own time; of what it does not read nothing is made. CPU time is that of reading and handling what it reads
and of its own timers, beyond that of a time without datagrams, in per cent of the host's own time. Other processes on
the machine hardly change it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
from benchmarks._processes import Row
from benchmarks._strangers import Stranger, acceptable, short_run
from benchmarks._victim import Victim

from carrypost.gossip.wire import codec
from carrypost.gossip.wire import frames as f
from carrypost.model.descriptor import Ordering, Predecessor
from carrypost.model.pattern import encode_entries, entry, profile_digest

STRANGERS: Final = 10
GOAL_CPU: Final = 10.0
"""Percentage of one core, for all strangers together."""
FOR_S: Final = 10.0
"""Length of a flood, in the host's own time. It begins with what every address may waste at once."""
WAITING: Final = 2_400
REMEMBERED: Final = 200_000
FULL: Final = 20_000
_STEP_S: Final = 0.01
_DATAGRAMS: Final = 10
"""Datagrams of each stranger in a step."""


def _cpu_us() -> int:
    return time.thread_time_ns() // 1_000


def _hopeless(stranger: Stranger) -> f.Frame:
    """Return a message in causal order that waits for one that nobody has."""
    made = acceptable(stranger)
    missing = Predecessor(stranger.chance.randbytes(16), 1, 1, made.deadline_us)
    signed = stranger.identity.sign(msgspec.structs.replace(made, ordering=Ordering.CAUSAL, barrier=(missing,)))
    return f.Parcel(stranger.chance.randrange(2**24), stranger.chance.randrange(2**24), 1, 1, True, signed.wire, b"")


def short_profile(stranger: Stranger) -> bytes:
    """Announce and send another profile of one entry."""
    encoded = encode_entries([entry(f"news-{stranger.chance.randrange(10**9)}")])
    digest = profile_digest(encoded)
    return codec.datagrams([stranger.announce(profile=digest), f.Profile(digest, 0, 1, encoded)], stranger.mtu_bytes)[0]


def _filled(make: Callable[[Stranger], f.Frame]) -> Callable[[Stranger], bytes]:
    def frames(stranger: Stranger) -> Iterator[f.Frame]:
        while True:
            yield make(stranger)

    return lambda stranger: stranger.fill(frames(stranger))


def _waiting(scale: float) -> Victim:
    """Return a victim with as many waiting messages as it keeps, of several authors: each has a share."""
    count = int(WAITING * scale)
    victim, make = Victim(0, meter=_cpu_us, pending_max=count), _filled(_hopeless)
    first = [Stranger(number, victim.host.node, now_us=victim.now) for number in range(101, 107)]
    for each in first:
        victim.meet(each, f"s{each.number}")
    while sum(group.pending for group in victim.host.registries(victim.now)) < count:
        for each in first:
            victim.take(make(each), f"s{each.number}")
            victim.wait(1)
    return victim


def _full(scale: float) -> Victim:
    """Return a victim with room for ten messages, that has declined as many as it holds."""
    count = int(FULL * scale)
    victim = Victim(count - 10, meter=_cpu_us, cache_messages_max=count)
    victim.remember(count, done=False)
    return victim


def _remembering(scale: float) -> Victim:
    victim = Victim(0, meter=_cpu_us)
    victim.remember(int(REMEMBERED * scale), done=True)
    return victim


@dataclass(frozen=True)
class Attack:
    """Datagrams, and the state that makes them expensive."""

    victim: Callable[[float], Victim]
    make: Callable[[Stranger], bytes]


ATTACKS: Final = {
    f"causal messages that wait for ever, {WAITING:,} waiting": Attack(_waiting, _filled(_hopeless)),
    f"Digest of nothing, cache of {FULL:,} nearly full": Attack(_full, _filled(short_run)),
    f"profiles of one entry, {REMEMBERED:,} ids remembered": Attack(_remembering, short_profile),
}


class _Stopwatch:
    """CPU time of this process, in steps."""

    def __init__(self) -> None:
        self.spent_s = self.longest_s = 0.0

    def run(self, action: Callable[..., object], *given: object) -> None:
        """Do something, and add its time."""
        began_s = time.process_time()
        action(*given)
        took_s = time.process_time() - began_s
        self.spent_s += took_s
        self.longest_s = max(self.longest_s, took_s)


def _flood(victim: Victim, strangers: list[Stranger], make: Callable[[Stranger], bytes], for_s: float) -> _Stopwatch:
    """Let strangers send for some time; none: only the victim's own time passes."""
    watch = _Stopwatch()
    for _ in range(round(for_s / _STEP_S)):
        for stranger in strangers:
            peer = f"s{stranger.number}"
            for _ in range(_DATAGRAMS):
                if victim.host.listens(peer, victim.now):
                    watch.run(victim.take, make(stranger), peer)
        watch.run(victim.wait, _STEP_S)
        watch.run(victim.drain)
    return watch


def row(name: str, for_s: float, scale: float = 1.0) -> Row:
    """Return the CPU time that ten strangers cause; `scale`: of the state, for a quick run."""
    victim, make = ATTACKS[name].victim(scale), ATTACKS[name].make
    strangers = [Stranger(number, victim.host.node, now_us=victim.now) for number in range(1, STRANGERS + 1)]
    for each in strangers:
        victim.meet(each, f"s{each.number}")
    quiet, read = _flood(victim, [], make, for_s), victim.read.total()
    hit = _flood(victim, strangers, make, for_s)
    cpu = (hit.spent_s - quiet.spent_s) / for_s * 100
    return {
        "datagrams": name,
        "sent": round(for_s / _STEP_S) * STRANGERS * _DATAGRAMS,
        "read": victim.read.total() - read,
        "longest step ms": hit.longest_s * 1e3,
        "CPU % of a core": cpu,
        "met": cpu <= GOAL_CPU,
    }

"""Deadlines of a host, found by looking at everything: `Host.next_deadline` must never be later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from carrypost.gossip.discovery.neighbour import SILENT_PERIODS, Neighbour
from carrypost.gossip.timers import FORGET
from carrypost.host import Host
from carrypost.model.times import NEVER

PROFILE_RETRY_US = 1_000_000


def due_us(host: Host) -> int:
    """Return the earliest time at which something is due, independently of the host's own answer."""
    ground, dues = host._host_context, [NEVER]  # noqa: SLF001 - what is due is nobody else's business
    deadlines = [copy.descriptor.deadline_us for copy in ground.holdings.cache.copies if copy is not None]
    dues += [ground.holdings.own_time(deadline_us) for deadline_us in deadlines if deadline_us is not None]
    if host._steps.ready:  # noqa: SLF001
        beacon = host._neighbours.beacon  # noqa: SLF001
        dues.append(beacon.due_us)
        for neighbour in host._neighbours:  # noqa: SLF001
            dues += _dues(neighbour, SILENT_PERIODS * beacon.period_max_us)
    return min(dues)


def _dues(neighbour: Neighbour, one_way_us: int) -> list[int]:
    armed = neighbour.link.timers.due
    dues = [neighbour.silent_us, *[due for timer, due in enumerate(armed) if timer != FORGET]]
    if neighbour.contact is not None:
        if neighbour.view is None:
            dues.append(neighbour.profile_asked_us + PROFILE_RETRY_US)
    elif not (neighbour.driver_asserted or neighbour.one_way_reported):
        dues.append(neighbour.first_us + one_way_us)
    return dues


def check(host: Host, told: int | None) -> None:
    """Check that nothing is due before the deadline that the host reports."""
    due = due_us(host)
    assert (due >= NEVER) if told is None else (told <= due), f"{host.node}: {due} µs is due, told is {told}"


def ended(host: Host, now: int) -> set[tuple[str, int, int]]:
    """Return the timers that ended by now, by address, timer and time."""
    return {
        (neighbour.link.peer, timer, due)
        for neighbour in host._neighbours  # noqa: SLF001
        for timer, due in enumerate(neighbour.link.timers.due)
        if due <= now and timer != FORGET
    }


@contextmanager
def checked() -> Iterator[None]:
    """Check every answer and every tick of every host."""
    original, original_tick = Host.next_deadline, Host.tick

    def next_deadline(host: Host) -> int | None:
        told = original(host)
        check(host, told)
        return told

    def tick(host: Host, now: int) -> bool:
        before = ended(host, now)
        done = original_tick(host, now)
        left = before & ended(host, now)
        assert not left, f"{host.node}: nobody cancelled or armed anew what ended: {left}"
        return done

    with mock.patch.object(Host, "next_deadline", next_deadline), mock.patch.object(Host, "tick", tick):
        yield

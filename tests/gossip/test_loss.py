"""Loss recovery alone: however frames are sent, acknowledged, forged or timed out, each frame has one outcome."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.examples import examples

from carrypost.gossip.timers import Schedule, Timers
from carrypost.gossip.transfers.loss import (
    INITIAL_WINDOW_BYTES,
    PACKET_THRESHOLD,
    CongestionWindow,
    LossRecovery,
    Outcome,
    SentFrame,
)
from carrypost.model.times import NEVER

DATAGRAM = 1_200
WINDOW_MAX = 40_000


def contents(frames: list[SentFrame[str]]) -> str:
    return "".join(frame.content for frame in frames)


# What a script does: letters are sent, one by one, under the serials 1, 2, …; "!" is a timeout; a set is an
# acknowledgement of these serials. The outcome is that of the last one.
@pytest.mark.parametrize(
    ("script", "arrived", "late", "spurious", "lost"),
    [
        (["abc", {1}], "a", "", "", ""),
        (["abc", {1, 2, 3}], "cba", "", "", ""),
        (["abc", {1}, {1, 2}], "b", "", "", ""),
        (["abcd", {3, 4}], "dc", "", "", ""),
        (["abcd", {2, 3, 4}], "dcb", "", "", "a"),
        (["abcde", {3, 4, 5}], "edc", "", "", "ab"),
        (["abcde", {1, 3, 4, 5}], "edca", "", "", "b"),
        (["abcd", {2}, {3}, {4}], "d", "", "", ""),
        (["abcd", {2, 3}, {2, 3, 4}], "d", "", "", ""),
        (["abc", "!", {2}], "", "b", "", ""),
        (["abc", "!", {1, 2, 3}], "", "abc", "", ""),
        (["abc", "!", "ab", {1}], "", "a", "a", ""),
        (["abc", "!", "ab", {1, 4}], "a", "a", "", ""),
        (["a", "!", "a", "!", "a", {1}], "", "a", "a", ""),
        (["a", "!", "abcd", {1, 3, 4, 5}], "dcb", "a", "a", ""),
        (["ab", "!", "abcd", {2, 4, 5, 6}], "dcb", "b", "", "a"),
        (["abc", "!", {2}, {2}], "", "", "", ""),
        (["abc", {100, 101, 102}], "", "", "", ""),
        ([{1, 2, 3}], "", "", "", ""),
    ],
)
def test_an_acknowledgement_tells_what_arrived_came_late_was_sent_in_vain_and_is_lost(
    script: list[str | set[int]], arrived: str, late: str, spurious: str, lost: str
) -> None:
    recovery: LossRecovery[str] = LossRecovery(Timers(Schedule()), DATAGRAM, WINDOW_MAX)
    outcome: Outcome[str] | None = None
    serial = 0
    for step in script:
        if isinstance(step, set):
            base = min(step)
            outcome = recovery.acknowledged(base, sum(1 << each - base for each in step), 0)
        elif step == "!":
            recovery.timed_out(0)
        else:
            for letter in step:
                serial += 1
                recovery.sent(serial, letter, 100, 0)
    assert outcome is not None
    assert tuple(map(contents, outcome)) == (arrived, late, spurious, lost)


def test_a_burst_is_noted_as_its_frames_would_be_one_by_one() -> None:
    one_by_one: LossRecovery[str] = LossRecovery(Timers(Schedule()), DATAGRAM, WINDOW_MAX)
    together: LossRecovery[str] = LossRecovery(Timers(Schedule()), DATAGRAM, WINDOW_MAX)
    together.sent_burst(1, [], 5)
    assert (together.due_us, together.in_flight) == (NEVER, {})
    for serial, letter in enumerate("abc", 7):
        one_by_one.sent(serial, letter, 100 * serial, 9)
    together.sent_burst(7, [SentFrame(serial, letter, 100 * serial, 9) for serial, letter in enumerate("abc", 7)], 9)
    for recovery in (one_by_one, together):
        assert (recovery.bytes_in_flight, recovery.due_us) == (2_400, 9 + recovery.timeout_us)
        assert recovery.room_bytes == INITIAL_WINDOW_BYTES - 2_400
        assert {serial: frame.content for serial, frame in recovery.in_flight.items()} == {7: "a", 8: "b", 9: "c"}


@pytest.mark.parametrize(
    ("named", "round_trip_us"),
    [({4}, 300_000), ({3, 4}, 300_000), ({1, 4}, 300_000), ({3}, 500_000), ({1}, 2_000_000), ({1, 2}, 1_900_000)],
)
def test_the_newest_frame_that_arrived_tells_the_round_trip_and_a_late_one_only_if_no_other_did(
    named: set[int], round_trip_us: int
) -> None:
    recovery: LossRecovery[str] = LossRecovery(Timers(Schedule()), DATAGRAM, WINDOW_MAX)
    recovery.sent(1, "a", 100, 0)
    recovery.sent(2, "b", 100, 100_000)
    recovery.timed_out(1_000_000)
    recovery.sent(3, "c", 100, 1_500_000)
    recovery.sent(4, "d", 100, 1_700_000)
    recovery.acknowledged(1, sum(1 << each - 1 for each in named), 2_000_000)
    assert recovery.timeout_us == 3 * round_trip_us  # It is the first: itself, and twice itself for its variation.


def test_losses_among_what_was_in_flight_at_a_reduction_do_not_reduce_the_window_again() -> None:
    window = CongestionWindow(DATAGRAM, WINDOW_MAX)
    sizes = [window.nbytes]
    for last_lost, last_in_flight in [(3, 9), (9, 12), (10, 12), (12, 15), (13, 15)]:
        window.on_loss(last_lost, last_in_flight)
        sizes.append(window.nbytes)
    assert [after / before for before, after in pairwise(sizes)] == pytest.approx([0.7, 1, 0.7, 1, 0.7])


def test_after_a_timeout_the_window_doubles_up_to_half_of_what_it_was_and_then_creeps() -> None:
    window = CongestionWindow(DATAGRAM, 1_000_000)
    window.on_acknowledged(83_616)
    assert window.nbytes == 100_000
    window.on_timeout(1)
    sizes = [window.nbytes]
    for _ in range(7):
        window.on_acknowledged(int(window.nbytes))
        sizes.append(window.nbytes)
    assert sizes[:6] == [2_400, 4_800, 9_600, 19_200, 38_400, 76_800]
    assert sizes[6:] == pytest.approx([78_000, 79_200])


class Link(RuleBasedStateMachine):
    """A sender that asks before it sends, and a link on which anything happens to frames and acknowledgements."""

    @initialize(window_max=st.sampled_from([1, 5_000, WINDOW_MAX]))
    def begin(self, window_max: int) -> None:
        self.recovery: LossRecovery[int] = LossRecovery(Timers(Schedule()), DATAGRAM, window_max)
        self.window_max = max(window_max, 2 * DATAGRAM)
        self.now = 0
        self.touched_us = 0
        """Time at which something was last sent or acknowledged."""
        self.serial = 0
        self.held: dict[int, int] = {}
        """By serial: the content of every frame."""
        self.in_flight: set[int] = set()
        self.lost: set[int] = set()
        """Declared lost and not acknowledged since."""
        self.acknowledged: set[int] = set()
        self.gone: set[int] = set()
        """Spurious or discarded."""

    def fresh(self, content: int) -> int:
        self.serial += 1
        self.held[self.serial] = content
        self.in_flight.add(self.serial)
        self.touched_us = self.now
        return self.serial

    @rule(content=st.integers(0, 12), nbytes=st.integers(1, DATAGRAM), pause_us=st.integers(0, 400_000))
    def send(self, content: int, nbytes: int, pause_us: int) -> None:
        recovery = self.recovery
        if recovery.due_us > self.now + pause_us:
            self.now += pause_us
        if recovery.open:
            recovery.sent(self.fresh(content), content, nbytes, self.now)
            assert recovery.bytes_in_flight - nbytes < recovery.window.nbytes

    @rule(sizes=st.lists(st.integers(1, DATAGRAM), max_size=20))
    def send_burst(self, sizes: list[int]) -> None:
        recovery, frames = self.recovery, []
        room_bytes, first = recovery.room_bytes, self.serial + 1
        for nbytes in sizes:
            if room_bytes <= 0:
                break
            room_bytes -= nbytes
            serial = self.fresh(nbytes % 13)
            frames.append(SentFrame(serial, self.held[serial], nbytes, self.now))
        recovery.sent_burst(first, frames, self.now)
        if frames:
            recovery.restart(self.now)
            assert recovery.bytes_in_flight - frames[-1].nbytes < recovery.window.nbytes

    @precondition(lambda self: self.held)
    @rule(data=st.data(), wait_us=st.integers(0, 900_000))
    def acknowledge(self, data: st.DataObject, wait_us: int) -> None:
        """Name frames of any fate, and serials that were never sent."""
        recovery = self.recovery
        if recovery.due_us > self.now + wait_us:
            self.now += wait_us
        first = data.draw(st.integers(max(0, self.serial - 40), self.serial + 3))
        bitmap = data.draw(st.integers(0, 2**45 - 1))
        named = {first + offset for offset in range(45) if bitmap >> offset & 1}
        window, timeouts = recovery.window.nbytes, recovery.timeouts
        outcome = recovery.acknowledged(first, bitmap, self.now)
        self.touched_us = self.now
        arrived, late = named & self.in_flight, named & self.lost
        assert contents_of(outcome.arrived) == [self.held[each] for each in sorted(arrived, reverse=True)]
        assert contents_of(outcome.late) == [self.held[each] for each in sorted(late)]
        came_late = {self.held[each] for each in late}
        open_still = sorted(self.in_flight - arrived)
        spurious = [each for each in open_still if self.held[each] in came_late]
        overtaken = [
            each
            for each in open_still
            if each not in spurious and sum(later > each for later in arrived) >= PACKET_THRESHOLD
        ]
        assert contents_of(outcome.spurious) == [self.held[each] for each in spurious]
        assert contents_of(outcome.lost) == [self.held[each] for each in overtaken]
        if not arrived | late:
            assert (recovery.window.nbytes, recovery.timeouts) == (window, timeouts)
        else:
            assert recovery.timeouts == 0
        self.acknowledged |= arrived | late
        self.gone |= set(spurious)
        self.in_flight -= arrived | set(spurious) | set(overtaken)
        self.lost = self.lost - late | set(overtaken)

    @rule()
    def time_out(self) -> None:
        recovery = self.recovery
        if recovery.due_us == NEVER:
            return
        self.now = recovery.due_us
        window, timeout_us, timeouts = recovery.window.nbytes, recovery.timeout_us, recovery.timeouts
        lost = recovery.timed_out(self.now)
        assert contents_of(lost) == [self.held[each] for each in sorted(self.in_flight)]
        assert (recovery.in_flight, recovery.bytes_in_flight, recovery.due_us) == ({}, 0, NEVER)
        if lost:
            assert recovery.window.nbytes == 2 * DATAGRAM <= window
            assert (recovery.timeouts, recovery.timeout_us >= timeout_us) == (timeouts + 1, True)
        else:
            assert (recovery.window.nbytes, recovery.timeouts, recovery.timeout_us) == (window, timeouts, timeout_us)
        self.lost |= self.in_flight
        self.in_flight = set()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        unwanted = data.draw(st.sets(st.sampled_from(sorted(self.in_flight))))
        self.recovery.discard(unwanted)
        self.gone |= unwanted
        self.in_flight -= unwanted

    @rule()
    def forget_lost(self) -> None:
        self.recovery.forget_lost()
        self.gone |= self.lost
        self.lost = set()

    @invariant()
    def every_frame_is_in_flight_or_has_one_fate(self) -> None:
        assert list(self.recovery.in_flight) == sorted(self.in_flight)
        assert self.recovery.unacknowledged == len(self.in_flight) + len(self.lost)
        fates = [self.in_flight, self.lost, self.acknowledged, self.gone]
        assert sorted(serial for fate in fates for serial in fate) == sorted(self.held)

    @invariant()
    def the_bytes_in_flight_are_those_of_the_frames_in_flight(self) -> None:
        assert self.recovery.bytes_in_flight == sum(frame.nbytes for frame in self.recovery.in_flight.values())

    @invariant()
    def the_window_keeps_its_bounds(self) -> None:
        assert 2 * DATAGRAM <= self.recovery.window.nbytes <= self.window_max

    @invariant()
    def the_timer_runs_while_anything_is_in_flight_and_ends_a_timeout_after_the_last_event_at_the_latest(self) -> None:
        if self.in_flight:
            assert self.recovery.due_us <= self.touched_us + self.recovery.timeout_us

    def teardown(self) -> None:
        """Silence ends every wait."""
        if hasattr(self, "recovery"):
            self.time_out()
            assert (self.in_flight, self.recovery.due_us) == (set(), NEVER)


def contents_of(frames: list[SentFrame[int]]) -> list[int]:
    return [frame.content for frame in frames]


TestLink = Link.TestCase
TestLink.settings = examples(20)

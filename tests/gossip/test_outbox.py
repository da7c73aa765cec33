"""The sending half of a link: order, the window and how it adapts to loss, timeouts, stop-and-wait."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.holdings.cache import Cache
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.timers import SEND, Schedule, Timers
from carrypost.gossip.transfers.loss import INITIAL_WINDOW_BYTES
from carrypost.gossip.transfers.outbox import DESCRIPTOR, FRAGMENT, Job, Outbox
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.times import NEVER

SIZE = 1_000
MTU = 1_200


class Bench:
    """An outbox, messages for it, and frames that go out one by one."""

    def __init__(self, *, patience_us: int = 0, **settings: object) -> None:
        self.settings = Settings.emulated(**settings)
        self.cache = Cache(self.settings)
        self.timers = Timers(Schedule())
        mtu_bytes, window_bytes_max = self.settings.datagram_bytes, self.settings.window_bytes_max
        self.outbox = Outbox(
            self.timers,
            mtu_bytes,
            window_bytes_max,
            patience_us=patience_us,
            stop_and_wait=self.settings.paper_mode,
        )
        self.serial = 0
        self.now = 0
        self.number = 0

    def job(self, level: int = 0, pieces: int = 1) -> Job:
        self.number += 1
        size = pieces * 16_384
        descriptor = Descriptor("a", 1, self.number, 0, None, "news", size, size, PayloadCodec.BLANK, b"", 1_024)
        copy = self.cache.admit(descriptor, nbytes=size, privilege=0, interesting=True, held=(1 << pieces) - 1, now=0)
        assert isinstance(copy, Copy)
        job = Job(copy, (1 << pieces) - 1, level)
        job.plan(MTU, random.Random(1), skip_preamble=False)
        self.outbox.add(job)
        return job

    def send(self, job: Job, count: int = 1) -> list[int]:
        """Send `count` frames of a job now; return their serials."""
        sent = []
        for _ in range(count):
            self.serial += 1
            self.outbox.sent(self.serial, (job, (FRAGMENT, self.serial)), SIZE, self.now)
            sent.append(self.serial)
        return sent

    def acknowledge(self, *serials: int) -> int:
        base = min(serials)
        return self.outbox.acknowledge(base, sum(1 << serial - base for serial in serials), self.now)

    def waits_s(self, job: Job, count: int) -> list[float]:
        """Return how long the next acknowledgements are waited for in vain."""
        waits = []
        for _ in range(count):
            self.send(job)
            self.outbox.recovery.restart(self.now)
            waits.append((self.outbox.recovery.due_us - self.now) / 1e6)
            self.now = self.outbox.recovery.due_us
            self.outbox.time_out(self.now)
            self.outbox.retransmissions.clear()
        return waits

    def retried(self) -> list[int]:
        return [item[1] for _, item in self.outbox.retransmissions]


def test_the_most_privileged_job_goes_first_and_equals_in_order() -> None:
    bench = Bench()
    low, high, low_too, middle = bench.job(1), bench.job(9), bench.job(1), bench.job(5)
    assert [bench.outbox.pull() for _ in range(5)] == [high, middle, low, low_too, None]


def test_a_job_that_was_put_back_goes_on_before_its_equals_and_after_its_betters() -> None:
    bench = Bench()
    first, second = bench.job(1), bench.job(1)
    assert bench.outbox.pull() is first
    bench.outbox.put_back(first)
    better = bench.job(2)
    assert [bench.outbox.pull() for _ in range(3)] == [better, first, second]


def test_a_job_plans_its_descriptor_first_and_every_fragment_once() -> None:
    bench = Bench()
    job = bench.job(pieces=3)
    items = list(job.items)
    assert len(items) == job.left == 1 + 3 * 16
    assert items[0] == (0, 0)
    assert sorted(index for kind, index in items if kind == FRAGMENT) == list(range(48))


@pytest.mark.parametrize("wanted", [0b1111, 0b0101, 0b1000, 0b1010, 0b0111])
@pytest.mark.parametrize("length", [4 * 16_384, 3 * 16_384 + 1, 3 * 16_384 + 2_500])
def test_a_job_plans_the_fragments_of_the_pieces_that_are_wanted(wanted: int, length: int) -> None:
    descriptor = Descriptor("a", 1, 1, 0, None, "news", length, length, PayloadCodec.BLANK, b"", 1_024)
    copy = Bench().cache.admit(descriptor, nbytes=length, privilege=0, interesting=True, held=0b1111, now=0)
    assert isinstance(copy, Copy)
    job = Job(copy, wanted, 0)
    job.plan(MTU, random.Random(1), skip_preamble=True)
    items = list(job.items)
    assert job.left == len(items)
    pieces = [piece for piece in range(4) if wanted >> piece & 1]
    expected = [16 * piece + number for piece in pieces for number in range(descriptor.fragments_in(piece))]
    assert sorted(items) == [(FRAGMENT, index) for index in expected]


@pytest.mark.parametrize("window_bytes", [1, SIZE, 5 * SIZE, 5 * SIZE + 1])
def test_fragments_sent_in_a_row_fill_the_window_as_those_sent_one_by_one(window_bytes: int) -> None:
    single, row = Bench(), Bench()
    for bench in (single, row):
        bench.outbox.recovery.window.nbytes = window_bytes
    one, many = single.job(pieces=3), row.job(pieces=3)
    one.pop(), many.pop()  # The descriptor.
    sent = []
    while single.outbox.recovery.open:
        single.serial += 1
        sent.append(item := one.pop())
        single.outbox.sent(single.serial, (one, item), SIZE, 7)
    assert row.outbox.send_fragments(many, many.pop(), SIZE, 1, 7) == [index for _, index in sent]
    assert (many.left, many.in_flight) == (one.left, one.in_flight)
    assert row.outbox.recovery.bytes_in_flight == single.outbox.recovery.bytes_in_flight
    assert row.outbox.recovery.due_us == single.outbox.recovery.due_us
    assert row.acknowledge(*many.in_flight) == single.acknowledge(*one.in_flight) == 0
    assert row.outbox.recovery.bytes_in_flight == 0


def test_a_job_that_is_sent_in_a_row_is_exhausted_with_its_last_fragment() -> None:
    bench = Bench()
    job = bench.job(pieces=1)
    job.pop()
    bench.outbox.recovery.window.nbytes = 1_000_000
    assert len(bench.outbox.send_fragments(job, job.pop(), SIZE, 1, 0)) == 16
    assert job.exhausted
    assert not job.left
    assert bench.acknowledge(*job.in_flight) == 1 << job.copy.slot


def test_the_window_closes_when_it_is_full_and_opens_with_acknowledgements() -> None:
    bench = Bench()
    job = bench.job()
    sent = bench.send(job, INITIAL_WINDOW_BYTES // SIZE)
    assert bench.outbox.recovery.bytes_in_flight < bench.outbox.recovery.window.nbytes
    sent += bench.send(job)
    assert not bench.outbox.recovery.open
    bench.acknowledge(*sent)
    assert bench.outbox.recovery.bytes_in_flight == 0


def test_the_window_doubles_per_round_trip_until_its_bound() -> None:
    bench = Bench(window_bytes_max=100_000)
    job = bench.job()
    windows = [bench.outbox.recovery.window.nbytes]
    for _ in range(6):
        sent = []
        while bench.outbox.recovery.open:
            sent += bench.send(job)
        bench.now += 50_000
        bench.acknowledge(*sent)
        windows.append(bench.outbox.recovery.window.nbytes)
    for before, after in pairwise(windows):
        assert after == 100_000 or 1.9 * before <= after <= 2.2 * before
    assert windows[-1] == 100_000


@pytest.mark.parametrize(("later", "lost"), [(1, False), (2, False), (3, True), (4, True)])
def test_a_frame_is_lost_when_three_later_ones_are_acknowledged(later: int, lost: bool) -> None:
    bench = Bench()
    first, *rest = bench.send(bench.job(), 6)
    bench.acknowledge(*rest[:later])
    assert bench.retried() == ([first] if lost else [])


def test_a_loss_shrinks_the_window_once_per_round_trip() -> None:
    bench = Bench()
    job = bench.job()
    sent = bench.send(job, 16)
    before = bench.outbox.recovery.window.nbytes
    bench.acknowledge(*sent[1:8])
    shrunk = bench.outbox.recovery.window.nbytes
    assert shrunk < before
    bench.acknowledge(*sent[9:])  # Another loss among what was out already.
    assert bench.outbox.recovery.window.nbytes >= shrunk
    assert bench.retried() == [sent[0], sent[8]]
    later = bench.send(job, 6)
    bench.acknowledge(*later[1:])
    assert bench.outbox.recovery.window.nbytes < shrunk * 1.1


def test_after_a_loss_the_window_grows_by_a_datagram_per_round_trip() -> None:
    bench = Bench()
    job = bench.job()
    sent = bench.send(job, 16)
    bench.acknowledge(*sent[1:])
    bench.outbox.retransmissions.clear()
    for _ in range(5):
        before = bench.outbox.recovery.window.nbytes
        sent = []
        while bench.outbox.recovery.open:
            sent += bench.send(job)
        bench.acknowledge(*sent)
        assert before + 0.8 * MTU <= bench.outbox.recovery.window.nbytes <= before + 1.4 * MTU


def test_silence_for_a_whole_timeout_loses_everything_in_flight_and_closes_the_window() -> None:
    bench = Bench()
    sent = bench.send(bench.job(), 10)
    due = bench.outbox.recovery.due_us
    assert due == 1_000_000
    bench.outbox.time_out(due)
    assert bench.retried() == sent
    assert bench.outbox.recovery.window.nbytes == 2 * MTU
    assert bench.outbox.recovery.bytes_in_flight == 0


def test_timeouts_follow_the_round_trip_and_double_when_nothing_comes() -> None:
    bench = Bench()
    job = bench.job()
    for _ in range(40):
        sent = bench.send(job)
        bench.now += 200_000
        bench.acknowledge(*sent)
    bench.send(job)
    bench.outbox.recovery.restart(bench.now)
    first = bench.outbox.recovery.due_us - bench.now
    assert 200_000 <= first <= 300_000
    waits = []
    for _ in range(8):
        bench.outbox.time_out(bench.now)
        bench.outbox.retransmissions.clear()
        bench.send(job)
        bench.outbox.recovery.restart(bench.now)
        waits.append(bench.outbox.recovery.due_us - bench.now)
    assert waits[0] == 2 * first
    assert waits == sorted(waits)
    assert waits[-1] == 4_000_000


def test_before_anything_is_measured_the_wait_grows_further_for_the_link_may_be_slow() -> None:
    bench = Bench()
    assert bench.waits_s(bench.job(), 6) == [1, 2, 4, 8, 16, 16]


@pytest.mark.parametrize(
    ("round_trip_us", "waits_s"),
    [
        (None, [1, *[0.5] * 10, 1, 2, 4, 8, 16, 16]),
        (10_000, [0.1, 0.2, 0.4, *[0.5] * 11, 1, 2, 4, 4]),
        (200_000, [0.6, *[1.2] * 5, 2.4, 4, 4]),
        (3_000_000, [9, 18, 18]),
    ],
)
def test_who_gives_up_after_a_while_tries_often_until_then_and_backs_off_after_it(
    round_trip_us: int | None, waits_s: list[float]
) -> None:
    bench = Bench(patience_us=6_000_000)
    job = bench.job()
    if round_trip_us is not None:
        sent = bench.send(job)
        bench.now += round_trip_us
        bench.acknowledge(*sent)
    assert bench.waits_s(job, len(waits_s)) == pytest.approx(waits_s)


def test_a_slow_answer_to_something_else_lengthens_the_first_wait_and_a_fast_one_does_not_shorten_it() -> None:
    bench = Bench()
    bench.outbox.recovery.expect(1_000)
    assert bench.outbox.recovery.timeout_us == 1_000_000
    bench.outbox.recovery.expect(20_000_000)
    assert bench.outbox.recovery.timeout_us == 60_000_000
    sent = bench.send(bench.job())
    bench.now += 10_000
    bench.acknowledge(*sent)
    bench.outbox.recovery.expect(20_000_000)  # What is measured counts from then on.
    assert bench.outbox.recovery.timeout_us == 100_000


def test_a_lost_descriptor_goes_out_again_before_the_fragments_that_wait() -> None:
    bench = Bench()
    job = bench.job()
    contents = [(job, item) for item in ((DESCRIPTOR, 0), (FRAGMENT, 0), (FRAGMENT, 1), (FRAGMENT, 2))]
    for serial, content in enumerate(contents, 1):
        bench.outbox.sent(serial, content, SIZE, bench.now)
    bench.outbox.time_out(1_000_000)
    for serial in (5, 6):  # The window has room for two: both are lost again.
        bench.outbox.sent(serial, bench.outbox.retransmissions.popleft(), SIZE, bench.now)
    bench.outbox.time_out(3_000_000)
    again = list(bench.outbox.retransmissions)
    assert again[0] == contents[0]
    assert sorted(again[1:], key=lambda content: content[1]) == contents[1:]


@pytest.mark.parametrize(
    ("round_trip_us", "patience_s"),
    [
        (None, [1, 2, 4, 8, 16, 32, 64, 64]),
        (1_000, [0.5, 1, 2, 4, 4]),
        (100_000, [0.6, 1.2, 2.4, 4, 4]),
        (1_000_000, [6, 6]),
    ],
)
def test_patience_for_an_answer_follows_what_is_known_of_the_link(
    round_trip_us: int | None, patience_s: list[float]
) -> None:
    bench = Bench()
    if round_trip_us is not None:
        bench.outbox.recovery.expect(round_trip_us)
    assert [bench.outbox.recovery.answer_us(tries) / 1e6 for tries in range(len(patience_s))] == patience_s


def test_a_late_acknowledgement_of_what_is_to_go_out_again_keeps_it_from_going_out() -> None:
    bench = Bench()
    job = bench.job()
    sent = bench.send(job, 3)
    job.exhausted = True
    bench.now = bench.outbox.recovery.due_us
    bench.outbox.time_out(bench.now)
    assert bench.retried() == sent
    bench.now += 4_000_000
    assert bench.acknowledge(*sent[:2]) == 0
    assert bench.retried() == sent[2:]
    assert (
        bench.outbox.recovery.timeout_us == 15_000_000
    )  # The round trip took 5 s: that, and twice 5 s for its variation.
    assert bench.acknowledge(*sent) == 1 << job.copy.slot
    assert (bench.retried(), bench.outbox.jobs, bench.outbox.recovery.bytes_in_flight) == ([], {}, 0)


def test_a_late_acknowledgement_of_what_went_out_again_ends_the_wait_for_it() -> None:
    bench = Bench()
    job = bench.job()
    (first,) = bench.send(job)
    job.exhausted = True
    for _ in range(3):
        bench.now = bench.outbox.recovery.due_us
        bench.outbox.time_out(bench.now)
        lost, item = bench.outbox.retransmissions.popleft()
        bench.serial += 1
        bench.outbox.sent(bench.serial, (lost, item), SIZE, bench.now)
    assert bench.acknowledge(first) == 1 << job.copy.slot
    assert (bench.outbox.recovery.bytes_in_flight, bench.outbox.recovery.in_flight, bench.outbox.recovery.due_us) == (
        0,
        {},
        NEVER,
    )


def test_an_acknowledgement_that_is_late_for_some_and_makes_others_seem_lost_takes_both_into_account() -> None:
    bench = Bench()
    job = bench.job()
    first, *_ = bench.send(job, 6)
    bench.outbox.time_out(bench.outbox.recovery.due_us)
    lost, item = bench.outbox.retransmissions.popleft()
    bench.serial += 1
    bench.outbox.sent(bench.serial, (lost, item), SIZE, bench.now)  # The first once more,
    later = bench.send(job, 4)
    bench.acknowledge(first, *later)  # which seems lost, since later ones came, but the first is there.
    assert first not in bench.retried()
    assert bench.outbox.recovery.in_flight == {}


def test_serials_of_lost_frames_are_remembered_within_a_bound_and_no_longer_than_there_are_jobs() -> None:
    bench = Bench()
    job = bench.job()
    sent: list[int] = []
    for _ in range(30):
        sent += bench.send(job, 200)
        bench.outbox.time_out(bench.now)
    assert len(bench.outbox.recovery._lost) == 4096  # noqa: SLF001 - what a silent neighbour makes a host keep
    bench.outbox.retransmissions.clear()
    job.exhausted = True
    assert bench.acknowledge(sent[-1]) == 1 << job.copy.slot
    assert not bench.outbox.recovery._lost  # noqa: SLF001


def test_a_message_is_through_when_everything_went_out_and_was_acknowledged() -> None:
    bench = Bench()
    job, other = bench.job(), bench.job()
    sent = bench.send(job, 3)
    assert bench.acknowledge(sent[0]) == 0
    job.exhausted = True
    assert bench.acknowledge(sent[1]) == 0
    bench.send(other)
    assert bench.acknowledge(sent[2]) == 1 << job.copy.slot
    assert list(bench.outbox.jobs.values()) == [other]


def test_an_acknowledgement_of_nothing_that_is_out_changes_nothing() -> None:
    bench = Bench()
    sent = bench.send(bench.job(), 3)
    window = bench.outbox.recovery.window.nbytes
    assert bench.outbox.acknowledge(1_000, 0b1111, 0) == 0
    assert bench.outbox.acknowledge(0, 0, 0) == 0
    assert (bench.outbox.recovery.window.nbytes, list(bench.outbox.recovery.in_flight)) == (window, sent)


def test_a_message_that_left_the_cache_is_not_sent_any_more() -> None:
    bench = Bench()
    gone, kept = bench.job(), bench.job()
    sent = bench.send(gone, 6)
    bench.send(kept)
    bench.acknowledge(*sent[3:])
    bench.outbox.cancel(gone.copy.slot)
    bench.outbox.cancel(999)
    assert (bench.retried(), bench.outbox.recovery.bytes_in_flight) == ([], SIZE)
    assert [bench.outbox.pull(), bench.outbox.pull()] == [kept, None]


def test_what_was_lost_of_messages_that_are_gone_tells_no_round_trip() -> None:
    bench = Bench()
    job = bench.job()
    sent = bench.send(job)
    bench.outbox.time_out(bench.now)
    bench.outbox.cancel(job.copy.slot)
    timeout_us = bench.outbox.recovery.timeout_us
    bench.job()
    bench.now += 30_000_000
    bench.acknowledge(*sent)  # Each acknowledgement repeats what the last ones said.
    assert bench.outbox.recovery.timeout_us == timeout_us


def test_a_job_that_is_dropped_while_it_fills_the_window_lets_the_others_go_out_at_once() -> None:
    bench = Bench()
    unsent, gone, _ = bench.job(), bench.job(), bench.job()
    bench.outbox.cancel(unsent.copy.slot)
    assert bench.timers.due[SEND] == NEVER
    while bench.outbox.recovery.open:
        bench.send(gone)
    bench.outbox.cancel(gone.copy.slot)
    assert bench.outbox.recovery.bytes_in_flight < bench.outbox.recovery.window.nbytes
    assert bench.timers.due[SEND] <= bench.now


def test_a_new_contact_starts_afresh() -> None:
    bench = Bench()
    bench.send(bench.job(), 10)
    bench.outbox.time_out(500_000)
    bench.outbox.clear()
    assert (bench.outbox.recovery.window.nbytes, bench.outbox.recovery.bytes_in_flight, bench.retried()) == (
        INITIAL_WINDOW_BYTES,
        0,
        [],
    )
    assert bench.outbox.pull() is None


@pytest.mark.parametrize(("paper_mode", "waits"), [(False, False), (True, True)])
def test_stop_and_wait_is_for_paper_mode(paper_mode: bool, waits: bool) -> None:
    bench = Bench(paper_mode=paper_mode)
    assert not bench.outbox.waits_for_ack
    sent = bench.send(bench.job())
    assert bench.outbox.waits_for_ack is waits
    bench.acknowledge(*sent)
    assert not bench.outbox.waits_for_ack


def throughput(**link: float) -> float:
    """Bytes per second of a large message over a link with a round trip of 100 ms."""
    with testing.network("a", "b", delay_s=0.05) as net:
        net.subscribe("b", "film")
        net.publish("a", "film", testing.Blank(2_000_000))
        net.link("a", "b", **link)  # type: ignore[arg-type]
        while not net.deliveries("b"):
            net.advance(1)
            assert net.now < 600
        return 2_000_000 / net.deliveries("b")[0].time


def test_a_clean_link_is_filled_and_a_lossy_one_is_used_with_care() -> None:
    clean, lossy, bad = throughput(), throughput(loss=0.02), throughput(loss=0.2)
    assert clean > 1_000_000
    assert clean > 2 * lossy > 4 * bad > 20_000

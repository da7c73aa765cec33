"""Throughput along a chain of nodes, beside a program that only relays (JOMS-15 figure 5).

Nodes A, B, C and D are in a line, each in its own network namespace; messages are deposited at B, C or D, and an
application at A receives them. Every interface has a limited bit rate (tbf at its root, as a radio limits its sender),
both ways. Beside carrypost, and in turn with it on the same links, runs a reference application that relays whole
messages over UDP with the same length of datagrams, without security and without a disk.

With `--queue`, programs of the Context API send and receive PERSISTENT messages on signed nodes: once to a topic, and
once to a queue of the node at which they are deposited, as in the paper, whose curves of the two coincide. The paper
does not state the rate of its links. Here five programs share the processors, while each netbook of the paper had its
own; with a queue they get links of half the rate, so that links are compared.

With `--island`, messages list A as their recipient, and are sent straight through the island, along relays that neither
store nor check them; beside them run the reference, and signed nodes that pass messages from hand to hand.

With `--closed`, signed nodes run beside members of a closed network, whose datagrams are protected.

*Saturated*: a batch is deposited while its source hears no node, and the contact begins afterwards; payload by time
between the first and the last arrival, and the whole batch by time since its source began to send. *One at a time*:
payload by time from deposit to arrival, all nodes in contact, as in the paper.

Run: carrypost bench chain [--quick] [--queue] [--island] [--closed] [--json] [--hops 1 3] [--sizes 1000 100000]
     [--rounds 5]
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks._processes import (
    CIRCLE,
    CLOSED_GOAL,
    BenchmarkError,
    Row,
    Worker,
    interface_counters,
    member,
    say,
    scratch,
    settings_file,
    start,
    without_namespaces,
)

from benchmarks import _report
from tools import netns

NAMES: Final = "ABCD"
KINDS: Final = ("reference", "signed", "off")
PROGRAMS: Final = ("topic", "queue")
"""Kinds with `--queue`."""
STRAIGHT: Final = ("reference", "signed", "island")
"""Kinds with `--island`."""
PROTECTED: Final = ("signed", "closed")
"""Kinds with `--closed`."""
ISLAND_GOALS: Final = (("large", 90.0), ("small", 70.0))
"""Percent of the reference's throughput, by length."""
ISLAND_TIME_MAX: Final = 0.6
ISLAND_CPU_MAX: Final = 0.5
"""Largest ratio to messages that are passed from hand to hand: time of one of 1,000 bytes, and CPU time of relays."""
QUEUE_GOAL: Final = 90.0
"""Percent of a topic's throughput that a queue is to have."""
SIZES: Final = (1_000, 10_000, 100_000, 1_000_000, 2_500_000)
LARGE_BYTES: Final = 100_000
RATE: Final = 20_000_000
QUEUE_RATE: Final = 10_000_000
"""Bits per second of a link, the second with `--queue`."""
GOALS: Final = (("signed", "small", 75.0), ("off", "small", 85.0), ("signed", "large", 95.0), ("off", "large", 95.0))
PORTS: Final = {
    "reference": 17_300,
    "signed": 17_301,
    "off": 17_302,
    "topic": 17_303,
    "queue": 17_304,
    "island": 17_305,
    "closed": 17_306,
}
BATCH_MIN: Final = 4
SETTINGS: Final = {"cache_messages_max": 200_000, "cache_bytes_max": 2**30}
"""Room for all batches of a run."""
REVIEW_S: Final = 60.0
"""Interval at which sets are compared again, as by default, however often nodes announce themselves."""


@dataclass(frozen=True)
class Options:
    """The options of the measurement."""

    hops: Sequence[int] = (1, 2, 3)
    sizes: Sequence[int] = SIZES
    rounds: int = 3
    singles: int = 5
    """Number of messages sent one at a time, per round."""
    batch_s: float = 3.0
    """Time for which a batch fills the link."""
    bits_per_s: int = RATE
    kinds: Sequence[str] = KINDS
    announce_s: float = 0.3
    """Longest period of announcements; after three of them a source that hears no node is alone."""

    def count(self, size: int) -> int:
        """Messages in a batch."""
        return max(BATCH_MIN, round(self.bits_per_s / 8 * self.batch_s / size))


@dataclass(frozen=True)
class Batch:
    """The result of one batch."""

    kilobytes_per_s: float
    """Between the first and the last arrival."""
    whole_kilobytes_per_s: float
    """Rate from the first byte that its source sent to the last arrival."""
    ahead: float
    """Bytes on a link for each 1,000 of payload, toward A."""
    back: float
    """Bytes sent by A."""
    cpu_ms_per_megabyte: float
    relays_ms_per_megabyte: float
    """Part of it that relays between A and the source take."""
    cores: float
    """Cores that all programs kept busy meanwhile."""
    busiest: float
    """Share of a core that the busiest program had, in percent."""


@dataclass
class Chain:
    """The links of one number of hops, and the programs on them."""

    net: netns.Net
    cables: list[netns.Cable]
    programs: dict[str, list[Worker]] = field(default_factory=dict)
    """By kind, A first."""
    batches: int = 0
    queue: str = ""
    """Name of the queue of the source."""
    recipient: str = ""
    """The node id of A, if messages go straight to it."""

    def start(self, kind: str) -> None:
        """Let A receive, once its programs run."""
        programs = self.programs[kind]
        first, source = programs[0], programs[-1]
        if kind == "queue":
            self.queue = source.ask("declare", name="chain")["queue"]
        if kind in PROGRAMS:
            first.ask("receive", **self._destination(kind))
        elif kind != "reference":
            first.ask("subscribe", pattern="chain/.*")
        if kind == "island":
            self.recipient = first.ask("status")["node"]
        self.join(kind)

    def _destination(self, kind: str) -> dict[str, Any]:
        return {"queue": self.queue} if kind == "queue" else {"topic": "chain"}

    def _deposit(self, kind: str, size: int, count: int, place: object) -> dict[str, Any]:
        source = self.programs[kind][-1]
        if kind in PROGRAMS:
            return source.ask("deposit", size=size, count=count, **self._destination(kind))
        recipients = [self.recipient] if kind == "island" else []
        return source.ask("publish", size=size, count=count, destination=f"chain/{place}", recipients=recipients)

    def counters(self) -> tuple[int, int]:
        """Return the bytes sent so far on all links: toward A, and from it."""
        ahead = sum(interface_counters(self.net, cable.ends[1])["tx_bytes"] for cable in self.cables)
        return ahead, sum(interface_counters(self.net, cable.ends[0])["tx_bytes"] for cable in self.cables)

    def close_gate(self, kind: str) -> None:
        """Isolate the source: it hears no node, and is no node's neighbour."""
        programs = self.programs[kind]
        if kind != "reference":
            programs[-1].ask("gate", hear=[])
            programs[-1].ask("linked", count=0)
            programs[-2].ask("linked", count=min(1, len(programs) - 2))

    def join(self, kind: str) -> None:
        """Wait until each node is in contact with the next."""
        programs = self.programs[kind]
        if kind != "reference":
            for place, program in enumerate(programs):
                program.ask("linked", count=1 if place in {0, len(programs) - 1} else 2)
        if kind == "island":
            programs[-1].ask("reached", count=len(programs) - 1)

    def batch(self, kind: str, size: int, count: int) -> Batch:
        """Let A receive this many messages that were deposited before, and measure everything."""
        programs = self.programs[kind]
        first, source = programs[0], programs[-1]
        self.close_gate(kind)
        self.batches += 1
        if kind != "reference":
            self._deposit(kind, size, count, self.batches)
        first.order("await", count=count)
        sent, cpu_s = self.counters(), [program.cpu_s for program in programs]
        if kind == "reference":
            sending_s = source.ask("send", size=size, count=count)["began_s"]
        else:
            source.ask("gate", hear=None)
            sending_s = source.ask("sending")["began_s"]
        arrivals = _checked(first.answer(patience_s=120), size, count)
        spent_s = [program.cpu_s - before for program, before in zip(programs, cpu_s, strict=True)]
        ahead, back = (after - before for after, before in zip(self.counters(), sent, strict=True))
        began_s, ended_s = arrivals[0][0], arrivals[-1][0]
        payload = sum(length for when_s, length in arrivals if when_s > began_s)
        whole = size * count
        links = len(self.cables)
        return Batch(
            payload / (ended_s - began_s) / 1e3, whole / (ended_s - sending_s) / 1e3, ahead / whole / links * 1e3,
            back / whole / links * 1e3, sum(spent_s) / whole * 1e9, sum(spent_s[1:-1]) / whole * 1e9,
            sum(spent_s) / (ended_s - sending_s),
            max(spent_s) / (ended_s - sending_s) * 100,
        )  # fmt: skip

    def single(self, kind: str, size: int) -> float:
        """Return the kilobytes per second of one message, from its deposit to its arrival."""
        first, source = self.programs[kind][0], self.programs[kind][-1]
        first.order("await", count=1)
        if kind == "reference":
            began = source.ask("send", size=size, count=1)
        else:
            began = self._deposit(kind, size, 1, "single")
        arrivals = _checked(first.answer(), size, 1)
        return size / (arrivals[0][0] - float(began["began_s"])) / 1e3


def _checked(answer: dict[str, Any], size: int, count: int) -> list[tuple[float, int]]:
    arrivals = [(float(when_s), int(length)) for when_s, length in answer["arrivals"]]
    if [length for _, length in arrivals] != [size] * count:
        raise BenchmarkError(f"{count} messages of {size} bytes were sent, and {len(arrivals)} came")
    return arrivals


@contextlib.contextmanager
def chain(hops: int, options: Options, folder: Path) -> Iterator[Chain]:
    """Yield the links and programs of this many hops."""
    names = NAMES[: hops + 1]
    with netns.Net() as net, contextlib.ExitStack() as exits:
        net.add(*names)
        cables = [net.cable(nearer, farther, v6=False) for nearer, farther in pairwise(names)]
        for cable in cables:
            cable.rate(options.bits_per_s)
        made = Chain(net, cables)
        for kind in options.kinds:
            programs = made.programs[kind] = []
            code = ""
            for place, name in enumerate(names):
                if kind == "reference":
                    command = _reference(cables, place)
                else:
                    file = _settings(kind, folder / f"{kind}-{name}", options, place)
                    code = member(file, code) if kind == "closed" else ""
                    command = ["_worker.py", str(file)]
                worker = start(f"{kind} {name}", command, net=net, namespace=name)
                programs.append(exits.enter_context(worker))
        for kind, programs in made.programs.items():
            for program in programs:
                program.answer()
            made.start(kind)
        yield made


def _reference(cables: Sequence[netns.Cable], place: int) -> list[str]:
    toward = [cables[place - 1].ends[0].addresses[0].partition("/")[0]] if place else []
    return ["_reference.py", str(PORTS["reference"]), *toward]


def _settings(kind: str, folder: Path, options: Options, place: int) -> Path:
    return settings_file(
        folder, **SETTINGS, security="off" if kind == "off" else "signed", altruistic=place > 0 and kind != "island",
        island=kind == "island", sealing={"closed": CIRCLE if kind == "closed" else ""},
        announce_s_min=options.announce_s / 3, announce_s_max=options.announce_s,
        digest_every=round(REVIEW_S / options.announce_s), udp={"port": PORTS[kind]},
    )  # fmt: skip


def measure(options: Options, folder: Path) -> tuple[list[Row], list[Row]]:
    """Return the rows of both tables."""
    saturated: list[Row] = []
    singles: list[Row] = []
    for hops in options.hops:
        with chain(hops, options, folder / str(hops)) as made:
            for size in options.sizes:
                batches, alone = _rounds(made, hops, size, options)
                saturated.append(_saturated_row(hops, size, options.count(size), batches))
                singles.append(_single_row(hops, size, alone))
    return saturated, singles


def _rounds(
    made: Chain, hops: int, size: int, options: Options
) -> tuple[dict[str, list[Batch]], dict[str, list[float]]]:
    """Measure all kinds in turn, several times."""
    batches: dict[str, list[Batch]] = defaultdict(list)
    alone: dict[str, list[float]] = defaultdict(list)
    for number in range(options.rounds):
        for kind in options.kinds:
            batches[kind].append(made.batch(kind, size, options.count(size)))
            made.join(kind)
            alone[kind] += [made.single(kind, size) for _ in range(options.singles)]
        shown = ", ".join(
            f"{kind} {batches[kind][-1].kilobytes_per_s:,.0f} and {statistics.median(alone[kind]):,.0f}"
            for kind in options.kinds
        )
        say(f"{hops} hops, {size:,} bytes, round {number + 1} of {options.rounds}, kB/s in batches and alone: {shown}")
    return batches, alone


def _median(batches: Sequence[Batch], what: str) -> float:
    return float(statistics.median(getattr(batch, what) for batch in batches))


def _saturated_row(hops: int, size: int, count: int, batches: dict[str, list[Batch]]) -> Row:
    base, *others = kinds = list(batches)
    row: dict[str, object] = {"hops": hops, "bytes": size, "messages": count}
    for name, what in (("", "kilobytes_per_s"), ("whole ", "whole_kilobytes_per_s")):
        rate = {kind: _median(batches[kind], what) for kind in kinds}
        row |= {f"{kind} {name}kB/s": rate[kind] for kind in kinds}
        row |= {f"{kind} {name}%": rate[kind] / rate[base] * 100 for kind in others}
    row |= {f"{kind} wire": _median(batches[kind], "ahead") for kind in kinds}
    row |= {f"{kind} back": _median(batches[kind], "back") for kind in kinds}
    row |= {f"{kind} CPU ms/MB": _median(batches[kind], "cpu_ms_per_megabyte") for kind in kinds}
    row |= {f"{kind} relays' CPU ms/MB": _median(batches[kind], "relays_ms_per_megabyte") for kind in kinds}
    row |= {f"{kind} cores": _median(batches[kind], "cores") for kind in kinds}
    row |= {f"{kind} busiest %": _median(batches[kind], "busiest") for kind in kinds}
    return row


def _single_row(hops: int, size: int, alone: dict[str, list[float]]) -> Row:
    base, *others = kinds = list(alone)
    rate = {kind: statistics.median(alone[kind]) for kind in kinds}
    row: dict[str, object] = {"hops": hops, "bytes": size, "rounds": len(alone[base])}
    row |= {f"{kind} kB/s": rate[kind] for kind in kinds}
    row |= {f"{kind} ms": size / rate[kind] for kind in kinds}
    row |= {f"{kind} %": rate[kind] / rate[base] * 100 for kind in others}
    return row


def queue_goal_rows(saturated: Sequence[Row], singles: Sequence[Row]) -> list[Row]:
    """Return the ratio of a queue to a topic, with its goal."""
    shares = [("saturated", row, _share(row, "queue")) for row in saturated]
    for row in singles:
        sizes = "from" if int(str(row["bytes"])) >= LARGE_BYTES else "below"
        shares.append((f"one at a time, {sizes} {LARGE_BYTES:,} bytes", row, float(str(row["queue %"]))))
    rows: list[Row] = []
    for what in dict.fromkeys(each[0] for each in shares):
        least, row = min(((share, row) for other, row, share in shares if other == what), key=lambda each: each[0])
        where = f"{row['bytes']:,} bytes, {row['hops']} hops"
        rows.append({"what": what, "goal %": QUEUE_GOAL, "least %": least, "where": where, "met": least >= QUEUE_GOAL})
    return rows


def island_goal_rows(saturated: Sequence[Row], singles: Sequence[Row]) -> list[Row]:
    """Return whether messages go straight as fast, and with as little work for relays, as they should."""
    rows: list[Row] = []
    for sizes, goal in ISLAND_GOALS:
        shares = [
            (_share(row, "island"), f"{row['bytes']:,} bytes, {row['hops']} hops")
            for row in saturated
            if (int(str(row["bytes"])) >= LARGE_BYTES) is (sizes == "large")
        ]
        if shares:
            worst, where = min(shares)
            what = f"{sizes} messages, % of the reference"
            rows.append({"what": what, "goal": goal, "found": worst, "where": where, "met": worst >= goal})
    for row in singles:
        if row["bytes"] == SIZES[0]:
            times = float(str(row["island ms"])) / float(str(row["signed ms"]))
            what, where = "one at a time, times those handed on", f"{row['bytes']:,} bytes, {row['hops']} hops"
            rows.append(
                {"what": what, "goal": ISLAND_TIME_MAX, "found": times, "where": where, "met": times <= ISLAND_TIME_MAX}
            )
    for row in saturated:
        handed_on = float(str(row["signed relays' CPU ms/MB"]))
        if handed_on:
            times = float(str(row["island relays' CPU ms/MB"])) / handed_on
            what, where = "CPU of relays, times", f"{row['bytes']:,} bytes, {row['hops']} hops"
            rows.append(
                {"what": what, "goal": ISLAND_CPU_MAX, "found": times, "where": where, "met": times <= ISLAND_CPU_MAX}
            )
    return rows


def closed_goal_rows(saturated: Sequence[Row]) -> list[Row]:
    """Return the CPU time of all nodes in a closed network, beside that of signed ones, with its goal."""
    rows: list[Row] = []
    for row in saturated:
        times = float(str(row["closed CPU ms/MB"])) / float(str(row["signed CPU ms/MB"]))
        met = times <= CLOSED_GOAL
        rows.append({"hops": row["hops"], "bytes": row["bytes"], "times": times, "goal": CLOSED_GOAL, "met": met})
    return rows


def goal_rows(saturated: Sequence[Row]) -> list[Row]:
    """Return the use of a saturated link, with its goal."""
    rows: list[Row] = []
    for kind, sizes, goal in GOALS:
        shares = [
            (_share(row, kind), f"{row['bytes']:,} bytes, {row['hops']} hops")
            for row in saturated
            if (int(str(row["bytes"])) >= LARGE_BYTES) is (sizes == "large")
            and (sizes == "large" or row["bytes"] == SIZES[0])
        ]
        if shares:
            worst, where = min(shares)
            what = f"{kind}, from {LARGE_BYTES:,} bytes" if sizes == "large" else f"{kind}, {SIZES[0]:,} bytes"
            rows.append({"what": what, "goal %": goal, "least %": worst, "where": where, "met": worst >= goal})
    return rows


def _share(row: Row, kind: str) -> float:
    """Return the rate as a percentage of the reference, between the first and the last arrival.

    Relays forward the received part of a large message, so that several may arrive close together. Where that gives
    more than the link can carry, the whole batch counts.
    """
    share = float(str(row[f"{kind} %"]))
    return share if share <= 100 else min(share, float(str(row[f"{kind} whole %"])))


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    parser = _report.parser("chain", str(__doc__).split("\n\n", maxsplit=1)[0], "--hops 1 2 --rounds 1 --json")
    parser.add_argument("--quick", action="store_true", help="one hop, two sizes, in a few seconds")
    parser.add_argument("--queue", action="store_true", help="a queue beside a topic, in place of the reference")
    parser.add_argument("--island", action="store_true", help="messages that go straight to A, beside those handed on")
    parser.add_argument("--closed", action="store_true", help="protected datagrams, beside signed nodes without")
    parser.add_argument("--hops", type=int, nargs="+", choices=(1, 2, 3), default=(1, 2, 3), help="chains to measure")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES", help="payloads to measure")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="batches per point, of each kind in turn")
    parser.add_argument("--singles", type=int, default=5, metavar="N", help="messages one at a time, per round")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="how long a batch fills the link")
    parser.add_argument(
        "--rate", type=int, metavar="BITS", help=f"bits per second of every link ({RATE:,}; --queue: {QUEUE_RATE:,})"
    )
    given = parser.parse_args(argv)
    rate = given.rate if given.rate is not None else QUEUE_RATE if given.queue else RATE
    if min(given.rounds, given.singles, rate, *given.sizes) < 1 or given.seconds <= 0:
        parser.error("--rounds, --singles, --rate, --sizes and --seconds must be more than nothing")
    if given.queue + given.island + given.closed > 1:
        parser.error("--queue, --island and --closed are three measurements")
    kinds = PROGRAMS if given.queue else STRAIGHT if given.island else PROTECTED if given.closed else KINDS
    options = Options(given.hops, given.sizes, given.rounds, given.singles, given.seconds, rate, kinds)
    if given.quick:
        options = Options((1,), (1_000, 100_000), 1, 1, 0.2, rate, kinds, announce_s=0.1)
    if reason := without_namespaces("chain"):
        say(reason)
        return 1
    try:
        with scratch() as folder:
            saturated, singles = measure(options, folder)
    except (netns.NetError, BenchmarkError) as error:
        say(f"carrypost bench chain: {error}")
        return 1
    show = partial(_report.show, json=given.json)
    base = "a topic" if given.queue else "signed nodes" if given.closed else "the reference"
    show(
        f"Saturated: batches on links of {options.bits_per_s / 1e6:g} Mbit/s, median of {options.rounds}; % of "
        f"{base}; whole: from the first byte sent to the last arrival; wire and back: bytes on a link for each 1,000 "
        "of payload, toward A and from A; CPU of all programs of the chain, how many cores were busy with it, and the "
        f"share of one that the busiest program had; this machine has {os.cpu_count()}",
        saturated,
    )
    show(f"One at a time: from deposit to arrival, median; % of {base}", singles)
    if given.queue:
        show("Goals: a queue's throughput, % of a topic's", queue_goal_rows(saturated, singles))
    elif given.island:
        show("Goals: straight through the island", island_goal_rows(saturated, singles))
    elif given.closed:
        show("Goals: CPU time in a closed network, beside an open one", closed_goal_rows(saturated))
    else:
        show("Goals: saturated links, % of the reference", goal_rows(saturated))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

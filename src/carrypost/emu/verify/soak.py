"""The search for rare faults: random scenarios, each run and checked; a failure is reported with the line to repeat it.

A run fails if it raises, if its record breaks an invariant (`carrypost.emu.verify.invariants`), if an ideal one that
nothing disturbs does not reach the flood bound, or if letting every frame go through its bytes changes the record. With
messaging it also fails if a program was handed what it must not have, or not what it must; with channels if events do
not arrive although all nodes are connected for long. The same seed draws the same
scenario and gives the same run.
"""

from __future__ import annotations

import contextlib
import json as jsons
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from carrypost.emu.engine.driver import EmulatedDriver
from carrypost.emu.engine.world import MakeApplication
from carrypost.emu.rows import Log, log_of
from carrypost.emu.runs import run
from carrypost.emu.scenario import Scenario
from carrypost.emu.verify.facts import Facts
from carrypost.emu.verify.invariants import check, listed
from carrypost.emu.verify.order import undelivered
from carrypost.emu.verify.programs import Programs
from carrypost.emu.verify.random_scenarios import (
    ADDRESSED,
    CHANNELS,
    MESSAGING,
    ORDER,
    PLAIN,
    SETTLED_S,
    Drawn,
    draw,
    draw_addressed,
    draw_channels,
    draw_ordered,
)
from carrypost.log.events import Event
from carrypost.log.record import Kind
from carrypost.model.descriptor import Ordering
from carrypost.model.times import MICROSECONDS

ENCODED_EVERY = 10
"""Seeds per seed that is run a second time, with every frame going through its bytes."""
_FAILED, _DONE, _INTERRUPTED = 1, 0, 130
_SEEN_MIN = 1_000
"""Hosts that may remember fewer ids than this forget some that were acknowledged."""


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """The result of one seed."""

    seed: int
    rows: int
    received: int
    problems: tuple[str, ...]
    """Empty: all is well."""


def soak(seeds: Iterable[int], family: str = PLAIN, *, jobs: int = 1) -> Iterator[SeedOutcome]:
    """Try these seeds of a family, one after the other; with several jobs in as many processes."""
    one = partial(attempt, family=family)
    if jobs <= 1:
        yield from map(one, seeds)
        return
    with _signals_held():
        pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
        outcomes = pool.map(one, seeds, chunksize=4)
    try:
        yield from outcomes
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Ctrl-C and a closed terminal reach all its processes; those begun here never see it, since this one ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def draw_messaging(seed: int) -> Drawn:
    """Return the scenario of a seed in which programs use messaging; every second one has ordered topics."""
    return replace(draw(seed) if seed % 2 else draw_ordered(seed), family=MESSAGING)


DRAWS: Mapping[str, Callable[[int], Drawn]] = {
    PLAIN: draw, ORDER: draw_ordered, MESSAGING: draw_messaging, ADDRESSED: draw_addressed, CHANNELS: draw_channels,
}  # fmt: skip
"""Functions that draw the scenario of a seed, by family."""


class Watched:
    """The findings of programs in the runs of one scenario."""

    def __init__(self, drawn: Drawn, scenario: Path) -> None:
        read = Scenario.load(scenario)
        self._make = partial(
            Programs,
            seed=drawn.seed,
            orderings=[Ordering.named(each.ordering) for each in read.workloads],
            calm=drawn.exact,
            forgetful=read.settings.limits.seen_max < _SEEN_MIN,
        )
        self._made: list[Programs] = []

    def __call__(self, topics: Sequence[str], observe: Callable[[EmulatedDriver, Event], None]) -> Programs:
        """Make the programs of another run."""
        self._made.append(self._make(topics, observe))
        return self._made[-1]

    def problems(self) -> list[str]:
        """Return the complaints of the programs of the run that is over."""
        programs = self._made.pop()
        programs.finish()
        return programs.problems


def attempt(seed: int, family: str = PLAIN) -> SeedOutcome:
    """Draw, run and check one scenario."""
    drawn = DRAWS[family](seed)
    with tempfile.TemporaryDirectory(prefix="carrypost-soak-") as folder:
        scenario = drawn.write(Path(folder))
        watched = Watched(drawn, scenario) if family == MESSAGING else None
        application: MakeApplication | None = watched
        try:
            table = run(scenario, seed, application=application).table
            log = log_of(table)
            problems = [str(each) for each in check(table)]
            if watched is not None:
                problems += watched.problems()
            if drawn.exact:
                problems += _unsettled(log) if family == CHANNELS else _missed(log)
            encoded = seed % ENCODED_EVERY == 0
            if encoded and not run(scenario, seed, encoded=True, application=application).table.equals(table):
                problems.append("frames that go through their bytes give another record")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the search is for
            where = traceback.format_exception(error)
            return SeedOutcome(seed, 0, 0, (f"{type(error).__name__}: {error}", "".join(where).rstrip()))
    return SeedOutcome(seed, len(log), len(log.of(Kind.RECEIVE)), tuple(problems))


def _missed(log: Log) -> list[str]:
    """Receptions that a flood reaches and the run did not; of messages that list recipients, those of recipients."""
    rows = log.of(Kind.RECEIVE)
    pairs = zip(log.message[rows].tolist(), log.node[rows].tolist(), strict=True)
    reached = {(log.messages[message], log.nodes[node]) for message, node in pairs}
    wanted = {log.messages[log.message[row]]: named for row, named in listed(log).items()}
    bound = {(message, node) for message, node in Facts(log).bound if node in wanted.get(message, (node,))}
    missed = sorted(bound - reached)
    found = [
        f"{node}: {message} was never received, although a flood would have delivered it"
        for message, node in missed[:5]
    ]
    return [*found, f"{len(missed):,} receptions missed in all"] if missed else []


def _unsettled(log: Log) -> list[str]:
    """Return events that should have reached their consumers by the end of a run with channels."""
    facts = Facts(log)
    return undelivered(facts, round((facts.in_force["duration_s"] - SETTLED_S) * MICROSECONDS))


def replay(seed: int, family: str = PLAIN) -> str:
    """Return the command that runs one seed again."""
    return f"carrypost emu soak --first {seed} --seeds 1{'' if family == PLAIN else f' --{family}'}"


def main(
    seeds: int, first: int = 1, family: str = PLAIN, *, jobs: int = 1, json: bool = False, out: Path | None = None
) -> int:
    """Run the command: try seeds, report failures, keep their scenarios below `out`; return an exit code."""
    failed: list[int] = []
    tried = rows = received = 0
    with contextlib.suppress(KeyboardInterrupt):
        for outcome in soak(range(first, first + seeds), family, jobs=jobs):
            tried += 1
            rows += outcome.rows
            received += outcome.received
            if outcome.problems:
                failed.append(outcome.seed)
                _report(outcome, DRAWS[family](outcome.seed), out or Path(), json=json)
            _progress(tried, seeds, len(failed))
    figures = {"tried": tried, "failed": failed, "rows": rows, "received": received}
    if json:
        _print(jsons.dumps(figures))
    else:
        verdict = f"failed: {', '.join(map(str, failed))}" if failed else "none failed"
        ended = f" of {seeds:,}" if tried < seeds else ""
        _print(f"{tried:,}{ended} seeds from {first}, {rows:,} rows, {received:,} receptions; {verdict}")
    if failed:
        return _FAILED
    return _INTERRUPTED if tried < seeds else _DONE


def _report(outcome: SeedOutcome, drawn: Drawn, out: Path, *, json: bool) -> None:
    """Print what is wrong, and how to see it again; the scenario is kept."""
    scenario = drawn.write(out / f"{drawn.family}-{drawn.seed}")
    ways = {"replay": replay(drawn.seed, drawn.family)}
    if drawn.family != MESSAGING:  # The emulator's nodes have no programs but in a search.
        record = scenario.with_name("records.parquet")
        ways["run"] = f"carrypost emu run {scenario} --seed {outcome.seed} --out {record}"
    if json:
        _print(jsons.dumps(asdict(outcome) | ways, ensure_ascii=False))
        return
    _print(f"seed {outcome.seed} FAILED")
    for problem in outcome.problems:
        _print("  " + problem.replace("\n", "\n  "))
    _print("  again: " + "\n     or: ".join(ways.values()))


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what the command has found


def _progress(tried: int, seeds: int, failed: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if tried == seeds else ""
        print(f"\r{tried:,} of {seeds:,} seeds, {failed} failed", end=end, file=sys.stderr, flush=True)  # noqa: T201

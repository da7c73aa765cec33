"""Reception by a real node: signed messages that are verified and stored, per CPU second of the receiver.

Two nodes run in their own processes, on loopback, with their sockets and disks. One has published messages of 1,000
bytes; the other hears no node until all is ready, then the two meet. *consumer*: a program that owns the node reads
every payload and confirms it. *carrier*: the node carries the messages for others. CPU time is that of the receiver's
process, all threads, in user and kernel mode. The floor is the unavoidable work: verifying one signature and committing
the same rows to SQLite, measured in the same run.

With `--closed`, further nodes are members of a closed network, and receive protected datagrams in turn with the others.

Run: carrypost bench node [--quick] [--json] [--profile] [--trace] [--closed] [--messages 12000] [--repeats 3]
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks._processes import (
    CIRCLE,
    CLOSED_GOAL,
    BenchmarkError,
    Row,
    Worker,
    free_port,
    member,
    say,
    scratch,
    settings_file,
    start,
)

from benchmarks import _report
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.node.store import tables
from carrypost.security.identity import Identity, verify

SIZE_BYTES: Final = 1_000
GOAL: Final = 4_000
DESTINATION: Final = "news"
ROLES: Final = ("consumer", "carrier")
TRACED: Final = ", traced"
"""Added to the role of a receiver that keeps the history of messages."""
CLOSED: Final = ", closed"
"""Added to the role of a receiver in a closed network."""
VERIFICATIONS: Final = 2_000
_ROW_BYTES: Final = 320
"""About what a message's row has beside its payload: descriptor, signature, and when it came."""


@dataclass(frozen=True)
class Reception:
    """The result of one meeting."""

    cpu_s: float
    wall_s: float
    sender_cpu_s: float
    per_commit: float
    """Messages per transaction of the receiver's store."""
    areas: dict[str, float]


class Meeting:
    """A node that has published, and receivers that meet it, one after the other."""

    def __init__(self, folder: Path, messages: int, *, profile: bool, closed: bool) -> None:
        self._folder = folder
        self._messages = messages
        self._profile = profile
        self._port = free_port()
        self._receivers = 0
        self._closed, self._code = closed, ""
        self.sender = self._start("sender")
        self.sender.answer()

    def _start(
        self, name: str, *arguments: str, altruistic: bool = False, traced: bool = False, **udp: object
    ) -> Worker:
        file = settings_file(
            self._folder / name,
            altruistic=altruistic,
            cache_messages_max=max(20_000, 2 * self._messages),
            announce_s_min=0.1,
            announce_s_max=0.5,
            udp={"port": self._port, "interfaces": ["lo"], **udp},
            trace={"enabled": traced},
            sealing={"closed": CIRCLE if self._closed else ""},
        )
        if self._closed:
            self._code = member(file, self._code)
        return start(name, ["_worker.py", str(file), *arguments])

    def publish(self) -> float:
        """Fill the sender; CPU seconds that took."""
        asked = self.sender.ask(
            "publish", size=SIZE_BYTES, count=self._messages, destination=DESTINATION, patience_s=300
        )
        return float(asked["cpu_s"])

    def receive(self, role: str) -> Reception:
        """Let a new node meet the sender, until it has everything."""
        self._receivers += 1
        role = role.removesuffix(CLOSED)
        traced, role = role.endswith(TRACED), role.removesuffix(TRACED)
        arguments = ["--profile"] if self._profile else []
        name = f"{role}-{self._receivers}"
        with self._start(name, *arguments, altruistic=role == "carrier", traced=traced, hear=[]) as receiver:
            receiver.answer()
            if role == "consumer":
                receiver.ask("subscribe", pattern=DESTINATION)
            if self._profile:
                receiver.ask("profile")
            cpu_s, sender_cpu_s, began_s = receiver.cpu_s, self.sender.cpu_s, time.monotonic()
            receiver.ask("gate", hear=None)
            receiver.ask("await" if role == "consumer" else "held", count=self._messages, patience_s=300)
            wall_s, spent_s = time.monotonic() - began_s, receiver.cpu_s - cpu_s
            commits = receiver.ask("status")["store"]["commits"]
            areas = receiver.ask("areas") if self._profile else {}
            sender_s = self.sender.cpu_s - sender_cpu_s
        return Reception(spent_s, wall_s, sender_s, self._messages / max(1, commits), areas)


def verify_us() -> float:
    """Return the CPU microseconds of one verification."""
    identity = Identity.derived(1, "a")
    made = Descriptor(
        identity.author, 1, 1, 0, None, DESTINATION, SIZE_BYTES, SIZE_BYTES, PayloadCodec.PLAIN, bytes(32), 1024
    )
    signed = identity.sign(made)
    began = time.process_time()
    for _ in range(VERIFICATIONS):
        verify(signed)
    return (time.process_time() - began) / VERIFICATIONS * 1e6


def commit_us(path: Path, messages: int, per_commit: int) -> float:
    """Return the CPU microseconds per message to commit its rows, with several messages in one transaction."""
    connection = tables.open_writer(path)
    body, value, name = os.urandom(SIZE_BYTES), os.urandom(_ROW_BYTES), os.urandom(16)
    began = time.process_time()
    for first in range(0, messages, per_commit):
        numbers = range(first, min(first + per_commit, messages))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO message VALUES (?,?,?,?)", [(n, name, b"\x01", value) for n in numbers])
        connection.executemany("INSERT INTO piece VALUES (?,?)", [(n << tables.PIECE_BITS, body) for n in numbers])
        connection.execute("COMMIT")
    spent_s = time.process_time() - began
    connection.close()
    return spent_s / messages * 1e6


def role_row(role: str, messages: int, receptions: Sequence[Reception], floor_us: float) -> Row:
    """Return the row of one kind of receiver."""
    cpu_s = statistics.median(each.cpu_s for each in receptions)
    cost_us = cpu_s / messages * 1e6
    return {
        "receiver": role,
        "messages": messages,
        "µs a message": cost_us,
        "messages/CPU s": 1e6 / cost_us,
        "goal": GOAL,
        "met": 1e6 / cost_us >= GOAL,
        "times floor": cost_us / floor_us,
        "messages/s": messages / statistics.median(each.wall_s for each in receptions),
        "sender µs a message": statistics.median(each.sender_cpu_s for each in receptions) / messages * 1e6,
        "messages per commit": statistics.median(each.per_commit for each in receptions),
    }


def closed_row(role: str, protected: Sequence[Reception], plain: Sequence[Reception]) -> Row:
    """Return the row of one kind of receiver in a closed network, beside an open one."""
    closed_s, open_s = (statistics.median(each.cpu_s for each in some) for some in (protected, plain))
    times = closed_s / open_s
    return {"receiver": role, "times": times, "goal": CLOSED_GOAL, "met": times <= CLOSED_GOAL}


def area_rows(role: str, messages: int, receptions: Sequence[Reception]) -> list[Row]:
    """Return the CPU time of one kind of receiver by area."""
    areas = receptions[0].areas
    spent = {area: statistics.median(each.areas.get(area, 0.0) for each in receptions) for area in areas}
    whole_s = sum(spent.values())
    return [
        {
            "receiver": role,
            "area": area,
            "share %": seconds / whole_s * 100,
            "µs a message": seconds / messages * 1e6,
        }
        for area, seconds in sorted(spent.items(), key=lambda entry: -entry[1])
    ]


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    parser = _report.parser("node", str(__doc__).split("\n\n", maxsplit=1)[0], "--messages 20000 --profile")
    parser.add_argument("--quick", action="store_true", help="1,000 messages, once, in a few seconds")
    parser.add_argument("--profile", action="store_true", help="also show where the time goes; costs a little itself")
    parser.add_argument("--trace", action="store_true", help="also with the history of messages ([trace])")
    parser.add_argument("--closed", action="store_true", help="also in a closed network, with protected datagrams")
    parser.add_argument("--messages", type=int, default=12_000, metavar="N", help="messages of a meeting")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="meetings of each kind")
    given = parser.parse_args(argv)
    if min(given.messages, given.repeats) < 1:
        parser.error("--messages and --repeats must be at least 1")
    messages, repeats = (1_000, 1) if given.quick else (given.messages, given.repeats)
    kinds = ("", TRACED) if given.trace else ("",)
    roles = [f"{role}{kind}" for kind in (*kinds, *([CLOSED] if given.closed else [])) for role in ROLES]
    try:
        with scratch() as folder:
            publish_s, receptions = measure(folder, messages, repeats, roles, profile=given.profile)
            per_commit = max(1, round(statistics.median(each.per_commit for each in receptions["carrier"])))
            floors = {"verify": verify_us(), "commit": commit_us(folder / "bare.sqlite", messages, per_commit)}
    except BenchmarkError as error:
        say(f"carrypost bench node: {error}")
        return 1
    show = partial(_report.show, json=given.json)
    floor_us = sum(floors.values())
    show(
        f"Reception: signed messages of {SIZE_BYTES:,} bytes, CPU time of the receiver's process, median of {repeats}",
        [role_row(role, messages, receptions[role], floor_us) for role in roles],
    )
    if given.closed:
        rows = [closed_row(role, receptions[f"{role}{CLOSED}"], receptions[role]) for role in ROLES]
        show("Closed: CPU time of the receiver in a closed network, beside an open one", rows)
    if given.profile:
        rows = [row for role in roles for row in area_rows(role, messages, receptions[role])]
        show("Areas: where the receiver's CPU time goes", rows)
    show(
        "Floor: CPU µs a message of what cannot be avoided; publish is all that the sender did per message before",
        [{"verify": floors["verify"], "commit": floors["commit"], "publish": publish_s / messages * 1e6}],
    )
    return 0


def measure(
    folder: Path, messages: int, repeats: int, roles: Sequence[str], *, profile: bool
) -> tuple[float, dict[str, list[Reception]]]:
    """CPU seconds of all publications, and the receptions by role."""
    receptions: dict[str, list[Reception]] = {role: [] for role in roles}
    publish_s = 0.0
    with contextlib.ExitStack() as ending:
        meetings: dict[bool, Meeting] = {}
        for closed in sorted({role.endswith(CLOSED) for role in roles}, reverse=True):
            place = folder / ("closed" if closed else "open")
            meetings[closed] = Meeting(place, messages, profile=profile, closed=closed)
            ending.enter_context(meetings[closed].sender)
            say(f"publishing {messages:,} messages")
            publish_s = meetings[closed].publish()
        for number in range(repeats):
            for role in roles:
                found = meetings[role.endswith(CLOSED)].receive(role)
                receptions[role].append(found)
                rate = messages / found.cpu_s
                say(f"{role}, {number + 1} of {repeats}: {rate:,.0f} a CPU second, {found.wall_s:.1f} s")
    return publish_s, receptions


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

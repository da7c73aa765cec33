"""Cost of EMMA's parts: bytes of a contact under its strategy and ours, and of acknowledgements; how long copies stay.

Both hosts hold the same messages, and one of them some new ones. They meet under either strategy: ours compares digests
of the sets and offers new messages, EMMA's lists all. All frames between the two count that carry no message;
announcements and profiles, which are the same under both, do not. With many held messages and few new ones lists are
longer; *crossings* are the numbers of new messages from which on they are not.

Hosts that meet compare their acknowledgements, too. The next table has the bytes of that comparison if neither has
anything new. The last one has the time for which copies stay after the message was delivered to its last recipient
(`benchmarks._copy_seconds`).

Run: carrypost bench emma [--quick] [--strict] [--json]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from benchmarks._copy_seconds import LOADS, CopySeconds, after_delivery
from benchmarks._pair import Pair

from benchmarks import _report
from carrypost.config import Settings
from carrypost.gossip.wire.frames import CARRYING, kind_of

HELD, NEW = (100, 1_000), (0, 1, 10, 100)
CROSSINGS = (1_000, 10_000)
LISTED_GOAL = 8.5
"""Bytes of a list for each message."""
_GOALS = {(100, 0): 1.8, (100, 10): 1.0, (100, 100): 1.0}
"""Bytes under EMMA's strategy by those under ours, by messages held and new."""
ACKNOWLEDGED = (1, 100, 10_000)
ACKNOWLEDGEMENTS_GOAL = 40
"""Bytes of acknowledgements in a contact with nothing new: an XOR each way."""
COPY_SECONDS_GOAL = 1.3
"""Copy-seconds after the last delivery, by those in a flood of acknowledgements."""
_SEEDS = range(1, 6)
_STRATEGIES = ("exchange", "anti-entropy")
_HOUR_US = 3_600_000_000
_ELSEWHERE = {"Announce", "Profile", "ProfileRequest", *map(kind_of, CARRYING)}
_CONTACT_S, _APART_S, _AGREED_S = 10.0, 60.0, 100.0
_PAYLOAD = bytes(20)


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of one contact."""

    control: int
    listed: int
    """Of these, bytes of Summaries."""


@cache
def contact(strategy: str, held: int, new: int) -> Cost:
    """Let two hosts meet that both hold `held` messages, and one of them `new` ones."""
    settings = Settings.emulated(strategy=strategy, altruistic=True, cache_messages_max=4 * (held + new) + 1_000)
    pair = Pair(settings)
    for side in (pair.a, pair.b):
        side.host.subscribe("news", now=0)
    pair.meet(1)
    _publish(pair, held)
    pair.meet(1)
    pair.run(held)
    pair.meet(_CONTACT_S)
    pair.part(_APART_S)
    _publish(pair, new)
    meter = pair.meet(_CONTACT_S)
    pair.run(held + new)
    said = {name: nbytes for name, nbytes in meter.frame_bytes.items() if name not in _ELSEWHERE}
    return Cost(sum(said.values()), said.get("Summary", 0))


def _publish(pair: Pair, count: int) -> None:
    for _ in range(count):
        pair.a.host.publish("news", _PAYLOAD, now=pair.now)


def costs(held: Sequence[int]) -> Iterator[dict[str, object]]:
    """Rows of the table of costs."""
    for messages, new in product(held, NEW):
        ours, emma = contact("exchange", messages, new), contact("anti-entropy", messages, new)
        times, goal = emma.control / ours.control, _GOALS.get((messages, new))
        a_message = emma.listed / (messages + new)
        met = a_message <= LISTED_GOAL and (goal is None or times <= goal)
        yield {
            "held": messages, "new": new, "exchange bytes": ours.control, "anti-entropy bytes": emma.control,
            "times": times, "goal": goal, "list bytes a message": a_message, "met": met,
        }  # fmt: skip


def crossing(held: int) -> int:
    """Return from how many new messages on a list costs no more than comparing sets, to about a tenth."""
    low, high = 0, 1
    while not _is_cheaper(held, high):
        low, high = high, 2 * high
    while high - low > max(1, high // 10):
        middle = (low + high) // 2
        low, high = (low, middle) if _is_cheaper(held, middle) else (middle, high)
    return high


def _is_cheaper(held: int, new: int) -> bool:
    return contact("anti-entropy", held, new).control <= contact("exchange", held, new).control


def acknowledgements(messages: int) -> int:
    """Return the bytes of acknowledgements in a contact of hosts that know the same ones, of this many messages."""
    pair = Pair(Settings.emulated(cache_messages_max=messages + 1_000))
    pair.b.host.subscribe("news", now=0)
    pair.meet(1)
    for _ in range(messages):
        pair.a.host.publish("news", _PAYLOAD, recipients=["b"], lifetime_us=_HOUR_US, now=pair.now)
    pair.run(messages)
    pair.meet(_AGREED_S)
    assert pair.a.host.overview().messages == 0
    pair.part(_APART_S)
    said = pair.meet(_CONTACT_S).frame_bytes
    return said["AckList"] + said["AckRecord"]


def compared(acknowledged: Sequence[int]) -> Iterator[dict[str, object]]:
    """Rows of the table of acknowledgements."""
    for messages in acknowledged:
        nbytes = acknowledgements(messages)
        met = nbytes <= ACKNOWLEDGEMENTS_GOAL
        yield {"messages acknowledged": messages, "bytes": nbytes, "goal": ACKNOWLEDGEMENTS_GOAL, "met": met}


def staying() -> Iterator[dict[str, object]]:
    """Rows of the table of copies."""
    for load, strategy in product(LOADS, _STRATEGIES):
        runs = [after_delivery(strategy, load, seed) for seed in _SEEDS]
        total = CopySeconds(*map(sum, zip(*runs, strict=True)))
        times = total.stayed_s / total.bound_s
        yield {
            "load": load, "strategy": strategy, "seeds": len(_SEEDS), "copies": total.copies,
            "copy-seconds": total.stayed_s, "in a flood": total.bound_s, "times": times, "goal": COPY_SECONDS_GOAL,
            "longer, s a copy": (total.stayed_s - total.bound_s) / total.copies, "met": times <= COPY_SECONDS_GOAL,
        }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    parser = _report.parser("emma", str(__doc__).split("\n\n", maxsplit=1)[0], "--quick --strict")
    parser.add_argument("--quick", action="store_true", help="only what takes a few seconds")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    given = parser.parse_args(argv)
    rows = list(costs(HELD[:1] if given.quick else HELD))
    _report.show("Control: bytes of a contact, messages apart", rows, json=given.json)
    if not given.quick:
        found = [{"held": held, "new": crossing(held)} for held in CROSSINGS]
        _report.show("Crossings: new messages from which on lists cost no more", found, json=given.json)
    acked = list(compared(ACKNOWLEDGED[:2] if given.quick else ACKNOWLEDGED))
    _report.show("Acknowledgements: their bytes in a contact with nothing new", acked, json=given.json)
    stayed = [] if given.quick else list(staying())
    if stayed:
        _report.show("Copies: seconds that they stay after the last delivery", stayed, json=given.json)
    return 1 if given.strict and not all(row["met"] for row in (*rows, *acked, *stayed)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

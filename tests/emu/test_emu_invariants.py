"""The invariants of a record: a correct record passes, and every rule finds the record that breaks it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from carrypost import testing
from carrypost.emu.verify.invariants import RULES, SHOWN_MAX, check
from carrypost.log.record import Kind, Record

S = 1_000_000
ATTRS = {
    "scenario": 'name = "x"',
    "defaults": "disk_delay_s = 0.5\n[settings]\ncache_messages_max = 3\ncache_bytes_max = 250\n",
}
Change = Callable[[Record], None]


def sound() -> Record:
    """Return a record in which `m` goes from a over b to c, `n` ends at its deadline, and c is away for a while."""
    record = Record("sound/default/1")
    add = record.add
    add(Kind.RUN, 0, "", attrs=ATTRS)
    for node in "abc":
        add(Kind.JOIN, 0, node)
    add(Kind.CONTACT, 1 * S, "a", peer="b", attrs={"end": "9.0"})
    own(record, 2, "a", "m", 100)
    got(record, 3, "b", "m", peer="a", hops=1, size=100)
    own(record, 4, "b", "n", 50, deadline="6.0")
    got(record, 5, "a", "n", peer="b", hops=1, size=50)
    add(Kind.LEAVE, 5 * S, "c", detail="away")
    for node in "ab":
        add(Kind.DROP, 6 * S, node, message="n", source="b", size=50, detail="expired")
    add(Kind.JOIN, 6 * S, "c")
    add(Kind.CONTACT, 7 * S, "b", peer="c", attrs={"end": "8.0"})
    got(record, 7.5, "c", "m", peer="b", hops=2, size=100)
    add(Kind.LEAVE, 8 * S, "b", detail="crash")
    add(Kind.REGISTRY, 8 * S, "a", size=2, detail="cache")
    add(Kind.JOIN, 8 * S + 1, "b", detail="restart")
    return record


def own(record: Record, t: float, node: str, message: str, size: int, *, deadline: str = "") -> None:
    """A publication, delivered where it was published."""
    attrs = {"destination": "x"} | ({"deadline": deadline} if deadline else {})
    record.add(Kind.PUBLISH, round(t * S), node, message=message, source=node, size=size, attrs=attrs)
    record.add(Kind.DELIVER, round(t * S), node, message=message, source=node, size=size)


def got(record: Record, t: float, node: str, message: str, *, peer: str, hops: int, size: int) -> None:
    """A reception and the delivery that follows."""
    source = {"m": "a", "n": "b"}.get(message, "?")
    at = round(t * S)
    record.add(Kind.RECEIVE, at, node, peer=peer, message=message, source=source, hops=hops, size=size)
    record.add(Kind.DELIVER, at, node, message=message, source=source, size=size)


def edited(kind: Kind, number: int = 0, **changes: object) -> Change:
    """Change some columns of the n-th row of a kind."""

    def edit(record: Record) -> None:
        row = [at for at, each in enumerate(record.kind) if each == kind][number]
        for name, value in changes.items():
            getattr(record, name)[row] = value

    return edit


def dropped(kind: Kind, number: int = 0) -> Change:
    """Remove the n-th row of a kind."""

    def drop(record: Record) -> None:
        row = [at for at, each in enumerate(record.kind) if each == kind][number]
        for name in ("t_us", "kind", "node", "peer", "message", "source", "hops", "size", "detail", "attrs"):
            del getattr(record, name)[row]

    return drop


def more(kind: Kind, t: float, node: str, **columns: object) -> Change:
    """Add a row at the end."""
    return lambda record: record.add(kind, round(t * S), node, **columns)  # type: ignore[arg-type]


def published(message: str, node: str, size: int) -> Change:
    """Add a publication at the end."""
    return lambda record: own(record, 9, node, message, size)


M = {"message": "m", "source": "a", "size": 100}
FROM_B = {"peer": "b", "hops": 2, **M}
DEADLINE = {"attrs": {"deadline": "7.5"}}


def evicted(t: float) -> list[Change]:
    """Return changes by which the copy of c is evicted before it is delivered."""
    return [dropped(Kind.DELIVER, 4), more(Kind.DROP, t, "c", detail="evicted", **M)]


def crashed(t: float) -> Change:
    """Let c crash and come back at once."""

    def crash(record: Record) -> None:
        more(Kind.LEAVE, t, "c", detail="crash")(record)
        more(Kind.JOIN, t, "c")(record)

    return crash


BREACHES: list[tuple[str, str, list[Change]]] = [
    (
        "time does not go back",
        "3.000000 s comes after 5.000000 s",
        [edited(Kind.PUBLISH, 0, t_us=5 * S), edited(Kind.DELIVER, 0, t_us=5 * S)],
    ),
    ("only what was published", "c: m at 7.500000 s: never published", [dropped(Kind.PUBLISH, 0)]),
    ("only what was published", "b: n at 4.000000 s: never published", [edited(Kind.PUBLISH, 1, message="other")]),
    ("only what was published", "published a second time", [more(Kind.PUBLISH, 9, "a", **M)]),
    (
        "only what was published",
        "published a second time",
        [
            published("x", "c", 1),
            crashed(9),
            published("x", "c", 1),
        ],
    ),
    ("only what was published", "source or size", [edited(Kind.RECEIVE, 0, size=99)]),
    ("only what was published", "source or size", [edited(Kind.DELIVER, 1, source="c")]),
    ("only who is there", "c: m at 7.500000 s: the node is not there", [dropped(Kind.JOIN, 3)]),
    ("only who is there", "b joins, and is there already", [more(Kind.JOIN, 9, "b")]),
    (
        "only who is there",
        "b: m at 8.200000 s: the node is not there",
        [dropped(Kind.JOIN, 4), more(Kind.DELIVER, 8.2, "b", **M)],
    ),
    ("received once", "received by its author", [more(Kind.RECEIVE, 7, "a", peer="b", hops=2, **M)]),
    ("received once", "c: m at 7.700000 s: received twice", [more(Kind.RECEIVE, 7.7, "c", **FROM_B)]),
    ("received once", "received again without a crash", [more(Kind.RECEIVE, 7.7, "c", detail="again", **FROM_B)]),
    ("received once", "received again, and was not here", [edited(Kind.RECEIVE, 2, detail="again")]),
    ("delivered once", "c: m at 7.600000 s: delivered twice", [more(Kind.DELIVER, 7.6, "c", **M)]),
    ("delivered once", "delivered again without a crash", [more(Kind.DELIVER, 7.6, "c", detail="redelivered", **M)]),
    ("delivered once", "delivered again, and never before", [edited(Kind.DELIVER, 3, detail="redelivered")]),
    (
        "delivered once",
        "c: m at 10.000000 s: delivered again, and never before",
        [*evicted(9), crashed(9.6), more(Kind.DELIVER, 10, "c", detail="redelivered", **M)],
    ),
    (
        "delivered once",
        "c: m at 10.000000 s: delivered again, and never before",
        [crashed(9), *evicted(9.1), more(Kind.DELIVER, 10, "c", detail="redelivered", **M)],
    ),
    ("delivered once", "c: m at 7.500000 s: delivered where it is not", [dropped(Kind.RECEIVE, 2)]),
    (
        "delivered at recipients only",
        "b: m at 3.000000 s: delivered where it is not listed",
        [edited(Kind.PUBLISH, 0, attrs={"recipients": "c bb"})],
    ),
    (
        "delivered at recipients only",
        "a: m at 2.000000 s: its author is among its recipients",
        [edited(Kind.PUBLISH, 0, attrs={"recipients": "a b c"})],
    ),
    ("before the deadline", "c: m at 7.500000 s: its deadline was 7.500000 s", [edited(Kind.PUBLISH, 0, **DEADLINE)]),
    (
        "before the deadline",
        "n at 6.000000 s: expired before its deadline",
        [edited(Kind.PUBLISH, 1, attrs={"deadline": "6.1"})],
    ),
    ("before the deadline", "its deadline was 6.000000 s", [edited(Kind.DELIVER, 3, attrs={"clock": "6.2"})]),
    ("over an open contact", "c: m at 7.500000 s: from b, with which there is no contact", [dropped(Kind.CONTACT, 1)]),
    ("over an open contact", "from b, with which there is no contact", [edited(Kind.CONTACT, 1, attrs={"end": "7.5"})]),
    ("over an open contact", "from a, with which there is no contact", [edited(Kind.CONTACT, 0, t_us=3 * S + 1)]),
    ("over an open contact", "from c, with which there is no contact", [edited(Kind.RECEIVE, 1, peer="c")]),
    ("hop by hop", "c: m at 7.500000 s: 3 hops, from b", [edited(Kind.RECEIVE, 2, hops=3)]),
    ("hop by hop", "c: m at 7.500000 s: from b, which did not have it", [dropped(Kind.RECEIVE, 0)]),
    (
        "within the bound",
        "c: m at 7.500000 s: no flood could have brought it there",
        [edited(Kind.CONTACT, 1, attrs={"end": "7.0"})],
    ),
    ("within the bound", "b: m at 3.000000 s: no flood", [edited(Kind.CONTACT, 0, attrs={"end": "2.0"})]),
    ("caches within limits", "a has 4 messages in its cache, at most 3", [edited(Kind.REGISTRY, 0, size=4)]),
    (
        "caches within limits",
        "a: y at 9.000000 s: 300 in the cache, cache_bytes_max is 250",
        [published("x", "a", 100), published("y", "a", 100)],
    ),
    ("caches within limits", "c: z at 9.000000 s: 4 in the cache", [published(each, "c", 1) for each in "xyz"]),
    (
        "every end has a reason",
        "b: n at 6.000000 s: dropped, and no known reason",
        [edited(Kind.DROP, 1, detail="boredom")],
    ),
    ("every end has a reason", "dropped, and no known reason", [edited(Kind.DROP, 0, detail=None)]),
    ("every end has a reason", "refused, and no reason", [more(Kind.REFUSE, 9, "a", peer="b")]),
    (
        "every end has a reason",
        "a: n at 5.000000 s: still here after its deadline",
        [dropped(Kind.DROP, 0), more(Kind.TRAFFIC, 6.1, "a", size=1, detail="Data")],
    ),
]


def test_a_sound_record_breaks_no_rule() -> None:
    assert check(sound()) == []
    listing = sound()
    edited(Kind.PUBLISH, 0, attrs={"recipients": "b c"})(listing)
    dropped(Kind.DELIVER, 0)(listing)
    assert check(listing) == []


@pytest.mark.parametrize(("rule", "words", "changes"), BREACHES)
def test_a_breach_is_found_by_its_rule(rule: str, words: str, changes: list[Change]) -> None:
    record = sound()
    for change in changes:
        change(record)
    found = check(record)
    assert [each for each in found if each.rule == rule and words in each.text], found
    assert all(f"({each.rule})" in str(each) for each in found)


ADDRESSED = {"along open contacts", "purged once all could say so", "displaced by a higher rank"}
"""Rules that `test_emu_verify_addressed` breaks."""
ORDER = {"causal order", "expired while it waited", "nothing is hurried", "nothing waits in vain"}
"""Broken in tests of their own: `test_emu_happens_before`, `test_emu_waiting`."""


CHANNELS = {"events once and in order", "results of their events"}
"""Broken in `test_emu_verify_channels`."""


def test_every_rule_has_a_record_that_breaks_it() -> None:
    broken = {rule for rule, *_ in BREACHES} | ORDER | ADDRESSED | CHANNELS
    assert broken == {rule.__name__.replace("_", " ") for rule in RULES}


EXCUSES: list[list[Change]] = [
    [more(Kind.DELIVER, 9, "b", detail="redelivered", **M)],
    [
        more(Kind.CONTACT, 9, "a", peer="b", attrs={"end": "10"}),
        more(Kind.RECEIVE, 9, "b", peer="a", hops=1, detail="again", **M),
    ],
    [
        more(Kind.CONTACT, 9, "b", peer="c", attrs={"end": "10"}),
        more(Kind.DROP, 9, "c", detail="evicted", **M),
        more(Kind.RECEIVE, 9, "c", **FROM_B),
    ],
    [edited(Kind.DELIVER, 3, attrs={"clock": "5.9"}), edited(Kind.DROP, 0, t_us=5 * S + 100_000)],
    [
        more(Kind.PUBLISH, 9, "c", message="x", source="c", size=1),
        crashed(9),
        published("x", "c", 2),
    ],
    [dropped(Kind.DROP, 1), more(Kind.TRAFFIC, 20, "a", size=1, detail="Data")],
    [*evicted(9), crashed(9.4), more(Kind.DELIVER, 10, "c", detail="redelivered", **M)],
]


@pytest.mark.parametrize("changes", EXCUSES)
def test_crashes_drops_and_wrong_clocks_excuse_what_they_bring(changes: list[Change]) -> None:
    record = sound()
    for change in changes:
        change(record)
    assert check(record) == []


def test_many_breaches_of_one_rule_are_counted() -> None:
    record = sound()
    for number in range(SHOWN_MAX + 7):
        record.add(Kind.DELIVER, 9 * S, "c", message="never", source="a", size=number)
    told = [each for each in check(record) if each.rule == "only what was published"]
    assert len(told) == SHOWN_MAX + 1
    assert str(told[-1]) == "and 7 more (only what was published)"
    assert told[0].row == len(sound())


def test_the_record_of_a_network_in_memory_passes() -> None:
    record = Record("memory")
    with testing.network("a", "b", "c", seed=3, record=record, altruistic=True, disk_delay_s=0.2) as net:
        for a, b in (("a", "b"), ("b", "c")):
            net.link(a, b)
        for node in ("a", "c"):
            net.subscribe(node, "news")
        for number in range(10):
            net.publish("a", "news", b"x" * number, lifetime_s=20 if number % 2 else None)
            net.advance(3)
            if number == 5:
                net.kill("b")
                net.restart("b")
        net.advance(30)
    assert "receive" in record.kind
    assert check(record) == []


def test_hundreds_of_thousands_of_rows_take_seconds() -> None:
    nodes, messages = 300, 200
    record = Record("many")
    record.add(Kind.RUN, 0, "", attrs=ATTRS | {"defaults": ""})
    names = [f"n{number:03}" for number in range(nodes)]
    for name in names:
        record.add(Kind.JOIN, 0, name)
    for name in names[1:]:
        record.add(Kind.CONTACT, 0, names[0], peer=name, attrs={"end": "1e6"})
    for number in range(messages):
        m, t = f"m{number}", number * S
        record.add(Kind.PUBLISH, t, names[0], message=m, source=names[0], size=10, attrs={"deadline": "1e6"})
        for kind, peer, hops in ((Kind.RECEIVE, names[0], 1), (Kind.DELIVER, None, None)):
            record.t_us.extend([t] * (nodes - 1))
            record.kind.extend([kind.value] * (nodes - 1))
            record.node.extend(names[1:])
            record.peer.extend([peer] * (nodes - 1))
            record.message.extend([m] * (nodes - 1))
            record.source.extend([names[0]] * (nodes - 1))
            record.hops.extend([hops] * (nodes - 1))
            record.size.extend([10] * (nodes - 1))
            record.detail.extend([None] * (nodes - 1))
            record.attrs.extend([None] * (nodes - 1))
    began = time.process_time()
    assert check(record) == []
    assert time.process_time() - began < 60  # About 1 on an idle machine; quadratic would be hours.

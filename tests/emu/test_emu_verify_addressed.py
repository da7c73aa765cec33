"""Rules about messages with recipients: sound records pass, and each rule finds the record that breaks it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.schedules import FILES

from carrypost.emu.rows import log_of
from carrypost.emu.runs import run
from carrypost.emu.verify import soak as search
from carrypost.emu.verify.facts import Facts
from carrypost.emu.verify.invariants import (
    Violation,
    along_open_contacts,
    check,
    displaced_by_a_higher_rank,
    over_an_open_contact,
    purged_once_all_could_say_so,
)
from carrypost.emu.verify.random_scenarios import ADDRESSED, draw_addressed
from carrypost.emu.verify.soak import SeedOutcome, attempt, soak
from carrypost.log.record import Kind, Record

S = 1_000_000
SEEDS = (1, 2, 7, 44, 1573, 1850)
"""Tried in every run of the tests: the last two failed once, and `carrypost emu soak --addressed` tries more."""
_DEFAULTS = "[settings]\nshares = false\n"


def begun(defaults: str = _DEFAULTS) -> Record:
    """Nodes a to d; a meets b until 10 s, b meets c from 5 s on, and c meets d from 20 s on."""
    record = Record("x/default/1")
    record.add(Kind.RUN, 0, "", attrs={"scenario": "", "defaults": defaults})
    for node in "abcd":
        record.add(Kind.JOIN, 0, node)
    record.add(Kind.CONTACT, 0, "a", peer="b", attrs={"end": "10.0"})
    return record


def publish(
    record: Record, t: float, message: str, recipients: str, *, mode: str = "persistent", priority: int = 4
) -> None:
    attrs = {"mode": mode, "priority": str(priority), "recipients": recipients}
    record.add(Kind.PUBLISH, round(t * S), "a", message=message, source="a", size=1, attrs=attrs)


def come(record: Record, t: float, node: str, message: str, kind: Kind = Kind.RECEIVE) -> None:
    peer, hops = ("a", 1) if kind is Kind.RECEIVE else (None, None)
    record.add(kind, round(t * S), node, peer=peer, message=message, source="a", hops=hops, size=1)


def drop(record: Record, t: float, node: str, message: str, reason: str) -> None:
    record.add(Kind.DROP, round(t * S), node, message=message, source="a", size=1, detail=reason)


def purged_at(node: str, t: float) -> list[str]:
    """Return the violations for a purge at this node, of a message that b gets at 2 s and c at 6 s."""
    record = begun()
    publish(record, 1, "m", "b c")
    come(record, 2, "b", "m", Kind.DELIVER)
    record.add(Kind.CONTACT, 5 * S, "b", peer="c", attrs={"end": "30.0"})
    if t < 6:
        drop(record, t, node, "m", "purged")
    come(record, 6, "c", "m", Kind.DELIVER)
    if t > 20:
        record.add(Kind.CONTACT, 20 * S, "c", peer="d", attrs={"end": "30.0"})
    if t >= 6:
        drop(record, t, node, "m", "purged")
    return [text for _, text in purged_once_all_could_say_so(Facts(log_of(record)))]


@pytest.mark.parametrize(("node", "t"), [("a", 6), ("b", 6), ("c", 7), ("d", 21)])
def test_a_copy_may_go_where_all_recipients_could_be_heard_of(node: str, t: float) -> None:
    assert purged_at(node, t) == []


def test_a_copy_that_goes_earlier_is_found() -> None:
    could = "purged, and {} could {} have been heard of"
    assert purged_at("d", 19) == ["d: m at 19.000000 s: " + could.format("b", "never")]
    assert purged_at("a", 5.9) == ["a: m at 5.900000 s: " + could.format("c", "not before 6.000000 s")]
    assert purged_at("b", 5.9) == ["b: m at 5.900000 s: " + could.format("c", "not before 6.000000 s")]


def displaced(evicted: str, *, defaults: str = _DEFAULTS) -> list[str]:
    """Return the violations if b, which holds three messages for d and one for itself, evicts one of them."""
    record = begun(defaults)
    publish(record, 1, "low", "d", mode="non-persistent", priority=9)
    publish(record, 1.5, "old", "d", priority=4)
    publish(record, 2, "new", "d", priority=4)
    publish(record, 2, "own", "b", mode="non-persistent", priority=0)
    for message in ("low", "old", "new", "own"):
        come(record, 3, "b", message)
    drop(record, 4, "b", evicted, "evicted")
    return [text for _, text in displaced_by_a_higher_rank(Facts(log_of(record)))]


def test_the_lowest_rank_gives_way() -> None:
    assert displaced("low") == []
    assert displaced("old") == ["b: old at 4.000000 s: evicted, and low stayed, which ranks lower"]
    assert displaced("new") == ["b: new at 4.000000 s: evicted, and low stayed, which ranks lower"]
    assert displaced("own") == []  # What is for the node itself is not compared by this rule, if it ranks lowest.


def test_where_something_else_may_be_the_reason_nothing_is_said() -> None:
    assert displaced("new", defaults="[settings]\nshares = true\n") == []
    assert displaced("new", defaults=_DEFAULTS + "[faults]\ndisk_full_per_h = 1\n") == []
    assert displaced("new", defaults=_DEFAULTS + "[faults]\nclock_skew_s = 1\n") == []


class Search(NamedTuple):
    """The outcomes of some seeds, and how often something happened that is judged."""

    outcomes: list[SeedOutcome]
    seen: Counter[str]


@pytest.fixture(scope="module")
def searched() -> Search:
    seen: Counter[str] = Counter()

    def counted(table: pa.Table) -> list[Violation]:
        dropped = table.filter(pc.equal(table["kind"], "drop"))
        seen.update(dropped["detail"].to_pylist())
        seen["recipients"] += len(log_of(table).attr("recipients"))
        return check(table)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search, "check", counted)
        return Search(list(soak(SEEDS, ADDRESSED)), seen)


@pytest.mark.soak
def test_draws_have_recipients_purges_and_evictions_that_are_judged(searched: Search) -> None:
    seen = searched.seen
    assert min(seen["recipients"], seen["purged"], seen["evicted"]) > 5, seen


def test_random_scenarios_with_recipients_break_no_rule(searched: Search) -> None:
    failed = [outcome for outcome in searched.outcomes if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, ADDRESSED)}: {each.problems[0]}" for each in failed)


@pytest.mark.soak
def test_many_random_scenarios_with_recipients_break_no_rule() -> None:
    failed = [outcome for outcome in soak(range(1, 2_001), ADDRESSED, jobs=2) if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, ADDRESSED)}: {each.problems[0]}" for each in failed)


def test_a_seed_draws_the_same_scenario_and_can_be_repeated(searched: Search) -> None:
    assert draw_addressed(7) == draw_addressed(7)
    assert search.replay(7, ADDRESSED) == "carrypost emu soak --first 7 --seeds 1 --addressed"
    assert attempt(7, ADDRESSED) in searched.outcomes


def relayed(path: str, *, t: float = 8, contacts: tuple[tuple[str, str, float, str], ...]) -> list[str]:
    """Return the violations for a message that comes from a to d over relays."""
    record = begun()
    publish(record, 1, "m", "d")
    for a, b, start, end in contacts:
        record.add(Kind.CONTACT, round(start * S), a, peer=b, attrs={"end": end})
    attrs = {"path": path}
    record.add(Kind.RECEIVE, round(t * S), "d", peer="a", message="m", source="a", hops=1, size=1, attrs=attrs)
    facts = Facts(log_of(record))
    assert list(over_an_open_contact(facts)) == []
    return [text for _, text in along_open_contacts(facts)]


def test_every_link_of_a_path_has_to_be_there() -> None:
    line = (("b", "c", 2, "9.0"), ("c", "d", 3, "30.0"))
    assert relayed("b c", contacts=line) == []
    assert relayed("b c", t=29, contacts=line) == []  # The first links may have ended meanwhile, the last one not.
    nothing = "between which there is no contact"
    assert relayed("b c", t=30, contacts=line) == [f"d: m at 30.000000 s: over c d, {nothing}"]
    assert relayed("b c", contacts=line[:1]) == [f"d: m at 8.000000 s: over c d, {nothing}"]
    assert relayed("c", contacts=line) == [f"d: m at 8.000000 s: over a c, {nothing}"]
    assert relayed("b c b", contacts=(*line, ("b", "d", 2, "30.0"))) == [
        "d: m at 8.000000 s: its path a b c b d leads through a host twice"
    ]


_LINE = f"""
duration_s = 60
mode = "ideal"
[radio]
routes = "told"
{"".join(FILES.values())}[settings]
island = true
altruistic = true
"""


@pytest.mark.parametrize("security", ["off", "signed"])
def test_hosts_that_are_told_all_links_send_straight_and_the_record_tells_the_path(
    tmp_path: Path, security: str
) -> None:
    (tmp_path / "nodes.csv").write_text("node,join,leave\n" + "".join(f"{name},0,\n" for name in "abcde"))
    (tmp_path / "contacts.csv").write_text("a,b,start,end\na,b,0,60\nb,c,0,60\nc,d,0,60\nb,e,0,60\n")
    (tmp_path / "publish.csv").write_text(
        "t,node,message,size,lifetime_s,recipients\n5,a,x,100,,d\n6,a,y,50000,,c d\n7,d,z,10,,e\n"
    )
    lifetimes = "lifetime_s_default = 600\nlifetime_s_max = 3600\n" if security == "signed" else ""
    (tmp_path / "scenario.toml").write_text(f'{_LINE}security = "{security}"\n{lifetimes}')
    rows = run(tmp_path / "scenario.toml", 1).table.to_pylist()
    received = {(row["message"], row["node"]): row for row in rows if row["kind"] == "receive"}
    paths = {(row["peer"], node): dict(row["attrs"] or ()).get("path") for (_, node), row in received.items()}
    assert paths == {("a", "d"): "b c", ("a", "c"): "b", ("d", "e"): "c b"}
    assert len(received) == 4
    assert {row["hops"] for row in received.values()} == {1}
    assert [row["detail"] for row in rows if row["kind"] == "drop"].count("purged") == 7

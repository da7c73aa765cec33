"""Emulated runs: presence of nodes, events at one instant, and that the same scenario gives the same record."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import emulated
from tests.support.emulated import BROADCAST, of, receptions, rows, scenario
from tests.support.examples import examples
from tests.support.trace_texts import parse_contacts

from carrypost import __version__, emu
from carrypost.emu.inputs import TEXT_BYTES_MAX
from carrypost.traces import contacts

WAYPOINTS = '[mobility]\nmodel = "random-waypoint"\ncount = {count}\nside_m = 300\n[radio]\nrange_m = 60\n'


def test_a_message_crosses_contacts_that_never_meet_in_time(tmp_path: Path) -> None:
    tables = emulated.contacts(tmp_path, "a,b,10,30", "c,b,50,70"), emulated.script(tmp_path, "1,a,m,1000,")
    found = rows(scenario(tmp_path, *tables))
    (at_b,) = of(found, "receive", node="b")
    (at_c,) = of(found, "receive", node="c")
    assert (at_b["message"], at_b["source"], at_b["peer"], at_b["hops"], at_b["size"]) == ("m", "a", "a", 1, 1000)
    assert (at_c["peer"], at_c["hops"]) == ("b", 2)
    assert 10 < at_b["t"] < 15
    assert 50 < at_c["t"] < 55
    assert [row["node"] for row in of(found, "deliver", message="m")] == ["a", "b", "c"]


@pytest.mark.parametrize("change", ["loss = 1.0", "one_way = true"])
def test_a_node_that_lost_its_store_keeps_the_links_that_differ(tmp_path: Path, change: str) -> None:
    link = f'[[radio.link]]\na = "b"\nb = "a"\n{change}\n'
    crash = '[[faults.event]]\nt = 20\nnode = "a"\nkind = "crash-lost"\nduration_s = 5\n'
    made = scenario(tmp_path, emulated.contacts(tmp_path, "a,b,0,100"), BROADCAST, link, crash)
    found = rows(made)
    assert [row["node"] for row in of(found, "contact")] == ["a", "a.2"]
    assert of(found, "receive") == []


def test_a_seed_that_is_a_number_in_text_is_that_number(tmp_path: Path) -> None:
    made = scenario(tmp_path, emulated.contacts(tmp_path, "a,b,10,30"), BROADCAST)
    assert rows(made, seed="-7") == rows(made, seed=-7) != rows(made, seed="007")


def test_the_first_row_tells_how_the_run_was_made(tmp_path: Path) -> None:
    tables = emulated.contacts(tmp_path, "a,b,10,30"), BROADCAST
    made = scenario(tmp_path, *tables)
    first = rows(made, seed=7)[0]
    assert (first["kind"], first["t"], first["run"]) == ("run", 0, "scene/default/7")
    attrs = first["attrs"]
    assert (attrs["scenario"], attrs["seed"], attrs["version"]) == (made.text, "7", __version__)
    assert attrs["defaults"] == made.in_force()
    assert "announce_s_min = 1.0" in attrs["defaults"]
    assert attrs["text:contacts.csv"] == "a,b,start,end\na,b,10,30\n"
    assert len(attrs["sha256:contacts.csv"]) == 64


def test_a_long_file_is_known_by_its_hash_only(tmp_path: Path) -> None:
    lines = [f"a,b,{number},{number + 0.5}" for number in range(TEXT_BYTES_MAX // 8)]
    attrs = rows(scenario(tmp_path, emulated.contacts(tmp_path, *lines), duration_s=1))[0]["attrs"]
    assert "sha256:contacts.csv" in attrs
    assert "text:contacts.csv" not in attrs


def test_broadcasts_begin_after_each_join_and_end_with_the_presence(tmp_path: Path) -> None:
    tables = emulated.nodes(tmp_path, "a,0,50", "a,60,90", "b,10,"), BROADCAST
    found = rows(scenario(tmp_path, *tables))
    assert [row["t"] for row in of(found, "publish", node="a")] == [5, 25, 45, 65, 85]
    assert [row["t"] for row in of(found, "publish", node="b")] == [15, 35, 55, 75, 95]
    (attrs,) = {tuple(sorted(row["attrs"].items())) for row in of(found, "publish", t=15)}
    assert attrs == (("deadline", "75.0"), ("destination", "workload-0"), ("mode", "non-persistent"), ("priority", "4"))


def test_whoever_comes_back_still_has_what_it_had(tmp_path: Path) -> None:
    tables = (
        emulated.nodes(tmp_path, "a,0,", "b,0,40", "b,50,", "c,0,"),
        emulated.contacts(tmp_path, "a,b,10,30", "b,c,60,80"),
        emulated.script(tmp_path, "1,a,m,10,"),
    )
    found = rows(scenario(tmp_path, *tables))
    assert receptions(found) == {("m", "b"), ("m", "c")}
    assert [(row["t"], row["kind"]) for row in found if row["node"] == "b" and row["kind"] in {"join", "leave"}] == [
        (0, "join"), (40, "leave"), (50, "join"),
    ]  # fmt: skip


def test_a_node_that_is_away_does_and_records_nothing(tmp_path: Path) -> None:
    tables = (
        emulated.nodes(tmp_path, "a,0,", "b,10,30", "b,60,80"),
        emulated.contacts(tmp_path, "a,b,0,100"),
        emulated.script(tmp_path, "15,b,m,10,25"),
    )
    found = rows(scenario(tmp_path, *tables, top="sample_s = 7"))
    times = [row["t"] for row in found if row["node"] == "b"]
    assert all(10 <= t <= 30 or 60 <= t <= 80 for t in times)
    # The message died at 40, while b was away: that is handled at its return, before its links come up.
    (gone,) = of(found, "drop", node="b")
    assert (gone["t"], gone["message"], gone["detail"]) == (60, "m", "expired")
    assert found.index(gone) < found.index(of(found, "contact", t=60)[0])


def test_contacts_are_clipped_to_presences_and_to_the_run(tmp_path: Path) -> None:
    tables = (
        emulated.nodes(tmp_path, "a,0,", "b,10,30", "b,60,80"),
        emulated.contacts(tmp_path, "b,a,0,70", "a,b,70,200"),
    )
    found = rows(scenario(tmp_path, *tables))
    told = [(row["t"], row["node"], row["peer"], float(row["attrs"]["end"])) for row in of(found, "contact")]
    assert told == [(10, "a", "b", 30), (60, "a", "b", 70), (70, "a", "b", 80)]


@pytest.mark.parametrize("mode", ["faithful", "ideal"])
@pytest.mark.parametrize(
    ("published", "lifetime", "reached"),
    [("10", "", True), ("20", "", False), ("1", "9", False), ("1", "9.000001", True), ("19.999999", "", True)],
)
def test_edges_are_half_open(tmp_path: Path, mode: str, published: str, lifetime: str, reached: bool) -> None:
    tables = emulated.contacts(tmp_path, "a,b,10,20"), emulated.script(tmp_path, f"{published},a,m,10,{lifetime}")
    found = rows(scenario(tmp_path, *tables, mode=mode))
    # Beacons need their time; what only an instant suffices for is for ideal links.
    if mode == "faithful" and published != "10":
        reached = False
    assert receptions(found) == ({("m", "b")} if reached else set())


def test_what_would_arrive_when_the_link_ends_is_lost(tmp_path: Path) -> None:
    script = emulated.script(tmp_path, "15,a,m,10,")
    for delay_s, reached in ((0.49, True), (6, False)):
        radio = f"[radio]\ndelay_s = {delay_s}\n"
        found = rows(scenario(tmp_path, emulated.contacts(tmp_path, "a,b,10,30"), radio, script))
        assert bool(of(found, "receive")) is reached


def test_ideal_links_pass_everything_on_at_the_same_instant(tmp_path: Path) -> None:
    tables = (
        emulated.contacts(tmp_path, "a,b,10,11", "b,c,10,11", "c,d,10,11", "d,e,11,12"),
        emulated.script(tmp_path, "10,a,m,100000,", "10,b,n,1,"),
    )
    found = rows(scenario(tmp_path, *tables, mode="ideal"))
    assert {row["t"] for row in of(found, "receive", node="d")} == {10}
    assert {row["t"] for row in of(found, "receive", node="e")} == {11}
    # All that is published at one instant is published before anybody answers.
    assert [row["node"] for row in of(found, "publish")] == ["a", "b"]
    assert found.index(of(found, "publish")[-1]) < found.index(of(found, "receive")[0])


TIMES = st.integers(0, 12)
CONTACTS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd"), TIMES, st.integers(0, 4)), max_size=12)
MESSAGES = st.lists(st.tuples(TIMES, st.sampled_from("abcd"), st.none() | st.integers(1, 8)), min_size=1, max_size=4)


@examples(10)
@given(CONTACTS, MESSAGES)
def test_ideal_runs_reach_exactly_what_a_flood_reaches(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[str, str, int, int]],
    messages: list[tuple[int, str, int | None]],
) -> None:
    folder = tmp_path_factory.mktemp("ideal")
    kept: list[tuple[str, str, float, float]] = []
    for a, b, start, length in drawn:
        pair = min(a, b), max(a, b)
        if a != b and not any(one[:2] == pair and start < one[3] and one[2] < start + length for one in kept):
            kept.append((*pair, start, start + length))
    tables = (
        "[nodes]\nfile = 'nodes.csv'\n",
        emulated.contacts(folder, *(f"{a},{b},{start},{end}" for a, b, start, end in kept)),
        emulated.script(
            folder,
            *(
                f"{t},{node},m{index},10,{'' if life is None else life}"
                for index, (t, node, life) in enumerate(messages)
            ),
        ),
    )
    emulated.nodes(folder, *(f"{node},0," for node in "abcd"))
    found = rows(scenario(folder, *tables, duration_s=20, mode="ideal"))
    bound = emu.flood_bound(
        [contact for contact in kept if contact[2] < contact[3]],
        [(f"m{index}", node, t, life) for index, (t, node, life) in enumerate(messages)],
        [(node, 0, None) for node in "abcd"],
    )
    assert receptions(found) == bound


# --- faults --------------------------------------------------------------------------------------------------


def event(kind: str, t: float = 40, node: str = "b", duration_s: float = 10, more: str = "") -> str:
    return f'[[faults.event]]\nt = {t}\nnode = "{node}"\nkind = "{kind}"\nduration_s = {duration_s}\n{more}\n'


def crossing(folder: Path, *tables: str) -> emulated.Rows:
    """Return the record of a message from a by way of b to c, when something happens to b in between."""
    base = emulated.contacts(folder, "a,b,10,30", "b,c,60,80"), emulated.script(folder, "1,a,m,10,")
    return rows(scenario(folder, *base, *tables))


@pytest.mark.parametrize("kind", ["away", "suspend", "crash"])
def test_a_node_that_keeps_its_store_still_carries_what_it_had(tmp_path: Path, kind: str) -> None:
    found = crossing(tmp_path, event(kind))
    assert receptions(found) == {("m", "b"), ("m", "c")}
    (leave,), (_, join) = of(found, "leave"), of(found, "join", node="b")
    assert (leave["t"], leave["node"], leave["detail"]) == (40, "b", kind)
    assert (join["t"], join["detail"]) == (50, "restart" if kind == "crash" else None)


def test_a_node_that_lost_its_store_comes_back_under_another_name(tmp_path: Path) -> None:
    found = crossing(tmp_path, event("crash-lost"))
    assert receptions(found) == {("m", "b")}
    assert [(row["t"], row["node"]) for row in of(found, "join")] == [(0, "a"), (0, "b"), (0, "c"), (50, "b.2")]
    (contact,) = of(found, "contact", t=60)
    assert (contact["node"], contact["peer"]) == ("b.2", "c")


def test_a_fault_during_a_contact_ends_it(tmp_path: Path) -> None:
    found = crossing(tmp_path, event("away", t=65, duration_s=5))
    told = [(row["t"], float(row["attrs"]["end"])) for row in of(found, "contact", node="b")]
    assert told == [(60, 65), (70, 80)]


def test_a_full_disk_takes_nothing_until_it_has_room(tmp_path: Path) -> None:
    found = crossing(tmp_path, event("disk-full", t=5, duration_s=1_000))
    assert not of(found, "deliver", node="b")
    assert {row["detail"] for row in of(found, "refuse", node="b")} == {"no-room"}
    assert ("m", "c") in receptions(crossing(tmp_path, event("disk-full", t=5, duration_s=1)))


def test_a_clock_that_is_ahead_lets_messages_die_early(tmp_path: Path) -> None:
    base = emulated.contacts(tmp_path, "a,b,10,90"), emulated.script(tmp_path, "20,a,m,10,30")
    late = event("clock-step", t=15, more="step_s = 40")
    found = rows(scenario(tmp_path, *base, late))
    assert not of(found, "deliver", node="b")


def test_a_clock_that_is_wrong_does_not_change_the_times_of_the_record(tmp_path: Path) -> None:
    tables = emulated.contacts(tmp_path, "a,b,10,30"), BROADCAST
    made = scenario(tmp_path, *tables, "[faults]\nclock_skew_s = 30\nclock_drift_ppm = 500\n")
    found = rows(made)
    assert [row["t"] for row in of(found, "publish", node="a")] == [5, 25, 45, 65, 85]
    assert of(found, "receive")


def test_deliveries_tell_what_a_wrong_clock_showed(tmp_path: Path) -> None:
    tables = emulated.contacts(tmp_path, "a,b,10,90"), emulated.script(tmp_path, "20,a,m,10,")
    found = rows(scenario(tmp_path, *tables, event("clock-step", t=15, more="step_s = 7")))
    (at_a,), (at_b,) = of(found, "deliver", node="a"), of(found, "deliver", node="b")
    assert "clock" not in at_a["attrs"]
    assert float(at_b["attrs"]["clock"]) == pytest.approx(at_b["t"] + 7)


def test_what_a_crash_lost_is_received_again_and_marked(tmp_path: Path) -> None:
    tables = emulated.contacts(tmp_path, "a,b,10,90"), emulated.script(tmp_path, "1,a,m,10,")
    found = rows(scenario(tmp_path, *tables, event("crash", t=20), top="disk_delay_s = 15"))
    assert [row["detail"] for row in of(found, "receive", node="b")] == [None, "again"]


def test_a_signed_scenario_calls_nodes_by_their_names(tmp_path: Path) -> None:
    signed = '[settings]\nsecurity = "signed"\nlifetime_s_max = 3600\n'
    tables = emulated.contacts(tmp_path, "a,b,10,90"), emulated.script(tmp_path, "1,a,m,1000,600"), signed
    found = rows(scenario(tmp_path, *tables))
    (received,) = of(found, "receive")
    assert (received["node"], received["peer"], received["source"], received["message"]) == ("b", "a", "a", "m")


def test_a_script_of_a_node_that_a_fault_took_away_goes_on_without_it(tmp_path: Path) -> None:
    script = emulated.script(tmp_path, "45,b,m,10,", "55,b,n,10,")
    found = rows(scenario(tmp_path, emulated.nodes(tmp_path, "b,0,"), script, event("crash")))
    assert [row["message"] for row in of(found, "publish")] == ["n"]


def test_damaged_datagrams_are_refused_and_harm_nobody(tmp_path: Path) -> None:
    tables = emulated.contacts(tmp_path, "a,b,10,90"), BROADCAST, "[faults]\ntruncate = 0.3\n"
    found = rows(scenario(tmp_path, *tables))
    assert of(found, "refuse")
    assert {row["message"] for row in of(found, "receive")} <= {row["message"] for row in of(found, "publish")}


def test_a_one_way_contact_is_seen_and_not_used(tmp_path: Path) -> None:
    link = '[[radio.link]]\na = "b"\nb = "a"\none_way = true\n'
    tables = emulated.contacts(tmp_path, "a,b,10,90"), emulated.script(tmp_path, "1,b,m,10,"), link
    found = rows(scenario(tmp_path, *tables))
    assert not receptions(found)
    assert {(row["node"], row["peer"]) for row in of(found, "oneway")} == {("a", "b")}
    assert of(found, "contact")[0]["attrs"]["heard"] == "b"


def test_chance_makes_contacts_one_way(tmp_path: Path) -> None:
    lines = [f"a,b,{t},{t + 1}" for t in range(0, 100, 2)]
    found = rows(scenario(tmp_path, emulated.contacts(tmp_path, *lines), "[radio]\nasymmetric = 0.5\n"))
    heard = [row["attrs"].get("heard") for row in of(found, "contact")]
    assert {"a", "b", None} == set(heard)
    assert 10 < heard.count(None) < 40


def test_a_slow_link_takes_longer(tmp_path: Path) -> None:
    def received_s(radio: str) -> float:
        tables = emulated.contacts(tmp_path, "a,b,10,90"), emulated.script(tmp_path, "1,a,m,100000,"), radio
        (received,) = of(rows(scenario(tmp_path, *tables)), "receive")
        return float(received["t"])

    fast = received_s("")
    slow = received_s("[radio]\nrate_bytes_per_s = 10000\n")
    assert received_s('[[radio.link]]\na = "a"\nb = "b"\nrate_bytes_per_s = 10000\n') == slow
    assert received_s('[radio]\nrate_bytes_per_s = 10000\nairtime = "shared"\n') >= slow
    assert slow - fast > 9


# --- samples -------------------------------------------------------------------------------------------------


def test_traffic_and_caches_are_sampled(tmp_path: Path) -> None:
    tables = emulated.contacts(tmp_path, "a,b,10,90"), BROADCAST
    found = rows(scenario(tmp_path, *tables, top="sample_s = 30"))
    sizes = [(row["t"], row["size"]) for row in of(found, "registry", node="a", detail="cache")]
    assert sizes == [(30, 4), (60, 6), (90, 6), (99.999999, 6)]
    sent = {t: sum(row["size"] for row in of(found, "traffic", node="a", t=t)) for t, _ in sizes}
    assert [nbytes > 1_000 for nbytes in sent.values()] == [True, True, True, False]
    beacons = of(found, "traffic", node="a", detail="Announce")
    assert [row["t"] for row in beacons] == [30, 60, 90, 99.999999]
    assert of(found, "traffic", node="a", detail="datagram")


# --- the same again ------------------------------------------------------------------------------------------


def faulty(folder: Path, count: int = 12) -> str:
    faults = "[faults]\naway_per_h = 20\naway_s = 20\ncrash_per_h = 20\nstore_lost = 0.5\nclock_skew_s = 1\n"
    radio = "loss = 0.1\nduplicate = 0.1\nasymmetric = 0.2\nrate_bytes_per_s = 50000\n"
    text = "duration_s = 120\n" + WAYPOINTS.format(count=count) + radio + BROADCAST + faults
    (folder / "faulty.toml").write_text(text)
    return str(folder / "faulty.toml")


@pytest.mark.soak  # A smaller run is in test_emu_exact.py.
def test_the_same_scenario_and_seed_give_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    path = faulty(tmp_path)
    program = "import sys; from carrypost import emu; emu.run(sys.argv[1], 5, out=sys.argv[2])"
    out = tmp_path / "there.parquet"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", program, path, str(out)], check=True, env=environment)  # noqa: S603 - ours
    here = emu.run(path, 5)
    here.write(tmp_path / "here.parquet")
    assert out.read_bytes() == (tmp_path / "here.parquet").read_bytes()
    assert here.table.equals(emu.run(path, 5, out=tmp_path / "again.parquet").table)
    assert (tmp_path / "again.parquet").read_bytes() == out.read_bytes()


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    path = faulty(tmp_path)
    assert not emu.run(path, 1).table.drop_columns(["run"]).equals(emu.run(path, 2).table.drop_columns(["run"]))


def test_one_more_node_leaves_the_faults_of_the_others_alone(tmp_path: Path) -> None:
    def lives(count: int) -> list[tuple[float, str, str]]:
        table = emu.run(faulty(tmp_path, count), 3).table.to_pylist()
        return [(row["t"], row["kind"], row["node"]) for row in table if row["kind"] in {"join", "leave"}]

    fewer, more = lives(12), lives(13)
    newcomer = {node for _, _, node in more} - {node for _, _, node in fewer}
    assert newcomer
    assert len({node.split(".")[0] for node in newcomer}) == 1
    assert [life for life in more if life[2] not in newcomer] == fewer


def test_through_bytes_the_record_is_the_same(tmp_path: Path) -> None:
    path = faulty(tmp_path)
    assert emu.run(path, 4).table.equals(emu.run(path, 4, encoded=True).table)


def test_contacts_of_mobility_can_be_played_from_the_ones_file(tmp_path: Path) -> None:
    path = faulty(tmp_path)
    prepared = emu.runs.prepare(emu.Scenario.load(path, ["faults.crash_per_h=0", "faults.away_per_h=0"]), 1)
    lines = "\n".join(contacts.write_one(prepared.contacts()))
    assert parse_contacts(lines, "exported") == list(prepared.contacts())

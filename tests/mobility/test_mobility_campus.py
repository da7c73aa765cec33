"""The model of a campus: its contacts are those that the paper counts, drawn from the seed alone."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from carrypost import emu
from carrypost.emu.inputs import read_inputs
from carrypost.emu.scenario import Scenario
from carrypost.errors import ConfigError, LocalError
from carrypost.mobility.campus import Campus
from carrypost.traces.contacts import Contact, DrawnContacts, Presence, clipped

SECOND = 1_000_000
SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "campus.toml"
END_US = 144_000 * SECOND
FLATS = ("p1 p4", "p5 p7", "p3 p8")


class Figures(NamedTuple):
    """Counts of the paper, of the contacts of one seed."""

    contacts: float
    mean_s: float
    short: float
    alone: float
    two: float
    one_way: float
    one_way_most_s: float


def neighbours(drawn: DrawnContacts) -> dict[int, int]:
    """Return the time that phones have each number of neighbours, by a walk through the events of each phone."""
    found: dict[int, int] = {}
    for phone in {each.node for each in drawn.presences}:
        events = [(each.join_us, 1, 0) for each in drawn.presences if each.node == phone]
        events += [(each.leave_us or END_US, -1, 0) for each in drawn.presences if each.node == phone]
        mine = [each for each in drawn.contacts if phone in each[:2]]
        events += [(each.start_us, 0, 1) for each in mine] + [(each.end_us, 0, -1) for each in mine]
        there = near = last_us = 0
        for t_us, comes, meets in sorted(events):
            if there:
                found[near] = found.get(near, 0) + t_us - last_us
            there, near, last_us = there + comes, near + meets, t_us
    return found


def figures(drawn: DrawnContacts) -> Figures:
    """Return what the paper counts."""
    lasting_s = [(each.end_us - each.start_us) / SECOND for each in drawn.contacts]
    one_way_s = [each_s for each, each_s in zip(drawn.contacts, lasting_s, strict=True) if each.heard]
    time_us = neighbours(drawn)
    total_us = sum(time_us.values())
    return Figures(
        len(lasting_s), fmean(lasting_s), sum(each < 60 for each in lasting_s) / len(lasting_s),
        time_us[0] / total_us, sum(time_us[each] for each in range(3)) / total_us,
        len(one_way_s) / len(lasting_s), max(one_way_s),
    )  # fmt: skip


def means(seeds: Iterable[int]) -> Figures:
    """Return the means over seeds, and the longest one-way contact of all."""
    model = Scenario.load(SCENARIO).contact_model
    assert isinstance(model, Campus)
    every = [figures(model.meet(seed, END_US)) for seed in seeds]
    middle = Figures._make(fmean(column) for column in zip(*every, strict=True))
    return middle._replace(one_way_most_s=max(each.one_way_most_s for each in every))


def check(found: Figures) -> None:
    assert 5_729 * 0.95 <= found.contacts <= 5_729 * 1.05
    assert 121 * 0.95 <= found.mean_s <= 121 * 1.05
    assert found.short > 0.5
    assert 0.27 <= found.alone <= 0.33
    assert 0.77 <= found.two <= 0.83
    assert found.one_way == pytest.approx(0.025, abs=0.001)
    assert found.one_way_most_s < 60


def test_contacts_are_as_many_and_as_long_as_those_of_the_paper() -> None:
    check(means(range(1, 6)))


@pytest.mark.soak
def test_contacts_of_many_seeds_are_as_many_and_as_long_as_those_of_the_paper() -> None:
    check(means(range(1, 21)))
    check(means(range(1, 101)))


MODELS = st.builds(
    Campus,
    people=st.integers(4, 9),
    office_people=st.integers(1, 4),
    day_h=st.floats(6, 24),
    departure_mean_h=st.floats(0, 14),
    half_days=st.floats(0, 1),
    off=st.floats(0, 1),
    one_way=st.floats(0, 0.5),
    together_h=st.floats(0, 9),
    flats=st.sampled_from([(), ("p1 p2",), ("p4 p2", "p1 p3")]),
)


@examples(10)
@given(model=MODELS, seed=st.integers(0, 1 << 32), days=st.sampled_from([0.3, 1.0, 1.4]))
def test_contacts_are_apart_and_never_of_a_phone_that_is_off(model: Campus, seed: int, days: float) -> None:
    duration_us = round(days * 86_400 * SECOND)
    drawn = model.meet(seed, duration_us)
    assert drawn == model.meet(seed, duration_us)
    there, active = spans(drawn.presences), spans(drawn.active)
    for contact in drawn.contacts:
        assert contact.a < contact.b
        assert contact.end_us - contact.start_us >= SECOND
        assert contact.heard in {"", contact.a, contact.b}
        for name in contact[:2]:
            assert any(join <= contact.start_us and contact.end_us <= leave for join, leave in there[name])
    for name, times in active.items():
        for start_us, end_us in times:
            assert start_us < duration_us
            assert any(join <= start_us and end_us <= leave for join, leave in there[name])
    for a, b in combinations(sorted(there), 2):
        mine = sorted(each[2:4] for each in drawn.contacts if each[:2] == (a, b))
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(mine))
    longest = [each for each in drawn.contacts if each.heard and each.end_us - each.start_us >= 60 * SECOND]
    assert longest == []


def spans(presences: Iterable[Presence]) -> dict[str, list[tuple[int, int]]]:
    """Return the stays of each node; to the end: to the end of all days."""
    found: dict[str, list[tuple[int, int]]] = {}
    for each in presences:
        found.setdefault(each.node, []).append((each.join_us, 1 << 60 if each.leave_us is None else each.leave_us))
    return found


def test_a_shorter_run_has_the_same_first_day() -> None:
    model = Campus(flats=FLATS)
    whole, half = (model.meet(7, round(days * 86_400 * SECOND)).contacts for days in (2, 1))
    assert half
    assert half == [each for each in whole if each.start_us < 86_400 * SECOND]


def test_two_people_in_a_flat_meet_in_the_evening_and_nobody_else() -> None:
    model = Campus(flats=("p1 p4",), errands_per_h=0.0, off=0.0)
    evening = [each for each in model.meet(3, END_US // 2).contacts if each.start_us > 15.9 * 3_600 * SECOND]
    assert {each[:2] for each in evening} <= {("p1", "p4")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model = "campos"', "line 3: contacts.model must be \"campus\", not 'campos'; did you mean campus"),
        ("model = 7", 'line 3: contacts.model must be "campus", not 7'),
        ('model = "campus"\nfile = "x.csv"', "line 4: contacts.file and contacts.model exclude each other"),
        ('model = "campus"\n[nodes]\ncount = 3', 'contacts.model = "campus" and [nodes] exclude each other'),
        ('model = "campus"\n[mobility]\nmodel = "community"', "[contacts] and [mobility] exclude each other"),
        ('model = "campus"\npepole = 3', "line 4: contacts.pepole is not a setting; did you mean people"),
        ('model = "campus"\npeople = 3', "contacts.meeting_people must be at most 3, which is people, not 4"),
        ('model = "campus"\nflats = ["p1"]', "contacts.flats must have pairs of people from p1 to p8, not 'p1'"),
        ('model = "campus"\nflats = ["p1 p9"]', "contacts.flats must have pairs of people from p1 to p8, not 'p1 p9'"),
        ('model = "campus"\nflats = ["p1 p2", "p2 p3"]', "contacts.flats must name each person once, and names 'p2'"),
        ('model = "campus"\nnear_off_s = 9', "contacts.near_off_s must be at least 15, which is gap_min_s, not 9"),
    ],
)
def test_a_mistake_in_a_model_of_contacts_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Scenario.parse(f"duration_s = 9\n[contacts]\n{text}\n")
    assert said in str(error.value)


def test_the_scenario_can_be_repeated_from_the_keys_in_force() -> None:
    made = Scenario.load(SCENARIO, {"contacts.people": 5, "contacts.flats": ["p1 p5"]})
    again = Scenario.parse(made.in_force())
    assert (again.contact_model, again.contacts) == (made.contact_model, made.contacts)
    assert len({each.node for each in read_inputs(again, 1).presences}) == 5


# --- contacts that work one way, of a model or a file --------------------------------------------------------


@examples(8)
@given(start_s=st.integers(1, 20), lasting_s=st.integers(1, 40), heard=st.sampled_from(["a", "b"]))
def test_a_one_way_contact_carries_nothing_and_is_reported_after_two_announcements(
    tmp_path_factory: pytest.TempPathFactory, start_s: int, lasting_s: int, heard: str
) -> None:
    folder = tmp_path_factory.mktemp("one-way")
    (folder / "c.csv").write_text(f"a,b,start,end,heard\na,b,{start_s},{start_s + lasting_s},{heard}\n")
    text = "duration_s = 70\n[contacts]\nfile = 'c.csv'\n[settings]\nannounce_s_min = 1\nannounce_s_max = 1\n"
    workload = "[[workload]]\nkind = 'broadcast'\nperiod_s = 10\n"
    table = emu.run(Scenario.parse(text + workload, folder), 1).table.to_pylist()
    assert {each["kind"] for each in table}.isdisjoint({"receive", "up"})
    (contact,) = (each for each in table if each["kind"] == "contact")
    assert dict(contact["attrs"])["heard"] == heard
    deaf = "b" if heard == "a" else "a"
    reports = [(each["node"], each["peer"]) for each in table if each["kind"] == "oneway"]
    if lasting_s >= 4:
        assert (deaf, heard) in reports
    if lasting_s <= 1:
        assert reports == []
    assert set(reports) <= {(deaf, heard)}


def test_a_population_refuses_contacts_that_work_one_way(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("a,b,start,end,heard\na,b,1,2,a\n")
    text = "duration_s = 5\nmode = 'population'\n[contacts]\nfile = 'c.csv'\n[population]\ndelays = 'zero'\n"
    with pytest.raises(LocalError, match="population mode does not model contacts that work one way"):
        read_inputs(Scenario.parse(text, tmp_path), 1)


def test_contacts_keep_their_direction_where_they_are_cut() -> None:
    found = clipped([Contact("a", "b", 0, 9, "b")], [Presence("a", 0, None), Presence("b", 2, 4)], 20)
    assert found == [Contact("a", "b", 2, 4, "b")]

"""Scenario files: their contents, and the errors about mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.support import emulated

from carrypost import emu
from carrypost.config import UNBOUNDED
from carrypost.config.document import toml
from carrypost.emu.scenario import MODELS, Scenario
from carrypost.errors import CarrypostError, ConfigError, LocalError

SMALLEST = """
name = "three"
duration_s = 3600
mode = "faithful"
[nodes]
file = "nodes.csv"
[contacts]
file = "contacts.csv"
[[workload]]
kind = "broadcast"
first_s = 20
period_s = 60
size = 1000
lifetime_s = 1200
ordering = "delta-causal"
[[workload]]
kind = "script"
file = "publish.csv"
"""


def test_the_smallest_scenario_has_the_binding_keys() -> None:
    made = Scenario.parse(SMALLEST)
    assert (made.name, made.duration_us, made.ideal) == ("three", 3_600_000_000, False)
    assert (made.nodes.file, made.contacts.file) == ("nodes.csv", "contacts.csv")
    first, second = made.workloads
    assert (first.kind, first.first_s, first.period_s, first.size) == ("broadcast", 20, 60, 1000)
    assert (first.lifetime_s, first.ordering) == (1200, "delta-causal")
    assert (second.kind, second.file, second.lifetime_s) == ("script", "publish.csv", None)


def test_a_scenario_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text("duration_s = 1\n")
    assert Scenario.load(tmp_path / "small.toml").name == "small"


def test_settings_of_the_nodes_are_those_of_emulation_with_changes() -> None:
    made = Scenario.parse("duration_s = 1\n[settings]\nannounce_s_max = 7\n[settings.limits]\nframes_max = 99\n")
    assert (made.settings.announce_s_max, made.settings.limits.frames_max) == (7, 99)
    assert (made.settings.security, made.settings.lifetime_s_max) == ("off", None)


def test_ideal_mode_takes_limits_away_unless_the_scenario_sets_them() -> None:
    text = 'duration_s = 1\nmode = "ideal"\n[settings]\ncache_messages_max = 5\n'
    settings = Scenario.parse(text).settings
    assert not settings.beacons
    assert not settings.shares
    assert (settings.coalesce_s, settings.cache_bytes_max) == (0, UNBOUNDED)
    assert settings.cache_messages_max == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("duraton_s = 1", "line 1: duraton_s is not a key of a scenario; did you mean duration_s?"),
        ("duration_s = 1\n[contact]\nfile = 'x'", "line 2: contact is not a key of a scenario; did you mean contacts?"),
        ("name = 'x'", "duration_s is missing"),
        ("duration_s = -1", "line 1: duration_s must be a number from"),
        ("duration_s = 1\n\n[radio]\nrate_bytes_per_s = -5", "line 4: radio.rate_bytes_per_s must be a size"),
        ("duration_s = 1\n[radio]\nlos = 0.1", "line 3: radio.los is not a setting; did you mean loss?"),
        ("duration_s = 1\n[radio]\nloss = 1.5", "line 3: radio.loss must be a number from 0.0 to 1.0, not 1.5"),
        ("duration_s = 1\n[radio]\nairtime = 'shared'", "requires radio.rate_bytes_per_s"),
        ("duration_s = 1\n[radio]\nairtime = 'paired'", '"paired" requires radio.rate_bytes_per_s'),
        ("duration_s = 1\n[radio]\nroutes = 'told'", 'needs mode = "ideal" and settings.island = true'),
        ("duration_s = 1\n[[radio.link]]\na = 'x'", "radio.link.0.b is missing"),
        ("duration_s = 1\n[settings]\naltruist = true", "line 3: settings.altruist is not a setting; did you mean alt"),
        ("duration_s = 1\n[settings.limits]\nframe_max = 1", "line 3: settings.limits.frame_max is not a setting"),
        ("duration_s = 1\n[settings]\nannounce_s_min = 9", "announce_s_min must be at most announce_s_max"),
        ("duration_s = 1\n[[workload]]\nsize = 1", "line 2: workload.0.kind is missing"),
        ("duration_s = 1\nworkload = [{size = 1}]", "line 2: workload.0.kind is missing"),
        ("duration_s = 1\n[settings]\nlimits = {frames_max = 0}", "line 3: settings.limits.frames_max must be a whole"),
        ("duration_s = 1\n[workload]\nkind = 'script'", "workload must be a list of tables, each written [[workload]]"),
        ("duration_s = 1\n[[workload]]\nkind = 'script'", 'workload.0 has kind = "script", which requires a file'),
        (
            "duration_s = 1\n[[workload]]\nkind = 'broadcast'\n[[workload]]\nkind = 'broadcast'\nperod_s = 1",
            "line 6: workload.1.perod_s is not a setting; did you mean period_s?",
        ),
        (
            "duration_s = 1\n[[workload]]\nkind = 'broadcast'\ntopic = 'workload-1'\n[[workload]]\nkind = 'broadcast'",
            "workload.1 has the topic 'workload-1' of workload.0",
        ),
        (
            "duration_s = 1\n[[workload]]\nkind = 'broadcast'\nsize = 99_999_999",
            "line 4: workload.0.size must be at most settings.limits.message_bytes_max (16,777,216), not 99,999,999",
        ),
        (
            "duration_s = 1\n[[workload]]\nkind = 'broadcast'\nfile = 'x'",
            'line 2: workload.0 has a file, which requires kind = "script"',
        ),
        ("duration_s = 1\n[[radio.link]]\na = 'x'\nb = 'x'", "line 2: radio.link.0 is a link of 'x' to itself"),
        (
            "duration_s = 1\n[[radio.link]]\na = 'x'\nb = 'y'\n[[radio.link]]\na = 'y'\nb = 'x'",
            "line 5: radio.link.1 is about the pair of radio.link.0",
        ),
        ("duration_s = 1\n[mobility]\nmodel = 'fly'", 'mobility.model must be one of "random-waypoint"'),
        ("duration_s = 1\n[mobility]\nmodel = 'random-waypoint'\nspede = 1", "line 4: mobility.spede is not a setting"),
        ("duration_s = 1\n[contacts]\nfile='x'\n[mobility]\nmodel='random-waypoint'", "exclude each other"),
        ("duration_s = 1\n[nodes]\nfile='x'\ncount=3", "exclude each other"),
        ("duration_s = 1\nnodes = 3", "line 2: nodes must be a table, not 3"),
        ("duration_s = 1\n[[faults.event]]\nt = 1\nnode = 'a'", "faults.event.0.kind is missing"),
        (
            "duration_s = 1\n[faults]\ncrash_per_hour = 1",
            "line 3: faults.crash_per_hour is not a setting; did you mean",
        ),
        ("duration_s = ", "cannot be read as TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_remedy(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Scenario.parse(text, file="scene.toml")
    assert said in str(raised.value)
    assert str(raised.value).startswith("scene.toml")


def test_a_scenario_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"nowhere\.toml cannot be read"):
        Scenario.load(tmp_path / "nowhere.toml")


# --- overrides -----------------------------------------------------------------------------------------------


def test_overrides_change_single_keys_and_are_in_the_text() -> None:
    made = Scenario.parse(SMALLEST, overrides=["workload.0.lifetime_s=600", "mode=ideal", "radio.loss = 0.5"])
    assert (made.workloads[0].lifetime_s, made.ideal, made.radio.loss) == (600, True, 0.5)
    again = Scenario.parse(made.text)
    assert again == made


def test_overrides_can_be_values_by_key() -> None:
    made = Scenario.parse(SMALLEST, overrides={"workload.0.lifetime_s": "none", "settings.altruistic": ["news/.*"]})
    assert made.workloads[0].lifetime_s is None
    assert made.settings.altruistic == ("news/.*",)


def test_a_text_without_overrides_is_kept_as_it_is() -> None:
    assert Scenario.parse(SMALLEST).text == SMALLEST


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("workload.2.size=1", "--set workload.2.size: workload is a list of 2, counted from 0, and has no workload.2"),
        ("workload.first.size=1", "has no workload.first"),
        ("workload.0.siez=1", "with --set: workload.0.siez is not a setting; did you mean size?"),
        ("name.first=1", "--set name.first: name is a value, not a table"),
        ("duration_s", "--set must be KEY=VALUE"),
        ("=5", "--set must be KEY=VALUE"),
        ("radio.loss=much", "with --set: radio.loss must be a number"),
    ],
)
def test_a_mistake_in_an_override_is_named(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Scenario.parse(SMALLEST, overrides=[override])
    assert said in str(raised.value)


def test_toml_that_is_written_reads_as_what_it_was() -> None:
    content = {
        "text": 'quotes " and \\ and \n and \x7f and ü',
        "odd key": 1,
        "flag": True,
        "float": 1e-6,
        "list": [1, 2.5, "x", [True]],
        "mixed": [{"a": 1}, 2],
        "empty": [],
        "table": {"inner": {"deep": 1}, "rows": [{"x": 1, "more": [{"y": 2}]}, {"x": 2}]},
    }
    assert tomllib.loads(toml(content)) == content


def test_all_keys_in_force_read_as_a_scenario_again() -> None:
    made = Scenario.parse(SMALLEST + "[[faults.event]]\nt = 1\nnode = 'a'\nkind = 'crash'\n")
    again = Scenario.parse(made.in_force())
    assert again.in_force() == made.in_force()
    assert (again.run, again.settings) == (made.run, made.settings)
    assert again.faults == made.faults


@pytest.mark.parametrize(("mode", "delay_s"), [("faithful", "0.001"), ("ideal", "0.0")])
def test_keys_in_force_tell_what_an_empty_one_means(mode: str, delay_s: str) -> None:
    text = f"duration_s = 1\nmode = '{mode}'\n[[workload]]\nkind = 'broadcast'\n"
    in_force = tomllib.loads(Scenario.parse(text, file="some.toml").in_force())
    assert (in_force["name"], in_force["workload"][0]["topic"]) == ("some", "workload-0")
    assert in_force["radio"]["delay_s"] == float(delay_s)


def test_days_may_be_written_as_toml_has_them() -> None:
    text = "duration_s = 1\n[mobility]\nmodel = 'gtfs'\nfile = 'feed'\nday = {}\nstart = {}\n"
    quoted, plain = (
        Scenario.parse(text.format(*each)) for each in (("'2014-06-03'", "'05:30:00'"), ("2014-06-03", "05:30:00"))
    )
    assert plain.mobility == quoted.mobility


@pytest.mark.parametrize("model", [name for name in MODELS if name not in {"trace", "gtfs"}])
def test_every_model_of_mobility_has_defaults_and_can_be_repeated_from_the_keys_in_force(model: str) -> None:
    made = Scenario.parse(f'duration_s = 1\n[mobility]\nmodel = "{model}"\n')
    again = Scenario.parse(made.in_force())
    assert again.mobility == made.mobility


# --- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,b,10,5", "contacts.csv, line 3: the contact ends at 5 s, before it starts at 10 s"),
        ("a,b,2,20", "contacts.csv, line 3: this contact of a and b overlaps"),
        ("a,b,x,20", "contacts.csv, line 3: start must be a number, not 'x'"),
        ("a,b,-1,20", "contacts.csv, line 3: start must be a time from 0"),
        ("a,d,1,20", "contacts.csv, line 3: there is no node d"),
        ("a,b,6,5,20,5", "contacts.csv, line 3: the row has 6 cells, the header names 4 columns"),
    ],
)
def test_bad_contacts_are_named_with_file_and_line(tmp_path: Path, row: str, said: str) -> None:
    tables = emulated.nodes(tmp_path, "a,0,", "b,0,"), emulated.contacts(tmp_path, "a,b,1,5", row)
    with pytest.raises(LocalError) as raised:
        emu.run(emulated.scenario(tmp_path, *tables))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("5,c,m1,10,", "publish.csv, line 2: there is no node 'c'"),
        ("25,b,m1,10,", "publish.csv, line 2: node 'b' is not present at 25.0 s"),
        ("5,a,m1,ten,", "publish.csv, line 2: size must be a number, not 'ten'"),
        ("5,a,m1,-1,", "publish.csv, line 2: size must be a whole number"),
        ("5,a,m1,10,0", "publish.csv, line 2: lifetime must be at least"),
        ("x,a,m1,10,", "publish.csv, line 2: t must be a number"),
        (
            "5,a,m1,99999999,",
            "publish.csv, line 2: size must be at most 16,777,216 (message_bytes_max), not 99,999,999",
        ),
        (f"5,a,{'m' * 300},1,", "publish.csv, line 2: message must have at most 256 bytes"),
        ("5,a,,10,", "publish.csv, line 2: message must not be empty"),
        ("5,a,m1,10,\n6,a,m1,10,", "publish.csv, line 3: message 'm1' is published on line 2 already"),
    ],
)
def test_a_bad_script_is_named_with_file_and_line(tmp_path: Path, row: str, said: str) -> None:
    tables = emulated.nodes(tmp_path, "a,0,", "b,0,20"), emulated.script(tmp_path, row)
    with pytest.raises(LocalError) as raised:
        emu.run(emulated.scenario(tmp_path, *tables))
    assert said in str(raised.value)


def test_a_lifetime_that_nodes_would_refuse_is_refused_before_the_run(tmp_path: Path) -> None:
    most = "[settings]\nlifetime_s_max = 60\n"
    nodes = emulated.nodes(tmp_path, "a,0,", "b,0,")
    workload = "[[workload]]\nkind = 'broadcast'\nlifetime_s = 61\n"
    group = "[[nodes.group]]\nname = 'careful'\nnames = ['b']\n[nodes.group.settings]\nlifetime_s_max = 60\n"
    for tables, said in (
        ((nodes, workload, most), "workload.0.lifetime_s must be at most 60 (lifetime_s_max), not 61"),
        (
            (nodes, group, emulated.script(tmp_path, "1,a,m,10,90", "2,b,n,10,90")),
            "publish.csv, line 3: lifetime must be at most 60 (lifetime_s_max of 'b'), not 90",
        ),
    ):
        with pytest.raises(LocalError) as raised:
            emu.run(emulated.scenario(tmp_path, *tables))
        assert said in str(raised.value)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("", "there are no nodes"),
        (
            "[nodes]\ncount = 2\n[mobility]\nmodel = 'random-waypoint'\ncount = 3",
            "[mobility] moves 'n0003', and there is no such node in [nodes]",
        ),
        ("[contacts]\nfile = 'nowhere.csv'", "nowhere.csv: there is no such file"),
        ("[nodes]\ncount = 2\n[[radio.link]]\na = 'n0001'\nb = 'x'", "radio.link.0: there is no node 'x'"),
        ("[nodes]\ncount = 2\n[[faults.event]]\nt = 1\nnode = 'x'\nkind = 'crash'", "faults.event.0: there is no node"),
    ],
)
def test_what_cannot_be_run_is_said_before_it_runs(tmp_path: Path, tables: str, said: str) -> None:
    with pytest.raises(CarrypostError) as raised:
        emu.run(emulated.scenario(tmp_path, tables))
    assert said in str(raised.value)


def test_a_scenario_that_is_a_value_takes_no_overrides(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="overrides"):
        emu.run(emulated.scenario(tmp_path, "[nodes]\ncount = 1"), overrides=["mode=ideal"])

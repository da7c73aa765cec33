"""Population mode: refused keys, the first row, and the files of delays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.populations import calibration

from carrypost.arrays import Flags, Ints
from carrypost.emu import Scenario, run
from carrypost.emu.engine.world import Progress
from carrypost.emu.population.delays import QUANTILES, Calibration, Delays, quantiles, read
from carrypost.emu.summary import summarise
from carrypost.errors import ConfigError, FileError, LocalError
from carrypost.traces.encounters import Encounters

TOWN = """
name = "town"
duration_s = 300
mode = "population"
[mobility]
model = "random-waypoint"
count = 30
side_m = 200
[population]
delays = "zero"
[[workload]]
kind = "broadcast"
period_s = 60
lifetime_s = 120
"""


def town(folder: Path, **changes: object) -> Scenario:
    return Scenario.parse(TOWN, folder, overrides={name.replace("__", "."): value for name, value in changes.items()})


REFUSED = {
    "radio.rate_bytes_per_s": 20_000,
    "radio.asymmetric": 0.1,
    "settings.cache_messages_max": 100,
    "settings.cache_bytes_max": 100_000,
    "settings.strategy": "anti-entropy",
    "settings.messaging.enabled": True,
    "settings.island": True,
    "settings.limits.message_bytes_max": 100_000,
    "workload.0.ordering": "causal",
    "workload.0.kind": "addressed",
    "faults.crash_per_h": 1,
    "faults.disk_full_per_h": 1,
    "faults.clock_skew_s": 1,
    "faults.corrupt": 0.1,
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_is_not_modelled_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Scenario.parse(TOWN, overrides={key: REFUSED[key]})
    assert f"{key}: " in str(caught.value)
    assert 'mode = "faithful"' in str(caught.value)
    assert Scenario.parse(TOWN, overrides={key: REFUSED[key], "mode": "faithful"}).run.mode == "faithful"


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('[[radio.link]]\na = "n0001"\nb = "n0002"\nloss = 0.1', "radio.link.0"),
        ('[[nodes.group]]\nname = "slow"\ncount = 2\nsettings = {announce_s_min = 2}', "nodes.group"),
        ('[[faults.event]]\nt = 1\nnode = "n0001"\nkind = "crash"', "faults.event.0.kind"),
    ],
)
def test_a_table_that_is_not_modelled_is_refused_by_its_name(table: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf'{key}: .*mode = "faithful"'):
        Scenario.parse(f"{TOWN}\n{table}\n")


def test_recipients_in_a_script_are_refused_by_their_line(tmp_path: Path) -> None:
    (tmp_path / "publish.csv").write_text("t,node,message,size,recipients\n1,n0001,m,10,\n2,n0001,n,10,n0002\n")
    text = TOWN.replace('kind = "broadcast"\nperiod_s = 60\nlifetime_s = 120', 'kind = "script"\nfile = "publish.csv"')
    with pytest.raises(LocalError, match=r'publish.csv, line 3: recipients: .*mode = "faithful"'):
        run(Scenario.parse(text, tmp_path))


def test_frames_and_applications_are_refused() -> None:
    with pytest.raises(LocalError, match='mode = "faithful"'):
        run(Scenario.parse(TOWN), encoded=True)


def test_delays_have_to_be_given() -> None:
    with pytest.raises(ConfigError, match=r"population\.delays is missing: .*calibrate.*zero"):
        Scenario.parse(TOWN.replace('delays = "zero"', ""))


def test_absence_is_modelled_and_its_rows_say_why(tmp_path: Path) -> None:
    table = run(town(tmp_path, faults__away_per_h=20, faults__away_s=30)).table
    leaves = [row["detail"] for row in table.to_pylist() if row["kind"] == "leave"]
    assert leaves
    assert set(leaves) == {"away"}
    summary = summarise(table)
    assert summary.received == summary.bound


def test_the_first_row_and_the_summary_name_mode_and_calibration(tmp_path: Path) -> None:
    calibration(tmp_path / "delays.json", town(tmp_path), where="village")
    scenario = town(tmp_path, population__delays="delays.json")
    table = run(scenario).table
    first = dict(table["attrs"][0].as_py())
    assert first["mode"] == "population"
    assert first["calibration"].startswith("village, seed 1, 60 s: 1,000 contacts, 100 of them censored")
    assert first["sha256:delays.json"]
    assert 'delays = "delays.json"' in first["defaults"]
    told = summarise(table).text()
    assert "mode population" in told
    assert "village, seed 1" in told
    assert "rows `traffic`" in told
    assert "[population]" not in Scenario.parse(TOWN, overrides={"mode": "faithful"}).in_force()


def test_counts_alone_give_the_summary_of_all_rows(tmp_path: Path) -> None:
    whole, counted = (summarise(run(town(tmp_path, population__rows=rows)).table) for rows in ("all", "none"))
    for name in ("nodes", "contacts", "contact_s", "published", "received", "delivered", "hops_mean", "duration_s"):
        assert getattr(counted, name) == getattr(whole, name)
    assert whole.delays is not None
    assert counted.delays is not None
    assert counted.delays.mean_s == whole.delays.mean_s
    assert 0 <= counted.delays.p90_s - whole.delays.p90_s <= 1
    assert counted.rows < whole.rows / 10
    assert not counted.partial


# --- files of delays -----------------------------------------------------------------------------------------


def test_a_file_of_delays_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = calibration(tmp_path / "delays.json", town(tmp_path))
    found = read(path)
    assert (found.published_s[QUANTILES // 2], found.contacts, found.discovery_s[-1]) == (0.25, 1_000, None)
    assert found.digest() == found.sha256


def test_missing_damaged_foreign_and_poor_calibrations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "delays.json"
    scenario = town(tmp_path, population__delays="delays.json")
    with pytest.raises(ConfigError, match=r"delays.json cannot be read \(`carrypost emu calibrate` makes it\)"):
        run(scenario)
    calibration(path, scenario)
    path.write_text(path.read_text().replace("0.25", "0.26"))
    with pytest.raises(FileError, match="is damaged"):
        run(scenario)
    path.write_text(path.read_text()[:100])
    with pytest.raises(FileError, match="must be a file of delays, and is not or is damaged"):
        run(scenario)
    calibration(path, scenario, published_s=(0.1,) * (QUANTILES - 1))
    with pytest.raises(FileError, match=r"must be a file of delays, and is not or is damaged: .*length"):
        run(scenario)
    calibration(path, scenario, contacts=199)
    with pytest.raises(ConfigError, match="199 contacts, and needs at least 200"):
        run(scenario)
    calibration(path, scenario)
    with pytest.raises(ConfigError, match="calibrated with another"):
        run(town(tmp_path, population__delays="delays.json", radio__loss=0.1))
    with pytest.raises(ConfigError, match="up to 10,000 bytes, and here is one of 10,001 bytes"):
        run(town(tmp_path, population__delays="delays.json", workload__0__size=10_001))
    assert len(run(scenario)) > 100


def test_delays_that_were_not_seen_to_their_end_lengthen_those_that_are_drawn() -> None:
    def at(share: float, until_us: Ints, seen: Flags, since_us: Ints | None = None) -> float | None:
        since_us = np.zeros(len(until_us), np.int64) if since_us is None else since_us
        return quantiles(since_us, until_us, seen)[round(share * QUANTILES)]

    delay_us = np.arange(1, 101, dtype=np.int64) * 100_000
    everything = np.ones(100, np.bool_)
    assert at(0.5, delay_us, everything) == pytest.approx(5.0, abs=0.2)
    # Half of them were cut off after 5 s: nothing is known of longer ones.
    half = np.minimum(delay_us, 5_000_000)
    assert at(0.45, half, delay_us <= 5_000_000) == pytest.approx(4.5, abs=0.2)
    assert at(0.99, half, delay_us <= 5_000_000) is None
    # As many again were cut off after 4 s: what is left of the others counts twice.
    early = np.concatenate([delay_us, np.full(100, 4_000_000)])
    longer = at(0.6, early, np.repeat([True, False], 100))
    assert longer is not None
    assert longer > 6.0
    # What is looked at from 5 s on only says how long the longer ones are.
    late = at(0.25, np.concatenate([delay_us, delay_us[50:]]), np.ones(150, np.bool_),
              np.repeat(np.array([0, 5_000_000], np.int64), [100, 50]))  # fmt: skip
    assert late == pytest.approx(2.5, abs=0.2)


def test_what_a_contact_draws_depends_on_seed_pair_and_start_only(tmp_path: Path) -> None:
    calibration(tmp_path / "delays.json", town(tmp_path))
    delays = Delays.of(town(tmp_path, population__delays="delays.json"))
    start = np.arange(2_000, dtype=np.int64) * 1_000_000
    a, b = np.zeros(2_000, np.int32), np.ones(2_000, np.int32)
    all_three = Encounters(("a", "b", "c"), a, b, start, start + 9_000_000)
    opened = delays.opened_us(all_three, 1)
    fewer = Encounters(("a", "b"), a[100:], b[100:], start[100:], start[100:] + 5)
    assert (delays.opened_us(fewer, 1) == opened[100:]).all()
    assert (delays.opened_us(all_three, 2) != opened).any()
    never = opened > start[-1] + 10_000_000
    assert 0.08 < never.mean() < 0.12
    assert 0.9 < ((opened - start)[~never] / 1_000_000).mean() < 1.1
    assert isinstance(read(tmp_path / "delays.json"), Calibration)


def test_a_run_tells_how_far_it_is_also_within_a_window(tmp_path: Path) -> None:
    for window_s in ("none", 100):
        told: list[Progress] = []
        scenario = town(tmp_path, mobility__count=60, workload__0__period_s=15, population__window_s=window_s)
        records = run(scenario, watch=told.append)
        assert len(told) > 3
        assert [each.t_us for each in told] == sorted(each.t_us for each in told)
        assert (told[-1].t_us, told[-1].end_us) == (300_000_000, 300_000_000)
        kinds = records.table["kind"].to_pylist()
        assert (told[-1].contacts, told[-1].receptions) == (kinds.count("contact"), kinds.count("receive"))

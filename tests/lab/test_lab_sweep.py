"""Sweeps of a campaign: names of runs, the column `set`, the frames of notebooks, figures over keys."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support import lab_pages
from tests.support.lab_pages import Reader

from carrypost.cli.app import run
from carrypost.emu.scenario import Scenario
from carrypost.errors import ConfigError, LocalError
from carrypost.lab import folders, frame
from carrypost.lab.campaign import grid
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics import families as f
from carrypost.lab.report import page
from carrypost.lab.report.study import Study
from carrypost.lab.schemas import RUNS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "experiments.md"
PLAIN = """
name = "plain"
duration_s = 60
[nodes]
count = 2
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 20
size = 100
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 20
size = 100
"""


def _campaign(folder: Path, text: str) -> Path:
    (folder / "plain.toml").write_text(PLAIN)
    path = folder / "campaign.toml"
    path.write_text(f'scenarios = ["plain.toml"]\nseeds = [1]\n{text}')
    return path


# ----------------------------------------------------------------------------------------------------------- grid
def test_runs_are_all_combinations_the_last_key_changing_fastest(tmp_path: Path) -> None:
    text = '[[settings]]\nname = "a"\n[[settings]]\nname = "b"\nset = {"workload.0.size" = 7}\n'
    text += '[sweep]\nworkload.1.size = [10, 20]\nmode = ["ideal", "faithful"]\n'
    made = grid.load(_campaign(tmp_path, text)).runs
    assert [each.settings for each in made] == [
        f"{name}, size={size}, mode={mode}" for name in "ab" for size in (10, 20) for mode in ("ideal", "faithful")
    ]
    assert made[-1].overrides == {"workload.0.size": 7, "workload.1.size": 20, "mode": "faithful"}
    assert made[-1].set == {"workload.0.size": "7", "workload.1.size": "20", "mode": "faithful"}


def test_keys_with_one_last_part_are_named_whole_and_a_sweep_alone_needs_no_settings(tmp_path: Path) -> None:
    text = '[sweep]\n"workload.0.size" = [10]\n"workload.1.size" = [20, 30]\n"radio.loss" = [0.1]\n'
    assert [each.settings for each in grid.load(_campaign(tmp_path, text)).runs] == [
        f"workload.0.size=10, workload.1.size={size}, loss=0.1" for size in (20, 30)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[sweep]\n"workload.0.size" = 5\n', "workload.0.size must be a list of one or more values"),
        ('[sweep]\n"workload.0.size" = []\n', "workload.0.size must be a list of one or more values"),
        ('[sweep]\n"workload.0.size" = [5, 5]\n', "workload.0.size has the value 5 twice"),
        (
            '[sweep]\n"workload.0.sice" = [5]\n',
            'settings "sice=5": plain.toml with these settings: workload.0.sice is not a setting',
        ),
        (
            '[[settings]]\nname = "a"\nset = {"workload.0.size" = 7}\n[sweep]\n"workload.0.size" = [5]\n',
            'workload.0.size is swept, and set by the settings "a"',
        ),
        ("sweep = [5]\n", "sweep must be a table of keys and lists of values"),
        (f'[sweep]\n"workload.0.size" = {list(range(1100))}\n"workload.1.size" = {list(range(1100))}\n', "1,000,000"),
    ],
)
def test_mistakes_in_a_sweep_name_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grid.load(_campaign(tmp_path, text))


# ------------------------------------------------------------------------------------------------------- notebooks
def _quiet(*words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert run([*words]) == 0


def test_the_session_in_the_document_is_what_a_notebook_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (scenario,) = re.findall(r'Scenario\.parse\("""(\nname = "pair".*?)"""\)', text, re.DOTALL)
    (campaign,) = re.findall(r"```toml\n# sweep\.toml\n(.*?)```", text, re.DOTALL)
    (session,) = re.findall(r"```pycon\n(.*?)```", text, re.DOTALL)
    (tmp_path / "pair.toml").write_text(scenario)
    (tmp_path / "sweep.toml").write_text(campaign)
    monkeypatch.chdir(tmp_path)
    _quiet("lab", "campaign", "sweep.toml", "--out", "results", "--engine", "local")
    _quiet("lab", "metrics", "results", "--engine", "local")
    example = doctest.DocTestParser().get_doctest(session, {}, "experiments.md", str(DOCUMENT), 0)
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=told.append)
    assert told == []
    runs = folders.read_arrow(tmp_path / "results", RUNS).to_pylist()
    assert dict(runs[0]["set"]) == {"workload.0.period_s": "60", "workload.0.lifetime_s": "30"}
    with pytest.raises(LocalError, match=r"there is no family 'delivery_ratios' in results; did you mean"):
        frame("results", "delivery_ratios")
    with pytest.raises(LocalError, match="elsewhere: there is no such file or folder"):
        frame("elsewhere", "runs")


# ----------------------------------------------------------------------------------------------------------- pages
def _swept(folder: Path, *, listed: int = 0) -> Reader:
    """Return the page of two values of one key and two of another, two seeds each."""
    rows: lab_pages.Rows = {table: [] for table in FAMILIES}
    runs: list[dict[str, Any]] = []
    in_force = Scenario.parse(PLAIN, folder).in_force()
    for size in (10, 40):
        for mode in ("ideal", "faithful"):
            for seed in (1, 2):
                name = f"plain/size={size}, mode={mode}/{seed}"
                row = lab_pages.done(folder, name, in_force)
                runs.append(row | {"set": [("workload.0.size", str(size)), ("mode", mode)]})
                add = {"run": name}
                rows[f.PROCESSING].append(
                    add
                    | {"bcast": 4, "rcvd": 9, "codlvd": 10, "expd": 0, "left": 3, "codlvratio": 0.8, "expratio": 0.0}
                )
                rows[f.OUTCOMES].append(
                    add | {"created": 5, "refused": 1, "listed": listed, "relayed": 9, "dropped": 2 * seed}
                )
                rows[f.DELIVERY_RATIO].append(add | {"messages": 4, "ratio": size / 100 + seed / 1_000})
                rows[f.CLASSES].append(
                    add | {"mode": "persistent", "priority": 4, "messages": 4, "recipients": 8, "delivered": 6,
                           "ratio": 0.75}
                )  # fmt: skip
                rows[f.FLOOD].append(add | {"value_ms": 0, "count": 8, "cumulative": 8, "share": 1.0})
                spread = dict.fromkeys(
                    ("min_s", "avg_s", "stdev_s", "max_s", *(f"p{each}_s" for each in f.PERCENTILES)), 2.0
                )
                rows[f.DELAY_SPREAD] += [
                    add | {"metric": metric, "count": 6, **spread} for metric in (f.LTCY, f.CODLVDELAY)
                ]
    lab_pages.keep(folder, rows, runs)
    return Reader(page.render(Study(folder)).text)


def test_the_summary_has_every_setting_with_its_main_metrics(tmp_path: Path) -> None:
    found = _swept(tmp_path)
    assert found.tables["Summary of all settings"][:2] == [
        ["settings", "delivery ratio"],
        ["size=10, mode=ideal", "10.15 % ± 0.64 pp"],
    ]
    same = (
        "share of the flood bound 75.00 %; delay, mean 2 s; delay, median 2 s; overhead ratio 0.500; copies dropped 3 ±"
    )
    assert f"The same in all rows: {same} " in found.text


def test_each_swept_key_with_numbers_has_a_figure_of_each_main_metric(tmp_path: Path) -> None:
    found = _swept(tmp_path)
    assert "Main metrics by workload.0.size" in found.text
    assert "Curves differ by mode." in found.text
    assert "Main metrics by mode" not in found.text, "modes are no numbers"
    for name in ("delivery ratio", "delay, mean", "overhead ratio"):
        assert f") {name}" in found.text
    assert found.text.count("mode=faithful") > found.text.count("size=10, mode=faithful"), "the legend of the curves"


def test_messages_with_recipients_have_what_became_of_them(tmp_path: Path) -> None:
    found = _swept(tmp_path, listed=4)
    told = found.tables["Outcome of messages"]
    assert told[0] == ["settings", "delivery ratio"]
    same = "created 5; refused 1; recipients 8; delivered 6; relayed 9; overhead ratio 0.500"
    assert f"The same in all rows: {same}." in found.text
    assert "neither" not in " ".join(" ".join(row) for row in told)


def test_own_messages_are_not_among_the_delivered(tmp_path: Path) -> None:
    found = _swept(tmp_path)
    assert "published 4; received 9; delivered 6; of the received 66.67 %; expired waiting 0; neither 3" in found.text

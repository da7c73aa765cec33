"""`--engine local`: every step of the laboratory in one process, on a machine without Java."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.campaigns import FAILING, TWO_SETTINGS, campaign, records, three

from carrypost import emu
from carrypost.cli.app import run as command
from carrypost.errors import LabError
from carrypost.lab import folders
from carrypost.lab.campaign.grid import load
from carrypost.lab.contacts import TABLES
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.schemas import FAILURES

PLACES = [(t, node, x) for t in range(0, 600, 5) for node, x in (("a", 0), ("b", 5 + 40 * (t // 100 % 2)))]
TRACE = "t,node,x,y\n" + "".join(f"{t},{node},{x},0\n" for t, node, x in PLACES)
SCENARIO = """
name = "walk"
duration_s = 600
[contacts]
file = "walk/contacts"
presence = "contacts"
[[workload]]
kind = "broadcast"
period_s = 60
lifetime_s = 300
"""


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Path:
        raise LabError("there is no Java in this test")

    monkeypatch.setattr("carrypost.lab.spark.session.java_home", missing)
    monkeypatch.setattr("carrypost.lab.spark.java.java_home", missing)


def test_from_a_trace_to_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("walk.csv").write_text(TRACE, encoding="ascii")
    Path("walk.toml").write_text(SCENARIO, encoding="ascii")
    Path("campaign.toml").write_text('scenarios = ["walk.toml"]\nseeds = [1, 2]\n', encoding="ascii")
    for order in (
        "ingest walk.csv --format gps-csv --scenario walk --out walk",
        "contacts walk --range-m 10 --statistics --out walk",
        "campaign campaign.toml --out results",
        "metrics results",
        "report results --out report.html",
    ):
        assert command(["lab", *order.split(), "--engine", "local"]) == 0, order
    for table in TABLES:
        assert folders.read_arrow(Path("walk/statistics"), table).num_rows > 0
    for table in FAMILIES:
        assert folders.read_arrow(Path("results/metrics"), table).schema.equals(table.arrow)
    assert "walk" in Path("report.html").read_text(encoding="utf-8")


def test_a_campaign_has_the_records_of_plain_runs_and_one_that_fails_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path, TWO_SETTINGS, FAILING), tmp_path / "out"
    assert command(["lab", "campaign", str(path), "--out", str(out), "--engine", "local", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["done"], told["failed"]) == (4, 2)
    assert folders.read_arrow(out, FAILURES).num_rows == 2
    made = {}
    for run in load(campaign(tmp_path, TWO_SETTINGS)).runs:
        plain = tmp_path / "plain.parquet"
        scenario = tmp_path / "scenarios" / run.file
        emu.run(scenario, run.seed, overrides=dict(run.overrides), settings=run.settings, out=plain)
        made[f"{run.stem}.parquet"] = plain.read_bytes()
    assert records(out) == dict(sorted(made.items()))


WITHOUT = """
import dataclasses, sys

for name in sys.argv[1].split():
    sys.modules[name] = None  # As if it were not installed.
from carrypost.cli.app import run

if sys.argv[1] == "pyspark py4j":
    from carrypost.lab.campaign.reproduce import RECIPES

    RECIPES["bus"] = dataclasses.replace(RECIPES["bus"], quick_s=120)
for order in sys.stdin.read().splitlines():
    print(order, "-->", flush=True)
    print("-->", run(order.split()), flush=True)
"""


def without(modules: str, orders: Sequence[str]) -> list[tuple[str, str]]:
    """Return the exit code of each command, and what it said, in a process that does not have these modules."""
    asked = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", WITHOUT, modules], input="\n".join(orders), text=True, check=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    words = asked.stdout.split("-->")
    return [(code.split()[0], " ".join(said.split())) for said, code in zip(words[1::2], words[2::2], strict=True)]


def test_without_pyspark_everything_works_and_spark_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    three(tmp_path)
    path = campaign(tmp_path, seeds="[1]")
    local = [f"lab campaign {path} --out out", "lab metrics out", "lab report out --out page.html",
             "reproduce bus --quick --out bus"]  # fmt: skip
    needed = [f"lab campaign {path} --out other", "lab metrics out", "lab stream out", "reproduce bus --out other"]
    found = without("pyspark py4j", [*(f"{each} --engine local" for each in local), *needed])
    assert [code for code, _ in found] == ["0"] * len(local) + ["2"] * len(needed), found
    for _, said in found[len(local) :]:
        assert "Spark is not installed: pip install 'carrypost[lab]'" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("missing", ["numpy", "pyarrow", "jinja2", "vl_convert"])
def test_a_missing_extra_is_a_sentence(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    orders = ["lab report .", "reproduce bus --quick"]
    if missing not in {"jinja2", "vl_convert"}:
        orders += ["lab ingest . --format csv --scenario x --out x", "lab contacts . --range-m 5 --out x"]
        orders += ["lab campaign x.toml --out x", "lab metrics .", "lab stream .", "emu run x.toml"]
    (tmp_path / "x.toml").touch()
    for code, said in without(missing, orders):
        assert code == "2", said
        assert "pip install 'carrypost[" in said
        assert "Traceback" not in said

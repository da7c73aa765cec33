"""Metrics of one's own: `--plugin` of `lab metrics` and `lab report`."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest
from tests.support.campaigns import campaign, played, three

from carrypost.cli.app import run as command
from carrypost.errors import CarrypostError
from carrypost.lab.engines import LocalEngine, SparkEngine
from carrypost.lab.metrics import making
from carrypost.lab.metrics.plugins import Plugin
from carrypost.lab.metrics.records import Source
from carrypost.lab.report import general
from carrypost.lab.spark.session import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from carrypost.lab.report.study import Study

DOCUMENT = Path(__file__).parents[2] / "docs" / "experiments.md"
SHORT = """
from carrypost.lab.metrics.parts import Family
from carrypost.lab.schemas import Column, Table

class Most:
    def __init__(self, most_s): self.most_s = most_s
    def merge(self, other): return Most(max(self.most_s, other.most_s))

def part(of): return Most(of.rows.t_us.max() / 1e6)
def columns(part): return {"last_s": [part.most_s]}
TABLE = Table.of("last", "the last row", Column("run", "string", ""), Column("last_s", "float64", ""))
FAMILIES = {TABLE: Family(part, columns)}
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    three(tmp_path)
    with played(campaign(tmp_path), tmp_path / "results"):
        pass
    return tmp_path / "results"


def example(folder: Path) -> Path:
    """Write the example of the document to a file."""
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(r"```python\n(# my_metrics.py\n.*?)```", text, re.DOTALL)
    assert found
    path = folder / "my_metrics.py"
    path.write_text(found[1], encoding="utf-8")
    return path


def rows(home: Path, family: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(home / family).to_pylist()
    return found


def test_the_example_of_the_document_gives_a_table_and_a_part_of_the_page(
    runs: Path, tmp_path: Path, spark: SparkSession
) -> None:
    del spark  # Without `--engine local`, it is used.
    plugin = str(example(tmp_path))
    chosen = ["--plugin", plugin, "--family", "carried"]
    assert command(["lab", "metrics", str(runs), *chosen, "--out", str(tmp_path / "there")]) == 0
    assert command(["lab", "metrics", str(runs), *chosen, "--out", str(tmp_path / "here"), "--engine", "local"]) == 0
    found = rows(tmp_path / "here", "carried")
    assert found == rows(tmp_path / "there", "carried")
    received = [row for row in rows(runs, "records") if row["kind"] == "receive"]
    assert sum(row["messages"] for row in found) == len(received) > 0
    assert {row["node"]: row["messages"] for row in found if row["run"] == "three/default/1"} == Counter(
        row["node"] for row in received if row["run"] == "three/default/1"
    )
    page = tmp_path / "page.html"
    assert command(["lab", "report", str(runs), "--plugin", plugin, "--out", str(page), "--engine", "local"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "Messages of others that nodes received" in text
    assert f"<td>{found[-1]['bytes']:,}</td>" in text


def test_parts_of_a_class_of_ones_own_are_merged_by_both_engines(
    runs: Path, tmp_path: Path, spark: SparkSession
) -> None:
    del spark
    (tmp_path / "last.py").write_text(SHORT, encoding="utf-8")
    plugin = Plugin.read(tmp_path / "last.py")
    with ExitStack() as ending:
        for engine in (LocalEngine(), SparkEngine(SparkOptions(), ending)):
            wanted = making.Wanted(
                tables=tuple(plugin.families), plugins=(plugin,), out=tmp_path / engine.name, slice_rows=20
            )
            making.make(engine, Source.find(runs), wanted)
    assert rows(tmp_path / "spark", "last") == rows(tmp_path / "local", "last")
    assert [row["last_s"] for row in rows(tmp_path / "spark", "last")] == [59.999999] * 2


def test_a_plugin_that_changed_is_computed_again_and_its_own_part_of_the_page_is_shown(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin, page = tmp_path / "last.py", tmp_path / "page.html"
    order = ["lab", "report", str(runs), "--plugin", str(plugin), "--out", str(page), "--engine", "local"]
    plugin.write_text(SHORT, encoding="utf-8")
    assert command(order) == 0
    assert "The last row" in page.read_text(encoding="utf-8")
    assert "computing" in capsys.readouterr().err
    assert command(order) == 0
    assert "computing" not in capsys.readouterr().err
    before = (runs / "metrics" / "delays" / "part-00000.parquet").stat().st_mtime_ns
    shown = "\ndef report(study, all_series): return [f'my part of {all_series[0].scenario}']\n"
    plugin.write_text(SHORT.replace("[part.most_s]", "[7.0]") + shown, encoding="utf-8")
    assert command(order) == 0
    assert rows(runs / "metrics", "last")[0]["last_s"] == 7.0
    assert "my part of three" in page.read_text(encoding="utf-8")
    assert (runs / "metrics" / "delays" / "part-00000.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "my.py: TypeError: 'NoneType' object is not iterable"),
        ("yield 1 / 0", "my.py, line 16: ZeroDivisionError"),
        ("return [5]", "my.py: report must return parts of a page, not 5"),
    ],
)
def test_a_report_that_is_no_part_of_a_page_is_told(tmp_path: Path, body: str, said: str) -> None:
    plugin, nothing = tmp_path / "my.py", cast("Study", None)
    plugin.write_text(f"{SHORT}\n\ndef report(study, all_series):\n    {body}\n", encoding="utf-8")
    with pytest.raises(CarrypostError, match=re.escape(said)):
        general.plugins_part(nothing, [], [Plugin.read(plugin)])


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("FAMILIES = {", 2, "my.py, line 1: '{' was never closed"),
        ("x = 1", 2, "my.py has no FAMILIES: a plugin needs a mapping of that name"),
        ("\n1 / 0", 1, "my.py, line 2: ZeroDivisionError: division by zero"),
        (SHORT.replace('"run"', '"who"'), 2, "the first column of last must be 'run'"),
        (SHORT.replace('"last"', '"delays"'), 2, "carrypost has a family 'delays' already"),
        (SHORT.replace('"last"', '"../last"'), 2, "which must consist of letters, digits, hyphens and underscores"),
        (SHORT + "FAMILIES[Table.of('last', '', *TABLE.columns)] = FAMILIES[TABLE]", 2, "two families 'last'"),
        (SHORT.replace('"float64"', '"number"'), 1, "my.py: ValueError: No type alias for number"),
        (SHORT.replace('{"last_s": [part', '{"first_s": [part'), 2, "the columns of last must be last_s, not first_s"),
        (SHORT.replace('{"last_s": [part.most_s]}', "None"), 2, "the columns of last must be last_s, not None"),
        (SHORT.replace("[part.most_s]", '["soon"]'), 1, "my.py: ArrowInvalid: "),
        (SHORT.replace("Family(part,", "Family([],"), 1, "my.py: TypeError: unhashable type"),
        ("raise SystemExit(3)", 1, "my.py, line 1: SystemExit: 3"),
        (SHORT.replace("of.rows.t_us", "of.rows.nothing"), 1, "my.py, line 9: AttributeError: 'Log' object has no"),
    ],
)
def test_mistakes_in_a_plugin_are_told_with_their_line(
    text: str, code: int, said: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = runs.parent / "my.py"
    plugin.write_text(text, encoding="utf-8")
    order = ["lab", "metrics", str(runs), "--plugin", str(plugin), "--family", "last", "--engine", "local"]
    assert command(order) == code
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (runs / "metrics" / "last").exists()

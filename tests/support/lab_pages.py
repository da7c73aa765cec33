"""Campaigns for tests of pages, made by hand: a folder as `lab campaign` and `lab metrics` leave it, without Spark.

Pages are read by a `Reader`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from carrypost.emu.scenario import Scenario
from carrypost.lab.campaign.reproduce import RECIPES, scenario_file
from carrypost.lab.folders import write_arrow
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics import families as f
from carrypost.lab.report.papers import Experiment, Quad
from carrypost.lab.schemas import FAILURES, RECORDS, RUNS, Table

Rows = dict[Table, list[dict[str, Any]]]
_VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """A page as its tables, texts and tags; a tag that is closed wrongly fails."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._name = ""
        self.text = ""
        self.source = text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "table":
            self._rows, self._name = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in {"td", "th"}:
            self._rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "table":
            self.tables.setdefault(self._name, self._rows)

    def handle_data(self, data: str) -> None:
        if "pre" not in self.open:
            data = re.sub(r"\s+", " ", data)
        if "style" not in self.open:
            self.text += data
        if "caption" in self.open:
            self._name += data
        elif {"td", "th"} & set(self.open):
            self._rows[-1][-1] += data

    def row(self, table: str, *heads: str) -> list[str]:
        """Return the first row of a table that begins with this text, from some row on."""
        rows = iter(next(rows for name, rows in self.tables.items() if name.startswith(table)))
        found: list[str] = []
        for head in heads:
            found = next(row for row in rows if head in row[:2])
        return found


def like_paper(
    folder: Path,
    paper: Experiment,
    factor: float = 1.0,
    *,
    seeds: Sequence[int] = (1,),
    part: bool = False,
    name: str = "",
    limited: bool = False,
) -> None:
    """A whole experiment whose every figure is the paper's times a factor, a hundredth more for each further seed.

    `limited`: with its runs on limited links, which have the paper's own figures.
    """
    recipe = next(each for each in RECIPES.values() if each.scenario == paper.scenario)
    rows: Rows = {table: [] for table in FAMILIES}
    runs = []
    plain, slow = recipe.settings[: len(paper.of)], recipe.settings[len(paper.of) :]
    both = sorted(paper.pair, key=list(paper.of).index)
    chosen_settings = [*zip(paper.of, plain, strict=True), *(zip(both, slow, strict=True) if limited else ())]
    for lifetime_s, chosen in chosen_settings:
        changes = {**chosen.changes, **({"duration_s": recipe.quick_s} if part else {})}
        in_force = Scenario.load(scenario_file(paper.scenario), changes).in_force()
        for place, seed in enumerate(seeds):
            run = f"{name or paper.scenario}/{chosen.name}/{seed}"
            runs.append(done(folder, run, in_force))
            add(rows, run, paper, lifetime_s, (1.0 if chosen in slow else factor) + place / 100)
    keep(folder, rows, runs)


def done(folder: Path, run: str, in_force: str) -> dict[str, Any]:
    """Return a row of the table of runs, and the first row of its record."""
    file = run.replace("/", "-") + ".parquet"
    scenario, settings, seed = run.split("/")
    first: dict[str, Any] = {"run": run, "t": 0.0, "kind": "run", "node": "", "attrs": [("defaults", in_force)]}
    (folder / RECORDS.name).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([first], schema=RECORDS.arrow), folder / RECORDS.name / file)
    return {
        "run": run, "scenario": scenario, "settings": settings, "seed": seed, "status": "done", "version": "1.2.3",
        "rows": 1, "cpu_s": 12.0, "elapsed_s": 13.0, "record": file,
    }  # fmt: skip


def failed(run: str, error: str) -> dict[str, Any]:
    scenario, settings, seed = run.split("/")
    return {
        "run": run, "scenario": scenario, "settings": settings, "seed": seed, "status": "failed", "version": "1.2.3",
        "error": error, "traceback": "",
    }  # fmt: skip


def keep(folder: Path, rows: Mapping[Table, Iterable[dict[str, Any]]], runs: list[dict[str, Any]]) -> None:
    """The tables of a campaign."""
    for table, found in rows.items():
        write_arrow(pa.Table.from_pylist(list(found), schema=table.arrow), folder / "metrics", table)
    failures = [each for each in runs if each["status"] == "failed"]
    write_arrow(pa.Table.from_pylist(runs, schema=RUNS.arrow), folder, RUNS)
    write_arrow(pa.Table.from_pylist(failures, schema=FAILURES.arrow), folder, FAILURES)


def _quad(of: Quad, factor: float) -> dict[str, float]:
    return {name: getattr(of, name) * factor for name in ("min_s", "max_s", "avg_s", "stdev_s")}


def add(rows: Rows, run: str, paper: Experiment, lifetime_s: float | None, factor: float) -> None:
    """Add the rows of one run."""
    nodes = ["L01-1", "L01-2"] if paper.scenario == "city_bus" else [f"n{number:04d}" for number in range(60)]
    told = paper.of[lifetime_s].processing
    bcast, rcvd = told.bcast, round(told.rcvd * factor)
    counts = {
        "bcast": bcast, "rcvd": rcvd, "codlvd": round(told.codlvd * factor), "expd": told.expd or 0, "left": 7,
        "codlvratio": told.codlvratio, "expratio": told.expratio or 0.0,
    }  # fmt: skip
    rows[f.PROCESSING].append({"run": run, **counts})
    rows[f.PROCESSING_BY_NODE] += [{"run": run, "node": node, **counts, "rcvd": 300, "codlvd": 305} for node in nodes]
    delays = paper.of[lifetime_s]
    for metric in f.DELAYS:
        quad = _quad(getattr(delays, metric), factor)
        shares = {f"p{each}_s": quad["avg_s"] for each in f.PERCENTILES}
        rows[f.DELAY_SPREAD].append({"run": run, "metric": metric, "count": rcvd, **quad, **shares})
        for step in range(1, 101):
            value_ms = round(quad["max_s"] * 10 * step)
            rows[f.DELAY_CDF].append(
                {
                    "run": run,
                    "metric": metric,
                    "value_ms": value_ms,
                    "count": 1,
                    "cumulative": step,
                    "share": step / 100,
                }
            )
    for step in range(20):
        cell = {"tdelay_s": 30.0 * step, "ltcy_s": 10.0 * (step % 5), "tdelay_width_s": 30.0, "ltcy_width_s": 10.0}
        rows[f.DELAY_GRID].append({"run": run, **cell, "copies": 3**step})
    _add_nodes(rows, run, paper, nodes, factor)


def _add_nodes(rows: Rows, run: str, paper: Experiment, nodes: Sequence[str], factor: float) -> None:
    for place, node in enumerate(nodes):
        start = 120.0 * place
        rows[f.ACTIVITY].append({"run": run, "node": node, "start": start, "end": start + 300})
        for minute in range(5):
            sizes = {"c_barrier": minute % 3, "co_delivered": 10 * minute, "pending": 0, "cache": 99}
            sample = {"run": run, "node": node, "t": start + 60 * minute + 5, "leaving": False}
            rows[f.REGISTRIES].append({**sample, **sizes})
    for registry in ("c_barrier", "co_delivered", "pending", "cache"):
        rows[f.REGISTRY_SIZES].append({"run": run, "registry": registry, "samples": 9, "mean": 2.5, "max": 8})
    rows[f.BARRIERS] += [{"run": run, "entries": 1, "messages": 3}, {"run": run, "entries": 5, "messages": 1}]
    summary = {"run": run, "nodes": paper.nodes, "active_max": paper.active_max}
    rows[f.ACTIVITY_SUMMARY].append({**summary, **_quad(paper.activity, factor)})
    met = {"contacts": round(paper.contacts * factor), "pairs": 1, "nodes": paper.nodes}
    rows[f.CONTACT_SUMMARY].append({"run": run, **met, **_quad(paper.contact, factor)})
    rows[f.TRAFFIC].append({"run": run, "node": nodes[0], "frame": "Parcel", "bytes": 5_000})
    rows[f.DELIVERY_RATIO].append({"run": run, "messages": 5, "ratio": 0.75})
    for count in range(4):
        rows[f.NEIGHBOURS].append({"run": run, "neighbours": count, "node_s": 1.0, "share": (count + 1) / 4})
        rows[f.NEIGHBOURS_TIMELINE].append({"run": run, "t": 60.0 * count, "active": 2.0, "neighbours": 0.5 * count})
        value = {"value_ms": 1_000 * (count + 1), "count": 1, "cumulative": count + 1, "share": (count + 1) / 4}
        rows[f.CONTACT_CDF].append({"run": run, **value})

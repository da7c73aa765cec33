"""`lab report`: a campaign's folder in, one page out (P5), and its figures as files.

Scenarios of the paper's experiments get its tables and figures beside ours, all others a general part. Metrics that are
not there, or that do not know all runs, are made first, which needs Spark; the page itself does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.metrics.plugins import Plugin
from carrypost.lab.report import (
    balance,
    causal,
    emma,
    field,
    floodwatch,
    general,
    origins,
    overlay,
    overlay_clients,
    own,
)
from carrypost.lab.report.field import FieldTest
from carrypost.lab.report.html import page, paragraph, tag
from carrypost.lab.report.paper import EXPERIMENTS
from carrypost.lab.report.pictures import Block, numbered
from carrypost.lab.report.study import METRICS, Study
from carrypost.lab.schemas import Table
from carrypost.printing import many

CAMPAIGN = "campaign.toml"
Make = Callable[[Path, Sequence[Table]], None]
"""Makes families of a campaign."""


def complete(folder: Path, make: Make, plugins: Sequence[Plugin] = ()) -> Study:
    """Return a campaign with all its metrics; those that are missing are made."""
    study = Study(folder)
    theirs = [table for plugin in plugins for table in plugin.families]  # Only `make` knows whether these are new.
    if missing := [*study.missing(), *theirs]:
        if study.lost:
            more = f" and {many(len(study.lost) - 1, 'other run')}" if study.lost[1:] else ""
            raise LocalError(
                f"{folder} has neither all metrics nor the record of {study.lost[0]}{more}: run `carrypost lab "
                "campaign` again, which makes what is missing"
            )
        make(folder, missing)
        study = Study(folder)
        if still := ", ".join(table.name for table in study.missing()):
            raise LocalError(
                f"{folder / METRICS} still lacks {still}: the runs may have changed meanwhile; make the report again"
            )
    return study


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and its figures as files."""

    text: str
    figures: Mapping[str, str]
    """By name of the file."""


def render(study: Study, command: str = "", plugins: Sequence[Plugin] = ()) -> Page:
    """Return the page; `command` is the one that reproduces all of it, if there is one."""
    papers = [EXPERIMENTS[name] for name in study.scenarios if _of_paper(name, study)]
    sections = {
        name: each.section
        for each in (emma, overlay, overlay_clients, balance, floodwatch)
        for name, series in study.scenarios.items()
        if each.is_of_paper(name, series)
    }
    there = [each for each in (emma, balance, floodwatch) if each.section in sections.values()]
    there += [overlay] * any(each.section in sections.values() for each in (overlay, overlay_clients))
    others = [name for name in study.scenarios if name not in sections and not _of_paper(name, study)]
    titles = [causal.title(papers)] * bool(papers) + [each.TITLE for each in there]
    title = "; ".join(titles) or f"Campaign: {', '.join(others[:3])}{' …' if len(others) > 3 else ''}"  # noqa: PLR2004
    body: list[Block] = [tag("h1", title)]
    sources = [causal.source] * bool(papers) + [each.source for each in there]
    body += [paragraph(of(), kind="note") for of in sources]
    for name, series in study.scenarios.items():
        if name in others:
            body += general.section(study, series)
        elif name in sections:
            body += sections[name](study, series)
        else:
            body += causal.section(study, series, EXPERIMENTS[name])
        body += own.part(study, series, plugins)
    gone = dict.fromkeys(str(each["scenario"]) for each in study.failures if each["scenario"] not in study.scenarios)
    for name in gone:
        body += [tag("h2", name), paragraph("None of its runs succeeded."), origins.failures(study, name)]
    body += [origins.again(study, command, _campaign(study.folder)), origins.versions(study)]
    pieces, files = numbered(body)
    return Page(page(title, pieces), files)


def field_test(test: FieldTest) -> Page:
    """Return the page of records of real nodes."""
    pieces, files = numbered([*field.body(test), origins.made()])
    return Page(page(field.title(test), pieces), files)


def check(out: Path) -> None:
    """Refuse a place where no page can be written, before anything long is begun; leaves nothing there."""
    if out.is_dir():
        raise LocalError(f"{out} is a folder; --out names the page's file")
    above = next(each for each in out.absolute().parents if each.exists())
    with folders.errors_naming(out), tempfile.TemporaryFile(dir=above):
        pass


def write(study: Study, out: Path, command: str = "", plugins: Sequence[Plugin] = ()) -> None:
    """Write the page of a campaign as a file, with a folder of its figures beside it: each complete or not at all."""
    put(render(study, command, plugins), out)


def put(found: Page, out: Path) -> None:
    """Write a page as a file, and its figures beside it."""
    check(out)
    with folders.staged(figures_beside(out)) as partial:
        partial.mkdir()
        for name, text in found.figures.items():
            (partial / name).write_text(text, encoding="utf-8", newline="\n")
    with folders.staged(out) as partial:
        partial.write_text(found.text, encoding="utf-8", newline="\n")


def figures_beside(out: Path) -> Path:
    """Return the folder of the figures of a page: report-figures beside report.html."""
    return out.with_name(f"{out.stem}-figures")


def _of_paper(name: str, study: Study) -> bool:
    """Return True if a scenario is one of the paper's: of that name, with messages that have an order."""
    return name in EXPERIMENTS and all(series.first.ordered for series in study.scenarios[name])


def _campaign(folder: Path) -> str:
    try:
        return (folder / CAMPAIGN).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""

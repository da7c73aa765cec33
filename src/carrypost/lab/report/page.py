"""`lab report`: a campaign's folder in, one page out (P5), and its figures as files.

Scenarios of the paper's experiments get its tables and figures beside ours, all others a general part. Metrics that are
not there, or that do not know all runs, are made first, which needs Spark; the page itself does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import vl_convert
from markupsafe import Markup

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.folders import AnyFolder, Folder
from carrypost.lab.metrics.plugins import Plugin
from carrypost.lab.report import (
    baselines,
    campus,
    causal,
    emma,
    field,
    general,
    origins,
    overlay_brokers,
    overlay_clients,
)
from carrypost.lab.report.blocks import STYLE, Block, Figures, contents, filled, paragraph, tag
from carrypost.lab.report.field import FieldTest
from carrypost.lab.report.papers import EXPERIMENTS, SOURCES
from carrypost.lab.report.study import METRICS, Series, Study
from carrypost.lab.schemas import Table
from carrypost.printing import many

CAMPAIGN = "campaign.toml"
_NAMED_MAX = 3
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


Section = Callable[[Study, Sequence[Series], Figures], Markup]
"""Makes the part of a page about an experiment."""
_SECTIONS: Mapping[str, tuple[str, Section]] = {
    "emma": (emma.TITLE, emma.section),
    "overlay": (overlay_brokers.TITLE, overlay_brokers.section),
    "overlay_clients": (overlay_clients.TITLE, overlay_clients.section),
    "balance": (overlay_brokers.BALANCE_TITLE, overlay_brokers.balance_section),
    "floodwatch": (overlay_clients.FLOODWATCH_TITLE, overlay_clients.floodwatch_section),
    "campus": (campus.TITLE, campus.section),
    "helsinki": (baselines.TITLE, baselines.section),
}
"""Title and part of each experiment of a paper but CAUSAL, by its scenario."""
_PAPERS = {
    "emma": ("emma", emma.is_of_paper),
    "campus": ("joms", campus.is_of_paper),
    "helsinki": ("one", baselines.is_of_experiment),
}
"""Paper of a scenario, or simulator that is compared, and whether series are of it; all others are OVERLAY's."""


def render(study: Study, command: str = "", plugins: Sequence[Plugin] = (), beside: str = "") -> Page:
    """Return the page; `command` is the one that reproduces all of it, if there is one.

    With `beside`, the folder of its figures and tables as files, it has links to them.
    """
    figures = Figures(beside)
    body: list[Block] = []
    papers = {name: _paper(name, series) for name, series in study.scenarios.items()}
    for name, series in study.scenarios.items():
        if papers[name] == "causal":
            body.append(causal.section(study, series, EXPERIMENTS[name], figures))
        else:
            _, section = _SECTIONS[name] if papers[name] else ("", general.section)
            body.append(section(study, series, figures))
        body += general.plugins_part(study, series, plugins)
    gone = dict.fromkeys(str(each["scenario"]) for each in study.failures if each["scenario"] not in study.scenarios)
    for name in gone:
        body += [tag("h2", name), paragraph("None of its runs succeeded."), *origins.failures(study, name)]
    body += [origins.again(study, command, _campaign(study.folder)), origins.versions(study)]
    return _page(_title(papers), body, figures, [each for paper, each in SOURCES.items() if paper in papers.values()])


def _paper(name: str, all_series: Sequence[Series]) -> str:
    """Return the paper whose scenario this is: called so, with what its messages need; empty: none."""
    if name in EXPERIMENTS:
        return "causal" if all(series.first.ordered for series in all_series) else ""
    paper, is_of = _PAPERS.get(name, ("overlay", overlay_brokers.has_brokers))
    return paper if name in _SECTIONS and is_of(all_series) else ""


def _title(papers: Mapping[str, str]) -> str:
    """Return the title of a page about these scenarios, each with its paper."""
    ordered = [EXPERIMENTS[name] for name, paper in papers.items() if paper == "causal"]
    titles = [causal.title(ordered)] if ordered else []
    titles += dict.fromkeys(title for name, (title, _) in _SECTIONS.items() if papers.get(name))
    others = list(papers)
    named = f"Campaign: {', '.join(others[:_NAMED_MAX])}{' …' if len(others) > _NAMED_MAX else ''}"
    return "; ".join(titles) or named


def field_test(test: FieldTest, beside: str = "") -> Page:
    """Return the page of records of real nodes; `beside` as in `render`."""
    figures = Figures(beside)
    body = [field.body(test, figures), origins.made()]
    return _page(field.title(test), body, figures)


def _page(title: str, body: Sequence[Block], figures: Figures, sources: Sequence[Mapping[str, str]] = ()) -> Page:
    inside, listed = contents(figures.show(body))
    text = filled("page", title=title, style=STYLE, sources=sources, contents=listed, body=inside)
    return Page(f"{text}\n", figures.files)


def check(out: Path) -> None:
    """Refuse a place where no page can be written, before anything long is begun; leaves nothing there."""
    if out.is_dir():
        raise LocalError(f"{out} is a folder; --out names the page's file")
    above = next(each for each in out.absolute().parents if each.exists())
    with folders.errors_naming(out), tempfile.TemporaryFile(dir=above):
        pass


def write(study: Study, out: Path, command: str = "", plugins: Sequence[Plugin] = ()) -> None:
    """Write the page of a campaign as a file, with a folder of its figures beside it: each complete or not at all."""
    put(render(study, command, plugins, figures_beside(out).name), out)


def put(found: Page, out: Path) -> None:
    """Write a page as a file, and its figures and tables beside it; each figure as PDF, too."""
    check(out)
    with folders.staged(figures_beside(out)) as partial:
        partial.mkdir()
        for name, text in found.figures.items():
            (partial / name).write_text(text, encoding="utf-8", newline="\n")
            if name.endswith(".svg"):
                (partial / name).with_suffix(".pdf").write_bytes(vl_convert.svg_to_pdf(text))
    with folders.staged(out) as partial:
        partial.write_text(found.text, encoding="utf-8", newline="\n")


@contextmanager
def placed(out: Folder) -> Iterator[Path]:
    """Yield the file of a page; one whose place is an object is put there at the end, after its figures."""
    if isinstance(out, Path):
        yield out
        return
    if out.is_dir():
        raise LocalError(f"{out} is a folder; --out names the page's file")
    with tempfile.TemporaryDirectory(prefix="carrypost-page-") as scratch:
        yield (file := Path(scratch) / out.name)
        figures_beside(out).replace("", {each.name: each for each in figures_beside(file).iterdir()})
        out.put("", file)


def figures_beside(out: AnyFolder) -> AnyFolder:
    """Return the folder of the figures of a page: report-figures beside report.html."""
    return out.with_name(f"{PurePosixPath(out.name).stem}-figures")


def _campaign(folder: Path) -> str:
    try:
        return (folder / CAMPAIGN).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""

"""`lab report`: a campaign's folder in, one page out (P5).

Scenarios of the paper's experiments get its tables and figures beside ours, all others a general part. Metrics that are
not there, or that do not know all runs, are made first, which needs Spark; the page itself does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_lowercase

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.report import causal, general, origins
from carrypost.lab.report.html import Picture, Piece, joined, page, paragraph, tag
from carrypost.lab.report.paper import EXPERIMENTS
from carrypost.lab.report.study import METRICS, Study
from carrypost.lab.schemas import Table

CAMPAIGN = "campaign.toml"
Figures = tuple[tuple[Picture, ...], ...]
Make = Callable[[Path, Sequence[Table]], None]
"""Makes families of a campaign."""


def complete(folder: Path, make: Make) -> Study:
    """A campaign with all its metrics; those that are missing are made."""
    study = Study(folder)
    if missing := study.missing():
        make(folder, missing)
        study = Study(folder)
        if still := ", ".join(table.name for table in study.missing()):
            raise LocalError(f"{folder / METRICS} still lacks {still}: were the runs changed meanwhile?")
    return study


def text(study: Study, command: str = "") -> str:
    """The page; `command` is what made it all, if one command did."""
    return _page(study, command)[0]


def _page(study: Study, command: str) -> tuple[str, Figures]:
    """The page, and its figures."""
    papers = [EXPERIMENTS[name] for name in study.scenarios if _of_paper(name, study)]
    others = [name for name in study.scenarios if not _of_paper(name, study)]
    title = causal.title(papers) if papers else f"Campaign: {', '.join(others[:3])}{' …' if len(others) > 3 else ''}"  # noqa: PLR2004
    body: list[Piece] = [tag("h1", title)]
    if papers:
        body.append(paragraph(causal.source(), kind="note"))
    for name, series in study.scenarios.items():
        if name in others:
            body += general.section(study, series)
        else:
            body += causal.section(study, series, EXPERIMENTS[name])
    gone = dict.fromkeys(str(each["scenario"]) for each in study.failures if each["scenario"] not in study.scenarios)
    for name in gone:
        body += [tag("h2", name), paragraph("None of its runs was successful."), origins.failures(study, name)]
    body += [origins.again(study, command, _campaign(study.folder)), origins.versions(study)]
    return page(title, body), joined(body).figures


def check(out: Path) -> None:
    """Refuse a place where no page can be written, before anything long is begun; leaves nothing there."""
    if out.is_dir():
        raise LocalError(f"{out} is a folder; --out names the page's file")
    above = next(each for each in out.absolute().parents if each.exists())
    with folders.told_of(out), tempfile.TemporaryFile(dir=above):
        pass


def write(study: Study, out: Path, command: str = "") -> None:
    """The page as a file, whole or not there; and its figures, as SVG and as CSV, in a folder beside it."""
    check(out)
    made, figures = _page(study, command)
    with folders.staged(out) as partial:
        partial.write_text(made, encoding="utf-8", newline="\n")
    with folders.staged(out.with_name(f"{out.stem}-figures")) as partial:
        partial.mkdir()
        for number, pictures in enumerate(figures, 1):
            for letter, picture in zip(ascii_lowercase, pictures, strict=False):
                name = f"figure-{number}" + (f"-{letter}" if len(pictures) > 1 else "")
                for ending, content in ((".svg", picture.svg), (".csv", picture.csv)):
                    (partial / f"{name}{ending}").write_text(content, encoding="utf-8", newline="\n")


def _of_paper(name: str, study: Study) -> bool:
    """Whether a scenario is one of the paper's: called so, with messages that have an order."""
    return name in EXPERIMENTS and all(series.first.ordered for series in study.scenarios[name])


def _campaign(folder: Path) -> str:
    try:
        return (folder / CAMPAIGN).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""

"""The part of a page about one of the experiments of CAUSAL §VI: its tables and figures, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from carrypost.lab.metrics import families
from carrypost.lab.report import contacts, dissemination, figures, origins, prose, tables, verdict
from carrypost.lab.report import paper as printed
from carrypost.lab.report.html import Markup, Piece, TableRow, join, paragraph, table, tag
from carrypost.lab.report.paper import Experiment
from carrypost.lab.report.pictures import Block
from carrypost.lab.report.study import Series, Study
from carrypost.lab.report.times import lifetime, shown

_NEAR = 0.1
"""Latencies below this share of the paper's are explained, and counts that are off by less."""


def section(study: Study, all_series: Sequence[Series], paper: Experiment) -> list[Block]:
    """Return everything about this experiment."""
    whole = all(run.duration_s == paper.duration_s for series in all_series for run in series.runs)
    pair = [series for lifetime_s in paper.pair for series in all_series if series.lifetime_s == lifetime_s]
    return [
        tag("h2", f"{paper.title} ({paper.section})"),
        *_intro(all_series, paper, whole=whole),
        *([verdict.against_paper(study, all_series, paper), paragraph(prose.VERDICT, kind="note")] if whole else []),
        origins.ran(all_series),
        origins.failures(study, paper.scenario),
        tag("h3", "Nodes and contacts"),
        tables.scene(study, all_series[0], paper, whole=whole),
        paragraph(_scene(all_series[0], paper)),
        figures.running(study, all_series[0], paper),
        tag("h3", "Messages"),
        tables.processing(study, all_series, paper, whole=whole),
        paragraph(prose.NEITHER, kind="note"),
        tag("h3", "Delays"),
        tables.delays(study, all_series, paper, whole=whole),
        *(paragraph(note, kind="note") for note in paper.notes),
        *_pair_figures(study, pair, paper),
        *figures.distributions(study, all_series, paper),
        tag("h3", "Registries"),
        *figures.evolution(study, pair, paper, whole=whole),
        tables.registries(study, all_series),
        tag("h3", "Beyond the paper"),
        *dissemination.part(study, all_series),
        *contacts.lasting(study, all_series),
        tag("h3", "Differences from the paper, and their reasons"),
        *_reasons(study, all_series, paper, whole=whole),
        tag("h3", "Parameters"),
        origins.parameters(all_series, paper),
    ]


def _scene(series: Series, paper: Experiment) -> str:
    """Return the source of movement: the shipped scenario, or its replacement."""
    movement = series.first.in_force.get("mobility", {})
    if movement.get("model") in {"buses", "streets"}:
        return prose.BUS_SCENE if paper is printed.BUS else prose.WALKERS_SCENE
    source = movement.get("file") or series.first.in_force.get("contacts", {}).get("file") or "elsewhere"
    return f"Movement or contacts come from {source}, in place of those that the shipped scenario makes."


def _absent(wanted: Sequence[float | None], there: Sequence[Series]) -> str:
    """Lifetimes that were not run, in words."""
    run = {series.lifetime_s for series in there}
    return ", ".join(lifetime(each) for each in wanted if each not in run)


def _pair_figures(study: Study, pair: Sequence[Series], paper: Experiment) -> list[Block]:
    made: list[Block] = [figures.against(study, pair, paper)] if pair else []
    if missing := _absent(paper.pair, pair):
        names = f"{paper.figures[1]} and {paper.figures[3]}"
        made.append(
            paragraph(f"The paper's {names} also show lifetimes that were not run here: {missing}.", kind="note")
        )
    return made


def _intro(all_series: Sequence[Series], paper: Experiment, *, whole: bool) -> list[Piece]:
    lead = prose.BUS_LEAD if paper is printed.BUS else prose.WALKERS_LEAD
    many = origins.seeds(all_series)
    made: list[Piece] = [
        paragraph(lead, f" Emulated with carrypost's real hosts, scenario {paper.scenario}. {many}", kind="lead")
    ]
    if not whole:
        lasted = ", ".join(dict.fromkeys(shown(each.first.duration_s) for each in all_series))
        missing = _absent(list(paper.processing), all_series)
        text = f"This is a part of the experiment only: {lasted} in place of {shown(paper.duration_s)}"
        text += f", without the lifetimes {missing}. " if missing else ". "
        made.append(paragraph(tag("b", "A part. "), text, prose.PART, kind="part"))
    return made


def _reasons(study: Study, all_series: Sequence[Series], paper: Experiment, *, whole: bool) -> list[Piece]:
    made: list[Piece] = []
    if whole and (spread := _spread(study, all_series, paper)):
        made.append(paragraph(tag("b", "How messages spread. "), spread))
    if _hardly_waits(study, all_series, paper):
        made += _waiting()
    made.append(paragraph(tag("b", "Expiry. "), prose.EXPIRY))
    made.append(paragraph(tag("b", "Least delays. "), prose.LEAST))
    return made


def _spread(study: Study, all_series: Sequence[Series], paper: Experiment) -> str:
    """Return the largest difference of receptions and of their delays from the paper's."""
    counts, delays = [], []
    for series in all_series:
        received = study.values(families.PROCESSING, series, "rcvd")
        mean_s = study.values(families.DELAY_SPREAD, series, "avg_s", metric=families.TDELAY)
        if series.lifetime_s in paper.processing and received and mean_s:
            counts.append(abs(fmean(received) / paper.processing[series.lifetime_s].rcvd - 1))
            delays.append(abs(fmean(mean_s) / paper.delays[series.lifetime_s].tdelay.avg_s - 1))
    if not counts:
        return ""
    text = f"Receptions are within {max(counts):.1%} of the paper's, mean transmission delays within {max(delays):.1%}."
    near = paper is printed.BUS and max(counts) < _NEAR
    return text.replace("%", " %") + (f" {prose.BUS_SPREAD}" if near else "")


def _hardly_waits(study: Study, all_series: Sequence[Series], paper: Experiment) -> bool:
    """Return True if our latencies are far below the paper's."""
    for series in all_series:
        quoted = paper.delays.get(series.lifetime_s)
        ours = study.values(families.DELAY_SPREAD, series, "avg_s", metric=families.LTCY)
        if quoted is not None and ours and max(ours) > _NEAR * quoted.ltcy.avg_s:
            return False
    return True


def _waiting() -> list[Piece]:
    how = (
        "Measured once with seed 1; the rate is ",
        tag("code", "--set radio.rate_bytes_per_s=20000"),
        ", and the order of sending was changed in a copy of the code.",
    )
    return [
        paragraph(tag("b", "Waiting. "), prose.WAITING),
        table("", prose.SLOW_HEADS, [[TableRow(name, cells) for name, *cells in prose.SLOW]]),
        paragraph(*how, kind="note"),
    ]


def title(papers: Sequence[Experiment]) -> str:
    """Return the title of a page about these."""
    return f"Causal and Δ-causal broadcast: {' and '.join(each.title for each in papers)}"


def source() -> Markup:
    """Return the paper."""
    return join((
        "The paper: F. Guidec, P. Launay, Y. Mahéo, ",
        tag("i", "Causal and Δ-Causal Broadcast in Opportunistic Networks"),
        ", Future Generation Computer Systems 118 (2021), pp. 142–156. ",
        "Captions summarize what the paper says about its figures.",
    ))  # fmt: skip

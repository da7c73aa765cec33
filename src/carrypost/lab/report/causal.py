"""The part of a page about one of the experiments of CAUSAL §VI: its tables and figures, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from markupsafe import Markup

from carrypost.lab.metrics import families
from carrypost.lab.report import contacts, dissemination, limited, origins, tables, verdict
from carrypost.lab.report import figures as drawn
from carrypost.lab.report.paper import Experiment
from carrypost.lab.report.pictures import Figures
from carrypost.lab.report.study import Series, Study, matched
from carrypost.lab.report.times import lifetime, shown

_NEAR = 0.1
"""Latencies below this share of the paper's are explained, and counts that are off by less."""


def section(study: Study, all_series: Sequence[Series], paper: Experiment, figures: Figures) -> Markup:
    """Return everything about this experiment. Its figures are those on unlimited links."""
    links, every = limited.by_links(all_series), all_series
    all_series = links.unlimited
    whole = all(run.duration_s == paper.duration_s for series in every for run in series.runs)
    compared = matched(all_series)
    pair = [series for lifetime_s in paper.pair for series in compared if series.lifetime_s == lifetime_s]
    movement = all_series[0].first.in_force.get("mobility", {})
    elsewhere = movement.get("file") or all_series[0].first.in_force.get("contacts", {}).get("file") or "elsewhere"
    return figures.filled(
        "causal",
        paper=paper,
        whole=whole,
        lasted=", ".join(dict.fromkeys(shown(each.first.duration_s) for each in all_series)),
        verdict=verdict.against_paper(study, all_series, paper) if whole else "",
        scene=tables.scene(study, all_series[0], paper, whole=whole),
        source="" if movement.get("model") in {"buses", "streets"} else elsewhere,
        running=drawn.running(study, all_series[0], paper),
        processing=tables.processing(study, all_series, paper, whole=whole),
        delays=tables.delays(study, all_series, paper, whole=whole),
        against=drawn.against(study, pair, paper),
        missing=_absent(list(paper.of), all_series),
        missing_halves=_absent(paper.pair, pair),
        distributions=drawn.distributions(study, compared, paper),
        implied=None if whole is False else _implied(paper),
        evolution=drawn.evolution(study, pair, paper, whole=whole),
        registries=tables.registries(study, all_series),
        lasting=contacts.lasting(study, all_series),
        off=_off(study, all_series, paper) if whole else None,
        near=_NEAR,
        hardly_waits=_hardly_waits(study, all_series, paper),
        limited=limited.compared(study, links, paper, whole=whole),
        one_seed=all(len(series.runs) == 1 for series in pair),
        seeds=origins.seeds(every),
        parameters=origins.parameters(every, paper),
        ran=origins.ran(every),
        failures=origins.failures(study, paper.scenario),
        **dissemination.part(study, all_series),
    )


def _absent(wanted: Sequence[float | None], there: Sequence[Series]) -> str:
    """Lifetimes that were not run, in words."""
    run = {series.lifetime_s for series in there}
    return ", ".join(lifetime(each) for each in wanted if each not in run)


def _implied(paper: Experiment) -> tuple[float, float, float] | None:
    """Return a lifetime, a shorter one, and what Table II or V says of the share that arrives within the shorter one.

    What a lifetime brings at all is what any longer one brings by then: receptions are of the same flood. Of the pairs
    for which the paper's text quotes a share.
    """
    for each in paper.lifetimes:
        for point in each.tdelay_points:
            shorter = paper.of.get(point.value_s)
            if shorter is not None and each.lifetime_s is not None:
                return each.lifetime_s, point.value_s, shorter.processing.rcvd / each.processing.rcvd
    return None


def _off(study: Study, all_series: Sequence[Series], paper: Experiment) -> tuple[float, float] | None:
    """Return the largest difference of receptions, and of their delays, from the paper's."""
    pairs = []
    for series in all_series:
        received = study.values(families.PROCESSING, series, "rcvd")
        mean_s = study.values(families.DELAY_SPREAD, series, "avg_s", metric=families.TDELAY)
        if (printed := paper.of.get(series.lifetime_s)) and received and mean_s:
            parts = fmean(received) / printed.processing.rcvd, fmean(mean_s) / printed.tdelay.avg_s
            pairs.append([abs(each - 1) for each in parts])
    if not pairs:
        return None
    counts, delays = map(max, zip(*pairs, strict=True))
    return counts, delays


def _hardly_waits(study: Study, all_series: Sequence[Series], paper: Experiment) -> bool:
    """Return True if our latencies are far below the paper's."""
    for series in all_series:
        ours = study.values(families.DELAY_SPREAD, series, "avg_s", metric=families.LTCY)
        if (printed := paper.of.get(series.lifetime_s)) and ours and max(ours) > _NEAR * printed.ltcy.avg_s:
            return False
    return True


def title(papers: Sequence[Experiment]) -> str:
    """Return the title of a page about these."""
    return f"Causal and Δ-causal broadcast: {' and '.join(each.title for each in papers)}"

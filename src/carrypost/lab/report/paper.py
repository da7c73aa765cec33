"""Values that CAUSAL §VI prints: Tables I to VI, and the figures that its text quotes, to stand beside ours.

Cells are kept as they are printed, so that they can be held against the paper by eye; `Quad` makes numbers of them.
Two cells of Table III have a wrong unit in print, and stand here as they must be meant (`prose.TYPOS`). Figures are
pictures that are not part of the paper's text: of those, what the text says of them is here, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from carrypost.lab.report.prose import NOT_ALL, ROUNDED, TYPOS
from carrypost.lab.report.times import seconds


@dataclass(frozen=True, slots=True)
class Quad:
    """Least, most, mean and standard deviation, in seconds."""

    min_s: float
    max_s: float
    avg_s: float
    stdev_s: float

    @classmethod
    def read(cls, text: str) -> Quad:
        """Read four times with strokes between them."""
        return cls(*(seconds(each) for each in text.split("/")))


@dataclass(frozen=True, slots=True)
class Processing:
    """A column of Table II or V."""

    bcast: int
    rcvd: int
    codlvd: int
    codlvratio: float
    expd: int | None
    expratio: float | None


@dataclass(frozen=True, slots=True)
class PaperDelays:
    """A line of Table III or VI."""

    tdelay: Quad
    ltcy: Quad
    codlvdelay: Quad


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a distribution that the text quotes: the share received or delivered in less than this time."""

    lifetime_s: float | None
    value_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One of the paper's two experiments; lifetimes in seconds, None: endless."""

    scenario: str
    """As the shipped scenario is called."""
    title: str
    section: str
    tables: tuple[str, str, str]
    figures: tuple[str, str, str, str]
    duration_s: float
    nodes: int
    active_max: int
    activity: Quad
    contacts: int
    contact: Quad
    processing: Mapping[float | None, Processing]
    delays: Mapping[float | None, PaperDelays]
    pair: tuple[float | None, float | None]
    """Lifetimes of the two halves of figures 4, 6, 9 and 11."""
    tdelay_points: tuple[Point, ...]
    ltcy_points: tuple[Point, ...]
    ltcy_cut_s: float
    """End of the axis of latencies."""
    notes: tuple[str, ...] = field(default=())


def _processing(lines: Mapping[float | None, str]) -> dict[float | None, Processing]:
    found: dict[float | None, Processing] = {}
    for lifetime_s, line in lines.items():
        bcast, rcvd, codlvd, ratio, expd, expratio = line.replace(",", "").split()
        found[lifetime_s] = Processing(
            int(bcast), int(rcvd), int(codlvd), _part(ratio),
            None if expd == "N/A" else int(expd), None if expratio == "N/A" else _part(expratio),
        )  # fmt: skip
    return found


def _part(text: str) -> float:
    return round(float(text.rstrip("%")) / 100, 6)


def _delays(lines: Mapping[float | None, tuple[str, str, str]]) -> dict[float | None, PaperDelays]:
    return {lifetime_s: PaperDelays(*map(Quad.read, cells)) for lifetime_s, cells in lines.items()}


BUS = Experiment(
    scenario="city_bus",
    title="City buses",
    section="§VI-A",
    tables=("Table I", "Table II", "Table III"),
    figures=("Figure 3", "Figure 4", "Figure 5", "Figure 6"),
    duration_s=seconds("14h15'"),
    nodes=60,
    active_max=56,
    activity=Quad.read("26' / 14h08' / 10h58' / 3h26'"),
    contacts=8_892,
    contact=Quad.read("1\" / 4'09\" / 1'24\" / 1'05\""),
    processing=_processing({
        None: "2004 106580 108580 100% N/A N/A",
        7_200: "2004 98610 100614 100% 0 0%",
        3_600: "2004 94329 96331 100% 0 0%",
        2_400: "2004 85301 87304 100% 0 0%",
        1_200: "2004 50365 52364 99.99% 5 0.01%",
        600: "2004 21571 23572 99.99% 3 0.01%",
    }),
    delays=_delays({
        None: (
            "4 ms / 11h47' / 43'50\" / 1h22'", "1 ms / 39'13\" / 13\" / 1'03\"", "5 ms / 11h47' / 44'04\" / 1h22'",
        ),
        7_200: (
            "4 ms / 1h59'56\" / 23'18\" / 17'55\"", "1 ms / 34'53\" / 2\" / 27\"", "5 ms / 2h / 23'20\" / 17'57\"",
        ),
        3_600: (
            "4 ms / 59'57\" / 20'43\" / 13'05\"", "1 ms / 39'20\" / 1\" / 18\"",
            "4 ms / 59'57\" / 20'44\" / 13'06\"",
        ),
        2_400: (
            "2 ms / 39'54\" / 17'50\" / 10'04\"", "1 ms / 15'41\" / 0.5\" / 9\"",
            "2 ms / 39'55\" / 17'51\" / 10'04\"",
        ),
        1_200: (
            "2 ms / 19'53\" / 10'47\" / 5'27\"", "1 ms / 13'19\" / 0.2\" / 6\"", "2 ms / 19'53\" / 10'47\" / 5'27\"",
        ),
        600: (
            "2 ms / 9'51\" / 5'27\" / 3'02\"", "1 ms / 3'39\" / 62 ms / 2\"", "2 ms / 9'51\" / 5'27\" / 3'02\"",
        ),
    }),
    pair=(None, 1_200),
    tdelay_points=(Point(None, 1_200, 0.50), Point(None, 3_600, 0.88), Point(None, 7_200, 0.92)),
    ltcy_points=(
        Point(None, 7.6, 0.90), Point(None, 50, 0.95), Point(1_200, 1.2, 0.99), Point(2_400, 3.4, 0.99),
    ),
    ltcy_cut_s=60,
    notes=(TYPOS, ROUNDED),
)  # fmt: skip

OSTERMALM = Experiment(
    scenario="ostermalm",
    title="Walkers in Östermalm",
    section="§VI-B",
    tables=("Table IV", "Table V", "Table VI"),
    figures=("Figure 8", "Figure 9", "Figure 10", "Figure 11"),
    duration_s=seconds("5h"),
    nodes=2_092,
    active_max=57,
    activity=Quad.read("7.8\" / 32'16\" / 5'25\" / 4'09\""),
    contacts=14_807,
    contact=Quad.read("0.6\" / 8'12\" / 45\" / 39\""),
    processing=_processing({
        1_200: "10557 1,475,328 1,414,438 95.19% 1573 0.11%",
        900: "10557 1,192,205 1,169,382 97.22% 1074 0.09%",
        600: "10557 884,810 883,120 98.63% 724 0.08%",
        300: "10557 539,652 545,018 99.06% 716 0.13%",
    }),
    delays=_delays({
        1_200: (
            "2 ms / 19'59\" / 9'03\" / 5'59\"", "1 ms / 18'09\" / 19\" / 30\"", "2 ms / 20' / 9'22\" / 6'02\"",
        ),
        900: (
            "3 ms / 14'59\" / 6'40\" / 4'27\"", "1 ms / 13'08\" / 13\" / 23\"", "3 ms / 15' / 6'53\" / 4'30\"",
        ),
        600: (
            "4 ms / 10' / 4'23\" / 2'55\"", "1 ms / 8'48\" / 7\" / 16\"", "4 ms / 10' / 4'31\" / 2'56\"",
        ),
        300: (
            "3 ms / 5' / 2'16\" / 1'28\"", "1 ms / 4'39\" / 2\" / 10\"", "3 ms / 5' / 2'19\" / 1'28\"",
        ),
    }),
    pair=(300, 1_200),
    tdelay_points=(Point(600, 300, 0.42),),
    ltcy_points=(Point(600, 10.7, 0.80), Point(600, 25, 0.95)),
    ltcy_cut_s=90,
    notes=(NOT_ALL,),
)  # fmt: skip

EXPERIMENTS = {each.scenario: each for each in (BUS, OSTERMALM)}

# Figure 8 shows the 140 walkers that enter in the first 20 minutes. Figure 11 is of node N777, which is there for five
# minutes from 1h49' on: received and co-delivered by lifetime; pending and co_delivered at most, at 20'.
ENTERED_S = 1_200.0
ENTERED_NODES = 140
BUS_NODE = "L01-1"
WALKER_FROM_S = seconds("1h49'")
WALKER_STAY_S = 300.0
WALKER: dict[float | None, tuple[int, int]] = {300: (269, 274), 1_200: (760, 764)}
WALKER_PENDING_MAX = 400
WALKER_SOURCES_MAX = 150

"""Make the pages of `docs/results` anew (`make results`), each with a check beside it.

    python tools/results.py                       all pages, hours of work
    python tools/results.py bus campus            these pages
    python tools/results.py overlay --seeds 1-10  a page with other seeds than it has as a rule

A page is that of `carrypost reproduce NAME`, with ten seeds or more; with five where a seed takes more than 20 CPU
minutes, and with one where contacts and messages are replayed. The page says how many it has. Its runs are kept in
`build/results`: after an interruption, or with more seeds, the same command does only what is missing. Beside
`NAME.html` is `NAME.json`, the check: the number of rows by kind of a short run, made by the same code. A test runs it
again and compares, so that a change of behaviour that makes a page out of date is noticed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from carrypost import emu
from carrypost.config.rules import nearest
from carrypost.errors import LocalError
from carrypost.lab.campaign import reproduce
from carrypost.lab.report.origins import made_by

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "docs" / "results"
REPLAYED: Final = {"baselines"}
"""Experiments that replay contacts and messages: a seed changes the jitter of hosts alone, so one has to do."""
DEAR: Final = {"ostermalm", "overlay"}
"""Experiments of which a seed takes more than 20 CPU minutes."""
SEEDS: Final = (
    dict.fromkeys(reproduce.RECIPES, "1-10")
    | {"emma": "1-20"}
    | dict.fromkeys(DEAR, "1-5")
    | dict.fromkeys(REPLAYED, "1")
)
"""Seeds of each page, unless others are given."""


_FILES: Final = re.compile(r'\s*<(p|span) class="files">.*?</\1>', re.DOTALL)


class Short(NamedTuple):
    """A run that takes about a CPU second: settings of an experiment, and its length."""

    settings: str
    duration_s: int


CHECKS: Final = {
    "bus": Short("20min", 4_800),
    "ostermalm": Short("5min", 480),
    "emma": Short("exchange-receiver-25", 40),
    "emma-island": Short("exchange-receiver-25", 40),
    "overlay": Short("clients-adaptive-10", 2),
    "balance": Short("control-30", 12),
    "campus": Short("queue-third", 240),
    "baselines": Short("prophet-uncontended", 900),
    "floodwatch": Short("adaptive-box-A-B-C", 60),
}


def checked(name: str) -> dict[str, int]:
    """Return the number of rows of each kind, of the short run of an experiment."""
    recipe, short = reproduce.RECIPES[name], CHECKS[name]
    chosen = next(each for each in recipe.settings if each.name == short.settings)
    scenario = reproduce.scenario_file(recipe.scenario_of(chosen))
    made = emu.run(scenario, 1, overrides={**chosen.changes, "duration_s": short.duration_s})
    return dict(sorted(Counter(made.table["kind"].to_pylist()).items()))


def check_file(name: str) -> Path:
    """Return the file of a page's check."""
    return RESULTS / f"{name}.json"


def stored(name: str) -> dict[str, Any]:
    """Return a page's check as it was stored."""
    found: dict[str, Any] = json.loads(check_file(name).read_text(encoding="utf-8"))
    return found


def put(name: str, page: Path) -> None:
    """Take a page over, with a check of the present code."""
    check = {"made_by": made_by(), "settings": CHECKS[name].settings, "duration_s": CHECKS[name].duration_s}
    text = json.dumps(check | {"rows": checked(name)}, indent=2)
    (RESULTS / f"{name}.html").write_text(unlinked(page.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    check_file(name).write_text(f"{text}\n", encoding="utf-8", newline="\n")


def unlinked(page: str) -> str:
    """Return a page without links to files beside it."""
    return _FILES.sub("", page)


def _page_name(text: str) -> str:
    if text not in reproduce.RECIPES:
        known = ", ".join(reproduce.RECIPES)
        raise argparse.ArgumentTypeError(
            f"no page is called {text!r}{nearest(text, reproduce.RECIPES)} (there are: {known})"
        )
    return text


def _seeds(text: str) -> str:
    try:
        reproduce.seeds_of(text)
    except LocalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def main(argv: Sequence[str]) -> int:
    """Make the pages that are named, or all; return the exit code of the first command that fails."""
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", type=_page_name, metavar="NAME", help="pages to make; default: all")
    parser.add_argument("--seeds", type=_seeds, help="seeds of these pages, such as 1-5; default: a page's own")
    given = parser.parse_args(argv)
    for name in given.names or list(reproduce.RECIPES):
        folder = ROOT / "build" / "results" / name
        order = ["carrypost", "reproduce", name, "--seeds", given.seeds or SEEDS[name], "--out", str(folder)]
        code = subprocess.run([sys.executable, "-m", *order], check=False).returncode  # noqa: S603 - our own command
        if code:
            return code
        put(name, folder / reproduce.PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

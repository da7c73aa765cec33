"""The scenarios of this project on a page: at many instants, after seeks in any order, it shows what the record has."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support import browsers
from tests.support.browsers import Shown
from tests.support.replayed import check_copies, check_layers, rows_of

from carrypost import emu
from carrypost.model.times import MICROSECONDS
from carrypost.web.runs import Opened
from tools import chromium

SCENARIOS = Path(__file__).parents[2] / "scenarios"
INSTANTS = 200
SHORTER: dict[str, dict[str, object]] = {
    "city_bus": {"duration_s": 20_000},
    "ostermalm": {"duration_s": 3_600},
    "floodwatch": {},
    "overlay_clients": {"duration_s": 200},
    "emma": {"settings.island": True},
}
"""Changes to each, mostly so that it is emulated within a minute."""
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(chromium.executable() is None, reason=f"there is no Chromium: {chromium.INSTALL}"),
]


@pytest.mark.parametrize("name", SHORTER)
def test_what_is_shown_is_what_the_record_has(name: str, tmp_path: Path) -> None:
    text = (SCENARIOS / f"{name}.toml").read_text()
    scenario = emu.Scenario.parse(text, SCENARIOS, overrides=SHORTER[name])
    emu.run(scenario, out=tmp_path / "run.parquet")
    chance = random.Random(1)
    given = {"scenario": SCENARIOS / f"{name}.toml"}
    with browsers.chromium() as browser, browsers.site(browser, [tmp_path / "run.parquet"], **given) as site:
        (run,) = site.runs
        opened = run.opened()
        rows = [row for row in rows_of(opened) if row["kind"] not in {"traffic", "registry", "contact", "up", "down"}]
        layers = opened.info["layers"]
        node = chance.choice(opened.scan.names.shown)
        with site.page(f"/replay/{run.id}?t=0&node={node}&layers={','.join(layers)}") as page:
            page.wait()
            for _ in range(INSTANTS):
                t = chance.uniform(opened.scan.start, opened.scan.end)
                check_copies(opened, rows, page, chance.choice(opened.messages.names.shown), t)
                if layers:
                    check_layers(rows, page, t)
            check_places(scenario, opened, page, chance)


def check_places(scenario: emu.Scenario, opened: Opened, page: Shown, chance: random.Random) -> None:
    """Compare places with samples of the movement itself."""
    if opened.places.source == "layout":
        return
    assert scenario.mobility is not None
    tracks = scenario.mobility.move(1, scenario.duration_us).tracks
    there = [row for row in range(len(tracks.t_us)) if tracks.t_us[row] / MICROSECONDS < opened.scan.end]
    for row in chance.sample(there, min(len(there), INSTANTS)):
        page.seek(tracks.t_us[row] / MICROSECONDS)
        place = page.js("name => carrypost.place(name)", tracks.nodes[tracks.node[row]])
        assert place is None or abs(place[0] - tracks.x[row]) + abs(place[1] - tracks.y[row]) < 0.02

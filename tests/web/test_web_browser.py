"""The pages in a real browser: what they show is what the record has, and nothing that a record holds changes them."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import browsers
from tests.support.browsers import Shown, Site
from tests.support.examples import examples
from tests.support.replayed import Row, check_copies, check_layers, reached_at, rows_of

from carrypost import emu
from carrypost.emu.records import ARROW_SCHEMA
from carrypost.web import runs
from carrypost.web.run_files import ParquetSource
from carrypost.web.runs import Opened
from tools import chromium

READY = "carrypost.state().ready"
pytestmark = pytest.mark.skipif(chromium.executable() is None, reason=f"there is no Chromium: {chromium.INSTALL}")

WALK = """
name = "walk"
duration_s = 300
mode = "ideal"
[radio]
range_m = 60
[mobility]
model = "random-waypoint"
count = 15
side_m = 400
speed_min_m_per_s = 1
speed_max_m_per_s = 5
pause_min_s = 0
pause_max_s = 5
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 200
lifetime_s = 120
"""
CONTACTS = """
name = "contacts"
duration_s = 100
[contacts]
file = "contacts.csv"
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 60
lifetime_s = 50
"""
OVERLAY = """
name = "overlay"
duration_s = 60
mode = "ideal"
sample_s = 7
[mobility]
model = "random-waypoint"
count = 14
side_m = 300
speed_min_m_per_s = 1.0
speed_max_m_per_s = 10.0
pause_min_s = 5
pause_max_s = 5
[radio]
range_m = 150
routes = "told"
[settings]
island = true
coalesce_s = 0.1
[settings.overlay]
enabled = true
update_s = 10
discovery_s = 5
[[nodes.group]]
name = "brokers"
count = 4
[nodes.group.settings.overlay]
broker = true
[[nodes.group]]
name = "producers"
count = 2
[[nodes.group]]
name = "consumers"
count = 6
[[workload]]
kind = "channel"
topic = "events"
producers = "producers"
consumers = "consumers"
first_s = 5
period_s = 20
size = 100
"""
EVIL = [
    "<img src=x onerror=alert(1)>",
    "__proto__",
    "\u202egnp.evil",
    "constructor",
    "a\u0000b\n\u0007c",
    "x" * 100_000,
]


def evil_lines() -> Iterator[str]:
    for number, name in enumerate(EVIL):
        yield json.dumps({"t": number, "kind": "join", "node": name, "run": EVIL[0]})
        sent = {"t": number, "kind": "publish", "node": name, "message": f"m{name}", "source": name, "size": 1}
        yield json.dumps(sent | {"attrs": {"destination": name, "recipients": name, "label": name}})
        other = EVIL[number - 1]
        yield json.dumps({"t": 10 + number, "kind": "up", "node": name, "peer": other})
        yield json.dumps({"t": 11 + number, "kind": "receive", "node": other, "peer": name, "message": f"m{name}",
                          "hops": 1, "detail": name, "attrs": {name: name}})  # fmt: skip
        yield json.dumps({"t": 12 + number, "kind": name, "node": other, "detail": name})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    emu.run(emu.Scenario.parse(WALK, folder), out=folder / "walk.parquet")
    rows = "".join(f"n{a},n{a + 1},{10 * a},{10 * a + 25}\n" for a in range(6))
    (folder / "contacts.csv").write_text("a,b,start,end\n" + rows)
    emu.run(emu.Scenario.parse(CONTACTS, folder), out=folder / "contacts.parquet")
    emu.run(emu.Scenario.parse(OVERLAY, folder), out=folder / "overlay.parquet")
    emu.run(emu.Scenario.parse(WALK, folder), 2, out=folder / "walk2.parquet")
    changed = pq.read_table(folder / "walk.parquet").to_pylist()
    changed[0]["attrs"] = [*(each for each in changed[0]["attrs"] if each[0] != "seed"), ("seed", "7")]
    renamed = pa.Table.from_pylist([row | {"run": "changed"} for row in changed], ARROW_SCHEMA)
    pq.write_table(renamed, folder / "changed.parquet")
    counts = WALK.replace('"ideal"', '"population"').replace('"walk"', '"counts"')
    counts += '[population]\ndelays = "zero"\nrows = "none"\n'
    emu.run(emu.Scenario.parse(counts, folder), out=folder / "counts.parquet")
    (folder / "evil").mkdir()
    (folder / "evil" / "1.jsonl").write_text("".join(f"{line}\n" for line in evil_lines()))
    (folder / "evil" / "names.json").write_text(json.dumps({EVIL[0]: EVIL[0], "__proto__": "<b>proto</b>"}))
    (folder / "empty.jsonl").write_text("")
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    records = ("walk", "contacts", "overlay", "walk2", "changed", "counts")
    paths = [*(folder / f"{name}.parquet" for name in records), folder / "evil", folder / "empty.jsonl"]
    with browsers.chromium() as browser, browsers.site(browser, paths) as found:
        yield found


@pytest.fixture(scope="module", params=["walk/default/1", "contacts/default/1", "overlay/default/1"])
def opened(site: Site, request: pytest.FixtureRequest) -> Iterator[tuple[Opened, Shown]]:
    run = site.run(request.param)
    with site.page(f"/replay/{run.id}") as page:
        yield run.opened(), page.wait()


@examples(6)
@given(share=st.floats(0, 1), place=st.integers(0, 10_000))
def test_places_links_and_copies_are_those_of_the_record(
    opened: tuple[Opened, Shown], share: float, place: int
) -> None:
    run, page = opened
    message = run.messages.names.shown[place % len(run.messages)]
    check_copies(run, rows_of(run), page, message, run.scan.start + share * (run.scan.end - run.scan.start))


def test_a_message_is_seen_to_spread_from_the_start_page_within_three_clicks(site: Site) -> None:
    with site.page() as page:
        page.wait("document.documentElement.dataset.ready !== undefined")
        page.page.click("text=walk/default/1")
        page.wait()
        first = page.state
        run = site.run("walk/default/1").opened()
        (published,) = (
            row["t"] for row in rows_of(run) if row["message"] == first["message"] and row["kind"] == "publish"
        )
        assert first["t"] == published
        assert page.js("() => carrypost.reached()") == reached_at(rows_of(run), first["message"], published)
        page.page.select_option("#speed", "60")
        page.page.click("#play")
        page.wait("carrypost.reached().length > 3 && carrypost.state().t > 20")
        page.page.keyboard.press("Space")
        page.wait()
        assert page.state["playing"] is False
        assert page.js("() => carrypost.stats().gaps_ms.length") > 0


def test_the_example_plays_when_it_is_opened(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "EXAMPLE", WALK.replace('"walk"', '"forty walkers"'))
    (folder / "none").mkdir()
    with browsers.site(site.browser, [], folder=folder / "none") as alone, alone.page() as page:
        page.wait("document.documentElement.dataset.ready !== undefined")
        page.page.click("text=forty walkers")
        page.wait("window.carrypost?.reached().length > 2")
        assert page.text("#hint").startswith("Play to see the message spread.")
        page.page.click("#play")
        page.wait()


def test_the_address_is_the_picture_and_the_history_works(site: Site) -> None:
    run = site.run("walk/default/1")
    node = run.opened().scan.names.shown[3]
    with site.page(f"/replay/{run.id}?t=50.5&node={node}&kinds=receive,deliver&speed=5") as page:
        page.wait()
        first = page.state
        assert (first["t"], first["node"], first["speed"], first["message"]) == (50.5, node, 5, None)
        message = run.opened().messages.names.shown[3]
        page.js("message => carrypost.choose({message})", message)
        page.wait(f"location.search.includes('message=') && {READY}")
        page.js("() => history.back()")
        page.wait(f"carrypost.state().message === null && {READY}")
        assert page.state == first
        page.js("() => history.forward()")
        page.wait(f"carrypost.state().message !== null && {READY}")
        assert page.state["message"] == message


def test_steps_go_to_the_next_and_the_last_row_of_the_chosen_kinds(site: Site) -> None:
    run = site.run("walk/default/1")
    with site.page(f"/replay/{run.id}?t=0&kinds=publish") as page:
        page.wait()
        times = sorted(set(run.opened().messages.t))
        for at, wanted in (("step", times[0]), ("step", times[1]), ("step-back", times[0])):
            page.page.click(f"#{at}")
            page.wait(f"Math.abs(carrypost.state().t - {wanted}) < 1e-9 && {READY}")


def test_why_a_message_is_not_at_a_node_is_said_and_drawn(site: Site) -> None:
    run = site.run("contacts/default/1")
    opened = run.opened()
    with site.page(f"/replay/{run.id}?t=90") as page:
        page.wait()
        late = next(m for m in opened.messages.names.shown if opened.messages.source[opened.messages.place(m)] == 6)
        page.js("message => carrypost.choose({message, node: 'n0'})", late)
        page.wait(f"document.getElementById('why') && {READY}")
        assert page.page.get_attribute("#why", "data-verdict") == "no-path"
        assert "no chain of contacts" in page.text("#why")


def test_what_a_record_holds_is_shown_as_text_and_changes_nothing(site: Site) -> None:
    run = next(each for each in site.runs if each.opened().scan.source.path.name == "evil")
    nodes = run.opened().scan.names.shown
    with site.page(f"/replay/{run.id}") as page:
        page.wait()
        for name in nodes:
            page.js("name => carrypost.choose({node: name})", name)
            page.wait()
            assert page.state["node"] == name
        for message in run.opened().messages.names.shown:
            page.js("message => carrypost.choose({message})", message)
            page.wait()
        page.page.select_option("#filters select", "Infinity")
        page.wait()
        assert page.page.query_selector("img") is None
        assert "<img src=x" in page.text()
        assert not set("\u202e\u0000\u0007") & set(page.text())
        assert len(page.text()) < 100_000
        assert page.js("() => ({}).polluted === undefined && Object.prototype.toString.call({}) === '[object Object]'")


def test_an_empty_record_and_an_unknown_one_are_pages_nevertheless(site: Site) -> None:
    empty = next(each for each in site.runs if each.opened().scan.rows == 0)
    with site.page(f"/replay/{empty.id}") as page:
        page.wait()
        assert "0 rows" in page.text("#head")
        page.page.click("#play")
        page.page.click("#play")
        page.wait()
    with site.page("/replay/0123456789") as page:
        page.wait("document.documentElement.dataset.ready !== undefined")
        assert "there is no run '0123456789'" in page.text()
        expected = [each for each in site.complaints if "404" in each]
        site.complaints = [each for each in site.complaints if each not in expected]


def test_scripts_of_others_and_frames_are_forbidden(site: Site) -> None:
    with site.page() as page:
        page.wait("document.documentElement.dataset.ready !== undefined")
        assert page.js(_INLINE) == "blocked"
        while not site.complaints:
            page.page.wait_for_timeout(10)
        assert any("Content Security Policy" in each or "'TrustedScript'" in each for each in site.complaints)
        site.complaints = []


_INLINE = """() => {
  const script = document.createElement("script");
  try { script.text = "window.broken = 1"; document.head.append(script); } catch { return "blocked"; }
  return window.broken ? "ran" : "blocked";
}"""


@examples(6)
@given(share=st.floats(0, 1))
def test_paths_homes_loads_and_islands_are_those_of_the_record(overlay: tuple[list[Row], Shown], share: float) -> None:
    rows, page = overlay
    t = share * rows[-1]["t"]
    check_layers(rows, page, t)


def test_messages_that_queues_hand_out_are_arrows_or_rings_at_their_own_node(site: Site, tmp_path: Path) -> None:
    rows: list[Row] = [{"t": 0, "kind": "join", "node": name} for name in ("queue", "near", "far")]
    rows += [
        {"t": 1, "kind": "up", "node": "queue", "peer": "near"},
        {"t": 90, "kind": "down", "node": "queue", "peer": "near"},
    ]
    given = [(10, "near"), (10.5, "queue"), (40, "far")]
    rows += [{"t": t, "kind": "assign", "node": "queue", "message": f"m{t}", "detail": to} for t, to in given]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with browsers.site(site.browser, [tmp_path / "rows.jsonl"]) as alone:
        (run,) = alone.runs
        with alone.page(f"/replay/{run.id}?t=0&speed=1&layers=queues") as page:
            for t, wanted in ((5, []), (11, ["near", "queue"]), (30, []), (41, ["far"])):
                page.wait().seek(t)
                assert page.js("() => carrypost.assigned()") == [["queue", to] for to in wanted]


@pytest.fixture(scope="module")
def overlay(site: Site) -> Iterator[tuple[list[Row], Shown]]:
    run = site.run("overlay/default/1")
    rows = rows_of(run.opened())
    origins = [row["message"] for row in rows if row["kind"] == "receive" and "path" in dict(row["attrs"] or ())]
    assert origins
    query = f"t=0&layers=homes,paths,reach&control=1&message={quote(origins[0])}&node={rows[5]['node']}"
    with site.page(f"/replay/{run.id}?{query}") as page:
        yield rows, page.wait()


def test_a_population_without_rows_shows_its_counts_as_charts(site: Site) -> None:
    run = site.run("counts/default/1")
    received = next(row["size"] for row in rows_of(run.opened()) if row["detail"] == "receive")
    with site.page(f"/replay/{run.id}") as page:
        page.wait()
        page.wait("document.querySelectorAll('#tally canvas').length === 2")
        assert f"{received:,}" in page.text("#tally")


def test_a_record_whose_seed_was_changed_is_laid_out_and_says_why(site: Site) -> None:
    with site.page(f"/replay/{site.run('changed').id}") as page:
        page.wait()
        assert re.search(r"layout: .+ met at .+ s, and by the scenario and seed", page.text("#where"))


def test_two_runs_are_compared_on_one_clock(site: Site) -> None:
    one, two = site.run("walk/default/1"), site.run("walk/default/2")
    message = one.opened().messages.names.shown[0]
    with site.page(f"/replay/{one.id}?t=60&message={quote(message)}&with={two.id}") as page:
        page.wait()
        first, second = (reached_at(rows_of(run.opened()), message, 60) for run in (one, two))
        assert sorted(page.js("() => carrypost.reached(0)")) == first
        assert sorted(page.js("() => carrypost.reached(1)")) == second
        alone = page.js("() => carrypost.alone()")
        assert [sorted(each) for each in alone] == [
            sorted(set(first) - set(second)),
            sorted(set(second) - set(first)),
        ]
        page.wait("document.querySelector('#figures td.number')")
        assert f"{one.opened().summary['received']:,}" in page.text("#figures")
        assert len(page.page.query_selector_all("#maps .map")) == 2
        page.page.select_option("#with", "")
        page.wait()
        assert len(page.page.query_selector_all("#maps .map")) == 1


_PIXELS = """async ([data, places]) => {
  const picture = new Image();
  picture.src = `data:image/png;base64,${data}`;
  await picture.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: picture.width, height: picture.height });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(picture, 0, 0);
  return places.map(([x, y]) => [...pen.getImageData(x, y, 1, 1).data.slice(0, 3)]);
}"""


def _saved(page: Shown, name: str) -> bytes:
    """Return a file that the page saves."""
    with page.page.expect_download() as download:
        page.page.select_option("#export", name)
    return Path(download.value.path()).read_bytes()


def test_the_map_is_saved_alike_as_pixels_and_as_lines(site: Site) -> None:
    opened = site.run("walk/default/1").opened()
    message = opened.messages.names.shown[0]
    came = [row["t"] for row in rows_of(opened) if row["kind"] == "receive" and row["message"] == message]
    t = came[len(came) // 2]  # Some have it, and some do not.
    with site.page(f"/replay/{site.run('walk/default/1').id}?t={t}&message={quote(message)}") as page:
        page.wait().page.get_by_label("names", exact=True).uncheck()  # They may be above dots.
        page.page.get_by_label("trails").check()
        drawn = ET.fromstring(_saved(page.wait(), "map.svg"))  # noqa: S314 - our own
        dots = {each: (float(each.attrib["cx"]), float(each.attrib["cy"])) for each in drawn.findall("{*}circle")}
        assert len(dots) == len(opened.scan.names)
        colours = [tuple(bytes.fromhex(each.attrib["fill"][1:])) for each in dots]
        assert len(set(colours)) > 1
        png = base64.b64encode(_saved(page, "map.png")).decode()
        for (x, y), colour in zip(dots.values(), colours, strict=True):
            around = [[x - 4, y], [x + 4, y], [x, y - 4], [x, y + 4]]  # Lines above a dot do not cover all of these.
            assert list(colour) in page.js(_PIXELS, [png, around])
        # Trails: back in metres, by the places of two nodes, they are where the nodes were.
        names = opened.scan.names.shown
        (left, top), (right, bottom) = (page.js("name => carrypost.place(name)", names[node]) for node in (0, 1))
        (x, y), (x2, y2) = list(dots.values())[:2]
        walked = next(each.attrib["d"] for each in drawn.findall("{*}path") if each.attrib["d"].count("M") == len(dots))
        for node, trail in enumerate(walked.removeprefix("M").split("M")):
            points = [tuple(map(float, point.split())) for point in trail.split("L")]
            places = [
                (left + (at - x) * (right - left) / (x2 - x), top + (down - y) * (bottom - top) / (y2 - y))
                for at, down in points
            ]
            track = opened.places
            mine = [row for row in range(len(track.t)) if track.node[row] == node and t - 60 <= track.t[row] < t]
            here = track.at(node, t)
            assert here is not None
            assert np.allclose(places, [*((track.x[row], track.y[row]) for row in mine), here], atol=0.1)


def test_pictures_and_tables_are_saved_as_they_are_shown(site: Site) -> None:
    run = site.run("walk/default/1")
    message = run.opened().messages.names.shown[0]
    with site.page(f"/replay/{run.id}?t=60&message={quote(message)}") as page:
        page.wait()
        table = page.js("() => carrypost.exported('curve.csv')")["text"].splitlines()
        assert table[0] == "t,reached,delivered"
        assert float(table[1].split(",")[0]) == run.opened().messages.t[0]
        assert int(table[-1].split(",")[1]) == len(reached_at(rows_of(run.opened()), message, 1e9))
        ET.fromstring(page.js("() => carrypost.exported('curve.svg')")["text"])  # noqa: S314 - our own
        page.page.select_option("#speed", "3600")
        page.js("t => carrypost.seek(t)", 200)
        assert page.js("() => carrypost.exported('film.webm')")["type"] == "video/webm"
        assert _saved(page, "curve.csv").decode().splitlines() == table


def test_rows_that_pass_the_filters_are_downloaded_as_arrow(site: Site) -> None:
    run = site.run("walk/default/1")
    with site.page(f"/replay/{run.id}?t=60&kinds=publish") as page:
        page.wait()
        with page.page.expect_download() as download:
            page.page.click("#filters a")
        found = pa.ipc.open_stream(download.value.path()).read_all()
        assert found["kind"].to_pylist() == ["publish"] * len(run.opened().messages)


def test_the_progress_of_a_long_opening_is_shown(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_OPENING_S", 0.05)
    go_on = threading.Event()
    read = ParquetSource.read

    def slowly(self: ParquetSource, group: int, *columns: str) -> pa.Table:
        if group:
            assert go_on.wait(60)
        return read(self, group, *columns)

    monkeypatch.setattr(ParquetSource, "read", slowly)
    rows = pq.read_table(folder / "walk.parquet")
    pq.write_table(rows, folder / "long.parquet", row_group_size=len(rows) // 2 + 1)
    with browsers.site(site.browser, [folder / "long.parquet"]) as other:
        (run,) = other.runs
        with other.page(f"/replay/{run.id}") as page:
            page.wait("/reading: (?!0 %).*%/.test(document.body.innerText)")
            page.wait("document.querySelector('progress').value > 0")  # The text comes first.
            assert page.js("() => document.querySelector('progress').value") < 1
            go_on.set()
            page.wait()
            assert page.state["message"] == run.opened().messages.first


def test_a_folder_that_nodes_write_grows_on_the_page(folder: Path, site: Site) -> None:
    nodes = folder / "evil"
    run = next(each for each in site.runs if each.opened().scan.source.path == nodes)
    with site.page(f"/replay/{run.id}?t=0") as page:
        page.wait()
        page.page.check("label:has-text('follow') input")
        with (nodes / "2.jsonl.part").open("a") as file:
            for t, kind in ((40, "join"), (45, "leave")):
                file.write(json.dumps({"t": t, "kind": kind, "node": "newcomer"}) + "\n")
            file.write('{"t": 50, "ki')
        page.wait(f"carrypost.state().t === 45 && {READY}")
        page.js("() => carrypost.choose({node: 'newcomer'})")
        page.wait()
        assert page.state["node"] == "newcomer"
        assert page.js("() => carrypost.place('newcomer')") is not None


def test_keys_work_where_nobody_types(site: Site) -> None:
    run = site.run("walk/default/1")
    with site.page(f"/replay/{run.id}?t=0&kinds=publish") as page:
        page.wait()
        page.page.keyboard.press("ArrowRight")
        page.wait(f"carrypost.state().t === {min(run.opened().messages.t)} && {READY}")
        page.page.click("#search")
        page.page.keyboard.type("f ?+")
        page.wait()
        assert page.page.input_value("#search") == "f ?+"
        page.page.click("h1")
        page.page.keyboard.press("?")
        assert "step to the event" in page.text("#help")
        page.page.keyboard.press("Escape")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_are_legible_in_light_and_in_dark(site: Site, scheme: str) -> None:
    with site.page(color_scheme=scheme) as page:
        page.wait("document.documentElement.dataset.ready !== undefined")
        assert page.js(_CONTRAST, ["--text", "--back"]) > 10
        for name in ("--faint", "--node", "--bad"):
            assert page.js(_CONTRAST, [name, "--panel"]) >= 4.5, name  # WCAG, level AA


_CONTRAST = """names => {
  const [one, other] = names.map((name) => {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16) / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
  });
  return Math.max(one, other) / Math.min(one, other);
}"""


PICTURES = os.environ.get("CARRYPOST_PICTURES")


@pytest.mark.skipif(PICTURES is None, reason="CARRYPOST_PICTURES names no folder for the pictures of docs/web.md")
def test_pictures_of_the_documents_are_made(site: Site, folder: Path) -> None:
    emu.run(emu.Scenario.parse(runs.EXAMPLE, folder), out=folder / "example.parquet")
    with browsers.site(site.browser, [folder / "example.parquet"]) as walkers:
        (run,) = walkers.runs
        opened = run.opened()
        message = opened.messages.first
        assert message is not None
        reached = reached_at(rows_of(opened), message, opened.scan.end)
        left = next(name for name in opened.scan.names.shown if name not in reached)
        for name, query in (("replay", "t=150"), ("why", f"t=395&node={left}")):
            large = {"width": 1280, "height": 900}
            with walkers.page(f"/replay/{run.id}?{query}&message={quote(message)}", viewport=large) as page:
                page.wait()
                page.wait("document.querySelector('.curve canvas')")
                page.page.screenshot(path=Path(PICTURES or "") / f"web-{name}.png")

"""Pages about campaigns: runs as their states say, families as their tables have them, a report that can do nothing."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import campaigns
from tests.support.pages import PORT, Answer, asked

from carrypost.cli.app import run as command
from carrypost.lab.campaign.reproduce import RECIPES
from carrypost.lab.metrics import FAMILIES
from carrypost.web.campaigns import CampaignRoutes
from carrypost.web.runs import RunRoutes, Runs
from carrypost.web.server import REPORT_HEADERS, Access, App


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a campaign with failures and metrics."""
    home = tmp_path_factory.mktemp("campaign")
    campaigns.three(home)
    file = campaigns.campaign(home, campaigns.TWO_SETTINGS, campaigns.FAILING)
    with campaigns.played(file, home / "out"):
        pass
    assert command(["lab", "metrics", str(home / "out"), "--engine", "local"]) == 0
    (home / "out" / "report.html").write_text("<style>p{color:red}</style><script>alert(1)</script><p>report", "utf-8")
    return home / "out"


class Pages:
    """The pages of one folder."""

    def __init__(self, *paths: Path) -> None:
        runs = Runs(paths)
        self.routes = CampaignRoutes(paths, runs)
        self.access = Access(App(self.routes, RunRoutes(runs)).asgi, PORT)

    def get(self, path: str) -> Answer:
        headers: dict[str, str | None] = {
            "host": f"127.0.0.1:{PORT}", "cookie": f"carrypost-{PORT}={self.access.token}"
        }  # fmt: skip
        return asyncio.run(asked(self.access, path, headers))

    def api(self, path: str = "") -> Answer:
        return self.get(f"/api/campaigns/{next(iter(self.routes.all))}{path}")

    def info(self) -> Any:  # noqa: ANN401 - whatever it is
        return self.api().json


def test_runs_are_those_of_the_states_with_the_tracebacks_of_failures(folder: Path) -> None:
    shown = Pages(folder)
    assert [each["folder"] for each in shown.get("/api/campaigns").json] == [str(folder)]
    found, states = shown.info(), campaigns.states(folder)
    assert {each["run"]: (each["status"], each["rows"], each["error"]) for each in found["runs"]} == {
        name: (state["status"], state["rows"], state["error"]) for name, state in states.items()
    }
    failed = {name: state["traceback"] for name, state in states.items() if state["status"] == "failed"}
    assert len(failed) == 2
    assert found["tracebacks"] == failed
    assert (found["making"], found["report"]) == (False, True)


def test_every_family_is_its_table_page_by_page_and_as_csv(folder: Path) -> None:
    check_families(folder, rows_max=7)


@pytest.mark.soak
@pytest.mark.parametrize("name", RECIPES)
def test_the_families_of_each_experiment_are_its_tables(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command(["reproduce", name, "--quick", "--engine", "local", "--out", str(out)]) == 0
    check_families(out, rows_max=5_000)
    shown = Pages(out)
    assert {each["status"] for each in shown.info()["runs"]} == {"done"}
    assert shown.get(f"/report/{next(iter(shown.routes.all))}").body == (out / "report.html").read_bytes()


def read(shown: Pages, path: str) -> tuple[dict[str, Any], list[list[object]]]:
    """Return the last page of a family, and the rows of all its pages."""
    found: list[list[object]] = []
    page: dict[str, Any] = {"next": 0}
    while (after := page["next"]) is not None:
        page = shown.api(f"{path}&after={after}").json
        found += page["rows"]
    return page, found


def check_families(folder: Path, rows_max: int) -> None:
    """Compare every family with its table, and the pages of it with its CSV."""
    shown = Pages(folder)
    listed = [each["name"] for each in shown.info()["families"]]
    assert listed == [table.name for table in FAMILIES]
    for table in FAMILIES:
        rows = pq.read_table(folder / "metrics" / table.name).select(table.names).to_pylist()
        expected = [[row[name] for name in table.names] for row in rows]
        page, found = read(shown, f"/{table.name}?limit={rows_max}")
        assert found == json.loads(json.dumps(expected)), table.name
        assert [(each["name"], each["meaning"]) for each in page["columns"]] == [
            (each.name, each.meaning) for each in table.columns
        ]
        lines = list(csv.reader(io.StringIO(shown.api(f"/{table.name}?as=csv").body.decode())))
        assert lines[0] == table.names
        assert len(lines) == len(rows) + 1
        first = next(iter(campaigns.states(folder)))
        _, mine = read(shown, f"/{table.name}?run={first.replace(' ', '%20')}&limit=5000")
        assert mine == [row for row in json.loads(json.dumps(expected)) if row[0] == first]
    assert "no family 'nothing'" in shown.api("/nothing").json["error"]


def test_a_long_family_is_read_as_far_as_it_is_shown(tmp_path: Path) -> None:
    home = tmp_path / "out"
    (home / ".runs").mkdir(parents=True)
    table = next(each for each in FAMILIES if each.name == "timeline")
    rows = 4_000
    columns = {
        each.name: pa.array(
            [f"r{number % 3}" if each.name == "run" else number for number in range(rows)],
            table.arrow.field(each.name).type if each.name != "run" else pa.string(),
        ) if each.type != "string" or each.name == "run" else pa.array(["x"] * rows)
        for each in table.columns
    }  # fmt: skip
    (home / "metrics" / table.name).mkdir(parents=True)
    pq.write_table(pa.table(columns), home / "metrics" / table.name / "part-0.parquet", row_group_size=100)
    shown = Pages(home)
    page = shown.api("/timeline?after=1950&limit=100").json
    assert (len(page["rows"]), page["next"]) == (100, 2_050)
    (campaign,) = shown.routes.all.values()
    groups = campaign.tables("timeline", "", 1_950)
    assert next(groups)[1].num_rows == 50, "groups before are not read"
    assert len(shown.api("/timeline?run=r1&limit=5000").json["rows"]) == math.ceil((rows - 1) / 3)


def test_a_campaign_is_shown_while_it_is_made(tmp_path: Path) -> None:
    campaigns.three(tmp_path)
    home = tmp_path / "out"
    file = campaigns.campaign(tmp_path, seeds="[1]")
    (home / ".runs").mkdir(parents=True)
    (home / "records").mkdir()
    partial = home / "records" / ".three.token.12345678.partial"
    partial.write_bytes(b"half")
    shown = Pages(home)
    assert shown.routes.only == f"/campaign/{next(iter(shown.routes.all))}"
    before = shown.info()
    assert (before["runs"], before["making"]) == ([], True)
    partial.unlink()
    with campaigns.played(file, home) as running:
        del running
    (home / ".runs" / "damaged.json").write_text("{", "utf-8")
    after = shown.info()
    assert ([each["status"] for each in after["runs"]], after["making"]) == (["done"], False)
    name = after["runs"][0]["run"].replace("/", "%2F")
    opened = shown.api(f"/open?run={name}").json["id"]
    assert shown.get(f"/api/runs/{opened}").json["run"] == after["runs"][0]["run"]
    assert shown.api(f"/open?run={name}").json["id"] == opened
    assert "has no record here" in shown.api("/open?run=none").json["error"]


def test_a_report_may_do_nothing(folder: Path, tmp_path: Path) -> None:
    shown = Pages(folder)
    answer = shown.get(f"/report/{next(iter(shown.routes.all))}")
    assert answer.body == (folder / "report.html").read_bytes()
    policy = answer.headers["content-security-policy"]
    assert policy == "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert answer.headers.items() >= {key.lower(): value for key, value in REPORT_HEADERS.items()}.items()
    (tmp_path / ".runs").mkdir()
    empty = Pages(tmp_path)
    assert "there is no report yet" in empty.get(f"/report/{next(iter(empty.routes.all))}").json["error"]


def test_a_folder_that_is_no_campaign_is_none(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "records").mkdir()
    shown = Pages(folder)
    assert CampaignRoutes([tmp_path], Runs([folder])).all == {}
    assert "there is no campaign" in shown.get("/api/campaigns/1").json["error"]
    assert command(["web", str(tmp_path)]) == 2

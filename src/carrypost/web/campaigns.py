"""Campaigns: their runs, also while they are being made, the families of their metrics, and their report.

A campaign is what its files say: the state of each run that is over, the tables `metrics/FAMILY`, and `report.html`.
Tables may be long, so a page of one reads the row groups that it needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from carrypost.lab.campaign.folder import FAILED, CampaignFolder
from carrypost.lab.metrics import FAMILIES
from carrypost.log.files import refusing
from carrypost.web.runs import Runs, looked_for
from carrypost.web.server import NotFoundError, in_thread, json_answer, text_of, whole

REPORT = "report.html"
_METRICS = "metrics"
_PAGE_MAX = 5_000
_TEXT_MAX = 10_000
"""Characters of a traceback that a page gets."""
_FIELDS = "run", "scenario", "settings", "seed", "status", "version", "rows", "cpu_s", "elapsed_s", "error"


class Campaign:
    """One campaign's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, CampaignFolder(folder)
        self.id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:10]

    def info(self) -> dict[str, Any]:
        """Return the runs that are over, failures first seen with their tracebacks, and the tables that there are."""
        states = self.place.states_there().values()
        runs = [{name: getattr(each, name) for name in _FIELDS} for each in states]
        traces = {each.run: each.traceback[-_TEXT_MAX:] for each in states if each.status == FAILED}
        families = [
            {"name": table.name, "meaning": table.meaning} for table in FAMILIES if next(self._files(table.name), None)
        ]
        report = (self.folder / REPORT).is_file()
        return {
            "id": self.id, "folder": str(self.folder), "runs": runs, "tracebacks": traces, "families": families,
            "report": report, "making": self._is_making(),
        }  # fmt: skip

    def counts(self) -> dict[str, Any]:
        """Return the line of the start page, without reading states."""
        runs = sum(1 for _ in self.place.states.glob("*.json"))
        return {"id": self.id, "folder": str(self.folder), "runs": runs, "report": (self.folder / REPORT).is_file()}

    def _is_making(self) -> bool:
        """Return True if records of runs are being written."""
        return any(next(folder.glob(".*.partial"), None) for folder in (self.place.records, self.place.states))

    def record(self, run: str) -> Path:
        """Return the record of a run; raises `NotFoundError`."""
        for stem, state in self.place.states_there().items():
            path = self.place.records / f"{stem}.parquet"
            if state.run == run and path.is_file():
                return path
        raise NotFoundError(f"the run {run[:200]!r} has no record here: it failed, or is still being made")

    # --- families ------------------------------------------------------------------------------------------

    def _files(self, family: str) -> Iterator[Path]:
        folder = self.folder / _METRICS / family
        if not folder.is_dir():
            return iter(())
        hidden = (".", "_")
        return (
            each for each in sorted(folder.rglob("*.parquet"))
            if not any(part.startswith(hidden) for part in each.relative_to(folder).parts)
        )  # fmt: skip

    def tables(self, family: str, run: str, after: int = 0) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of a family by row group, with the number of the row before them; skip what comes before."""
        number = 0
        for path in self._files(family):
            with refusing(f"{path} cannot be read", pa.ArrowException):
                file = pq.ParquetFile(path)
                for group in range(file.num_row_groups):
                    begin, number = number, number + file.metadata.row_group(group).num_rows
                    if number <= after:
                        continue
                    found = file.read_row_group(group)
                    skipped = max(0, after - begin)
                    found = found.slice(skipped).append_column(
                        "#", pa.array(range(begin + skipped, number), pa.int64())
                    )  # fmt: skip
                    yield number, found.filter(pc.equal(found["run"], run)) if run else found

    def rows(self, family: str, run: str, after: int, limit: int) -> dict[str, Any]:
        """Return rows of a family, a page at a time, with the meaning of each column."""
        table = self._table(family)
        kept: list[pa.Table] = []
        count = 0
        for _, found in self.tables(family, run, after):
            kept.append(found)
            count += found.num_rows
            if count > limit:
                break
        rows = [] if not kept else pa.concat_tables(kept).slice(0, limit + 1).to_pylist()
        last = None if len(rows) <= limit else rows[limit]["#"]
        names = [each.name for each in table.columns]
        return {
            "name": table.name,
            "meaning": table.meaning,
            "columns": [{"name": each.name, "type": each.type, "meaning": each.meaning} for each in table.columns],
            "rows": [[row.get(name) for name in names] for row in islice(rows, limit)],
            "next": last,
        }

    def csv(self, family: str, run: str) -> Iterator[bytes]:
        """Yield a whole family as CSV."""
        names = self._table(family).names
        yield (",".join(names) + "\n").encode()
        for _, found in self.tables(family, run):
            sink = pa.BufferOutputStream()
            pa_csv.write_csv(found.select(names), sink, pa_csv.WriteOptions(include_header=False))
            yield sink.getvalue().to_pybytes()

    def _table(self, family: str) -> Any:  # noqa: ANN401 - a `Table`
        found = next((each for each in FAMILIES if each.name == family), None)
        if found is None or next(self._files(family), None) is None:
            raise NotFoundError(
                f"this campaign has no family {family[:40]!r}; make it with: carrypost lab metrics {self.folder}"
            )
        return found


def is_campaign(path: Path) -> bool:
    """Return True for the folder of a campaign, also of one that has no record yet."""
    with suppress(OSError):
        return CampaignFolder(path).states.is_dir()
    return False


class CampaignRoutes:
    """The routes about some campaigns."""

    def __init__(self, paths: Sequence[Path], runs: Runs) -> None:
        self._runs, self._given = runs, list(paths)
        found = [Campaign(each) for each in (paths or looked_for(Path())) if is_campaign(each)]
        self.all = {each.id: each for each in found}
        self.routes = [
            Route("/api/campaigns", self._list),
            Route("/api/campaigns/{id}", self._about(lambda campaign, _: json_answer(campaign.info()))),
            Route("/api/campaigns/{id}/open", self._about(self._open)),
            Route("/api/campaigns/{id}/{family}", self._about(_family)),
            Route("/report/{id}", self._about(_report)),
        ]

    @property
    def only(self) -> str | None:
        """The page of the only campaign that was given."""
        return f"/campaign/{next(iter(self.all))}" if len(self.all) == len(self._given) == 1 else None

    async def _list(self, _: Request) -> Response:
        return json_answer(await in_thread(lambda: [each.counts() for each in self.all.values()]))

    def _about(self, endpoint: Callable[[Campaign, Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            name = request.path_params["id"]
            if name not in self.all:
                raise NotFoundError(f"there is no campaign {name[:40]!r}; the start page has those that there are")
            return await in_thread(lambda: endpoint(self.all[name], request))

        return answer

    def _open(self, campaign: Campaign, request: Request) -> Response:
        """Answer with the id of a run's replay."""
        return json_answer({"id": self._runs.at(campaign.record(text_of(request, "run")))})


def _family(campaign: Campaign, request: Request) -> Response:
    family, run = request.path_params["family"], text_of(request, "run")
    if request.query_params.get("as") == "csv":
        campaign.rows(family, run, 0, 1)  # Mistakes are reported before the stream begins.
        headers = {"Content-Disposition": f'attachment; filename="{family}.csv"'}
        return StreamingResponse(campaign.csv(family, run), media_type="text/csv", headers=headers)
    after, limit = whole(request, "after", 0, 1 << 62), whole(request, "limit", 200, _PAGE_MAX, 1)
    found = campaign.rows(family, run, after, limit)
    return Response(msgspec.json.encode(found), media_type="application/json")


def _report(campaign: Campaign, _: Request) -> Response:
    path = campaign.folder / REPORT
    if not path.is_file():
        raise NotFoundError(f"there is no report yet; make it with: carrypost lab report {campaign.folder}")
    return FileResponse(path, media_type="text/html")

"""`carrypost lab report`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from carrypost.cli import _paths
from carrypost.cli._extras import needs_reports
from carrypost.cli._options import Engine, Json, suggest_local
from carrypost.cli._output import figures, say
from carrypost.cli._progress import progress
from carrypost.cli._signals import orderly
from carrypost.cli.lab.metrics import PluginOption, read_plugins, sources_of
from carrypost.errors import LocalError
from carrypost.printing import many

if TYPE_CHECKING:
    from carrypost.lab.metrics.plugins import Plugin
    from carrypost.lab.objects import ObjectFolder
    from carrypost.lab.report.study import Study
    from carrypost.lab.schemas import Table
    from carrypost.lab.spark.session import SparkOptions

_PAGE = _paths.PathText("report.html")


def report(
    folder: Annotated[
        _paths.PathText,
        _paths.argument(
            "The folder or URI that `lab campaign` made, or a folder with records of real nodes.", "DIR", _paths.place
        ),
    ],
    *,
    out: Annotated[
        _paths.PathText,
        _paths.option("--out -o", "File or URI for the page (HTML).", "FILE", parser=_paths.page, default=True),
    ] = _PAGE,
    plugin: PluginOption = [],  # noqa: B006 - typer makes a new list
    engine: Engine,
    json: Json = False,
) -> None:
    """Write the report of a campaign, or of real nodes: tables and figures, in one self-contained HTML file.

    Records of real nodes (`record.folder` in their settings) get a page that shows who met whom, what was carried, and
    delays.

    Scenarios of `carrypost reproduce` get the papers' tables and figures, others a general part. Missing metrics are
    computed first. Each figure is also in the folder PAGE-figures, as SVG and as CSV.

    For example:

    * `carrypost lab report results --out report.html`

    * `carrypost lab report demo-record --out demo.html` for the records of real nodes

    * `carrypost lab report results --plugin my_metrics.py` adds metrics of your own

    * `carrypost lab report s3://bucket/results --out s3://bucket/report.html`
    """
    needs_reports()
    from carrypost.lab.objects import folder_of  # noqa: PLC0415 - needs the extra
    from carrypost.lab.report import field, page  # noqa: PLC0415 - needs the extra

    options, home, place = engine.chosen("lab report"), folder_of(folder), folder_of(out)
    found: dict[str, object] = {}
    with page.placed(place) as file:
        if isinstance(home, Path) and field.is_there(home):
            if plugin:
                raise LocalError("--plugin is for campaigns; for records of real nodes: carrypost lab metrics --plugin")
            page.check(file)
            test = field.FieldTest(home)
            if test.unreadable:
                say(f"{many(test.unreadable, 'line')} without a row of a record skipped")
            page.put(page.field_test(test, page.figures_beside(file).name), file)
            found |= field.summary(test)
        else:
            study = write_page(home, file, options, plugins=read_plugins(plugin))
            found |= {"runs": len(study.runs), "failed": len(study.failures)}
        size = file.stat().st_size
    figures({"page": str(place), "bytes": size, "figures": str(page.figures_beside(place))} | found, json=json)


@orderly()
def write_page(
    folder: Path | ObjectFolder,
    out: Path,
    options: SparkOptions | None,
    command: str = "",
    plugins: tuple[Plugin, ...] = (),
) -> Study:
    """Write the page of a campaign; return its study. Without options of Spark, metrics are made in this process."""
    from carrypost.lab.metrics.making import METRICS  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.metrics.objects import fetched  # noqa: PLC0415
    from carrypost.lab.objects import ObjectFolder  # noqa: PLC0415
    from carrypost.lab.report import page  # noqa: PLC0415

    def make(campaign: Path, tables: Sequence[Table]) -> None:
        from carrypost.lab import engines  # noqa: PLC0415 - needed where metrics are missing only
        from carrypost.lab.metrics import making  # noqa: PLC0415

        say(f"computing {many(len(tables), 'family', 'families')} of metrics of {folder}")
        wanted = making.Wanted(tables=tables, plugins=plugins)
        with sources_of(folder.uri if isinstance(folder, ObjectFolder) else campaign) as (source, _):
            suggest_local(options, small=source.nbytes <= making.SMALL_BYTES)
            with engines.opened(options) as on, progress("metrics", "runs") as move:
                making.make(on, source, wanted, on_progress=lambda done, total: move(done, total, ""))
        if isinstance(folder, ObjectFolder):
            folder.mirror(METRICS, campaign / METRICS)

    page.check(out)
    with nullcontext(folder) if isinstance(folder, Path) else fetched(folder) as local:
        study = page.complete(local, make, plugins)
        page.write(study, out, command, plugins)
    return study

"""Commands of the laboratory: from traces to the papers' tables."""

from __future__ import annotations

import typer

from carrypost.cli.lab import campaign, contacts, ingest, metrics, report, stream

lab = typer.Typer(
    name="lab",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="From traces to contacts, campaigns of emulated runs, tables and figures; on Spark.",
)
for command in (ingest.ingest, contacts.contacts, campaign.campaign, metrics.metrics, report.report, stream.stream):
    lab.command()(command)

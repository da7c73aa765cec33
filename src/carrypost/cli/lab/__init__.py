"""Commands of the laboratory: from traces to the papers' tables."""

from __future__ import annotations

from carrypost.cli._groups import Commands
from carrypost.cli.lab import campaign, contacts, ingest, metrics, report, stream

lab = Commands("lab", help="Analyse traces and emulated runs on Spark: contacts, campaigns, metrics, reports.")
for command in (ingest.ingest, contacts.contacts, campaign.campaign, metrics.metrics, report.report, stream.stream):
    lab.command()(command)

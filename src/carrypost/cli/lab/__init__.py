"""Commands of the laboratory: from traces to the papers' tables."""

from __future__ import annotations

from carrypost.cli._options import Commands
from carrypost.cli.lab import campaign, results, traces

lab = Commands("lab", help="Analyse traces and emulated runs on Spark: contacts, campaigns, metrics, reports.")
for command in (traces.ingest, traces.contacts, campaign.campaign, results.metrics, results.report, results.stream):
    lab.command()(command)

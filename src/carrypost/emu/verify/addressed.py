"""Rules about messages that list their recipients."""

from __future__ import annotations

import numpy as np

from carrypost.emu.verify.facts import Facts, Found
from carrypost.record import Kind


def delivered_at_recipients_only(facts: Facts) -> Found:
    """What lists its recipients is delivered there alone, and names its author never."""
    log = facts.log
    listed = {row: frozenset(text.split(" ")) for row, text in log.attr("recipients").items()}
    if not listed:
        return
    for row, named in listed.items():
        if log.nodes[log.node[row]] in named:
            yield row, f"{facts.shown(row)}: its author is among its recipients"
    rows = log.rows(Kind.DELIVER)
    origin = facts.origin(rows)
    concerned = np.isin(origin, list(listed))
    for row, published in zip(rows[concerned].tolist(), origin[concerned].tolist(), strict=True):
        if log.nodes[log.node[row]] not in listed[published]:
            yield row, f"{facts.shown(row)}: delivered where it is not listed"

"""How soon a flood would have brought what was published: the bound that deliveries are held against.

Plain functions from the contacts, messages and stays of one run to the columns of its table; the sweep is that of
`carrypost.emu.verify.bound`. Deadlines are those that authors tell, by the true time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from carrypost.emu.verify.bound import ContactUs, MessageUs, flood_ages_us
from carrypost.lab.metrics.distribution import RANKS, Columns, Counts, cdf, milliseconds, summed

Stay = tuple[str, int, int]
"""Node, start and end in microseconds."""


def flood(contacts: Iterable[ContactUs], messages: Iterable[MessageUs], stays: Iterable[Stay]) -> Columns:
    """The columns of FLOOD for one run; nothing where no contacts are known.

    What nobody published who was there is left out, and so is whom nobody knows to have been there.
    """
    there: dict[str, list[tuple[int, int]]] = {}
    for node, start_us, end_us in stays:
        there.setdefault(node, []).append((start_us, end_us))
    met = [each for each in contacts if each[0] in there and each[1] in there]
    sent = [
        (name, source, at_us, None if deadline_us is None else max(at_us, deadline_us))
        for name, source, at_us, deadline_us in messages
        if any(start_us <= at_us < end_us for start_us, end_us in there.get(source, ()))
    ]
    known = [(node, start_us, end_us) for node, spans in there.items() for start_us, end_us in spans]
    found = chain.from_iterable(flood_ages_us(met, sent, known) if met else ())
    age_us, nodes = np.fromiter(found, np.int64).reshape(-1, 2).T
    value_ms, counts = summed(milliseconds(age_us), nodes)
    return cdf(Counts(value_ms[counts > 0], counts[counts > 0]), RANKS)

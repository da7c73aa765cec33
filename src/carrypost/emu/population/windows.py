"""Windows: the parts of a run that can be processed separately, exactly, because messages never influence each other.

A part has the messages that are published in [T, T + w), and the contacts that overlap [T, T + w + lifetime). If
messages live without end, a part has its share of the messages by number, and the contacts from its first message on.
Rows that are about no message (presences, contacts) are in the part of their time, so each is in one part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from carrypost.arrays import Codes
from carrypost.emu.population.delays import NEVER_US, Delays
from carrypost.emu.population.flow import Step, Steps
from carrypost.emu.population.plan import Plan
from carrypost.errors import ConfigError
from carrypost.traces.encounters import Encounters

PARTS_MAX = 100_000


class Part(NamedTuple):
    """Messages of a run that are processed together."""

    first: int
    """Number of its first message, counted over the run."""
    last: int
    """The first message of the next part."""
    since_us: int
    until_us: int
    """Time whose rows about no message belong to this part; the parts of a run cover all of it."""
    horizon_us: int
    """End of the longest-lived of its messages."""


def parts(plan: Plan, window_us: int | None) -> list[Part]:
    """Cut a run into parts, in order; without a window it is one."""
    messages, end_us = plan.messages, plan.end_us
    count = 1 if window_us is None else -(-end_us // window_us)
    if count > PARTS_MAX:
        raise ConfigError(f"population.window_s divides this run into {count:,} parts; the maximum is {PARTS_MAX:,}")
    if window_us is None or not (messages.deadline_us == NEVER_US).any():
        edges_us = np.arange(count) * (window_us or end_us)
        firsts = np.searchsorted(messages.t_us, edges_us)
    else:
        firsts = np.unique(np.arange(count) * len(messages) // count)
        edges_us = np.where(firsts, messages.t_us[firsts], 0)
    starts, sinces = [*firsts.tolist(), len(messages)], [*edges_us.tolist(), end_us]
    found = []
    for first, last, since_us, until_us in zip(starts, starts[1:], sinces, sinces[1:], strict=False):
        lived_us = int(messages.deadline_us[first:last].max(initial=0))
        found.append(Part(first, last, since_us, until_us, min(end_us, max(until_us, lived_us))))
    return found


def contacts_of(plan: Plan, part: Part) -> Encounters:
    """Return the contacts that overlap the time of a part."""
    contacts = plan.contacts
    begun = int(np.searchsorted(contacts.start_us, part.horizon_us))
    return contacts.select(np.flatnonzero(contacts.end_us[:begun] > part.since_us))


def steps_of(plan: Plan, part: Part, contacts: Encounters, delays: Delays, seed: int | str) -> Steps:
    """Return the steps of a part for the sweep: message 0 is the first of the part."""
    open_us = delays.opened_us(contacts, seed)
    found = np.flatnonzero(open_us < np.minimum(contacts.end_us, part.horizon_us))
    a, b, open_us, end_us = contacts.a[found], contacts.b[found], open_us[found], contacts.end_us[found]
    ends = end_us < part.horizon_us
    chosen = slice(part.first, part.last)
    messages = plan.messages
    number: Codes = np.arange(part.last - part.first, dtype=np.int32)
    dies = messages.deadline_us[chosen] < part.horizon_us
    return Steps.of(
        (Step.CLOSE, end_us[ends], a[ends], b[ends]),
        (Step.EXPIRE, messages.deadline_us[chosen][dies], number[dies], number[dies]),
        (Step.OPEN, open_us, a, b),
        (Step.PUBLISH, messages.t_us[chosen], number, messages.source[chosen]),
    )

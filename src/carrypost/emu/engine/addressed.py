"""Messages for some of the hosts, drawn at random: the load of EMMA's evaluation (§4.1).

A given number of messages is published within a span of time, as a Poisson process of which the number of events is
known: their times are independent and uniform over the span. Author, recipients, delivery mode and priority are drawn
evenly. Every message has a stream of chance of its own, and recipients are drawn last. So another number of recipients,
other shares or more messages leave the authors, modes and priorities of the others as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from carrypost.config import Limits
from carrypost.emu.engine.chance import stream
from carrypost.emu.engine.workload import Publication
from carrypost.emu.scenario.tables import WorkloadTable
from carrypost.emu.traces.contacts import Presence
from carrypost.errors import ConfigError
from carrypost.model.times import MICROSECONDS


def addressed(
    workload: WorkloadTable, name: str, presences: Mapping[str, Sequence[Presence]], limits: Limits, seed: int | str
) -> list[Publication]:
    """Draw the publications of a workload, called `name` in errors and in the seed of its chance, by time."""
    hosts = sorted(presences)
    many = _recipients(workload, name, len(hosts), limits)
    first_us, within_us = (round(each_s * MICROSECONDS) for each_s in (workload.first_s, workload.within_s))
    lifetime_us = None if workload.lifetime_s is None else round(workload.lifetime_s * MICROSECONDS)
    moments = stream(seed, "addressed", name)
    found: list[Publication] = []
    for number, t_us in enumerate(sorted(first_us + moments.randrange(within_us) for _ in range(workload.messages))):
        chance = stream(seed, "addressed", name, number)
        author = _author(hosts, presences, t_us, chance.random(), name)
        persistent = chance.random() < workload.persistent
        priority = chance.randrange(workload.priorities)
        others = [host for host in hosts if host != author]
        recipients = tuple(sorted(chance.sample(others, many)))
        found.append(Publication(
            t_us, author, "", workload.size, lifetime_us,
            recipients=recipients, persistent=persistent, priority=priority,
        ))  # fmt: skip
    return found


def _recipients(workload: WorkloadTable, name: str, hosts: int, limits: Limits) -> int:
    """Return the number of recipients of a message."""
    key = f"{name}.recipients"
    if hosts <= 1:
        raise ConfigError(f"{name}: recipients must be hosts other than the author, and there is only one host")
    most, why = min((hosts - 1, f"there are {hosts} hosts"), (limits.recipients_max, "settings.limits.recipients_max"))
    many = int(workload.recipients)
    if workload.recipients < 1:
        many = min(max(1, round(workload.recipients * hosts)), hosts - 1)
    if many > most:
        raise ConfigError(f"{key} must be at most {most} ({why}), not {many}")
    return many


def _author(
    hosts: Sequence[str], presences: Mapping[str, Sequence[Presence]], t_us: int, chance: float, name: str
) -> str:
    """Return one of the hosts that are there."""
    there = [host for host in hosts if any(presence.includes(t_us) for presence in presences[host])]
    if not there:
        raise ConfigError(f"{name}: no host is present at {t_us / MICROSECONDS:g} s to publish; choose a later first_s")
    return there[int(chance * len(there))]

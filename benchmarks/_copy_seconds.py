"""Time for which copies stay after the last recipient of a message was given it, in `scenarios/emma.toml`.

The bound is of the same copies: each goes as soon as a flood, which every recipient begins when it is given the
message, reaches its host from all of them. The flood knows contacts alone, and takes no time. What it does not reach
stays until it expires, in both. Messages that some recipient never got have no last delivery, and are left out.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from carrypost.emu import run
from carrypost.emu.rows import KIND, log_of
from carrypost.emu.verify.bound import arrivals_us
from carrypost.emu.verify.facts import NEVER_US, Facts
from carrypost.emu.verify.invariants import listed
from carrypost.lab.campaign.reproduce import scenario_file
from carrypost.log.record import Kind
from carrypost.model.times import MICROSECONDS

LOADS: dict[str, dict[str, object]] = {"one recipient": {}, "topic": {"workload.0.recipients": 0.8}}
"""Keys of the scenario that each load changes."""


class CopySeconds(NamedTuple):
    """Seconds that copies stayed in one run, and that they stay in a flood of acknowledgements."""

    copies: int
    """Number of copies that were there after the last delivery."""
    stayed_s: float
    bound_s: float


def after_delivery(strategy: str, load: str, seed: int) -> CopySeconds:
    """Play the load, with acknowledgements every second."""
    settings = {"settings.strategy": strategy, "settings.acked_s": 1}
    facts = Facts(log_of(run(scenario_file("emma"), seed, overrides={**settings, **LOADS[load]}).table))
    given_us = _given_us(facts)
    said = [
        (f"{node} {message}", node, t_us, None)
        for message, by_node in given_us.items()
        for node, t_us in by_node.items()
    ]
    heard_us = arrivals_us(facts.passable, said, facts.presences)
    copies = stayed_us = bound_us = 0
    for message, node, came_us, end_us in _copies(facts):
        if (by_node := given_us.get(message)) and end_us > (start_us := max(came_us, *by_node.values())):
            heard_at_us = max(heard_us.get((f"{each} {message}", node), NEVER_US) for each in by_node)
            copies += 1
            stayed_us += end_us - start_us
            bound_us += max(0, min(end_us, heard_at_us) - start_us)
    return CopySeconds(copies, stayed_us / MICROSECONDS, bound_us / MICROSECONDS)


def _given_us(facts: Facts) -> dict[str, dict[str, int]]:
    """By message that all its recipients were given, when that was, by recipient."""
    log = facts.log
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for row in log.of(Kind.DELIVER).tolist():
        found[log.messages[log.message[row]]][log.nodes[log.node[row]]] = int(log.t_us[row])
    named = {log.messages[log.message[row]]: nodes for row, nodes in listed(log).items()}
    return {message: by_node for message, by_node in found.items() if by_node.keys() == named[message]}


def _copies(facts: Facts) -> list[tuple[str, str, int, int]]:
    """Each copy: its message and node, and from when to when it was there."""
    log = facts.log
    ends_us = int(log.t_us[-1])
    since: dict[tuple[int, int], int] = {}
    found: list[tuple[int, int, int, int]] = []
    for row in facts.copies(Kind.PUBLISH, Kind.RECEIVE).tolist():
        key, t_us = (int(log.message[row]), int(log.node[row])), int(log.t_us[row])
        if log.kind[row] in {KIND[Kind.PUBLISH], KIND[Kind.RECEIVE]}:
            since[key] = t_us
        elif key in since:  # One that was not whole is no copy.
            found.append((*key, since.pop(key), t_us))
    found += [(*key, t_us, ends_us) for key, t_us in since.items()]
    return [(log.messages[message], log.nodes[node], start_us, end_us) for message, node, start_us, end_us in found]

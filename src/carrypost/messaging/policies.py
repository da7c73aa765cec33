"""Policies: functions, registered by name, that choose among the demands for a message of a queue.

A policy is given the demands that match the message and have credit, at least one, and the message's descriptor; it
returns one of them. It is called again and again with the same demands, so it has to be fast, and to depend on its
arguments alone.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.errors import LocalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.messaging.queues.queue import Demand, Policy
    from carrypost.model.descriptor import Descriptor

_turn, _number = attrgetter("party.turn", "turn"), attrgetter("began")


def fair(asking: Sequence[Demand], _: Descriptor) -> Demand:
    """Choose the node that was served longest ago, and of its demands likewise.

    A node with a hundred demands gets no more than one with a single demand.
    """
    return min(asking, key=_turn)


def first(asking: Sequence[Demand], _: Descriptor) -> Demand:
    """Choose the oldest demand, as long as it has credit; the others wait."""
    return min(asking, key=_number)


_policies: dict[str, Policy] = {"fair": fair, "first": first}


def register(name: str, policy: Policy) -> None:
    """Register a policy under this name, for all nodes of this process."""
    if name in _policies and _policies[name] is not policy:
        raise LocalError(f"there is a policy called {name!r} already: choose another name")
    _policies[name] = policy


def policy_named(name: str) -> Policy | None:
    """Return the policy of this name; None if none is registered."""
    return _policies.get(name)


def policy_names() -> list[str]:
    """Return all names, in order."""
    return sorted(_policies)

"""Policies: functions, registered by name, that choose among those that ask for a message of a queue.

A policy is given the demands that match the message and have credit, at least one, and the message's descriptor; it
returns one of them. It is asked again and again with the same demands, so it has to be quick, and to depend on what it
is given alone.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.errors import LocalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.model.descriptor import Descriptor
    from carrypost.mom.queues.groups import Demand, Policy

_turn, _number = attrgetter("party.turn", "turn"), attrgetter("began")


def fair(asking: Sequence[Demand], _: Descriptor) -> Demand:
    """Choose the node that was given something longest ago, and of its demands likewise.

    A node that makes a hundred demands is given no more than one that makes a single one.
    """
    return min(asking, key=_turn)


def first(asking: Sequence[Demand], _: Descriptor) -> Demand:
    """Whoever has asked for the longest time, as long as it has credit; the others wait for their chance."""
    return min(asking, key=_number)


_policies: dict[str, Policy] = {"fair": fair, "first": first}


def register(name: str, policy: Policy) -> None:
    """Let queues be declared with a policy of this name, on all nodes of this process."""
    if name in _policies and _policies[name] is not policy:
        raise LocalError(f"there is a policy called {name!r} already: choose another name")
    _policies[name] = policy


def policy_named(name: str) -> Policy | None:
    """The policy of this name; None if none is registered."""
    return _policies.get(name)


def policy_names() -> list[str]:
    """All names, in order."""
    return sorted(_policies)

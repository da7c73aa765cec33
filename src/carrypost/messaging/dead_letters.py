"""The names of the queues that dead letters go to: ``DLQ.`` and the name of the queue, or ``DLQ.topic/`` and the topic.

A topic is named as the subscription names it, wildcards included, not as each message does: strangers choose the topics
of their messages, and would have a node declare as many queues as they like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.log.events import ERROR_MAX, DeadLetter
from carrypost.model import address
from carrypost.model.address import Kind
from carrypost.model.headers import DESTINATION_MAX

if TYPE_CHECKING:
    from carrypost.model.ids import NodeId

DEAD_LETTERS = "DLQ."
"""Prefix of the names of queues with dead letters; nodes assign them, not programs."""


def name_here(destination: str, node: NodeId) -> str:
    """Return the name of a queue of this node; an empty text if the address is another's."""
    found = address.address(destination)
    return found.name if found is not None and found.kind is Kind.QUEUE and found.node == node else ""


def source_of(name: str) -> str:
    """Return the name after which a queue for dead letters is named; empty if it is another queue."""
    return name.removeprefix(DEAD_LETTERS) if name.startswith(DEAD_LETTERS) else ""


def is_of_topic(name: str) -> bool:
    """Return True for the name of a queue for dead letters of a topic."""
    return source_of(name).startswith(f"{Kind.TOPIC}/")


def room_for(node: NodeId) -> int:
    """Return the number of characters that may follow `DEAD_LETTERS` in the address of a queue."""
    return DESTINATION_MAX - len(address.queue(DEAD_LETTERS, node))


def letters_of_topic(pattern: str, node: NodeId) -> str:
    """Return the name of the queue for dead letters of a subscription to this pattern; too long a name is cut."""
    name = address.topic_written(pattern)
    return DEAD_LETTERS + (pattern if name is None else address.topic(name))[: room_for(node)]


def letters_of(destination: str) -> str:
    """Return the address of the queue for dead letters of a queue."""
    found = address.address(destination)
    assert found is not None and found.node is not None  # noqa: PT018 - a queue has a node
    return address.queue(DEAD_LETTERS + found.name, found.node)


def history(source: str, tries: int, error: str) -> DeadLetter:
    """Return the history of a dead letter from a source; without an error, no program said what was wrong."""
    return DeadLetter(source[:512], tries, (error or f"delivered {tries} times and never acknowledged")[:ERROR_MAX])

"""One real node for the blocking programs of a test module, on loopback."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.loopback import apart

from carrypost import SessionMode
from carrypost.sync import ConnectionFactory, Context

WITHIN_S = 30.0
"""Longer than anything takes."""
_numbers = itertools.count()


def fresh(kind: str = "topic") -> str:
    """Return a destination that no other test has."""
    return f"{kind}/blocking-{next(_numbers)}"


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectionFactory]:
    """A factory whose node runs as long as the module does."""
    made = ConnectionFactory(data=tmp_path_factory.mktemp("node"), udp=apart())
    with made.create_context():
        yield made


@pytest.fixture
def context(factory: ConnectionFactory) -> Iterator[Callable[..., Context]]:
    """Makes contexts, which are closed with the test."""
    made: list[Context] = []

    def make(mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE) -> Context:
        made.append(factory.create_context(mode))
        return made[-1]

    yield make
    for each in made:
        each.close()


def node_folder(folder: Path) -> str:
    """Python that makes a factory, for programs that tests start."""
    return f"ConnectionFactory(data={str(folder)!r}, udp={apart()!r})"

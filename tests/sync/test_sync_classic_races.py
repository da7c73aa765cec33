"""Races of the classic API in threads, on a real node."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.classic_races import RACES, TIMES
from tests.support.classic_world import Scene
from tests.sync.test_sync_classic_rows import BlockingWorld, driven, settings

__all__ = ["settings"]
FEW = 20


def race(name: str, settings: Path, times: int) -> None:
    chance = random.Random(name)
    with ExitStack() as stack:
        scene = driven(Scene.open(BlockingWorld(settings, stack)))
        for _ in range(times):
            with ExitStack() as inner:
                driven(RACES[name](BlockingWorld(settings, inner), scene, chance))


@pytest.mark.parametrize("name", RACES)
def test_a_race_ends_well_in_threads(name: str, settings: Path) -> None:
    race(name, settings, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("name", RACES)
def test_a_race_ends_well_in_threads_as_often_as_in_tasks(name: str, settings: Path) -> None:
    race(name, settings, TIMES)

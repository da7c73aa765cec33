"""Races of the classic API in virtual time: a seeded generator picks the task that goes on."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from tests.classic.test_classic_rows import VirtualWorld
from tests.support.classic_races import RACES, TIMES
from tests.support.classic_world import Scene
from tests.support.examples import soaked

from carrypost import testing
from carrypost.emu.engine import loop
from carrypost.emu.engine.loop import VirtualLoop


class PickingLoop(VirtualLoop):
    """A virtual loop in which chance decides which of the tasks that can go on does so first."""

    chance = random.Random(0)

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        places = [at for at, handle in enumerate(ready) if isinstance(_owner(handle), asyncio.Task)]
        if len(places) > 1:
            handles = [ready[at] for at in places]
            self.chance.shuffle(handles)
            for at, handle in zip(places, handles, strict=True):
                ready[at] = handle
        super()._run_once()  # type: ignore[misc]


def _owner(handle: asyncio.Handle) -> object:
    return getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public has it


@pytest.mark.parametrize("times", [60, *soaked([TIMES])])
@pytest.mark.parametrize("name", RACES)
def test_a_race_ends_well_whichever_task_goes_on(name: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(name)
    monkeypatch.setattr(loop, "VirtualLoop", PickingLoop)
    monkeypatch.setattr(PickingLoop, "chance", random.Random(name))

    async def play() -> None:
        network = testing.network("a", seed=1, messaging={"redelivery_delay_s": 0.0})
        async with network as net, AsyncExitStack() as stack:
            assert isinstance(asyncio.get_running_loop(), PickingLoop)
            scene = await Scene.open(VirtualWorld(net, stack))
            for time in range(times):
                async with AsyncExitStack() as inner:
                    try:
                        await RACES[name](VirtualWorld(net, inner), scene, chance)
                    except AssertionError as error:
                        raise AssertionError(f"time {time}: {error}") from error

    testing.run(play)

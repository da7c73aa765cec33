"""A fixture for programs that use carrypost: scenes on a network in memory and in virtual time.

pytest finds it wherever carrypost is installed::

    def test_news_travel(carrypost_network):
        async def scene(net):
            net.link("a", "b")
            async with net.context("a") as here, net.context("b") as there: ...

        carrypost_network(scene, "a", "b", seed=1)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from carrypost.testing import Network


Scene = Callable[["Network"], Coroutine[Any, Any, Any]]
Play = Callable[..., Any]
"""``play(scene, *names, limit_s=…, **options)``."""


@pytest.fixture
def carrypost_network() -> Play:
    """Run ``async def scene(net)`` on a network of the named nodes; further keywords are those of `testing.network`.

    Past `limit_s`, a day of virtual time by default, it raises.
    """
    from carrypost import testing  # noqa: PLC0415 - pytest loads this module in every run, also of other projects

    def play(
        scene: Scene,
        *names: str,
        limit_s: float = 86_400.0,
        **options: Any,  # noqa: ANN401 - whatever `testing.network` takes
    ) -> Any:  # noqa: ANN401 - whatever the scene returns
        if not inspect.iscoroutinefunction(scene):
            raise TypeError(
                f"carrypost_network(scene, 'a', 'b'): the scene is an `async def` that takes the network, not {scene!r}"
            )

        async def entered() -> Any:  # noqa: ANN401 - likewise
            async with testing.network(*names, **options) as net:
                return await scene(net)

        return testing.run(entered, limit_s)

    return play

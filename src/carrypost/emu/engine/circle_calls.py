"""Circles in a network of tests: the commands of `host.circles`, with the name of the node first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.application.circle_commands import CircleCommands
    from carrypost.emu.engine.driver import EmulatedDriver
    from carrypost.model.ids import NodeId


class CircleCalls(ABC):
    """Commands about circles, for a network; nodes are named as in the network."""

    @abstractmethod
    def _checked(self, node: str) -> EmulatedDriver:
        """Return the driver of a node; raises `LocalError` or `StateError` if it takes no commands."""

    @abstractmethod
    def open_messaging(self) -> None:
        """Open messaging on every node."""

    def found(self, node: str, name: str) -> NodeId:
        """Found a circle on a node; return its id."""
        circles, driver = self._circles(node)
        made = circles.found(name, driver.now)
        driver.drain()
        return made

    def invite(self, node: str, circle: str, *, to: str | None = None, days: float = 30, fresh: bool = False) -> str:
        """Return the code of an invitation by an owner; `to`: the card of the one node that it is for."""
        circles, driver = self._circles(node)
        code = circles.invite(circle, driver.now, to=to, days=days, fresh=fresh)
        driver.drain()
        return code

    def join(self, node: str, code: str, *, root: str = "") -> str:
        """Let a node join the circle of a code, with its root as an owner; return the name that it has there."""
        circles, driver = self._circles(node)
        name = circles.join(code, driver.now, root=root)
        driver.drain()
        return name

    def remove(self, node: str, circle: str, removed: str) -> None:
        """Let an owner remove a node."""
        circles, driver = self._circles(node)
        circles.remove(circle, self._checked(removed).identity.node, driver.now)
        driver.drain()

    def rotate(self, node: str, circle: str) -> None:
        """Let an owner begin a new epoch."""
        circles, driver = self._circles(node)
        circles.rotate(circle, driver.now)
        driver.drain()

    def leave(self, node: str, circle: str) -> None:
        """Let a node leave a circle."""
        circles, driver = self._circles(node)
        circles.leave(circle, driver.now)
        driver.drain()

    def members(self, node: str, circle: str) -> tuple[NodeId, ...]:
        """Return the members that a node has listed."""
        return self._circles(node)[0].members(circle)

    def card(self, node: str) -> str:
        """Return the card of a node."""
        circles, driver = self._circles(node)
        card = circles.card(driver.now)
        driver.drain()
        return card

    def _circles(self, node: str) -> tuple[CircleCommands, EmulatedDriver]:
        driver = self._checked(node)
        self.open_messaging()
        return driver.host.circles, driver

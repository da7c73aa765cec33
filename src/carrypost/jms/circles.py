"""The circles of a program's node: groups of nodes whose topics only members can read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from carrypost.application.circle_state import CircleView
from carrypost.messaging import program_commands as do
from carrypost.model.ids import NodeId

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider


class ContextCircles:
    """Commands about circles. Circles have names that this node gave them."""

    def __init__(self, provider: Callable[[], Awaitable[Provider]]) -> None:
        self._provider = provider

    async def found(self, name: str) -> str:
        """Found a circle of which this node is the owner; return its id."""
        return await (await self._provider()).execute(do.FoundCircle(name))

    async def invite(self, circle: str, *, to: str | None = None, days: float = 30, fresh: bool = False) -> str:
        """Return a code with which a node joins; with the card `to`, that node alone can use it.

        Everybody who sees a code without `to` can join until the next removal, or for `days`. `fresh`: begin an epoch
        first, so that the newcomer reads nothing older.
        """
        return await (await self._provider()).execute(do.InviteToCircle(circle, to, days, fresh))

    async def join(self, code: str, *, root: str | None = None) -> str:
        """Join the circle of a code; return the name that it has here. With the `root`, this node is an owner, too."""
        return await (await self._provider()).execute(do.JoinCircle(code, root or ""))

    async def remove(self, circle: str, node: str) -> None:
        """Remove a node, and begin an epoch: it reads nothing that members send from then on."""
        await (await self._provider()).execute(do.RemoveFromCircle(circle, NodeId(node)))

    async def rotate(self, circle: str) -> None:
        """Begin a new epoch."""
        await (await self._provider()).execute(do.RotateCircle(circle))

    async def leave(self, circle: str) -> None:
        """Leave a circle, and delete its secrets on this node."""
        await (await self._provider()).execute(do.LeaveCircle(circle))

    async def export(self, circle: str) -> str:
        """Return the seed of the root, for a safe. Whoever has it can act as an owner."""
        return await (await self._provider()).execute(do.ExportCircle(circle))

    async def show(self) -> tuple[CircleView, ...]:
        """Return the circles of this node."""
        return await (await self._provider()).execute(do.ShowCircles())

    async def members(self, circle: str) -> tuple[NodeId, ...]:
        """Return the listed members of a circle."""
        return next((each.members for each in await self.show() if circle in (each.name, each.id)), ())

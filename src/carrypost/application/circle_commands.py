"""Commands about circles for code that uses a host itself; programs use those of messaging."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.circles import DAYS_MAX

if TYPE_CHECKING:
    from carrypost.application.circle_state import CircleView
    from carrypost.application.circles import Circles
    from carrypost.gossip.layer import Steps
    from carrypost.model.ids import NodeId


class CircleCommands:
    """Commands about circles for code that uses a host itself: `host.circles`. Each is a step."""

    def __init__(self, circles: Circles, steps: Steps) -> None:
        self._circles, self._steps = circles, steps

    def found(self, name: str, now: int) -> NodeId:
        """Found a circle; return its id."""
        with self._steps.step(now):
            return self._circles.found(name, now)

    def invite(
        self, circle: str, now: int, *, to: str | None = None, days: float = DAYS_MAX, fresh: bool = False
    ) -> str:
        """Return the code of an invitation; `to`: the card of the one node that it is for."""
        with self._steps.step(now):
            return self._circles.invite(circle, to, days, now, fresh=fresh)

    def join(self, code: str, now: int, *, root: str = "") -> str:
        """Join the circle of a code, with its root as an owner; return its name here."""
        with self._steps.step(now):
            return self._circles.join(code, now, root)

    def export(self, circle: str) -> str:
        """Return the root of a circle."""
        return self._circles.export(circle)

    def remove(self, circle: str, node: NodeId, now: int) -> None:
        """Remove a node from a circle."""
        with self._steps.step(now):
            self._circles.remove(circle, node, now)

    def rotate(self, circle: str, now: int) -> None:
        """Begin a new epoch of a circle."""
        with self._steps.step(now):
            self._circles.rotate(circle, now)

    def leave(self, circle: str, now: int) -> None:
        """Leave a circle."""
        with self._steps.step(now):
            self._circles.leave(circle)

    def members(self, circle: str) -> tuple[NodeId, ...]:
        """Return the listed members of a circle."""
        return self._circles.named(circle).members

    def card(self, now: int) -> str:
        """Return the card of this node."""
        with self._steps.step(now):
            return self._circles.keyring.card(now)

    def add_card(self, card: str, now: int) -> NodeId:
        """Learn the sealing key of another node from its card; return the node."""
        with self._steps.step(now):
            return self._circles.keyring.add_card(card, now)

    def views(self) -> tuple[CircleView, ...]:
        """Return the circles of this node."""
        return self._circles.views()

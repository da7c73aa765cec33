"""Circles on behalf of `carrypost circle`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from carrypost.cli import _output, _qr
from carrypost.cli._exit import Exit
from carrypost.errors import InvalidDestinationException

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined

EMBEDDING = "the change is stored there, and other nodes learn of it once a node runs"


def _print(joined: Joined, name: str, value: str) -> int:
    """Print one value alone, so that other programs can take it."""
    if joined.json:
        _output.line({name: value})
    else:
        typer.echo(value)
    return Exit.DONE


async def found(joined: Joined, name: str) -> int:
    """Found a circle, and print its id; returns the exit code."""
    return _print(joined, "circle", await joined.ctx.circles.found(name))


async def invite(joined: Joined, name: str, *, to: str | None, days: float, fresh: bool, qr: bool) -> int:
    """Print a code; returns the exit code."""
    code = await joined.ctx.circles.invite(name, to=to, days=days, fresh=fresh)
    if to is None:
        _output.say("everybody who sees this code can join until the next removal: show it to nobody else")
    _qr.show(joined, "code", code, qr=qr)
    return Exit.DONE


async def join(joined: Joined, code: str, root: str | None) -> int:
    """Join a circle, and print its name here; returns the exit code."""
    return _print(joined, "name", await joined.ctx.circles.join(code, root=root))


async def show(joined: Joined, name: str | None) -> int:
    """Print the circles of the node, or the one of this name or id; returns the exit code."""
    every = await joined.ctx.circles.show()
    circles = [each for each in every if name in {None, each.name, each.id}]
    if name is not None and not circles:
        there = ", ".join(each.name for each in every) or "none"
        raise InvalidDestinationException(f"this node is in no circle {name!r}; its circles: {there}")
    if not circles:
        _output.say("this node is in no circle: found one with `carrypost circle found NAME`, or join one by a code")
    for each in circles:
        row = {
            "name": each.name, "circle": each.id, "owner": each.owned, "charter": each.number, "epoch": each.epoch,
            "readable": each.readable, "invitations": each.invitations, "members": list(each.members),
            "removed": list(each.removed),
        }  # fmt: skip
        if not joined.json:
            row |= {name: "yes" if row[name] else "no" for name in ("owner", "readable")}
            row |= {
                name: " ".join(each.members if name == "members" else each.removed) for name in ("members", "removed")
            }
        _output.figures(row, json=joined.json)
    return Exit.DONE


async def remove(joined: Joined, name: str, node: str) -> int:
    """Remove a node; returns the exit code."""
    await joined.ctx.circles.remove(name, node)
    _output.say("removed; nodes learn of it when they meet a node that has heard of it")
    return Exit.DONE


async def rotate(joined: Joined, name: str) -> int:
    """Begin an epoch; returns the exit code."""
    await joined.ctx.circles.rotate(name)
    _output.say("a new epoch began; members read on once they meet a node that has heard of it")
    return Exit.DONE


async def leave(joined: Joined, name: str) -> int:
    """Leave a circle; returns the exit code."""
    await joined.ctx.circles.leave(name)
    _output.say("left; the circle's secrets are deleted on this node")
    return Exit.DONE


async def export(joined: Joined, name: str) -> int:
    """Print the seed of the root; returns the exit code."""
    return _print(joined, "root", await joined.ctx.circles.export(name))

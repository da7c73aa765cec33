"""The group `carrypost circle`: groups of nodes whose topics only members can read.

Each command does its work in a context on a node.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

from carrypost.cli import _output
from carrypost.cli._exit import Exit
from carrypost.cli._message_options import Qr, run
from carrypost.cli._options import Commands, Json, Node, argument, needs_qr, option
from carrypost.errors import InvalidDestinationException

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from carrypost.cli._joining import Joined


circle = Commands("circle", help="Found, join and manage circles: groups whose topics only members can read.")
Name = Annotated[str, argument("Name of the circle on this node.", "CIRCLE")]


@circle.command()
def found(name: Name, at: Node, *, json: Json = False) -> None:
    """Found a circle. This node is its owner, and can invite and remove others.

    For example: `carrypost circle found rescue`
    """
    run(at, lambda on: _print(on, "circle", on.ctx.circles.found(name)), _EMBEDDING, json=json)


@circle.command()
def invite(
    name: Name,
    at: Node,
    *,
    to: Annotated[str | None, option("--to", "Only for the node of this card (`carrypost keys card`).", "CARD")] = None,
    days: Annotated[float, option("--days", "Days for which the code can be used, at most 30.", "N")] = 30.0,
    fresh: Annotated[bool, option("--fresh", "Begin an epoch first: the newcomer reads nothing older.")] = False,
    qr: Qr = False,
    json: Json = False,
) -> None:
    """Print the code of an invitation. Without --to, everybody who sees it can join, until the next removal.

    For example: `carrypost circle invite rescue`, `carrypost circle invite rescue --to CEAL5… --days 2`
    """
    if qr:
        needs_qr()
    body = functools.partial(_invite, name=name, to=to, days=days, fresh=fresh, qr=qr)
    run(at, body, _EMBEDDING, json=json)


@circle.command()
def join(
    code: Annotated[str, argument("A code, as `carrypost circle invite` prints it.", "CODE")],
    at: Node,
    *,
    root: Annotated[str | None, option("--root", "Root of the circle, to be an owner.", "ROOT")] = None,
    json: Json = False,
) -> None:
    """Join the circle of a code. No owner need be near.

    For example: `carrypost circle join CIXOP…`
    """
    run(at, lambda on: _print(on, "name", on.ctx.circles.join(code, root=root)), _EMBEDDING, json=json)


@circle.command()
def show(
    at: Node,
    name: Annotated[str | None, argument("Name of one circle; all of this node without it.", "[CIRCLE]")] = None,
    *,
    json: Json = False,
) -> None:
    """Show the circles of this node, or one of them: members, epochs, open invitations.

    For example: `carrypost circle show`, `carrypost circle show rescue`
    """
    run(at, functools.partial(_show, name=name), json=json)


@circle.command()
def remove(name: Name, node: Annotated[str, argument("Id of the node.", "NODE")], at: Node) -> None:
    """Remove a node. It reads nothing that is sent by nodes that have heard of this, and they open nothing of it.

    For example: `carrypost circle remove rescue x7f3…`
    """
    done = "removed; nodes learn of it when they meet a node that has heard of it"
    run(at, lambda on: _say(on.ctx.circles.remove(name, node), done), _EMBEDDING)


@circle.command()
def rotate(name: Name, at: Node) -> None:
    """Begin a new epoch, with a new secret.

    For example: `carrypost circle rotate rescue`
    """
    done = "a new epoch began; members read on once they meet a node that has heard of it"
    run(at, lambda on: _say(on.ctx.circles.rotate(name), done), _EMBEDDING)


@circle.command()
def leave(name: Name, at: Node) -> None:
    """Leave a circle, and delete its secrets on this node.

    For example: `carrypost circle leave rescue`
    """
    done = "left; the circle's secrets are deleted on this node"
    run(at, lambda on: _say(on.ctx.circles.leave(name), done), _EMBEDDING)


@circle.command()
def export(name: Name, at: Node, *, json: Json = False) -> None:
    """Print the root of a circle, for a safe. Everybody who has it can act as an owner.

    For example: `carrypost circle export rescue`
    """
    run(at, lambda on: _print(on, "root", on.ctx.circles.export(name)), json=json)


_EMBEDDING = "the change is stored there, and other nodes learn of it once a node runs"


async def _print(joined: Joined, name: str, asked: Awaitable[str]) -> int:
    """Print the answer alone, so that other programs can take it; returns the exit code."""
    _output.show_code(name, await asked, json=joined.json)
    return Exit.DONE


async def _say(asked: Awaitable[None], done: str) -> int:
    """Say that something is done; returns the exit code."""
    await asked
    _output.say(done)
    return Exit.DONE


async def _invite(joined: Joined, name: str, *, to: str | None, days: float, fresh: bool, qr: bool) -> int:
    """Print a code; returns the exit code."""
    code = await joined.ctx.circles.invite(name, to=to, days=days, fresh=fresh)
    if to is None:
        _output.say("everybody who sees this code can join until the next removal: show it to nobody else")
    _output.show_code("code", code, json=joined.json, qr=qr)
    return Exit.DONE


async def _show(joined: Joined, name: str | None) -> int:
    """Print the circles of the node, or the one of this name or id; returns the exit code."""
    every = await joined.ctx.circles.show()
    circles = [each for each in every if name in {None, each.name, each.id}]
    if name is not None and not circles:
        there = ", ".join(each.name for each in every) or "none"
        raise InvalidDestinationException(f"this node is in no circle {name!r}; its circles: {there}")
    if not circles:
        _output.say("this node is in no circle: found one with `carrypost circle found NAME`, or join one by a code")
    texts: Callable[[Iterable[str]], object] = list if joined.json else " ".join
    answer: Callable[[bool], object] = bool if joined.json else {True: "yes", False: "no"}.__getitem__
    for each in circles:
        row = {
            "name": each.name, "circle": each.id, "owner": answer(each.owned), "charter": each.number,
            "epoch": each.epoch, "readable": answer(each.readable), "invitations": each.invitations,
            "members": texts(each.members), "removed": texts(each.removed),
        }  # fmt: skip
        _output.figures(row, json=joined.json)
    return Exit.DONE

"""The group `carrypost circle`: groups of nodes whose topics only members can read."""

from __future__ import annotations

import functools
from typing import Annotated

from carrypost.cli import _extras
from carrypost.cli._groups import Commands
from carrypost.cli._message_options import Qr, run
from carrypost.cli._options import Json, Node, argument, option

circle = Commands("circle", help="Found, join and manage circles: groups whose topics only members can read.")
Name = Annotated[str, argument("Name of the circle on this node.", "CIRCLE")]


@circle.command()
def found(name: Name, at: Node, *, json: Json = False) -> None:
    """Found a circle. This node is its owner, and can invite and remove others.

    For example: `carrypost circle found rescue`
    """
    from carrypost.cli import _circles  # noqa: PLC0415 - keeps --help quick

    run(at, functools.partial(_circles.found, name=name), _circles.EMBEDDING, json=json)


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
    from carrypost.cli import _circles  # noqa: PLC0415 - keeps --help quick

    if qr:
        _extras.needs_qr()
    body = functools.partial(_circles.invite, name=name, to=to, days=days, fresh=fresh, qr=qr)
    run(at, body, _circles.EMBEDDING, json=json)


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
    from carrypost.cli import _circles  # noqa: PLC0415 - keeps --help quick

    run(at, functools.partial(_circles.join, code=code, root=root), _circles.EMBEDDING, json=json)


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
    from carrypost.cli import _circles  # noqa: PLC0415 - keeps --help quick

    run(at, functools.partial(_circles.show, name=name), _circles.EMBEDDING, json=json)


@circle.command()
def remove(name: Name, node: Annotated[str, argument("Id of the node.", "NODE")], at: Node) -> None:
    """Remove a node. It reads nothing that is sent by nodes that have heard of this, and they open nothing of it.

    For example: `carrypost circle remove rescue x7f3…`
    """
    from carrypost.cli import _circles  # noqa: PLC0415 - keeps --help quick

    run(at, functools.partial(_circles.remove, name=name, node=node), _circles.EMBEDDING)


@circle.command()
def rotate(name: Name, at: Node) -> None:
    """Begin a new epoch, with a new secret.

    For example: `carrypost circle rotate rescue`
    """
    from carrypost.cli import _circles  # noqa: PLC0415 - keeps --help quick

    run(at, functools.partial(_circles.rotate, name=name), _circles.EMBEDDING)


@circle.command()
def leave(name: Name, at: Node) -> None:
    """Leave a circle, and delete its secrets on this node.

    For example: `carrypost circle leave rescue`
    """
    from carrypost.cli import _circles  # noqa: PLC0415 - keeps --help quick

    run(at, functools.partial(_circles.leave, name=name), _circles.EMBEDDING)


@circle.command()
def export(name: Name, at: Node, *, json: Json = False) -> None:
    """Print the root of a circle, for a safe. Everybody who has it can act as an owner.

    For example: `carrypost circle export rescue`
    """
    from carrypost.cli import _circles  # noqa: PLC0415 - keeps --help quick

    run(at, functools.partial(_circles.export, name=name), _circles.EMBEDDING, json=json)

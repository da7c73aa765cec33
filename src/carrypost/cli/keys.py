"""Commands about keys: this node's own, the names that its owner has for others, and cards, with which others seal.

Cards need a context on a node: their commands have a coroutine beside them, which does their work in it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli import _output
from carrypost.cli._exit import Exit, orderly
from carrypost.cli._message_options import Qr, run
from carrypost.cli._options import Commands, Json, Node, Place, argument, missing, needs_qr, option, path_argument
from carrypost.cli._output import figures, line, table
from carrypost.errors import LocalError

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined
    from carrypost.node.folder import NodeFolder
    from carrypost.security.identity import Identity


keys = Commands("keys", help="Manage this node's key, and pet names for other nodes.")


def _home(at: Place) -> NodeFolder:
    from carrypost.node.folder import NodeFolder  # noqa: PLC0415 - keeps --help quick

    return NodeFolder(at.settings())


def _key(at: Place) -> tuple[Identity, NodeFolder]:
    """Return the identity of the node and its folder; raises if there is none."""
    from carrypost.node.folder import read_key  # noqa: PLC0415 - keeps --help quick

    home = _home(at)
    if home.is_new:
        raise missing(at.settings(), f"make one with: {at.start}")
    return read_key(home.key_file), home


@keys.command()
def show(at: Place, *, json: Json = False) -> None:
    """Show the identity of this node. The secret part of the key is never shown.

    For example: `carrypost keys show`
    """
    from carrypost.model.ids import base32  # noqa: PLC0415 - keeps --help quick

    identity, home = _key(at)
    public = identity.author if isinstance(identity.author, bytes) else b""
    found = {"node": identity.node, "public_key": base32(public), "file": str(home.key_file)}
    figures(found, json=json)


@keys.command()
def backup(
    file: Annotated[Path, path_argument("File for the copy; it must not exist yet.")],
    at: Place,
) -> None:
    """Copy the key to a file that only you can read. Anyone who has the key can act as this node.

    For example: `carrypost keys backup /media/stick/node.key`
    """
    from carrypost.node.folder import exposed, write_key  # noqa: PLC0415 - keeps --help quick

    with orderly():
        write_key(_key(at)[0], file)
    others = "; other users of this machine can read it there" if exposed(file) else ""
    typer.echo(f"the key is in {file}; keep it secret{others}", err=True)


@keys.command()
def restore(
    file: Annotated[Path, path_argument("A copy that `backup` made.")],
    at: Place,
) -> None:
    """Restore a key from its backup, into a folder that has none.

    For example: `carrypost keys restore /media/stick/node.key`
    """
    from carrypost.node.folder import read_key, write_key  # noqa: PLC0415 - keeps --help quick

    home = _home(at)
    if not file.exists() or file.is_dir():
        raise LocalError(f"there is no key file {file}")
    identity = read_key(file, "use another copy of the key")
    with orderly():
        home.create()
        home.check_owner(identity)
        write_key(identity, home.key_file)
    typer.echo(f"{home.folder} has the key of the node {identity.node} again", err=True)


@keys.command()
def name(
    node: Annotated[str, argument("A node's id, as `carrypost peers` shows it.", "NODE")],
    pet_name: Annotated[str, argument("Your name for the node; an empty text removes it.", "NAME")],
    at: Place,
) -> None:
    """Give another node a name of your own.

    For example: `carrypost keys name x7f3… anna`, `carrypost keys name x7f3… ""`
    """
    home, settings = _home(at), at.settings()
    if settings.place.data and home.is_new:
        raise missing(settings, f"make one with: {at.start}")
    if pet_name:
        home.check_id(node)  # Before there is a folder.
    with orderly():
        home.create()
        home.set_pet_name(node, pet_name)


@keys.command()
def card(at: Node, *, qr: Qr = False, json: Json = False) -> None:
    """Print the card of this node: a code by which others can seal messages for it before they ever met it.

    For example: `carrypost keys card`, `carrypost keys card --qr`
    """
    if qr:
        needs_qr()
    run(at, functools.partial(_card, qr=qr), _STORED, json=json)


@keys.command()
def add(
    code: Annotated[str, argument("A card, as `carrypost keys card` prints it.", "CARD")],
    at: Node,
    *,
    pet_name: Annotated[str | None, option("--name", "Your name for the node.", "NAME")] = None,
    json: Json = False,
) -> None:
    """Store the sealing key of a person that you met, from the card of the person's node.

    For example: `carrypost keys add CEAL5… --name anna`
    """
    run(at, functools.partial(_add, code=code, pet_name=pet_name), _STORED, json=json)


@keys.command()
def names(at: Place, *, json: Json = False) -> None:
    """List your names for other nodes.

    For example: `carrypost keys names`
    """
    found = sorted(_home(at).pet_names().items(), key=lambda pair: pair[1])
    if not found:
        typer.echo("No names yet; give one with `carrypost keys name NODE NAME`.", err=True)
    elif json:
        for node, called in found:
            line({"node": node, "name": called})
    else:
        table("", ("name", "node"), [(called, node) for node, called in found], breakable=["name"])


_STORED = "the key is stored there"


async def _card(joined: Joined, *, qr: bool) -> int:
    """Print the card of the node alone; returns the exit code."""
    _output.show_code("card", await joined.ctx.card(), json=joined.json, qr=qr)
    return Exit.DONE


async def _add(joined: Joined, code: str, pet_name: str | None) -> int:
    """Store the key of a card, and a name for its node; returns the exit code."""
    from carrypost.node.folder import NodeFolder  # noqa: PLC0415 - keeps --help quick

    node = await joined.ctx.add_card(code)
    if pet_name is not None:
        NodeFolder(joined.settings).set_pet_name(node, pet_name)
    if joined.json:
        _output.line({"node": node, "name": pet_name})
    else:
        _output.say(f"messages to {pet_name or node} can be sealed from now on")
    return Exit.DONE

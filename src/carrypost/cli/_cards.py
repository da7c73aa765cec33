"""Cards on behalf of `carrypost keys card` and `carrypost keys add`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.cli import _output, _qr
from carrypost.cli._exit import Exit
from carrypost.node.folder import NodeFolder

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined

EMBEDDING = "the key is stored there"


async def card(joined: Joined, *, qr: bool) -> int:
    """Print the card of the node alone; returns the exit code."""
    _qr.show(joined, "card", await joined.ctx.card(), qr=qr)
    return Exit.DONE


async def add(joined: Joined, code: str, pet_name: str | None) -> int:
    """Store the key of a card, and a name for its node; returns the exit code."""
    node = await joined.ctx.add_card(code)
    if pet_name is not None:
        NodeFolder(joined.settings).set_pet_name(node, pet_name)
    if joined.json:
        _output.line({"node": node, "name": pet_name})
    else:
        _output.say(f"messages to {pet_name or node} can be sealed from now on")
    return Exit.DONE

"""Completion of topics and queues in shells, asked of the node that runs; where none does, there is none."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from carrypost.jms.context import Context

_ANSWER_S = 1.0
"""People wait for a completion no longer than this."""
_HARMLESS = re.compile(r"[\w.@/+-]+")
"""Names without a character that a shell interprets. Other nodes choose names, and a shell would run `news$(rm x)`."""


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the named topics that begin with the text typed so far."""
    return _asked(ctx, "topic", incomplete)


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the known queues that begin with the text typed so far, by short names where these are unambiguous."""
    return _asked(ctx, "queue", incomplete)


def _asked(ctx: typer.Context, kind: str, incomplete: str) -> list[str]:
    import asyncio  # noqa: PLC0415 - keeps --help quick

    from carrypost.cli._joining import factory  # noqa: PLC0415
    from carrypost.cli._options import Node  # noqa: PLC0415

    async def ask() -> list[str]:
        at = Node(ctx.params.get("config"), ctx.params.get("data"))
        async with asyncio.timeout(_ANSWER_S), factory(at, attach=True).create_context() as context:
            return await known(context, kind)

    try:
        found = asyncio.run(ask())
    except Exception:  # noqa: BLE001 - a shell would show whatever it is in the middle of a line
        return []
    return [name for name in found if name.startswith(incomplete) and _HARMLESS.fullmatch(name)]


async def known(context: Context, kind: str) -> list[str]:
    """Return the names of all topics, or of all queues, that are in the directory of a node.

    A queue whose name no other one has stands there without its node.
    """
    from carrypost.naming import InitialContext  # noqa: PLC0415 - keeps --help quick

    found = await InitialContext(context).list(kind)
    shorts = Counter(name.partition("@")[0] for name in found)
    return [short if shorts[short := name.partition("@")[0]] == 1 else name for name in found]

"""A service that answers questions, and a client that asks: requests and replies travel as messages do.

``python examples/service.py serve`` answers questions about a timetable. ``python examples/service.py ask mill`` asks
when the next bus goes to the mill. The two need not be in range of each other at the same time: the client waits for
the advertisement of the service, and then for the reply, up to an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from datetime import timedelta

from carrypost import ConnectionFactory, Context, Message
from carrypost.naming import InitialContext

SERVICE = "timetable"
TIMETABLE = {"mill": "8:10, 12:10 and 17:40", "town": "7:00 and 18:00"}
PATIENCE = timedelta(hours=1)


async def serve(ctx: Context) -> None:
    """Answer every question until cancelled."""
    queue = await ctx.declare_queue(SERVICE)  # It is advertised, so that other nodes find it by its name.

    @ctx.responder(queue)
    def answer(question: Message) -> str:
        """Return the reply. It is sent and the question acknowledged in one transaction."""
        place = question.get_body(str) or "nowhere"
        return f"to {place}: {TIMETABLE[place]}" if place in TIMETABLE else f"no bus goes to {place}"

    await ctx.start()
    await asyncio.Event().wait()


async def ask(ctx: Context, place: str) -> str:
    """Return the service's answer."""
    await InitialContext(ctx).lookup(SERVICE, timeout=PATIENCE)
    reply = await ctx.ask(f"queue/{SERVICE}", place, timeout=PATIENCE)
    return reply.get_body(str) or "no answer"


async def main(what: str, place: str = "") -> None:
    """Serve or ask."""
    async with ConnectionFactory(data=f"timetable-{what}").create_context() as ctx:
        if what == "serve":
            print("the timetable answers; Ctrl-C ends", file=sys.stderr)
            await serve(ctx)
        else:
            print(await ask(ctx, place))


if __name__ == "__main__":
    if sys.argv[1:2] not in (["serve"], ["ask"]):
        sys.exit(__doc__)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))

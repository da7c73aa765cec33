"""Commands that are programs: they attach to the node of a folder, or run one while they last.

`run` opens a context for such a command. A signal ends the command in order; its exit code is that of the signal. A
node that ends meanwhile is the same to a command as one that was never there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from carrypost.cli import _exit, _output, _settings
from carrypost.cli._options import Node, answer, missing
from carrypost.daemon.service import LogFormatter
from carrypost.errors import (
    CarrypostError,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    NamingException,
    NoNodeError,
)
from carrypost.jms.factory import ConnectionFactory
from carrypost.jms.modes import SessionMode
from carrypost.jms.provider import NODE_ENDED, NODE_LOST, is_lost
from carrypost.node.folder import NodeFolder

if TYPE_CHECKING:
    from carrypost.jms.context import Context

_LOOK_S = 1.0
_NEWS_S = 0.1
_EMBEDDING = "this command runs its own node until it ends"


class Joined:
    """A context of a command, and its node."""

    def __init__(self, ctx: Context, factory: ConnectionFactory, start: str, *, json: bool) -> None:
        self.ctx, self.json, self.start = ctx, json, start
        self.settings = factory.settings
        self.embeds = factory.mode == "embedded"
        """The node runs inside this command, and ends with it."""
        self._neighbours, self._looked_s = 0, -_LOOK_S
        self._ended = asyncio.Event()
        ctx.set_exception_listener(self._hear)

    def _hear(self, error: JMSException) -> None:
        """Tell people of a problem that no call raises; calls raise the end of the node, too, and the log its loss."""
        if error.error_code == NODE_ENDED:
            self._ended.set()
        elif error.error_code != NODE_LOST:
            _output.say(str(error))

    async def has_ended(self) -> bool:
        """Return True if the node has ended, of which its programs hear a moment after their calls fail."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _NEWS_S)
        return self._ended.is_set()

    async def neighbours(self) -> int:
        """Return how many nodes were linked with the node, at most a second ago."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s >= _LOOK_S:
            self._neighbours = sum(each["state"] == "linked" for each in await self._peers())
            self._looked_s = now_s
        return self._neighbours

    async def _peers(self) -> Sequence[Mapping[str, object]]:
        try:
            return cast("list[dict[str, object]]", await self.ask("peers"))
        except NoNodeError:
            if not self.embeds:
                raise
            return ()  # Its socket could not be opened, as the log says; and it has only begun to look for others.

    async def ask(self, call: str, *given: str) -> Any:  # noqa: ANN401 - each call knows what it gets
        """Return what the node answers to a plain call."""
        return await answer(self.settings, self.start, call, *given)


Body = Callable[[Joined], Awaitable[int]]
"""Does what a command is for, and returns its exit code."""


def factory(at: Node, *, attach: bool | None = None, reconnect: bool = False) -> ConnectionFactory:
    """Return a factory of contexts on a node."""
    settings: dict[str, Any] = _settings.changed(at.changes)
    if at.data is not None:
        settings["data"] = _settings.absolute(at.data)
    return ConnectionFactory(at.config, attach=attach, reconnect=reconnect, **settings)


def run(at: Node, body: Body, embedding: str | None, *, json: bool, reconnect: bool) -> int:
    """Run a command in a context, where `Message.acknowledge` is its own; returns its exit code.

    `embedding` explains to users what happens once a node runs, unless the command runs one while it waits. With
    `reconnect` the command waits for a node that ended, and goes on when the node is back.
    """
    if logging.lastResort is not None:  # It prints the warnings of a node inside this command.
        logging.lastResort.setFormatter(LogFormatter())
    settings = at.settings()  # Unknown settings are reported first.
    new, makes = NodeFolder(settings).is_new, at.makes
    attach = None if not new or makes or (makes is False and not settings.place.data) else True
    later = f"{embedding} ({at.start})" if embedding and not attach else None
    made = factory(at, attach=attach, reconnect=reconnect)
    try:  # The folder may be mistyped, so no node is made in it. One may run whose control socket is elsewhere.
        return asyncio.run(_run(made, body, later, at.start, new=new and not attach, json=json))
    except JMSException as error:
        if is_lost(error):  # It ended while the command opened its context.
            raise NoNodeError(f"{error}; start one with: {at.start}") from None
        if not (attach and isinstance(error.__cause__, NoNodeError)):
            raise
        remedy = f"make one with: {at.start}" if makes is None else "add --create to make one there"
        raise missing(settings, remedy) from None


async def _run(made: ConnectionFactory, body: Body, later: str | None, start: str, *, new: bool, json: bool) -> int:
    """Run a body; `later` says what a node that runs later will do with what the body has stored."""
    task = asyncio.current_task()
    assert task is not None
    with _exit.cancelling(task) as ending:
        try:
            async with made.create_context(SessionMode.INDIVIDUAL_ACKNOWLEDGE) as ctx:
                joined = Joined(ctx, made, start, json=json)
                if joined.embeds:
                    if new:
                        _output.say(f"made a new node in {joined.settings.data}")
                    if later is None:
                        _output.say(f"no node runs in {joined.settings.data}: {_EMBEDDING}")
                try:
                    code = await run_body(joined, body)
                    if joined.embeds and later is not None and code == _exit.Exit.DONE:
                        _output.say(f"no node runs in {joined.settings.data}: {later}")
                    return code
                finally:
                    ending.spare()  # A node inside this command ends in order.
        except asyncio.CancelledError:
            if not ending.came:
                raise
            return _exit.exit_code(ending.came[0])


async def run_body(joined: Joined, body: Body) -> int:
    """Run the body of a command; errors are raised as commands report them."""
    try:
        return await body(joined)
    except InvalidDestinationException as error:
        raise explained(error) from None
    except IllegalStateException as error:
        if await joined.has_ended():
            raise NoNodeError(f"{error}; start one with: {joined.start}") from None
        raise


def explained(error: CarrypostError | TimeoutError) -> CarrypostError | TimeoutError:
    """Return an error as commands report it: for an unknown name, programs get other advice."""
    if not isinstance(error, InvalidDestinationException) or not isinstance(error.__cause__, NamingException):
        return error
    return NamingException(
        f"{error.__cause__}. `carrypost ls` lists the names known here. `carrypost bind queue/NAME` "
        "declares a queue on this node. NAME@NODE addresses a queue without looking up its name"
    )

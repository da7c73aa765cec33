"""Sending on behalf of `carrypost pub` and `carrypost send`."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer

from carrypost.cli import _given, _output, _shown
from carrypost.cli._exit import Exit
from carrypost.cli._progress import progress
from carrypost.errors import DeliveryTimeoutException, LocalError
from carrypost.printing import many

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined
    from carrypost.cli._message_options import Message
    from carrypost.jms.sent import Sent

_TOGETHER_MAX = 64
"""Messages that are stored together, if there is no pause between them: a disk is as quick with all as with one."""
_EMBEDDING = "messages are stored there, and sent once a node runs"


class Order:
    """Messages that are to be sent, as the command line has them."""

    def __init__(self, to: str, given: Message) -> None:
        self._to, self._given = to, given
        self._body = _given.body(given.body, given.payload, given.file)
        if given.sealed and given.plain:
            raise LocalError("--sealed and --plain exclude each other: leave one of them out")
        if given.limit_s is not None and not given.receipt:
            raise LocalError("--for is the time to wait for a receipt: add --receipt, or leave --for out")
        if given.receipt and given.every is not None and given.count is None:
            raise LocalError("--receipt with --every requires --count, since sending otherwise goes on until Ctrl-C")
        if given.ttl == 0:
            raise LocalError("--ttl must be greater than 0")
        self._body.message(1, given.prop)  # Its mistakes are reported before a node is looked for.

    @property
    def embedding(self) -> str | None:
        """Text that says what happens without a running node; None if the command waits for more than the disk."""
        return None if self._given.receipt or self._given.every is not None else _EMBEDDING

    async def send(self, joined: Joined) -> int:
        """Send all of them, and wait for receipts if that was asked; returns the exit code."""
        loop, every_s = asyncio.get_running_loop(), self._given.every
        begun_s, done, kept = loop.time(), 0, list["Sent"]()
        count = 1 if self._given.count is None and every_s is None else self._given.count
        each_told = joined.json or count == 1 or every_s is not None
        with nullcontext() if each_told or count is None else progress("sent", "messages", count) as move:
            while done != count:
                together = 1 if every_s is not None or count is None else min(count - done, _TOGETHER_MAX)
                if every_s is not None:
                    await asyncio.sleep(begun_s + done * every_s - loop.time())
                sents = await asyncio.gather(*(self._send(joined, done + 1 + at) for at in range(together)))
                done += together
                kept += sents if self._given.receipt else []
                if move is not None and count is not None:
                    move(done, count, "")
                for sent in sents if each_told else sents[-1:] if done == count else []:
                    await self._report(joined, sent, "stored" if each_told else f"{count:,} messages stored")
        return await self._wait(joined, kept)

    async def _send(self, joined: Joined, number: int) -> Sent:
        given, message = self._given, self._body.message(number, self._given.prop)
        return await joined.ctx.send(
            self._to,
            message,
            time_to_live=given.ttl,
            request_receipt=given.receipt,
            label=given.label,
            sealed=True if given.sealed else False if given.plain else None,
        )

    async def _report(self, joined: Joined, sent: Sent, stored: str) -> None:
        """Report that a message is stored, its possible carriers, and when it expires."""
        neighbours, expires_s = await joined.neighbours(), sent.expiration
        if joined.json:
            expires = None if expires_s is None else _shown.when(expires_s * 1_000)
            row = {"event": "stored", "id": sent.message_id, "destination": self._to, "neighbours": neighbours}
            _output.line(row | {"expires": expires})
            return
        until = "" if expires_s is None else f", expires at {_shown.local(expires_s):%Y-%m-%d %H:%M:%S}"
        typer.echo(f"{stored}, {many(neighbours, 'neighbour')}{until}")

    async def _wait(self, joined: Joined, sents: list[Sent]) -> int:
        """Wait until all are delivered, at most as long as was asked; returns the exit code."""
        loop = asyncio.get_running_loop()
        begun_s, delivered, limit_s = loop.time(), 0, self._given.limit_s
        for sent in sents:
            try:
                await sent.delivered(None if limit_s is None else max(0.0, begun_s + limit_s - loop.time()))
            except DeliveryTimeoutException:
                _output.say(
                    f"no receipt for {sent.message_id} arrived in time; its last known state is {sent.state.name}"
                )
                continue
            delivered += 1
            if joined.json:
                _output.line({"event": "delivered", "id": sent.message_id})
        if delivered and not joined.json:
            which = f"{delivered:,} of {len(sents):,} messages " if len(sents) > 1 else ""
            typer.echo(f"{which}delivered after {_output.duration(loop.time() - begun_s)}")
        return Exit.DONE if delivered == len(sents) else Exit.TIMEOUT

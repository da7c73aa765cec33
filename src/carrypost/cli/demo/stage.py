"""Sets the stage: folders, signals, the nodes, the tasks that play and show, and the end of all of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from rich.console import Console

from carrypost.cli import _signals
from carrypost.cli._exit import Exit
from carrypost.cli._output import say
from carrypost.cli.demo import scenes, summary
from carrypost.cli.demo.cast import Cast
from carrypost.cli.demo.folder import RecordFolder, claimed
from carrypost.cli.demo.ledger import Ledger, UnexpectedError
from carrypost.cli.demo.picture import Picture
from carrypost.errors import JMSException, NodeError
from carrypost.log.files import refusing
from carrypost.printing import many

_LAST_WORDS_S = 2.0
_Work = Coroutine[Any, Any, None]


def run(record: Path, *, quick: bool) -> int:
    """Run the demonstration; return the exit code."""
    return asyncio.run(_run(record.absolute(), quick=quick))


async def _run(record: Path, *, quick: bool) -> int:
    """Run it, and end in order at the first signal that asks for that; further ones change nothing."""
    came: list[int] = []
    program, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert program is not None

    def heed(number: int) -> None:
        came.append(number)
        if len(came) == 1:
            program.cancel()

    for number in _signals.heeded():
        loop.add_signal_handler(number, heed, number)
    try:
        with refusing("the nodes need a temporary folder"):
            temporary = tempfile.TemporaryDirectory(prefix="carrypost-demo-")
        with temporary as data, claimed(record) as folder:
            await _perform(Path(data), folder, Console(highlight=False), quick=quick)
    except asyncio.CancelledError:
        if not came:
            raise
        say("ended early; all nodes have ended, and their folders are removed")
        return _signals.exit_code(came[0])
    return Exit.DONE


async def _perform(data: Path, folder: RecordFolder, console: Console, *, quick: bool) -> None:
    """Start the nodes, play, end the nodes, and show what came of it."""
    cast, ledger = Cast(data, folder.path, scenes.nodes(), scenes.HOMES), Ledger(folder.path)
    console.print(scenes.INTRODUCTION, soft_wrap=not console.is_terminal)
    picture = Picture(console, cast, ledger, pace=0.0 if quick else 1.0)
    play = scenes.Play(cast, ledger, picture)
    try:
        with picture:
            await _beside(cast, _play(play, folder), picture.show())
    finally:
        closing = asyncio.create_task(cast.close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:  # A signal that comes now must not leave half of the nodes running.
            await closing
            raise
    ledger.read()
    summary.show(console, play.played, ledger, folder.path)


async def _play(play: scenes.Play, folder: RecordFolder) -> None:
    """Start the nodes, and play all scenes."""
    cast = play.cast
    await cast.start(*cast.actors)
    play.ledger.names = cast.names
    folder.name(cast.names)
    if await cast.rows_lost():
        raise NodeError(f"the nodes cannot write their records to {folder.path}: is the disk full?")
    try:
        await play.play()
    except UnexpectedError as error:
        lost = await cast.rows_lost()
        full = f"; {many(lost, 'row')} of them could not be written: is the disk full?" if lost else ""
        raise UnexpectedError(f"{error}. The records of the nodes are in {folder.path}{full}") from None


async def _beside(cast: Cast, playing: _Work, showing: _Work) -> None:
    """Play and show; raise `NodeError` if a node ends meanwhile."""
    play, show = tasks = [asyncio.create_task(each) for each in (playing, showing)]
    try:
        done, _ = await asyncio.wait({*tasks, cast.died}, return_when=asyncio.FIRST_COMPLETED)
        if play in done and isinstance(play.exception(), NodeError | JMSException):
            await asyncio.wait({cast.died}, timeout=_LAST_WORDS_S)  # A node that has ended is why others fail.
        for each in (cast.died, show, play):
            if each.done():
                each.result()
    except TimeoutError as error:
        raise NodeError(str(error) or "a node does not answer; is this machine very busy?") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

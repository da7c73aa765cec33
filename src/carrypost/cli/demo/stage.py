"""Runs the demonstration: the folder of the records, signals, nodes, the tasks that play and show, and the end of it.

The folder is marked as the demonstration's, cleared by the next one, and used by one at a time. At the end people are
shown what the demonstration cost, where the records are, and what to try next.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from rich.console import Console
from rich.text import Text

from carrypost.cli import _exit
from carrypost.cli._exit import Exit
from carrypost.cli._output import blank, say, size
from carrypost.cli.demo import scenes
from carrypost.cli.demo.cast import Cast
from carrypost.cli.demo.picture import Ledger, Picture, UnexpectedError
from carrypost.cli.demo.scenes import Played
from carrypost.errors import JMSException, LocalError, NodeError, RunningError
from carrypost.log.files import refusing
from carrypost.printing import many

try:
    import fcntl
except ImportError:  # Windows: best effort
    fcntl = None  # type: ignore[assignment]

MARK = "demo.json"
"""File with the names of the nodes by their ids."""
CAMPAIGN = "campaign"
"""Folder of the campaign, inside that of the records."""


class RecordFolder:
    """A folder that is this demonstration's alone."""

    def __init__(self, path: Path, mark: BinaryIO) -> None:
        self.path = path
        self._mark = mark

    def name(self, names: Mapping[str, str]) -> None:
        """Write down the names of the nodes, for people and programs that read the records."""
        with refusing(f"the folder {self.path} cannot be used"):
            self._mark.truncate(0)
            self._mark.seek(0)
            self._mark.write(msgspec.json.format(msgspec.json.encode(names)) + b"\n")


@contextmanager
def claimed(path: Path) -> Iterator[RecordFolder]:
    """Make a folder for records, or take one that an earlier demonstration left, without its records.

    Raise `LocalError` if there are other files in it, and `RunningError` if another demonstration uses it.
    """
    with refusing(f"the folder {path} cannot be used"):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()) and not (path / MARK).exists():
            raise LocalError(f"{path} has files that are not from a demonstration: name another folder with --record")
        mark = (path / MARK).open("ab", buffering=0)
    with mark:
        if fcntl is not None:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunningError(f"another demonstration uses {path}: name another folder with --record") from None
        with refusing(f"the folder {path} cannot be used"):
            for old in path.glob("*.jsonl*"):
                old.unlink()
        shutil.rmtree(path / CAMPAIGN, ignore_errors=True)
        yield RecordFolder(path, mark)


_COLUMNS = ("scene", "messages", "reads", "hops", "waiting", "datagrams", "bytes")
COMMANDS = (
    ("sub -t chat", "in one terminal: a node that subscribes to the topic"),
    ('pub -t chat "Hello."', "in another: publish a message"),
    ("console", "or type commands at a prompt; help lists them"),
)


def _show_end(console: Console, played: Sequence[Played], ledger: Ledger, record: Path) -> None:
    """Print the table, the folder of the records, and commands to try."""
    table = blank("\nWhat the nodes recorded")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "scene" else "right", overflow="fold")
    for each in played:
        table.add_row(each.title, *_figures(each.messages, each.sent, ledger))
    everything = [message for each in played for message in each.messages]
    table.add_row("all", *_figures(everything, sum((each.sent for each in played), Counter[str]()), ledger))
    console.print(table)
    console.print(Text("hops, waiting: the maximum over all messages and readers; datagrams: sent by all nodes", "dim"))
    console.print(f"\nAll nodes have ended. Their records are in {_short(record)}, one JSON line per event.")
    console.print("\nTo try it yourself:")
    for command, what in (*COMMANDS, (f"web {shlex.quote(str(_short(record)))}", "in the browser: see what happened")):
        console.print(Text(f"  {_program()} {command}", "bold"), soft_wrap=True)
        console.print(Text(f"      {what}", "dim"))


def _figures(messages: Sequence[str], sent: Counter[str], ledger: Ledger) -> list[str]:
    """Return the figures of some messages, from the records."""
    read = [key for key, row in ledger.delivered.items() if key[0] in messages and row["node"] != row["source"]]
    hops = max((ledger.received[each]["hops"] or 0 for each in read if each in ledger.received), default=0)
    waited_s = max((ledger.wait_s(*each) for each in read), default=0.0)
    counts = [sum(each in ledger.published for each in messages), len(read), hops]
    return [*map(str, counts), f"{waited_s:.1f} s", f"{sent['datagrams']:,}", size(sent["bytes"])]


def _short(path: Path) -> Path:
    """Return a path as people would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _program() -> str:
    """Return what this command is called as here."""
    called, name = Path(sys.argv[0]), "carrypost"
    on_path = shutil.which(name)
    if called.name != name or (on_path is not None and Path(on_path) == called.absolute()):
        return name
    return str(_short(called))


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

    for number in _exit.heeded():
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
        return _exit.exit_code(came[0])
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
    _show_end(console, play.played, ledger, folder.path)


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

"""Runs a node until it is told to end, by a signal or at its control socket.

Whoever asks a node that is ready to end gets 0 as exit code; before that, the code that shells give to who was ended by
the signal. Either way it ends in order: what it has taken it gives back, and what it began to write is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from carrypost.attach.served_node import ServedNode
from carrypost.cli import _exit
from carrypost.cli._exit import Exit, report, wrapped
from carrypost.cli._settings import NodeCommand
from carrypost.daemon import metrics_server
from carrypost.daemon.openwire.server import Server as OpenwireServer
from carrypost.daemon.server import Server
from carrypost.daemon.service import Service, begin_log, has_terminal, notify, notify_ready
from carrypost.daemon.stomp.server import Server as StompServer
from carrypost.errors import CarrypostError
from carrypost.node.runtime import Node, collect_seldom
from carrypost.node.settings import Carrying, NodeSettings, command_in

_ARGUMENTS_AT = slice(45, 47)
"""Place of the first and the last address of a process's arguments in `/proc/PID/stat`, after its name."""


def main(text: str, *, titled: bool = False) -> int:
    """Run the node that a written command describes; returns the exit code.

    If `titled`, the process is shown as ``carrypost node --data FOLDER``.
    """
    try:
        command = msgspec.json.decode(text, type=NodeCommand)
        if titled:
            _rename_process("carrypost", f"node --data {command.settings().data}")
        return run(command)
    except CarrypostError as error:
        return report(error)


def run(command: NodeCommand) -> int:
    """Run a node until a signal or a command at the control socket ends it; return the exit code."""
    settings = command.settings()
    begin_log(settings.place.log)
    return asyncio.run(_run(settings, command))


async def _run(settings: NodeSettings, command: NodeCommand) -> int:
    stopping = asyncio.Event()
    with _heeding(stopping) as came:
        served = await ServedNode.start(settings, stopping=stopping)
        try:
            both = await StompServer.serve(served), await OpenwireServer.serve(served)
            servers = [each for each in both if each is not None]
            metrics = await metrics_server.serve(served)
            collect_seldom()
            if came:
                return _exit.exit_code(came[0])
            if command.until_eof:
                _end_at_eof(stopping)
            _reload_by_signal(Service(served.node, servers, command.settings))
            _report_ready(served.node, servers, metrics, json=command.json)
            notify_ready()
            await stopping.wait()
        finally:
            notify("STOPPING=1")
            await served.stop()
    return Exit.DONE


@contextlib.contextmanager
def _heeding(stopping: asyncio.Event) -> Iterator[list[int]]:
    """While the block lasts, and for what is left of this process afterwards, signals do not cut anything short.

    They set `stopping` and are listed. What comes after the block is held back: the loop, when it closes, and the
    interpreter, when it ends, would show a traceback, or end a node by force that has ended in order.
    """
    loop, came = asyncio.get_running_loop(), list[int]()

    def heed(number: int, _frame: object) -> None:
        # Not as a callback of the loop, which would know of it only after the next wait.
        came.append(number)
        with contextlib.suppress(RuntimeError):  # The loop is closed, where signals cannot be held back.
            loop.call_soon_threadsafe(stopping.set)

    for number in _exit.heeded():
        signal.signal(number, heed)
    try:
        yield came
    finally:
        _exit.hold()


def _end_at_eof(stopping: asyncio.Event) -> None:
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def end() -> None:
        loop.remove_reader(stdin)
        stopping.set()

    loop.add_reader(stdin, end)


def _reload_by_signal(service: Service) -> None:
    """Let SIGHUP reload the settings from now on, unless it comes from a terminal that is closed, or is ignored."""
    number = getattr(signal, "SIGHUP", None)
    if number in _exit.heeded() and not has_terminal():
        loop = asyncio.get_running_loop()
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(service.reload))


def _report_ready(node: Node, servers: Sequence[Server], metrics: metrics_server.Server | None, *, json: bool) -> None:
    carrying = Carrying.of(node.settings.core)
    ready = {
        "event": "ready",
        "node": node.host.node,
        "pid": os.getpid(),
        "control": str(node.settings.control),
        "addresses": node.udp.addresses,
        "carries": carrying,
        "stomp": None,
        "openwire": None,
        **{each.table: each.address for each in servers},
        "metrics": None if metrics is None else metrics.url,
    }
    lines = [msgspec.json.encode(ready).decode()]
    if not json:
        lines = [
            f"node {node.host.node} is running in {node.folder.folder}; press Ctrl-C to stop it",
            f"its addresses: {', '.join(node.udp.addresses) or 'none yet'}",
            *(f"it {name} {sentence}" for name, sentence in carrying.sentences()),
            *(f"it serves {each.name} clients at {each.address}; {each.access}" for each in servers),
            *([] if metrics is None else [f"it serves metrics at {metrics.url}"]),
            f"for more, in another terminal: {command_in(node.folder.folder, 'status')}; and peers or doctor likewise",
        ]
        lines = [wrapped(each) for each in lines]
    print(*lines, sep="\n", flush=True)  # noqa: T201 - to whoever started it


def _rename_process(name: str, arguments: str) -> None:
    """Let this process be shown by a name and arguments; only Linux can.

    `ps` reads the arguments from the memory of the process. If their last byte is not zero, the text up to the first
    zero counts, since many programs write their title over their arguments.
    """
    with contextlib.suppress(OSError, ValueError):
        first, last = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_ARGUMENTS_AT]
        size = int(last) - int(first)
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(int(first))
            memory.write(f"{name} {arguments}".encode()[: size - 2].ljust(size - 1, b"\0") + b".")
        Path("/proc/self/comm").write_text(name)

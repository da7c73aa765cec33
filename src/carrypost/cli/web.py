"""The command `web`: pages about runs, for browsers on this machine."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli import _paths, _signals
from carrypost.cli._extras import needs_pages
from carrypost.cli._options import option
from carrypost.cli._output import line
from carrypost.errors import LocalError, NodeError
from carrypost.files import reason

if TYPE_CHECKING:
    from carrypost.web.access import Access

PORT = 7007
HOST = "127.0.0.1"
_GRACE_S = 0.5
"""Time that answers under way have to end."""


def web(
    paths: Annotated[
        list[Path] | None,
        _paths.argument(
            "Records, folders of JSON lines, or campaigns; without any, those in the current folder and one below.",
            "[PATH]...",
        ),
    ] = None,
    *,
    scenario: Annotated[
        Path | None,
        _paths.option("--scenario", "Scenario of the runs; files that it names are looked for beside it.", "FILE"),
    ] = None,
    positions: Annotated[
        Path | None,
        _paths.option("--positions", "Places of nodes over time: CSV (node,t,x,y), or another trace.", "FILE"),
    ] = None,
    port: Annotated[
        int | None, option("--port", f"Port; default: {PORT} or, if that is taken, a free one.", min=1, max=65535)
    ] = None,
    read_only: Annotated[bool, option("--read-only", "Show only: pages cannot send or receive messages.")] = False,
    open_browser: Annotated[bool, option("--open", "Open the page in the browser.")] = False,
) -> None:
    """Show what happened in runs: nodes on a map, at any instant, and why a message did not arrive.

    Pages are served to browsers on this machine only. Ctrl-C ends the command.

    For example:

    * `carrypost web records.parquet --open`

    * `carrypost web demo-record` follows nodes that write their records there

    * `carrypost web` shows the records here, and an example
    """
    needs_pages()
    from carrypost.web.access import Access  # noqa: PLC0415 - needed by this command only
    from carrypost.web.app import App  # noqa: PLC0415
    from carrypost.web.replay.runs import Runs  # noqa: PLC0415

    del read_only  # There is nothing yet that changes anything.
    for given in filter(None, (scenario, positions)):
        if not given.is_file():
            raise LocalError(f"{given} cannot be read: there is no such file")
    with Runs(paths or (), positions, scenario) as runs:
        listening = _listen(port)
        access = Access(App(runs).asgi, listening.getsockname()[1])
        _say_ready(access.url)
        if open_browser:
            import webbrowser  # noqa: PLC0415 - needed by this option only

            webbrowser.open(access.url_once())
        _serve(access, listening)


def _say_ready(url: str) -> None:
    if sys.stdout.isatty():
        typer.echo(f"{url}\npress Ctrl-C to end")
    else:
        line({"event": "ready", "url": url})
    sys.stdout.flush()


def _listen(port: int | None) -> socket.socket:
    """Return a socket that listens on this machine; raises `NodeError`."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # Elsewhere the option would let two programs share the port.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            found.bind((HOST, PORT if port is None else port))
        except OSError as error:
            if port is not None or error.errno != errno.EADDRINUSE:
                raise
            found.bind((HOST, 0))
        found.listen()
    except OSError as error:
        found.close()
        raise NodeError(
            f"cannot serve pages at {HOST}:{port or PORT}: {reason(error)}; choose another --port"
        ) from None
    return found


def _serve(access: Access, listening: socket.socket) -> None:
    """Answer requests until a signal ends it, which is how it is meant to end."""
    import asyncio  # noqa: PLC0415 - keeps --help quick
    import logging  # noqa: PLC0415

    import uvicorn  # noqa: PLC0415 - needs the extra

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # That answers were cut short is no news.
    config = uvicorn.Config(
        access, http="h11", ws="none", lifespan="off", access_log=False, log_config=None, server_header=False
    )
    config.timeout_graceful_shutdown = _GRACE_S  # type: ignore[assignment]  # Declared as whole seconds; any will do.
    server = uvicorn.Server(config)
    try:
        with _signals.orderly():
            asyncio.run(server.serve([listening]))
    except (KeyboardInterrupt, SystemExit):
        if not server.should_exit:
            raise

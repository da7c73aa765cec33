"""The command `web`: pages about runs, running nodes and campaigns, for browsers on this machine."""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli import _exit
from carrypost.cli._options import needs_pages, needs_records, option, path_argument, path_option
from carrypost.cli._output import line
from carrypost.errors import LocalError, NodeError
from carrypost.log.files import reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.node.settings import NodeSettings
    from carrypost.web.nodes import LiveRoutes
    from carrypost.web.server import App, Shown

PORT = 7007
HOST = "127.0.0.1"
_GRACE_S = 0.5
"""Time that answers under way have to end."""


def web(
    paths: Annotated[
        list[Path] | None,
        path_argument(
            "Records, folders of JSON lines, or campaigns; without any, those in the current folder and one below.",
            "[PATH]...",
        ),
    ] = None,
    *,
    scenario: Annotated[
        Path | None,
        path_option("--scenario", "Scenario of the runs; files that it names are looked for beside it.", "FILE"),
    ] = None,
    positions: Annotated[
        Path | None,
        path_option("--positions", "Places of nodes over time: CSV (node,t,x,y), or another trace.", "FILE"),
    ] = None,
    node: Annotated[
        list[Path] | None,
        path_option("--node -n", "Folder of a running node; several: each has a page.", "FOLDER"),
    ] = None,
    port: Annotated[
        int | None, option("--port", f"Port; default: {PORT} or, if that is taken, a free one.", min=1, max=65535)
    ] = None,
    read_only: Annotated[bool, option("--read-only", "Show only: pages cannot send or receive messages.")] = False,
    open_browser: Annotated[bool, option("--open", "Open the page in the browser.")] = False,
) -> None:
    """Show what happened in runs, and what running nodes do now: who is near, and why a message did not arrive.

    Pages are served to browsers on this machine only. Ctrl-C ends the command.

    For example:

    * `carrypost web records.parquet --open`

    * `carrypost web demo-record` follows nodes that write their records there

    * `carrypost web --node ~/second` shows a running node, and lets you send and receive

    * `carrypost web` shows your running node, the records here, and an example
    """
    needs_pages()
    from carrypost.web.nodes import LiveRoutes  # noqa: PLC0415
    from carrypost.web.server import App  # noqa: PLC0415 - needed by this command only

    for given in filter(None, (scenario, positions)):
        if not given.is_file():
            raise LocalError(f"{given} cannot be read: there is no such file")
    live = LiveRoutes(_nodes(node or (), alone=not paths), read_only=read_only)
    with ExitStack() as stack:
        kept: tuple[Shown, ...] = (live,)
        lacks = ""
        if paths or not node:
            kept, lacks = _with_files(stack, live, paths or [], positions, scenario)
        opens = _only(kept) if len(paths or ()) + len(node or ()) == 1 else None
        _serve(App(*kept, opens=opens, lacks=lacks), live, _listen(port), open_browser=open_browser)


def _nodes(folders: Sequence[Path], *, alone: bool) -> dict[str, NodeSettings]:
    """Return the settings of the nodes to show, by folder; without any, of the user's own if it runs."""
    from carrypost.cli._settings import settings_of  # noqa: PLC0415 - keeps --help quick

    found = [settings_of(None, each) for each in folders]
    for each in found:
        if not each.data.is_dir():
            raise LocalError(f"{each.data} is no folder of a node: there is no such folder")
    if not folders and alone and (own := settings_of(None, None)).control.exists():
        found = [own]
    return {str(each.data): each for each in found}


def _with_files(
    stack: ExitStack, live: LiveRoutes, paths: Sequence[Path], positions: Path | None, scenario: Path | None
) -> tuple[tuple[Shown, ...], str]:
    """Return what is to be shown with runs and campaigns, and a sentence where these cannot be."""
    try:
        needs_records()
    except LocalError as error:
        if paths or not live.all:
            raise
        return (live,), f"There are pages of nodes only: {error}"
    from carrypost.web.campaigns import CampaignRoutes  # noqa: PLC0415 - needed by this command only
    from carrypost.web.runs import RunRoutes, Runs  # noqa: PLC0415

    runs = stack.enter_context(Runs(paths, positions, scenario))
    return (live, RunRoutes(runs), CampaignRoutes(paths, runs)), ""


def _only(kept: Sequence[Shown]) -> str | None:
    """Return the page of the one thing that was named; None: it is several runs."""
    return next((page for each in reversed(kept) if (page := each.only) is not None), None)


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


def _serve(app: App, live: LiveRoutes, listening: socket.socket, *, open_browser: bool) -> None:
    """Answer requests until a signal ends it, which is how it is meant to end."""
    import asyncio  # noqa: PLC0415 - keeps --help quick
    import logging  # noqa: PLC0415

    import uvicorn  # noqa: PLC0415 - needs the extra

    from carrypost.web.server import Access  # noqa: PLC0415 - likewise

    access = Access(app.asgi, listening.getsockname()[1])
    _say_ready(access.url)
    if open_browser:
        import webbrowser  # noqa: PLC0415 - needed by this option only

        webbrowser.open(access.url_once())

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # That answers were cut short is no news.
    config = uvicorn.Config(
        access, http="h11", ws="none", lifespan="off", access_log=False, log_config=None, server_header=False
    )
    config.timeout_graceful_shutdown = _GRACE_S  # type: ignore[assignment]  # Declared as whole seconds; any will do.
    server = uvicorn.Server(config)

    async def serve() -> None:
        try:
            await server.serve([listening])
        finally:
            await live.close()

    try:
        with _exit.orderly():
            asyncio.run(serve())
    except (KeyboardInterrupt, SystemExit):
        if not server.should_exit:
            raise

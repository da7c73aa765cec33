"""The command that ends the node of a folder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from carrypost.cli._options import Place

if TYPE_CHECKING:
    from carrypost.node.control.client import Client
    from carrypost.node.settings import NodeSettings

_END_S = 60.0
"""Within this a node ends: it has to write what it has accepted, on any disk."""
_LOOK_S = 0.05


def stop(at: Place) -> None:
    """End the node of a folder, as Ctrl-C does, and wait until its process is gone.

    What the node has accepted is written first, and programs that are attached to it learn of the end. A node inside a
    program ends with that program, and is not stopped.

    For example: `carrypost stop`, `carrypost stop --data ~/second`
    """
    import asyncio  # noqa: PLC0415 - keeps --help quick

    settings = at.settings()
    deadline_s = time.monotonic() + _END_S
    process = asyncio.run(_stop(settings))
    while _runs(process):  # It has released its folder, and only the interpreter has yet to end.
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"process {process} released {settings.data}, but did not end within {_END_S:.0f} s")
        time.sleep(_LOOK_S)
    typer.echo(f"the node in {settings.data} has ended (process {process})")


async def _stop(settings: NodeSettings) -> int:
    """Tell the node at the control socket of these settings to end; return its process when it has hung up."""
    import asyncio  # noqa: PLC0415 - keeps --help quick

    try:
        async with asyncio.timeout(_END_S), await _reached(settings) as client:
            process: int = (await client.status())["pid"]
            await client.stop()
    except TimeoutError:
        raise TimeoutError(f"the node at {settings.control} did not end within {_END_S:.0f} s") from None
    return process


def _runs(process: int) -> bool:
    import psutil  # noqa: PLC0415 - keeps --help quick

    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _reached(settings: NodeSettings) -> Client:
    """Return a connection to the node; raise `NoNodeError` if none runs, and `RunningError` if it does not answer."""
    from carrypost.errors import NoNodeError, RunningError  # noqa: PLC0415 - keeps --help quick
    from carrypost.node.control.client import Client  # noqa: PLC0415
    from carrypost.node.folder import NodeFolder  # noqa: PLC0415

    try:
        return await Client.connect(settings.control)
    except NoNodeError as error:
        process = NodeFolder(settings).process
        if process is not None:
            raise RunningError(
                f"process {process} uses the folder {settings.data}, and does not answer at {settings.control}: a node "
                "may be starting or ending there; try again"
            ) from None
        if isinstance(error.__context__, FileNotFoundError | ConnectionRefusedError | NotADirectoryError):
            raise NoNodeError(f"no node runs in {settings.data}: there is nothing to stop") from None
        raise  # It is another user's.

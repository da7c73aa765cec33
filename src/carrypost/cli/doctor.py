"""The command that finds out what this machine's network lets a node do."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrypost.cli._exit import Exit
from carrypost.cli._options import Json, Node, option
from carrypost.cli._output import line, styled
from carrypost.cli._wrapping import wrapped
from carrypost.errors import LocalError, NodeError

if TYPE_CHECKING:
    from carrypost.node.doctor.doctor import Finding
    from carrypost.node.settings import NodeSettings

_MARGIN = " " * 7


def doctor(
    *,
    interface: Annotated[
        str | None,
        option("--interface -i", "Check only this interface.", "NAME", show_default="all that a node would use"),
    ] = None,
    listen_s: Annotated[
        float, option("--listen-s", "How long to listen for other nodes; they announce every 1 to 5 s.", min=0.1)
    ] = 6.0,
    at: Node,
    json: Json = False,
) -> None:
    """Check on each interface whether multicast and broadcast work, and say what to do if not.

    Sends probes by every means, listens for them, and counts the other nodes that it hears. A full disk is reported. A
    node that runs here is not disturbed. It is asked whether it has more neighbours than places for them, whether
    subscriptions lost messages, and whether programs receive their messages. The exit code is 0 if at least one means
    works.

    For example:

    * `carrypost doctor`

    * `carrypost doctor --interface wlan0 --listen-s 20` while a node runs on the other machine
    """
    from carrypost.node.udp import interfaces  # noqa: PLC0415 - keeps --help quick

    there = [each.name for each in interfaces.snapshot()]
    if interface is not None and interface not in there:
        raise LocalError(f"there is no interface {interface}; there are: {', '.join(there)}")
    settings = at.settings()
    if not json:
        typer.echo(f"Listening for {listen_s:g} s …", err=True)
    status = None
    with contextlib.suppress(NodeError, TimeoutError):  # There is no node here.
        status = at.ask("status")
    findings = _findings(settings, interface, listen_s, status)
    for finding in findings:
        if json:
            line(dataclasses.asdict(finding))
        else:
            show(finding)
    if not any(finding.works and not finding.remark for finding in findings):
        raise typer.Exit(Exit.FAILED)


def _findings(
    settings: NodeSettings, interface: str | None, listen_s: float, status: Mapping[str, Any] | None
) -> list[Finding]:
    """Return what was found out in `listen_s`; `status` is that of a node that runs here."""
    import asyncio  # noqa: PLC0415 - keeps --help quick

    from carrypost.node.doctor import diagnosis  # noqa: PLC0415
    from carrypost.node.doctor.doctor import examine, examine_disk  # noqa: PLC0415
    from carrypost.node.udp import interfaces  # noqa: PLC0415

    limits, own = settings.core.limits, status["node"] if status else ""
    closed = bool(settings.core.sealing.closed)
    found = asyncio.run(examine(settings.udp, interface, timeout_s=listen_s, limits=limits, own=own, closed=closed))
    found += diagnosis.of_settings(settings.core)
    chosen = settings.udp.interfaces if interface is None else (interface,)
    for each in interfaces.selected(interfaces.snapshot(), chosen):
        found += diagnosis.narrow(each, settings.core)
    found += examine_disk(settings.data, status["store"]["failure"] if status else None)
    return found + diagnosis.of_node(status, limits) if status else found


def show(finding: Finding) -> None:
    """Show a finding to people; in colours, unless NO_COLOR is set."""
    mark, colour = ("works", "green") if finding.works else ("fails", "red")
    if finding.remark:
        mark, colour = finding.remark, ""
    head = " ".join(filter(None, (finding.interface, str(finding.means))))
    typer.echo(styled(f"{mark:6} ", fg=colour or None, bold=True) + styled(head, bold=True))
    for text in (finding.detail, finding.advice):
        if text:
            typer.echo(wrapped(styled(_MARGIN + text), _MARGIN))

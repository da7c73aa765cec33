"""The command that finds out what this machine's network lets a node do."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli._exit import Exit
from carrypost.cli._output import JsonOption, line, styled, wants_json
from carrypost.cli.node import ConfigOption, DataOption, ask, settings_of
from carrypost.errors import LocalError, NodeError

if TYPE_CHECKING:
    from carrypost.node.doctor.doctor import Finding


def doctor(
    *,
    interface: Annotated[
        str | None,
        typer.Option(
            "--interface",
            "-i",
            help="Check only this interface.",
            metavar="NAME",
            show_default="all that a node would use",
        ),
    ] = None,
    listen_s: Annotated[
        float,
        typer.Option("--listen-s", help="How long to listen for other nodes; they announce every 1 to 5 s.", min=0.1),
    ] = 6.0,
    config: ConfigOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Check on each interface whether multicast and broadcast work, and say what to do if not.

    Sends probes by every means, and listens for them and for other nodes. A node that runs here is not disturbed. It is
    asked whether it has more neighbours than places for them, whether subscriptions lost messages, and whether
    programs receive their messages. The exit code is 0 if at least one means works.

    For example:

    * `carrypost doctor`

    * `carrypost doctor --interface wlan0 --listen-s 20` while a node runs on the other machine
    """
    import asyncio  # noqa: PLC0415 - keeps --help quick

    from carrypost.node.doctor import diagnosis  # noqa: PLC0415
    from carrypost.node.doctor.doctor import examine  # noqa: PLC0415
    from carrypost.node.udp import interfaces  # noqa: PLC0415 - keeps --help quick

    there = interfaces.snapshot()
    if interface is not None and interface not in [each.name for each in there]:
        raise LocalError(f"there is no interface {interface}; there are: {', '.join(each.name for each in there)}")
    as_json = wants_json(json)
    if not as_json:
        typer.echo(f"Listening for {listen_s:g} s …", err=True)
    settings = settings_of(config, data)
    findings = asyncio.run(examine(settings.udp, interface, timeout_s=listen_s, limits=settings.core.limits))
    findings += diagnosis.of_settings(settings.core)
    for each in interfaces.selected(there, settings.udp.interfaces if interface is None else (interface,)):
        findings += diagnosis.narrow(each, settings.core)
    with contextlib.suppress(NodeError, TimeoutError):  # There is no node here.
        findings += diagnosis.of_node(ask(config, data, "status"), settings.core.limits)
    for finding in findings:
        if as_json:
            line(dataclasses.asdict(finding))
        else:
            show(finding)
    if not any(finding.works for finding in findings):
        raise typer.Exit(Exit.FAILED)


def show(finding: Finding) -> None:
    """Show a finding to people; in colours, unless NO_COLOR is set."""
    mark, colour = ("works", "green") if finding.works else ("fails", "red")
    head = " ".join(filter(None, (finding.interface, str(finding.means))))
    typer.echo(styled(f"{mark}  ", fg=colour, bold=True) + styled(head, bold=True))
    for text in (finding.detail, finding.advice):
        if text:
            typer.echo(styled(f"       {text}"))

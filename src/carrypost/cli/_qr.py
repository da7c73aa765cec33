"""Codes for people: as text, or as a QR code on the terminal."""

from __future__ import annotations

import io

import typer

from carrypost.cli import _output
from carrypost.cli._joining import Joined


def show(joined: Joined, name: str, code: str, *, qr: bool = False) -> None:
    """Print a code alone, so that other programs can take it; as a QR code, the text follows on stderr."""
    if joined.json:
        _output.line({name: code})
        return
    if qr:
        import segno  # noqa: PLC0415 - an extra

        drawn = io.StringIO()
        segno.make(code, error="l").terminal(out=drawn, compact=True)
        typer.echo(drawn.getvalue())
        _output.say(code)
        return
    typer.echo(code)

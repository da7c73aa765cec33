"""Modulators as consumers ask for them. Callers are not all checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.config import Limits
from carrypost.config.rules import nearest
from carrypost.errors import IllegalArgumentException, LocalError
from carrypost.overlay.modulators.modulator import Instance, Modulator
from carrypost.overlay.modulators.registry import is_registered
from carrypost.overlay.relocation import VARIANTS

if TYPE_CHECKING:
    from carrypost.jms.destinations import Destination


def encoded(modulator: object) -> bytes:
    """Return a modulator as the node takes it, empty for none; raises `IllegalArgumentException`.

    One that is registered in this process is tried with its parameters. Of any other the broker decides.
    """
    if modulator is None:
        return b""
    if not isinstance(modulator, Modulator):
        raise IllegalArgumentException(
            f"modulator must be made by a constructor such as Modulator.named(NAME, ...), not {modulator!r}"[:200]
        )
    if is_registered(modulator.name, modulator.version):
        try:
            Instance(modulator, Limits(), 0)
        except LocalError as error:
            raise IllegalArgumentException(str(error)) from error
    return msgspec.msgpack.encode(modulator)


def check_relocation(relocation: object) -> None:
    """Raise `IllegalArgumentException` for a relocation protocol that there is not."""
    if relocation is not None and relocation not in VARIANTS:
        there = ", ".join(map(repr, VARIANTS))
        hint = nearest(str(relocation), VARIANTS)
        raise IllegalArgumentException(f"relocation must be {there}, not {relocation!r}{hint}")


def check_unmodulated(modulator: object, relocation: object, destination: Destination) -> None:
    """Raise `IllegalArgumentException` if a consumer of something else than a channel asks for either."""
    if modulator is None and relocation is None:
        return
    option = "relocation" if modulator is None else "a modulator"
    raise IllegalArgumentException(
        f"{option} requires a channel, and {destination!r} is not one: create the topic with "
        f'create_topic(NAME, model="channel"), or leave it out'
    )

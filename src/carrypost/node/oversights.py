"""Settings that are valid and have no effect, most likely by oversight: sentences for the log of a starting node."""

from __future__ import annotations

from collections.abc import Iterator

from carrypost.config import Settings
from carrypost.errors import LocalError
from carrypost.model.ids import is_node_id
from carrypost.node.carrying import fruitless
from carrypost.overlay.modulators import programs


def oversights(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each setting without effect: what is wrong with it, and what was expected."""
    for pattern in fruitless(settings):
        yield (
            f"altruistic: {pattern!r} matches no topic or queue and has no effect: destinations begin with topic/ or "
            r"queue/, as in 'topic/village\..*'"
        )
    if settings.overlay.enabled:
        yield from _unknown_nodes(settings)
        yield from _unused_modules(settings)


def _unknown_nodes(settings: Settings) -> Iterator[str]:
    """Yield sentences about lists of nodes. Without security any text is the name of a node."""
    for name in ("brokers", "authors") if settings.security == "signed" else ():
        for each in getattr(settings.overlay, name):
            if not is_node_id(each):
                yield (
                    f"overlay.{name}: {each!r} is not the id of a node and has no effect: ids have 26 letters and "
                    "digits; `carrypost status` prints that of a node"
                )


def _unused_modules(settings: Settings) -> Iterator[str]:
    overlay = settings.overlay
    if not overlay.broker or overlay.modulators == "named":
        return
    allowed = f'overlay.modulators = "{overlay.modulators}" has no effect'
    if overlay.modulators == "trusted" and not overlay.authors:
        yield f"{allowed}: list the nodes whose modules this broker runs in overlay.authors"
    try:
        programs.check_installed()
    except LocalError as error:
        yield f"{allowed}: {error}"

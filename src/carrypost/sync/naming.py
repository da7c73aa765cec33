"""The directory for programs that block."""

from __future__ import annotations

from typing import Any, NamedTuple

from carrypost import naming
from carrypost.errors import IllegalArgumentException
from carrypost.jms.destinations import Destination
from carrypost.sync.contexts import Context
from carrypost.sync.methods import Blocking, blocking, documented, reading


class Binding(NamedTuple):
    """A name in a context, and what it stands for there."""

    name: str
    bound: Destination | NamingContext


def bound(found: Any) -> Any:  # noqa: ANN401 - whatever is bound
    """Return what was found, as a program that blocks uses it."""
    return NamingContext(found) if isinstance(found, naming.NamingContext) else found


@documented(naming.NamingContext)
class NamingContext(Blocking[naming.NamingContext]):
    name = reading(naming.NamingContext.name)
    bind = blocking(naming.NamingContext.bind)
    rebind = blocking(naming.NamingContext.rebind)
    unbind = blocking(naming.NamingContext.unbind)
    lookup = blocking(naming.NamingContext.lookup, bound)
    list = blocking(naming.NamingContext.list)
    list_bindings = blocking(
        naming.NamingContext.list_bindings, lambda found: [Binding(name, bound(each)) for name, each in found]
    )
    create_subcontext = blocking(naming.NamingContext.create_subcontext, lambda made: NamingContext(made))  # noqa: PLW0108 - no class yet
    destroy_subcontext = blocking(naming.NamingContext.destroy_subcontext)


@documented(naming.InitialContext)
class InitialContext(NamingContext):
    def __init__(self, context: Context) -> None:
        if not isinstance(context, Context):
            raise IllegalArgumentException(
                (
                    "InitialContext requires a context of carrypost.sync, made by its ConnectionFactory, not "
                    f"{context!r}"
                )[:200]
            )
        super().__init__(naming.InitialContext(context._inner))  # noqa: SLF001 - a part of the same API

    discover = blocking(naming.InitialContext.discover)

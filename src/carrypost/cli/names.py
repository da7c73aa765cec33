"""Commands about the directory of names: ls, bind and unbind."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from carrypost.cli import _given
from carrypost.cli import _message_options as options
from carrypost.cli._output import JsonOption
from carrypost.cli.node import ConfigOption, DataOption, SetOption


def ls(
    *,
    context: Annotated[str, typer.Argument(help="Names below this one; also topic and queue.", metavar="[NAME]")] = "",
    config: ConfigOption = None,
    data: DataOption = None,
    changes: SetOption = [],  # noqa: B006 - typer makes a new list
    json: JsonOption = False,
) -> None:
    """List the names of topics and queues that are known here: this node's, and those that others advertise.

    For example: `carrypost ls`, `carrypost ls queue` for all queues by their full names
    """
    from carrypost.cli import _directory  # noqa: PLC0415 - keeps --help quick

    options.run(options.place(config, data, changes, json=json), functools.partial(_directory.ls, context=context))


def bind(
    *,
    name: Annotated[str, typer.Argument(help="The name, or queue/NAME to declare a queue.", metavar="NAME")],
    destination: Annotated[
        str | None, typer.Argument(help="topic/NAME or queue/NAME@NODE.", metavar="[DESTINATION]")
    ] = None,
    lease: Annotated[
        float | None, _given.duration_option("--lease", "Of a queue: what is not acknowledged so long comes again.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Do not tell other nodes.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Also if the name stands for something else.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    changes: SetOption = [],  # noqa: B006 - typer makes a new list
    json: JsonOption = False,
) -> None:
    """Declare a queue, which this node manages from now on, or give a topic or a queue a name.

    Other nodes hear of the name. It is kept over restarts, until `carrypost unbind`.

    For example:

    * `carrypost bind queue/Alan` declares the queue Alan

    * `carrypost bind roads topic/village.roads` lets roads stand for a topic
    """
    from carrypost.cli import _directory  # noqa: PLC0415 - keeps --help quick

    binding = functools.partial(
        _directory.bind, name=name, destination=destination, private=private, replace=replace, lease_s=lease
    )
    options.run(options.place(config, data, changes, json=json), binding, _directory.EMBEDDING)


def unbind(
    *,
    name: Annotated[str, typer.Argument(help="The name, or queue/NAME to end a queue.", metavar="NAME")],
    config: ConfigOption = None,
    data: DataOption = None,
    changes: SetOption = [],  # noqa: B006 - typer makes a new list
) -> None:
    """End a queue of this node, with all that waits in it, or let a name go.

    For example: `carrypost unbind queue/Alan`, `carrypost unbind roads`
    """
    from carrypost.cli import _directory  # noqa: PLC0415 - keeps --help quick

    options.run(
        options.place(config, data, changes), functools.partial(_directory.unbind, name=name), _directory.EMBEDDING
    )

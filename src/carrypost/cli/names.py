"""Commands about the directory of names: ls, bind and unbind."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from carrypost.cli import _given
from carrypost.cli import _message_options as options
from carrypost.cli._output import JsonOption, wants_json
from carrypost.cli.node import ConfigOption, DataOption, SetOption


def ls(
    *,
    context: Annotated[
        str, typer.Argument(help="Only names below this one; also topic and queue.", metavar="[NAME]")
    ] = "",
    config: ConfigOption = None,
    data: DataOption = None,
    changes: SetOption = [],  # noqa: B006 - typer makes a new list
    json: JsonOption = False,
) -> None:
    """List the names of topics and queues known here: this node's, and those that other nodes advertise.

    For example: `carrypost ls`, `carrypost ls queue` for all queues by their full names
    """
    from carrypost.cli import _directory  # noqa: PLC0415 - keeps --help quick

    options.run(
        options.node_options(config, data, changes, json=wants_json(json)),
        functools.partial(_directory.ls, context=context),
    )


def bind(
    *,
    name: Annotated[str, typer.Argument(help="The name, or queue/NAME to declare a queue.", metavar="NAME")],
    destination: Annotated[
        str | None, typer.Argument(help="topic/NAME or queue/NAME@NODE.", metavar="[DESTINATION]")
    ] = None,
    lease: Annotated[
        float | None,
        _given.duration_option("--lease", "Queues: redeliver messages that are not acknowledged within this time."),
    ] = None,
    tries: Annotated[
        int | None, typer.Option("--tries", help="Queues: deliveries before a message is a dead letter.", min=1)
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Keep the name on this node.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the name if it is bound already.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    create: options.Create = False,
    changes: SetOption = [],  # noqa: B006 - typer makes a new list
    json: JsonOption = False,
) -> None:
    """Declare a queue, which this node then manages, or bind a name to a topic or a queue.

    The name is advertised to other nodes. It survives restarts, until `carrypost unbind` removes it.

    For example:

    * `carrypost bind queue/Alan` declares the queue Alan

    * `carrypost bind roads topic/village.roads` makes roads a name of a topic
    """
    from carrypost.cli import _directory  # noqa: PLC0415 - keeps --help quick

    binding = functools.partial(
        _directory.bind,
        name=name,
        destination=destination,
        private=private,
        replace=replace,
        lease_s=lease,
        tries=tries,
    )
    options.run(
        options.node_options(config, data, changes, json=wants_json(json), create=create), binding, _directory.EMBEDDING
    )


def unbind(
    *,
    name: Annotated[str, typer.Argument(help="The name, or queue/NAME to delete a queue.", metavar="NAME")],
    config: ConfigOption = None,
    data: DataOption = None,
    changes: SetOption = [],  # noqa: B006 - typer makes a new list
) -> None:
    """Delete a queue of this node with all its messages, or remove a name.

    For example: `carrypost unbind queue/Alan`, `carrypost unbind roads`
    """
    from carrypost.cli import _directory  # noqa: PLC0415 - keeps --help quick

    options.run(
        options.node_options(config, data, changes),
        functools.partial(_directory.unbind, name=name),
        _directory.EMBEDDING,
    )

"""Commands about the directory of names: ls, bind and unbind."""

from __future__ import annotations

import functools
from typing import Annotated

from carrypost.cli import _given
from carrypost.cli._message_options import run
from carrypost.cli._options import Json, NewNode, Node, argument, option


def ls(
    at: Node,
    *,
    context: Annotated[str, argument("Only names below this one; also topic and queue.", "[NAME]")] = "",
    json: Json = False,
) -> None:
    """List the names of topics and queues known here: this node's, and those that other nodes advertise.

    For example: `carrypost ls`, `carrypost ls queue` for all queues by their full names
    """
    from carrypost.cli import _directory  # noqa: PLC0415 - keeps --help quick

    run(at, functools.partial(_directory.ls, context=context), json=json)


def bind(
    name: Annotated[str, argument("The name, or queue/NAME to declare a queue.", "NAME")],
    at: NewNode,
    *,
    destination: Annotated[str | None, argument("topic/NAME or queue/NAME@NODE.", "[DESTINATION]")] = None,
    lease: Annotated[
        float | None,
        _given.duration_option("--lease", "Queues: redeliver messages that are not acknowledged within this time."),
    ] = None,
    tries: Annotated[
        int | None, option("--tries", "Queues: deliveries before a message is a dead letter.", min=1)
    ] = None,
    private: Annotated[bool, option("--private", "Keep the name on this node.")] = False,
    replace: Annotated[bool, option("--replace", "Replace the name if it is bound already.")] = False,
    json: Json = False,
) -> None:
    """Declare a queue, which this node then manages, or bind a name to a topic or a queue.

    The name is advertised to other nodes. It survives restarts, until `carrypost unbind` removes it.

    For example:

    * `carrypost bind queue/Alan` declares the queue Alan

    * `carrypost bind roads topic/village.roads` makes roads a name of a topic
    """
    from carrypost.cli import _directory  # noqa: PLC0415 - keeps --help quick

    body = functools.partial(
        _directory.bind, name=name, destination=destination, private=private, replace=replace, lease_s=lease,
        tries=tries,
    )  # fmt: skip
    run(at, body, _directory.EMBEDDING, json=json)


def unbind(
    name: Annotated[str, argument("The name, or queue/NAME to delete a queue.", "NAME")],
    at: Node,
) -> None:
    """Delete a queue of this node with all its messages, or remove a name.

    For example: `carrypost unbind queue/Alan`, `carrypost unbind roads`
    """
    from carrypost.cli import _directory  # noqa: PLC0415 - keeps --help quick

    run(at, functools.partial(_directory.unbind, name=name), _directory.EMBEDDING)

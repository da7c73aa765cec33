"""Commands that send and receive, and those about the directory of names: pub, sub, send, ls, bind and others.

Each attaches to the node that runs in its folder, or runs one while it lasts.
"""

from __future__ import annotations

import functools
from typing import Annotated

from carrypost.cli import _message_options as options
from carrypost.cli._options import Json, NewNode, Node, StreamJson, argument, option
from carrypost.errors import LocalError


def _topic(name: str | None, queue: str | None, instead: str) -> str:
    """Return the name of a topic that was named by -t; `instead` is the command for queues."""
    if queue is not None:
        raise LocalError(f"this command works on topics (-t), and -q names a queue: use carrypost {instead} -q {queue}")
    if not name:
        raise LocalError("a topic is required: -t village.roads")
    return name


def _place(name: str | None, queue: str | None, instead: str, *, channel: bool, circle: str | None) -> str:
    """Return the destination of a topic that was named by -t, which may be a channel, or of a circle."""
    return options.topic(_topic(name, queue, instead), channel=channel, circle=circle)


def _queue(name: str | None, topic: str | None, instead: str) -> str:
    """Return the name of a queue that was named by -q; `instead` is the command for topics."""
    if topic is not None:
        raise LocalError(f"this command works on queues (-q), and -t names a topic: use carrypost {instead} -t {topic}")
    if not name:
        raise LocalError("a queue is required: -q Alan")
    return name


def pub(
    *,
    topic: options.Topic = None,
    queue: options.NoQueue = None,
    channel: options.Channel = False,
    circle: options.Circle = None,
    message: options.Outgoing,
    at: NewNode,
    json: StreamJson = False,
) -> None:
    """Publish to a topic: the message is stored here, and carried to subscribers until it expires.

    Delivery cannot be guaranteed. The command prints how many neighbours can take the message, and when it expires.
    With --receipt it waits for the first delivery, and exits with 3 if no receipt arrives.

    For example:

    * `carrypost pub -t village.roads "The bridge is closed."`

    * `carrypost pub -t village.roads -p Hello --prop language=English --ttl 6h`

    * `date | carrypost pub -t village.time --prop zone:string=1`

    * `carrypost pub -t village.load --count 3 --every 0.1 "n {n} {time}"`

    * `carrypost pub -t flood --channel "The river rises." --prop level=3`

    * `carrypost pub -t plans --circle rescue "North bridge at six"`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    order = _messages.Order(_place(topic, queue, "send", channel=channel, circle=circle), message)
    options.run(at, order.send, order.embedding, json=json)


def send(
    *,
    queue: options.Queue = None,
    topic: options.NoTopic = None,
    message: options.Outgoing,
    at: NewNode,
    json: StreamJson = False,
) -> None:
    """Send to a queue: one receiver gets the message, here or on another node.

    The queue is one that `carrypost ls` shows, or NAME@NODE. With --receipt the command waits until the receiver has
    acknowledged the message, and exits with 3 if no receipt arrives.

    For example:

    * `carrypost send -q Alan "Hello Alan"`

    * `carrypost send -q Alan --file letter.txt --ttl 2d --receipt --for 60`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    order = _messages.Order(options.queue(_queue(queue, topic, "pub")), message)
    options.run(at, order.send, order.embedding, json=json)


def sub(
    *,
    topic: options.Topic = None,
    queue: options.NoQueue = None,
    durable: Annotated[str | None, option("--durable", "Name of a durable subscription.", "NAME")] = None,
    end: Annotated[bool, option("--end", "Delete the --durable subscription and its messages.")] = False,
    channel: options.Channel = False,
    circle: options.Circle = None,
    modulation: options.Modulation,
    wanted: options.Wanted,
    count: options.Count = None,
    at: NewNode,
    json: StreamJson = False,
) -> None:
    """Subscribe to a topic, and print its messages until Ctrl-C.

    Topics may contain wildcards: * matches one word, > the rest. With --count it stops after that many messages, and
    exits with 3 if fewer arrive within --for. A durable subscription also collects messages while no command runs.

    The events of a --channel travel over the brokers of the overlay, in the order of each producer. The selector, or
    the --modulator, runs at this node's home broker.

    For example:

    * `carrypost sub -t village.roads`

    * `carrypost sub -t "village.>" --select "language = 'English'" --count 1 --for 30`

    * `carrypost sub -t village.roads --durable inbox --for 1`

    * `carrypost sub --durable inbox --end`

    * `carrypost sub -t flood --channel --select "level > 2"`

    * `carrypost sub -t plans --circle rescue`

    * `carrypost sub -t flood --channel --modulator box --param "area=[10, 10, 42, 42]"`

    * `carrypost sub -t flood --channel --modulator every_nth.wasm --param hex=02`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    if end:
        if durable is None:
            raise LocalError("--end requires the name of a subscription: carrypost sub --durable inbox --end")
        here = Node(at.config, at.data, at.changes)
        options.run(here, functools.partial(_messages.unsubscribe, name=durable), json=json)
        return
    destination = _place(topic, queue, "receive", channel=channel, circle=circle)
    if not destination.startswith(options.CHANNEL) and (modulation.modulator is not None or modulation.param):
        raise LocalError("--modulator requires an event channel: add --channel, or leave --modulator out")
    if wanted.limit_s == 0:
        raise LocalError("--for must be greater than 0, since messages need time to arrive: try --for 1")
    modulator = options.modulator(modulation.modulator, modulation.param)
    wish = _messages.SubscribeOptions(destination, wanted.select, durable, modulator)
    body = functools.partial(_messages.subscribe, wish=wish, count=count, limit_s=wanted.limit_s)
    options.run(at, body, json=json, reconnect=True)


def receive(
    *,
    queue: options.Queue = None,
    topic: options.NoTopic = None,
    wanted: options.Wanted,
    count: Annotated[int, option("--count", "Stop after this many messages.", "N", min=1)] = 1,
    at: NewNode,
    json: StreamJson = False,
) -> None:
    """Receive messages from a queue, and print them. No other receiver gets them.

    A message that could not be printed stays in the queue. Exits with 3 if fewer than --count arrive within --for.

    For example:

    * `carrypost receive -q Alan --for 30`

    * `carrypost receive -q Alan --select "urgency > 3" --count 10 --for 60`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    body = functools.partial(_messages.receive, queue=_queue(queue, topic, "sub"), wanted=wanted, count=count)
    options.run(at, body, json=json, reconnect=True)


def browse(
    *,
    queue: options.Queue = None,
    topic: options.NoTopic = None,
    wanted: options.Wanted,
    count: options.Count = None,
    at: Node,
    json: StreamJson = False,
) -> None:
    """List the messages in a queue, without removing them.

    For a queue of another node, that node must answer: exits with 3 if it does not within --for (30 s).

    For example: `carrypost browse -q Alan`, `carrypost browse -q Alan --select "urgency > 3" --count 1`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    body = functools.partial(_messages.browse, queue=_queue(queue, topic, "sub"), wanted=wanted, count=count)
    options.run(at, body, json=json)


def console(at: NewNode) -> None:
    """Work with topics, queues and names at a prompt or from a script, as in the JOMS console.

    Subscriptions print their messages while you type. `help` lists the commands. A script is read from stdin, and
    stops at its first error. At its end it waits for every subscription that has -count or -for.

    For example:

    * `carrypost console`

    * `echo "pub -t ChatRoom1 -p Hello -ssl language=English" | carrypost console`
    """
    from carrypost.cli.console.console import run  # noqa: PLC0415 - keeps --help quick

    options.run(at, run)


def ls(
    at: Node,
    *,
    context: Annotated[str, argument("Only names below this one; also topic and queue.", "[NAME]")] = "",
    json: Json = False,
) -> None:
    """List the names of topics and queues known here: this node's, and those that other nodes advertise.

    For example: `carrypost ls`, `carrypost ls queue` for all queues by their full names
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    options.run(at, functools.partial(_messages.list_names, context=context), json=json)


def bind(
    name: Annotated[str, argument("The name, or queue/NAME to declare a queue.", "NAME")],
    at: NewNode,
    *,
    destination: Annotated[str | None, argument("topic/NAME or queue/NAME@NODE.", "[DESTINATION]")] = None,
    lease: Annotated[
        float | None,
        options.duration_option("--lease", "Queues: redeliver messages that are not acknowledged within this time."),
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
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    body = functools.partial(
        _messages.bind_name, name=name, destination=destination, private=private, replace=replace, lease_s=lease,
        tries=tries,
    )  # fmt: skip
    options.run(at, body, _messages.CHANGE_STORED, json=json)


def unbind(
    name: Annotated[str, argument("The name, or queue/NAME to delete a queue.", "NAME")],
    at: Node,
) -> None:
    """Delete a queue of this node with all its messages, or remove a name.

    For example: `carrypost unbind queue/Alan`, `carrypost unbind roads`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    options.run(at, functools.partial(_messages.unbind_name, name=name), _messages.CHANGE_STORED)

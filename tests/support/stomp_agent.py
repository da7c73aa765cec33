"""A real STOMP client as a process, for a namespace; prints messages as ``got JSON``, JSON without spaces.

``python tests/support/stomp_agent.py py PORT TOKEN`` uses stomp.py: it declares the queue ``jobs``, sends four messages
to the topic ``roads``, of levels 1 to 4, and ten to the queue, and says ``sent``.
``python tests/support/stomp_agent.py man PORT TOKEN NODE`` uses stompman: it subscribes to the topic, from level 3 on,
and to the queue of that node, says ``ready``, and acknowledges what comes.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from typing import Any

import stomp
import stompman

WAIT_S = 30
TEXT = "Grüße:a\\b\tc"
"""A body that needs care; without spaces, as lines are split at those."""


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the test reads it


class _Receipts(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    def __init__(self) -> None:
        self.came = queue.Queue[str]()

    def on_receipt(self, frame: Any) -> None:  # noqa: ANN401 - likewise
        self.came.put(frame.headers["receipt-id"])


def py(port: str, token: str) -> None:
    """Declare and send."""
    receipts = _Receipts()
    connection = stomp.Connection([("127.0.0.1", int(port))])
    connection.set_listener("", receipts)
    connection.connect("me", token, wait=True)
    connection.subscribe("/queue/jobs", "s", headers={"receipt": "declared"})
    assert receipts.came.get(timeout=WAIT_S) == "declared"
    connection.unsubscribe("s")
    for level in range(1, 5):
        types = {"level": level, "hot": "true", "x-y.z": TEXT, "carrypost-types": "level=int,hot=boolean"}
        connection.send("/topic/roads", f"{TEXT}{level}", headers={"persistent": "true", **types})
    for number in range(10):
        connection.send("/queue/jobs", str(number), headers={"persistent": "true", "receipt": str(number)})
        assert receipts.came.get(timeout=WAIT_S) == str(number)
    say("sent")
    connection.disconnect()


async def man(port: str, token: str, node: str) -> None:
    """Receive and acknowledge."""

    async def got(frame: stompman.MessageFrame) -> None:
        say("got", json.dumps([dict(frame.headers), frame.body.decode()], separators=(",", ":")))

    server = stompman.ConnectionParameters("127.0.0.1", int(port), "me", token)
    async with stompman.Client([server]) as client:
        for destination, headers in (("/topic/roads", {"selector": "level > 2"}), (f"/queue/jobs@{node}", {})):
            await client.subscribe(
                destination, got, headers=headers, on_suppressed_exception=say, receipt_timeout=WAIT_S
            )
        say("ready")
        await asyncio.sleep(3_600)


if __name__ == "__main__":
    if sys.argv[1] == "py":
        py(*sys.argv[2:])
    else:
        asyncio.run(man(*sys.argv[2:]))

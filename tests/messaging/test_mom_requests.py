"""Open requests: a row each, until the reply was taken or the time is over."""

from __future__ import annotations

import pytest
from tests.support.one_node import OneNode, S

from carrypost.errors import IllegalStateException, ResourceAllocationException
from carrypost.log.events import Done
from carrypost.messaging.commands import ForgetRequest, OpenRequest, OpenRequests, RememberRequest
from carrypost.messaging.queues import queues


def remembered(node: OneNode, correlation: str, seconds: float = 60) -> int:
    number = node.next_number()
    node.host.messaging.execute(RememberRequest(correlation, node.now + round(seconds * S)), node.now, number)
    return number


def test_a_request_is_open_after_a_restart_once_it_was_answered_as_done() -> None:
    node = OneNode()
    first = remembered(node, "map-1")
    node.write()
    assert node.answers() == [Done(first)]
    remembered(node, "not written")
    node.crash()
    assert node.host.messaging.execute(OpenRequests(), node.now) == (OpenRequest("map-1", 60 * S),)


def test_a_request_that_was_forgotten_is_not_there_after_a_restart() -> None:
    node = OneNode()
    remembered(node, "map-1")
    node.write()
    for _ in range(2):  # Twice is once.
        node.host.messaging.execute(ForgetRequest("map-1"), node.now, node.next_number())
        node.write()
    assert node.host.messaging.execute(OpenRequests(), node.now) == ()
    node.crash()
    assert node.host.messaging.execute(OpenRequests(), node.now) == ()


def test_a_request_ends_at_its_deadline_also_if_the_node_was_off_then() -> None:
    node = OneNode()
    remembered(node, "soon", 10)
    remembered(node, "late", 100)
    node.pass_time(10)
    assert [each.correlation for each in node.host.messaging.execute(OpenRequests(), node.now)] == ["late"]
    assert len([name for _, name, _ in node.disk if name.startswith(b"P")]) == 1
    node.now += 200 * S
    node.crash()
    node.pass_time(0)
    assert node.host.messaging.execute(OpenRequests(), node.now) == ()
    assert not [name for _, name, _ in node.disk if name.startswith(b"P")]


def test_a_correlation_id_is_of_one_open_request_at_a_time() -> None:
    node = OneNode()
    remembered(node, "map-1")
    with pytest.raises(IllegalStateException, match="'map-1' is open on this node: choose another"):
        remembered(node, "map-1")
    node.pass_time(60)
    remembered(node, "map-1")


def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "CALLS_MAX", 3)
    node = OneNode()
    for number in range(3):
        remembered(node, str(number))
    with pytest.raises(ResourceAllocationException, match="3 requests are open on this node"):
        remembered(node, "3")
    node.host.messaging.execute(ForgetRequest("1"), node.now, node.next_number())
    remembered(node, "3")

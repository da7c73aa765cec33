"""Credit of the consumers of an attached program: all of it counts, and not all of it at once."""

from __future__ import annotations

from collections import Counter

from carrypost.attach.outbox import WAITING_MAX, Credits
from carrypost.config import UNBOUNDED


class Given:
    """A provider that notes the credit which it was given."""

    def __init__(self) -> None:
        self.messages: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()

    def __call__(self, consumer: int, messages: int, nbytes: int) -> None:
        self.messages[consumer] += messages
        self.bytes[consumer] += nbytes


def test_credit_without_end_is_given_as_messages_are_written() -> None:
    given = Given()
    credit = Credits(given)
    credit.open(1, 10)
    credit.open(2, 10)
    credit.add(1, UNBOUNDED, 500)
    assert given.messages == {1: WAITING_MAX}
    credit.add(2, 50, 500)
    assert given.messages[2] == 1, "a consumer that has none gets one, whatever others have"
    assert given.bytes == {1: 500, 2: 500}
    for _ in range(100):
        credit.written(1, 1)
    assert given.messages[1] == WAITING_MAX + 99, "one place went to the second consumer"
    credit.written(2, 1)
    assert given.messages[2] == 2


def test_credit_of_consumers_that_closed_goes_to_others() -> None:
    given = Given()
    credit = Credits(given)
    for consumer, session in ((1, 10), (2, 10), (3, 11)):
        credit.open(consumer, session)
    credit.add(1, WAITING_MAX, 0)
    credit.add(3, 30, 0)
    credit.close_session(10)
    assert [consumer in credit for consumer in (1, 2, 3)] == [False, False, True]
    credit.written(1, 1)
    credit.add(1, 5, 5)
    credit.close(1)
    credit.written(3, 1)
    assert given.messages == {1: WAITING_MAX, 3: 30}

"""Row 103: the exceptions of JMS, each also the local error that it is."""

from __future__ import annotations

import re

import pytest

import carrypost
from carrypost import errors

STANDARD: dict[str, type[Exception]] = {
    "IllegalStateException": errors.StateError, "InvalidClientIDException": errors.LocalError,
    "InvalidDestinationException": errors.LocalError, "InvalidSelectorException": errors.PatternError,
    "JMSSecurityException": errors.LocalError, "MessageEOFException": errors.PayloadError,
    "MessageFormatException": errors.PayloadError, "MessageNotReadableException": errors.StateError,
    "MessageNotWriteableException": errors.StateError, "ResourceAllocationException": errors.StateError,
    "TransactionInProgressException": errors.StateError, "TransactionRolledBackException": errors.SendError,
}  # fmt: skip
OURS: dict[str, type[Exception]] = {
    "DeliveryTimeoutException": TimeoutError, "NamingException": errors.LocalError,
    "NameNotFoundException": errors.NamingException, "NameAlreadyBoundException": errors.NamingException,
    "AmbiguousNameException": errors.NamingException, "InvalidNameException": errors.NamingException,
    "NotContextException": errors.NamingException, "ContextNotEmptyException": errors.NamingException,
    "IllegalArgumentException": ValueError, "NumberFormatException": ValueError, "NullValueException": TypeError,
}  # fmt: skip
RUNTIME = (
    "IllegalState", "InvalidClientID", "InvalidDestination", "InvalidSelector", "JMS", "JMSSecurity", "MessageFormat",
    "MessageNotWriteable", "ResourceAllocation", "TransactionRolledBack",
)  # fmt: skip
"""Names in the simplified API of JMS that differ here."""


@pytest.mark.parametrize(
    ("name", "local"), (STANDARD | OURS).items(), ids=lambda given: getattr(given, "__name__", given)
)
def test_row_103_each_exception_is_a_jms_exception_and_the_error_that_it_is(name: str, local: type[Exception]) -> None:
    kind = getattr(carrypost, name)
    assert issubclass(kind, carrypost.JMSException)
    assert issubclass(kind, local)
    cause = KeyError("why")
    with pytest.raises(local) as raised:
        raise kind("what to do", "a-code") from cause
    assert (str(raised.value), raised.value.__cause__) == ("what to do", cause)
    assert getattr(raised.value, "error_code", None) == "a-code"
    assert kind("what to do").error_code is None


def test_row_103_there_are_the_twelve_standard_ones() -> None:
    assert len(STANDARD) == 12


@pytest.mark.parametrize("name", RUNTIME)
def test_row_103_what_is_unchecked_in_java_is_the_same_class(name: str) -> None:
    assert getattr(carrypost, f"{name}RuntimeException") is getattr(carrypost, f"{name}Exception")


def test_the_tree_that_is_drawn_is_that_of_the_classes() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"[ │├└─]*(?=[A-Z])(\w+(?:Error|Exception))\b", line)
        if found is None or not line.startswith("    "):
            continue
        depth = found.start(1)
        above = [each for each in above if each[0] < depth]
        drawn[found[1]] = above[-1][1] if above else None
        above.append((depth, found[1]))
    classes = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)}
    assert drawn.keys() == classes.keys()
    assert {name: kind.__bases__[0].__name__ for name, kind in classes.items() if name != "CarrypostError"} == {
        name: parent for name, parent in drawn.items() if parent
    }

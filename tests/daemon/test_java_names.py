"""Names in Java's spelling, the table of all names of JMS, and the table of conformance."""

from __future__ import annotations

import enum
import inspect
from itertools import chain
from types import ModuleType

import pytest
from tests.daemon import test_openwire_java

import carrypost
from carrypost import classic, naming, sync
from carrypost.java_names import JavaNamed, is_java_name
from carrypost.sync import classic as blocking
from tools import conformance, jms_names

PLAIN = {"Binding", "Discovery", "Modulator", "Result", "Selector"}
"""Public classes without a counterpart in Java."""
PUBLIC = [
    kind
    for module in (carrypost, classic, sync, blocking, naming)
    for name in module.__all__
    if inspect.isclass(kind := getattr(module, name)) and not issubclass(kind, Exception | enum.Enum)
    if name not in PLAIN and not name.startswith("XA")
]


@pytest.mark.parametrize("kind", PUBLIC, ids=[f"{kind.__module__}.{kind.__name__}" for kind in PUBLIC])
def test_every_public_class_knows_the_names_of_java(kind: type) -> None:
    assert issubclass(kind, JavaNamed)


SPELLED = [
    (key, ours)
    for key, (ours, _) in jms_names.names().items()
    if key.partition(".")[2] != ours and not key.partition(".")[0].endswith("Listener")
]
"""Names that differ from those here."""


@pytest.mark.parametrize(("key", "ours"), SPELLED, ids=[key for key, _ in SPELLED])
def test_a_name_of_jms_raises_an_error_that_has_the_name_here(key: str, ours: str) -> None:
    interface, _, java = key.partition(".")
    for kind in jms_names.classes(interface):
        with pytest.raises(
            AttributeError, match=rf"'{interface}' has no attribute '{java}': in Python, use "
        ) as raised:
            getattr(kind, java)
        assert ours in str(raised.value) or java == "setLinkedException"
        assert not hasattr(kind, java)


def test_an_object_does_not_list_names_of_java() -> None:
    message = carrypost.TextMessage("x")
    assert "jms_message_id" in dir(message)
    assert not [name for name in dir(message) if is_java_name(type(message), name)]
    with pytest.raises(
        AttributeError, match=r"'TextMessage' has no attribute 'getText': in Python, use the attribute text"
    ):
        message.getText()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"^'TextMessage' object has no attribute 'getNothing'$"):
        message.getNothing()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"getErrorCode.*use the attribute error_code"):
        carrypost.JMSException("x").getErrorCode()  # type: ignore[attr-defined]


def test_names_that_exist_are_found_by_the_ordinary_way() -> None:
    """A `__getattr__` would slow all attributes down, in Python 3.11."""
    for kind in PUBLIC:
        assert not [each for each in kind.__mro__ if "__getattr__" in vars(each) and each is not object]


def test_every_name_of_jms_is_there() -> None:
    assert jms_names.missing() == []
    assert len(jms_names.names()) > 250


@pytest.mark.parametrize(
    ("java", "ours"),
    [
        ("getJMSMessageID", "jms_message_id"), ("getJMSXPropertyNames", "jmsx_property_names"), ("readUTF", "read_utf"),
        ("getIntProperty+", "get_int_property"), ("receiveNoWait", "receive_no_wait"), ("close", "close"),
        ("AUTO_ACKNOWLEDGE", "AUTO_ACKNOWLEDGE"), ("setDisableMessageID", "set_disable_message_id"),
    ],
)  # fmt: skip
def test_names_follow_from_those_of_java_by_one_rule(java: str, ours: str) -> None:
    assert jms_names.python_name(java) == ours


def test_every_requirement_has_a_test_or_a_reason() -> None:
    assert conformance.faults() == []
    assert [row.number for row in conformance.ROWS] == list(range(1, 105))


def test_a_row_without_a_test_or_reason_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = conformance.shown()
    monkeypatch.setattr(conformance, "shown", lambda: shown | {62: ()})
    assert conformance.faults() == ["row 62 has neither a test in the classic API nor a reason"]
    with pytest.raises(ValueError, match="row 62"):
        conformance.conformance_tables()


def test_every_java_program_names_its_rows_and_they_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    named = conformance.java_rows()
    assert {*named} == {*(each.__name__ for each in test_openwire_java.PROGRAMS), "outliving", "sharing"}
    assert all(named.values())
    assert {row for row, ways in conformance.shown().items() if "java" in ways} == {*chain(*named.values())}
    monkeypatch.setattr(conformance, "java_rows", lambda: named | {"many": (90, 105)})
    assert conformance.faults() == ["the Java program 'many' names row 105, which is not in the table"]


@pytest.mark.parametrize(
    ("document", "part"), [("conformance.md", conformance.conformance_tables), ("porting.md", jms_names.names_table)]
)
def test_the_tables_in_documents_are_up_to_date(document: str, part: object) -> None:
    assert callable(part)
    text = (conformance.TESTS.parent / "docs" / document).read_text(encoding="utf-8")
    assert part() in text, "run tools/documents.py"


def test_modules_list_the_names_that_they_have() -> None:
    modules: tuple[ModuleType, ...] = (classic, blocking)
    for module in modules:
        assert set(module.__all__) <= set(dir(module))
        with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
            _ = module.Sesion

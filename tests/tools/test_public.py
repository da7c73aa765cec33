"""The public names of the package: all are there, and none costs anything before it is asked for."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import carrypost


def test_every_public_name_is_there_and_is_listed() -> None:
    for name in carrypost.__all__:
        assert getattr(carrypost, name) is not None
    assert set(carrypost.__all__) <= set(dir(carrypost))
    assert carrypost.Selector.__module__.startswith("carrypost.model.selector")


def test_a_name_that_is_not_there_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Selectr'"):
        _ = carrypost.Selectr  # type: ignore[attr-defined]


def test_type_checkers_see_the_names_that_programs_see() -> None:
    tree = ast.parse(Path(carrypost.__file__).read_text(encoding="utf-8"))
    seen = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    told = {alias.name: node.module for node in seen for alias in node.names if alias.name != "TYPE_CHECKING"}
    assert told.keys() | {"__version__"} == set(carrypost.__all__)
    for name, module in told.items():
        assert getattr(importlib.import_module(module or ""), name) is getattr(carrypost, name)


def test_the_package_imports_only_what_chooses_its_build_until_somebody_asks() -> None:
    program = "import sys, carrypost; print([name for name in sys.modules if name.startswith('carrypost.')])"
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 - our own
    assert outcome.stdout.strip() == "['carrypost.extensions']"


def test_the_names_of_jms_are_names_of_the_same_classes() -> None:
    assert carrypost.JMSContext is carrypost.Context
    assert carrypost.JMSProducer is carrypost.Producer
    assert carrypost.JMSConsumer is carrypost.Consumer

"""First words of docstrings: a verb, a noun phrase, or a number or time with its unit."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "benchmarks", "tools", "examples")

# A docstring that opens with one of these asks a question, or needs its neighbour to be understood.
_OPENS_BADLY = re.compile(
    r"(?:What|Who|Whom|Whose|Whether|How|When|Where|Which|That|Those|This|These|It|Its|They|Nobody|Somebody|Everybody)\b"
)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of docstrings: of the module, of classes, functions, fields and constants."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for before, each in zip([None, *body], body, strict=False):
            follows = isinstance(before, ast.Assign | ast.AnnAssign) or (before is None and documented)
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))) if follows:
                    yield each.lineno, text


def faults(source: str) -> list[tuple[int, str]]:
    """Return the line and the first line of each docstring that opens badly."""
    found = docstrings(ast.parse(source))
    return [(line, text.partition("\n")[0]) for line, text in found if _OPENS_BADLY.match(text)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_open_with_a_verb_or_a_noun(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in faults(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_check_sees_every_kind_of_docstring() -> None:
    source = '''"""What it is."""
LIMIT = 3
"""How many there are."""
class A:
    """It."""
    size: int
    """Whether it is long."""
    def f(self):
        """Return the size."""
        self.x = 1
        """Those that wait."""
        "What is no docstring may open as it likes."
'''
    assert [line for line, _ in faults(source)] == [1, 3, 5, 7, 11]

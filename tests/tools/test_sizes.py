"""Limits of sizes, and words that no file may contain."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60

# What git does not keep either, and libraries of others.
_NOT_OURS = re.compile(r"vendor|\.git|\.venv|\..*_cache|\.hypothesis|__pycache__|build|dist|.*\.egg-info")
# Neither pattern matches itself.
_MACHINE_PATH = re.compile(r"(?<![\w.-])/(?:work|root|tmp|home|opt)/\w")
_REGISTRY = re.compile(
    r"(?:pypi|pythonhosted|npmjs|artifactory|nexus|devpi)\.[a-z]|index[-_]url|find[-_]links|[/]simple/|file:[/]{3}"
)


class Module(NamedTuple):
    """The sizes of one module."""

    name: str
    lines: int
    code_lines: int
    function_lines: dict[str, int]


def measured(name: str, text: str) -> Module:
    """Measure a module; lines of code are neither blank, nor comments, nor docstrings."""
    lines = [line.strip() for line in text.splitlines()]
    code = {number for number, line in enumerate(lines, 1) if line and not line.startswith("#")}
    docstrings: set[int] = set()
    functions = {}
    for node in long_nodes(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr):  # A text may have lines that look blank, or like comments.
            if node.end_lineno != node.lineno:
                code.update(spanned(node))
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                docstrings.update(spanned(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions[f"{name}:{node.lineno} {node.name}"] = len(spanned(node))
    return Module(name, len(lines), len(code - docstrings), functions)


def long_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, without expressions of one line and their parts, which are most of a module."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr) or child.end_lineno != child.lineno:
            yield from long_nodes(child)


def spanned(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@functools.cache
def modules() -> list[Module]:
    """Measure the modules of the package."""
    paths = sorted((ROOT / "src").rglob("*.py"))
    return [measured(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in paths]


@functools.cache
def texts() -> list[tuple[Path, str]]:
    """Return the files that are texts, in lower case: patterns that ignore case take four times as long."""
    found = []
    for path in files():
        with contextlib.suppress(UnicodeDecodeError):
            found.append((path, path.read_text(encoding="utf-8").lower()))
    return found


def files(folder: Path = ROOT) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if _NOT_OURS.fullmatch(path.name):
            continue
        if path.is_dir():
            yield from files(path)
        elif path.is_file():
            yield path


def lines_that_match(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in texts()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_module_is_longer_than_700_lines() -> None:
    assert {module.name: module.lines for module in modules() if module.lines > MODULE_LINES_MAX} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    functions = {name: lines for module in modules() for name, lines in module.function_lines.items()}
    assert {name: lines for name, lines in functions.items() if lines > FUNCTION_LINES_MAX} == {}


def test_lines_of_code_are_neither_blanks_nor_comments_nor_docstrings() -> None:
    head = '"""A module."""\n\nLIMIT = 5  # Why.\n"""Of\nwhat."""\n'
    assert measured("", head).code_lines == len(["LIMIT"])
    function = '\n\ndef f(\n    x,\n):\n    """Do it."""\n    # For whom.\n    return x\n'
    assert measured("", head + function).code_lines == len(["LIMIT", "def", "x", ")", "return"])
    text = 'x = """\n\n# Within the text.\n"""\n'
    assert measured("", text).code_lines == text.count("\n")


def test_a_long_module_and_a_long_function_are_measured() -> None:
    module = measured("m", "def f():\n" + "    g()\n" * 60 + "\n" * 700)
    assert (module.lines, module.function_lines) == (761, {"m:1 f": 61})


def test_the_lines_of_code_are_printed() -> None:
    counts = [module.code_lines for module in modules()]
    print(f"\n{sum(counts):,} code lines in src, of {len(counts)} modules")  # noqa: T201 - seen with `pytest -s`
    assert sum(counts) > 0


def test_no_file_names_a_path_of_one_machine() -> None:
    assert lines_that_match(_MACHINE_PATH) == []


def test_no_file_names_where_packages_come_from() -> None:
    assert lines_that_match(_REGISTRY) == []

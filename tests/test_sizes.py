"""Limits of sizes, and words that no file may contain."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

# What git does not keep either.
_NOT_OURS = re.compile(r"\.git|\.venv|\..*_cache|\.hypothesis|__pycache__|build|dist|.*\.egg-info")
# Neither pattern matches itself.
_MACHINE_PATH = re.compile(r"(?<![\w.-])/(?:work|root|tmp|home|opt)/\w")
_REGISTRY = re.compile(
    r"(?:pypi|pythonhosted|npmjs|artifactory|nexus|devpi)\.[a-z]|index[-_]url|find[-_]links|[/]simple/|file:[/]{3}",
    re.IGNORECASE,
)
_NO_CODE = frozenset({
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
})  # fmt: skip


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "src").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def files(folder: Path = ROOT) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if _NOT_OURS.fullmatch(path.name):
            continue
        if path.is_dir():
            yield from files(path)
        elif path.is_file():
            yield path


def code_lines(text: str) -> int:
    """Count the lines with code: neither blank ones, nor comments, nor docstrings."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


def lines_that_match(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    return found


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {name: len(text.splitlines()) for name, text in modules()}
    assert {name: length for name, length in lengths.items() if length > MODULE_LINES_MAX} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    too_long = {
        f"{name}:{node.lineno} {node.name}": length
        for name, text in modules()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert too_long == {}


def test_lines_of_code_are_neither_blanks_nor_comments_nor_docstrings() -> None:
    head = '"""A module."""\n\nLIMIT = 5  # Why.\n"""Of\nwhat."""\n'
    assert code_lines(head) == len(["LIMIT"])
    function = '\n\ndef f(\n    x,\n):\n    """Do it."""\n    # For whom.\n    return x\n'
    assert code_lines(head + function) == len(["LIMIT", "def", "x", ")", "return"])


def test_the_lines_of_code_are_printed() -> None:
    counts = [code_lines(text) for _, text in modules()]
    print(f"\n{sum(counts):,} code lines in src, of {len(counts)} modules")  # noqa: T201 - seen with `pytest -s`
    assert sum(counts) > 0


def test_no_file_names_a_path_of_one_machine() -> None:
    assert lines_that_match(_MACHINE_PATH) == []


def test_no_file_names_where_packages_come_from() -> None:
    assert lines_that_match(_REGISTRY) == []

"""Docstrings: their first words, and whether they say anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "benchmarks", "tools", "examples")

# A docstring that opens with one of these asks a question, or needs its neighbour to be understood.
_OPENS_BADLY = re.compile(
    r"(?:What|Who|Whom|Whose|Whether|How|When|Where|Which|That|Those|This|These|It|Its|They|Nobody|Somebody|Everybody)\b"
)
# One that has no other words says nothing by itself.
_PRONOUNS = frozenset(
    re.findall(
        r"\w+",
        "a all also an and any as both each either every he her him his it its likewise more neither none of one ones "
        "other others same she some such that the them themselves these they this those too we you",
    )
)
# One that has no words but these and those of the name that it is for says nothing that the name does not. It may stand
# there, since public names need one, but has no reason to be long.
_EMPTY = _PRONOUNS.union(
    re.findall(r"\w+", "be been by do does for from given had has have in is now on return returns to was were")
)
_SAYING_NOTHING_WORDS_MAX = 6


class Docstring(NamedTuple):
    """A docstring, and the name that it is for; empty for a module."""

    line: int
    name: str
    text: str


def bodies(node: ast.AST) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    """Yield what has a body of statements, and the body; expressions, which have none, would take most of the time."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        within = getattr(node, name, ())
        if name == "body" and within:
            yield node, within
        for each in within:
            yield from bodies(each)


def docstrings(tree: ast.AST) -> Iterator[Docstring]:
    """Yield the docstrings of the module, of classes, functions, fields and constants."""
    for node, body in bodies(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for before, each in zip([None, *body], body, strict=False):
            follows = isinstance(before, ast.Assign | ast.AnnAssign) or (before is None and documented)
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))) if follows:
                    yield Docstring(each.lineno, _name(node if before is None else before), text)


def _name(node: ast.AST) -> str:
    match node:
        case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target):
            return ast.unparse(target)
        case _:
            return getattr(node, "name", "")


def _words(text: str) -> list[str]:
    """Return the words of a text or a name, in lower case and without endings that inflect them."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", text)
    return [re.sub(r"(?<=[a-z]{2})(?:ing|ed|es|s|e)$", "", part.lower()) for part in parts]


_EMPTY_STEMS = frozenset(stem for word in _EMPTY for stem in (word, *_words(word)))


def fault_of(docstring: Docstring) -> str:
    """Return what is wrong with a docstring, or an empty text."""
    words = re.findall(r"\w+", docstring.text.lower())
    if _OPENS_BADLY.match(docstring.text):
        return "opens with a question or a pronoun"
    if _PRONOUNS.issuperset(words):
        return "is a lone pronoun"
    known = _EMPTY_STEMS.union(_words(docstring.name))
    if docstring.name and len(words) > _SAYING_NOTHING_WORDS_MAX and known.issuperset(_words(docstring.text)):
        return "is long and says no more than the name"
    return ""


def faults(source: str) -> list[tuple[int, str]]:
    """Return the line of each docstring with a fault, and the fault with the docstring's first line."""
    found = sorted((each.line, fault_of(each), each) for each in docstrings(ast.parse(source)))
    return [(line, f"{fault}: {each.text.splitlines()[0]}") for line, fault, each in found if fault]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_open_with_a_verb_or_a_noun_and_say_something(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {text}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in faults(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def quoted(*words: str) -> str:
    """Return a docstring of these words. Written out, it would be a fault of this file."""
    return '"' * 3 + " ".join(words) + "." + '"' * 3


def test_the_check_sees_every_kind_of_docstring() -> None:
    lines = [
        quoted("What", "it", "is"),
        "LIMIT = 3",
        quoted("How", "many", "there", "are"),
        "class A:",
        "    " + quoted("It"),
        "    size: int",
        "    " + quoted("Whether", "it", "is", "long"),
        "    def f(self):",
        "        " + quoted("Return", "the", "length", "in", "bytes"),
        "        self.x = 1",
        "        " + quoted("Those", "that", "wait"),
        '        "What is no docstring may open as it likes."',
    ]
    assert [line for line, _ in faults("\n".join(lines))] == [1, 3, 5, 7, 11]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("All", "of", "them"), "is a lone pronoun"),
        (("The", "same"), "is a lone pronoun"),
        (("Close", "it"), ""),
        (("Close", "the", "thing", "and", "all", "its", "files"), ""),
        (("Close", "it", "as", "it", "has", "to", "be", "closed"), "is long and says no more than the name"),
    ],
)
def test_a_docstring_says_something_or_is_short(words: tuple[str, ...], fault: str) -> None:
    assert fault_of(Docstring(1, "close", " ".join(words) + ".")) == fault

"""No import cycle among modules: neither at run time, nor for type checking, nor inside a function.

import-linter (`pyproject.toml`) checks which modules may import which, and ignores imports for type checking. Here
every import counts, because modules that refer to each other cannot be read or changed one at a time.

Only imports that a module states itself count. Importing `carrypost.x.y` also runs `carrypost/__init__` and
`carrypost/x/__init__`; that is harmless, since a package is known before its modules are loaded. If it counted, every
package that exports a name of one of its modules (`from carrypost.host import Host`) would be a cycle. A module that
imports such a name from its own package is found. Names that are assembled at run time (`importlib.import_module`) are
not found.
"""

from __future__ import annotations

import ast
import enum
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"


class Kind(enum.IntEnum):
    """The place of an import. Of several of the same module the first of these counts."""

    RUN = 0
    FUNCTION = 1
    TYPE = 2


WORDS = {Kind.RUN: "", Kind.FUNCTION: ", in a function", Kind.TYPE: ", type-only"}


@dataclass(frozen=True, order=True)
class Import:
    """One module names another."""

    kind: Kind
    line: int


Imports = Mapping[str, Mapping[str, Import]]
"""Imported modules, by module."""


def module_names(source: Path) -> dict[str, Path]:
    """Return every module under `source`; a package goes by its own name, without `__init__`."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(node: ast.AST, kind: Kind = Kind.RUN) -> Iterator[tuple[ast.Import | ast.ImportFrom, Kind]]:
    """Yield every import below `node`, with its kind."""
    match node:
        case ast.Import() | ast.ImportFrom():
            yield node, kind
        case ast.expr():  # Most of a module, and no place for an import.
            return
        case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            for each in node.body:
                yield from statements(each, Kind.TYPE)
            for each in node.orelse:
                yield from statements(each, kind)
        case _:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and kind is Kind.RUN
            for child in ast.iter_child_nodes(node):
                yield from statements(child, Kind.FUNCTION if inside else kind)


def targets(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str]]:
    """Return the possible targets of an import in a module of `package`: a module, or a module in it."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, alias.name) for alias in node.names)
        return
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    origin = ".".join([*above, *([node.module] if node.module else [])])
    yield from ((origin, f"{origin}.{alias.name}") for alias in node.names)


def imports(source: Path) -> Imports:
    """Return the imports of each module under `source`."""
    modules = module_names(source)
    found: dict[str, dict[str, Import]] = {}
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        named = found[module] = {}
        for node, kind in statements(ast.parse(path.read_text(encoding="utf-8"))):
            for origin, name in targets(node, package):
                target = name if name in modules else origin
                if target in modules:
                    one = Import(kind, node.lineno)
                    named[target] = min(one, named.get(target, one))
    return found


def circles(graph: Imports) -> list[list[str]]:
    """Return a shortest cycle of each strongly connected component; its first module is repeated at the end."""
    ways = {module: ways_from(module, graph) for module in graph}
    found = []
    left = sorted(graph)
    while left:
        first = left[0]
        component = [each for each in left if each in ways[first] and first in ways[each]]
        if component:
            found.append(min((ways[each][each] for each in component), key=len))
        left = [each for each in left[1:] if each not in component]
    return found


def ways_from(start: str, graph: Imports) -> dict[str, list[str]]:
    """Return a shortest path from a module to each one that it imports, directly or not; possibly itself."""
    ways: dict[str, list[str]] = {}
    ends = [[start]]
    while ends:
        longer = [[*way, target] for way in ends for target in sorted(graph[way[-1]])]
        ends = []
        for way in longer:
            if ways.setdefault(way[-1], way) is way:
                ends.append(way)
    return ways


def told(circle: list[str], graph: Imports) -> str:
    """Return a cycle as text, with its imports."""
    steps = [(module, target, graph[module][target]) for module, target in pairwise(circle)]
    lines = [f"    {module}:{one.line} imports {target}{WORDS[one.kind]}" for module, target, one in steps]
    return "\n".join([" -> ".join(circle), *lines])


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = imports(SOURCE)
    assert "carrypost.host" in graph  # Else something else was looked at.
    found = [told(circle, graph) for circle in circles(graph)]
    assert not found, "\n".join(["these modules import each other in a circle:", *found])


TYPE_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param({"a": "import p.b", "b": "import p.c", "c": ""}, [], id="a chain"),
        pytest.param(
            {"a": "import p.b", "b": TYPE_ONLY + "from p.a import A"},
            ["p.a -> p.b -> p.a\n    p.a:1 imports p.b\n    p.b:3 imports p.a, type-only"],
            id="a type is named",
        ),
        pytest.param(
            {"a": "from p import b", "b": "class B:\n    def f():\n        from p.a import A"},
            ["p.a -> p.b -> p.a\n    p.a:1 imports p.b\n    p.b:3 imports p.a, in a function"],
            id="an import in a method",
        ),
        pytest.param(
            {"a": "import p.b", "b": TYPE_ONLY + "import p.a\ndef f():\n    import p.a\nimport p.a"},
            ["p.a -> p.b -> p.a\n    p.a:1 imports p.b\n    p.b:6 imports p.a"],
            id="of several imports the one that runs is told",
        ),
        pytest.param(
            {"a": "from . import b", "b": "from .d.e import E", "d/__init__": "", "d/e": "from ..a import A"},
            ["p.a -> p.b -> p.d.e -> p.a\n    p.a:1 imports p.b\n    p.b:1 imports p.d.e\n    p.d.e:1 imports p.a"],
            id="relative imports",
        ),
        pytest.param(
            {"a": "import p.b, p.c", "b": "import p.c", "c": "import p.a", "d": "import p.d", "e": "import p.d"},
            ["p.a -> p.c -> p.a\n    p.a:1 imports p.c\n    p.c:1 imports p.a", "p.d -> p.d\n    p.d:1 imports p.d"],
            id="of each knot the shortest circle",
        ),
        pytest.param(
            {"d/__init__": "from p.d.e import E", "d/e": "import p.d.f", "d/f": "import p"},
            [],
            id="a package hands out a name of its module",
        ),
        pytest.param(
            {"d/__init__": "from p.d.e import E", "d/e": "from p.d import E"},
            ["p.d -> p.d.e -> p.d\n    p.d:1 imports p.d.e\n    p.d.e:1 imports p.d"],
            id="a module asks its own package for a name",
        ),
    ],
)
def test_circles_are_found_and_told(texts: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    for name, text in ({"__init__": ""} | texts).items():
        path = tmp_path / "p" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = imports(tmp_path)
    assert [told(circle, graph) for circle in circles(graph)] == expected


def test_every_library_of_an_extra_is_used() -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    words = {word for path in SOURCE.rglob("*.py") for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    for extra in extras.keys() - {"compiled", "dev"}:
        names = [re.split(r"[<>=]", each)[0] for each in extras[extra] if not each.startswith("carrypost[")]
        modules = {name: name.removesuffix("-python").replace("-", "_") for name in names}
        assert [name for name, module in modules.items() if module not in words] == [], extra

"""The choice between compiled modules and sources, and the tool that compiles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from distutils.core import Extension
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from carrypost import extensions
from tools import compiled

SUFFIX = EXTENSION_SUFFIXES[0]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of a few modules; the extension of one of them cannot be loaded, so that its use is noticed."""
    folder = tmp_path / "carrypost"
    folder.mkdir()
    for name in ("__init__.py", "extensions.py", "version.py"):
        shutil.copy(compiled.PACKAGE / name, folder)
    (folder / f"version{SUFFIX}").write_bytes(b"no library")
    return folder


def listed(package: Path, *lines: str) -> None:
    """Write the list of what was compiled."""
    (package / "extensions.txt").write_text("".join(f"{line}\n" for line in lines))


def fresh(package: Path) -> str:
    """Return the line of a source that was not changed."""
    found = (package / "version.py").stat()
    return f"{found.st_size} {found.st_mtime_ns} {extensions._digest(str(package / 'version.py'))} version.py"  # noqa: SLF001


def output(program: str, folder: Path, **environment: str) -> tuple[str, str]:
    """Return what a program prints that runs in a folder, and the last line of its errors."""
    kept = {name: value for name, value in os.environ.items() if name != extensions.PURE}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, env=kept | environment, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    return done.stdout.strip(), (done.stderr.splitlines() or [""])[-1]


def ran(package: Path, **environment: str) -> tuple[str, str]:
    """Return what a program says that imports the module."""
    return output("import carrypost.version; print(carrypost.extensions.BUILD)", package.parent, **environment)


def test_extensions_that_fit_are_used(package: Path) -> None:
    listed(package, SUFFIX, fresh(package))
    assert "ImportError" in ran(package)[1]
    listed(package, SUFFIX)
    assert "ImportError" in ran(package)[1]


def test_a_source_that_was_only_copied_is_no_other_source(package: Path) -> None:
    listed(package, SUFFIX, fresh(package))
    os.utime(package / "version.py", (1, 1))
    assert "ImportError" in ran(package)[1]


def test_sources_are_used_without_a_word_where_that_is_asked_for(package: Path) -> None:
    listed(package, SUFFIX, fresh(package))
    assert ran(package, CARRYPOST_PURE="1") == ("pure", "")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((".cpython-27.so",), "was compiled for another Python"),
        ((), "was not compiled to the end"),
        ((SUFFIX, "rubbish"), "has a damaged list of compiled modules"),
        ((SUFFIX, "x 1 2 version.py"), "has a damaged list of compiled modules"),
        ((SUFFIX, "1 1 00 version.py"), "was changed since it was compiled"),
        ((SUFFIX, "1 1 00 gone.py"), "was changed since it was compiled"),
    ],
)
def test_extensions_that_do_not_fit_are_left_alone_with_one_sentence(
    package: Path, lines: tuple[str, ...], reason: str
) -> None:
    listed(package, *lines)
    sentence = f"carrypost {reason}: running as pure Python; `make compiled` compiles it again"
    assert ran(package) == ("pure", sentence)


def test_a_source_that_was_changed_is_used(package: Path) -> None:
    listed(package, SUFFIX, fresh(package))
    with (package / "version.py").open("a") as file:
        file.write("# a change\n")
    assert ran(package)[0] == "pure"


@pytest.mark.parametrize("found", ["/nonexistent/compiler", "false"])
def test_a_compiler_that_is_missing_or_fails_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: str
) -> None:
    (tmp_path / "a.c").touch()
    sources = tmp_path / "src"
    sources.mkdir()
    monkeypatch.setenv("CC", found)
    monkeypatch.setattr(compiled, "SOURCES", sources)
    monkeypatch.setattr(compiled, "MANIFEST", sources / "extensions.txt")
    monkeypatch.setattr(compiled, "generate", lambda _: [Extension("a", [str(tmp_path / "a.c")])])
    assert compiled.main([]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("the C compiler failed (")
    assert said.endswith("): carrypost runs as pure Python")
    assert not list(sources.iterdir())


def test_each_package_in_the_list_has_modules_that_are_compiled() -> None:
    found = {str(path.relative_to(compiled.PACKAGE)) for path in compiled.modules()}
    assert {"gossip/transfers/link.py", "order/causal.py", "host/host.py", "emu/engine/world.py"} <= found
    assert "gossip/wire/frames.py" not in found  # It has Structs.


def test_classes_that_others_than_compiled_ones_inherit_from_are_marked_for_it() -> None:
    # Otherwise those others could not be instantiated.
    unmarked, paths = set(), compiled.modules()
    for path in paths:
        module = ".".join(path.relative_to(compiled.SOURCES).with_suffix("").parts)
        for before, name in re.findall(r"^((?:@.*\n)*)class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            if "mypyc_attr" not in before:
                unmarked.add((module, name))
    inherited = set()
    for path in set(compiled.PACKAGE.rglob("*.py")) - set(paths):
        text = path.read_text(encoding="utf-8")
        bases = set(re.findall(r"\w+", " ".join(re.findall(r"^ *class \w+\(([^)]*)\)", text, re.MULTILINE))))
        for module, names in re.findall(r"^ *from (\S+) import ([^(\n]+|\([^)]+\))", text, re.MULTILINE):
            inherited |= {(module, name) for name in bases & set(re.findall(r"\w+", names))}
    assert inherited & unmarked == set()
    assert ("carrypost.gossip.layer", "Layer") in inherited


def test_twenty_records_are_the_same_compiled_and_pure() -> None:
    if not compiled.MANIFEST.exists():
        pytest.skip("nothing is compiled here: make compiled")
    program = (
        "from carrypost.extensions import BUILD; from tools.records import one; print(BUILD, one('drawn', 1, None)[1])"
    )
    (build, digest), (other, its_digest) = (
        output(program, compiled.ROOT, **given)[0].split() for given in ({}, {extensions.PURE: "1"})
    )
    if build == "pure":
        pytest.skip("what was compiled here is out of date: make compiled")
    assert (build, other) == ("compiled", "pure")
    assert digest == its_digest


def test_what_compiled_code_imports_is_watched_too() -> None:
    names = {path.relative_to(compiled.PACKAGE).as_posix() for path in compiled.used()}
    assert {"log/events.py", "gossip/wire/frames.py", "config/__init__.py", "config/settings.py"} <= names
    assert "__init__.py" not in names
    assert not [name for name in names if name.startswith(("cli/", "classic/", "lab/"))]

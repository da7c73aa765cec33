"""The JVM of Spark's driver: its start, the connection to it, and its end.

The JVM ends with this process, however this process ends. Once it answers, it reads its stdin until the end of the
file, which the system causes when the pipe's other end is gone, even after SIGKILL. Before it answers, it ignores
stdin: PySpark's own `launch_gateway` would leave it running if it is interrupted while it waits. So the process is
started here, and is ended here whatever happens; PySpark only connects to it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from carrypost.errors import LabError

if TYPE_CHECKING:
    from pyspark import SparkConf

_POSIX = os.name == "posix"
_LOOK_S = 0.05
_END_S = 10.0
"""Time for Spark to clean up in, after which the JVM is killed."""


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
        with _environment(_read(address)):
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
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]

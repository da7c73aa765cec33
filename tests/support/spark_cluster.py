"""A Spark of a master and two workers on this machine, in processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

PATIENCE_S = 900


@contextmanager
def standalone(folder: Path, hidden: Sequence[str] = ()) -> Iterator[str]:
    """Yield the address of a Spark on this machine, started as in `docs/experiments.md`.

    Logs go to the folder. `hidden`: words before the command of a worker, which make it see less.
    """
    home = Path(next(iter(pyspark.__path__)))
    plain = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}  # They log what they do.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"spark://127.0.0.1:{free.getsockname()[1]}"
    master = ["master.Master", "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--webui-port", "0"]
    worker = ["worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", address]
    with ExitStack() as stack:
        for number, (arguments, said) in enumerate([(master, "elected leader"), *[(worker, "registered with")] * 2]):
            log = folder / f"{number}.log"
            program = subprocess.Popen(  # noqa: S603 - the Spark that is installed
                [
                    *(hidden if number else ()),
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{arguments[0]}",
                    *arguments[1:],
                ],
                env=plain
                | {
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_WORKER_DIR": str(folder / f"work-{number}"),
                },
                stdout=stack.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT,
            )
            stack.callback(program.wait)
            stack.callback(program.terminate)
            until_s = time.monotonic() + PATIENCE_S
            while said not in log.read_text(encoding="utf-8"):
                assert program.poll() is None, log.read_text(encoding="utf-8")
                assert time.monotonic() < until_s
                time.sleep(0.05)
        yield address

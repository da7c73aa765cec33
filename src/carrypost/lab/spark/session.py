"""The session of Spark: its start and its end, jobs that can be watched and ended, and explanations of failures.

Nothing else in the laboratory starts Spark. By default it runs on all processors of this machine and listens on
loopback only; `master` moves the same work to a cluster. Times are UTC. The output of the JVM goes to a file in the
session's scratch folder, and to people only if Spark cannot be started; the folder is removed with the session.
Executors run the interpreter of this process, and on anything but `local` they get this very package. An existing
session is used as it is, and stays. Under `spark-submit` its master and settings hold, and the JVM is the one that it
started.

Jobs run in a thread of their own, so that Ctrl-C comes through at once: the tasks are then cancelled.

Spark reports a failure as pages of two languages' stack traces. Nearly always one line among them is what people need:
a full disk, a file that is not Parquet, an error of our own code in an executor. `explained` finds it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import psutil

import carrypost
from carrypost.config.rules import DAY_S
from carrypost.errors import CarrypostError, LabError, LocalError
from carrypost.lab.spark.java import connected, java_home, setting

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


Answer = TypeVar("Answer")
Watch = Callable[[int, int], None]
"""Function that is called at intervals with the number of tasks done, and of all."""
_LOOK_S = 0.25


def watched(spark: SparkSession, name: str, action: Callable[[], Answer], watch: Watch) -> Answer:
    """Return the result of an action that starts Spark jobs, which Spark shows under this name."""
    from pyspark import InheritableThread  # noqa: PLC0415 - loaded only where Spark is used

    context, group = spark.sparkContext, uuid.uuid4().hex
    found: list[Answer] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            context.setJobGroup(group, f"carrypost: {name}", interruptOnCancel=True)
            found.append(action())
        except Exception as error:  # noqa: BLE001 - raised by whoever waits
            failed.append(error)

    thread = InheritableThread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
            watch(*_done(context, group))
    except BaseException:
        with suppress(Exception):  # Spark may be gone.
            context.cancelJobGroup(group)
        thread.join(_LOOK_S)
        raise
    if failed:
        with explained():
            raise failed[0]
    return found[0]


@contextmanager
def described(spark: SparkSession, name: str) -> Iterator[None]:
    """Give the jobs of a block this name, where Spark shows them."""
    context, key = spark.sparkContext, "spark.job.description"
    before = context.getLocalProperty(key)
    context.setJobDescription(f"carrypost: {name}")
    try:
        yield
    finally:
        with suppress(Exception):  # Spark may be gone.
            context.setLocalProperty(key, before or "")


def _done(context: SparkContext, group: str) -> tuple[int, int]:
    """Return how many tasks of the group's jobs are over, and how many there are so far."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    found = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    stages = [stage for stage in found if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


# --- Spark's failures in a sentence ---------------------------------------------------------------------------
_OURS = re.compile(r"carrypost\.errors\.(?:Local|Config)Error: (.+)")
_FILE = re.compile(r"(?:file:(?://)?)(/[^\s,;'\"]*[^\s,;'\".])")
_SENTENCES = (
    (re.compile(r"No space left on device|Disk quota exceeded"), "the disk is full"),
    (re.compile(r"Permission denied"), "permission denied"),
    (re.compile(r"is not a Parquet file|Could not read footer|CANNOT_READ_FILE_FOOTER"), "it is not a Parquet file"),
    (re.compile(r"FAILED_READ_FILE|can not read class|ParquetDecodingException|could not read page"), "it is damaged"),
    (re.compile(r"java\.lang\.OutOfMemoryError"), "Spark ran out of memory; give it more with --memory"),
)
_FIRST_MAX = 500
_TRACEBACK = "Traceback (most recent call last):"


@contextmanager
def explained() -> Iterator[None]:
    """Turn failures of Spark into one of our errors."""
    from py4j.protocol import Py4JError, Py4JNetworkError  # noqa: PLC0415 - loaded only where Spark is
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except CarrypostError:
        raise
    except (Py4JNetworkError, ConnectionError) as error:
        _raise_interrupt(error)
        raise LabError(f"Spark's driver is gone: {_first(str(error))}") from error
    except (Py4JError, PySparkException) as error:
        raise _known_cause(str(error), cause_of(error)) from error


def _raise_interrupt(error: BaseException) -> None:
    """Raise the Ctrl-C, if there was one, after which PySpark tidied up over a connection that it had broken."""
    while (earlier := error.__context__) is not None:
        if isinstance(earlier, KeyboardInterrupt):
            raise earlier from None
        error = earlier


def cause_of(error: BaseException) -> str:
    """Return the sentence at the bottom of a failure: of the innermost exception, in the JVM or here."""
    found = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    with suppress(Exception):  # The JVM may be gone, or have nothing to say.
        while found is not None and (inner := found.getCause()) is not None:
            found = inner
        if found is not None and (text := found.getMessage()):
            return _last_of_python(str(text))
    with suppress(Exception):
        return _last_of_python(str(error))
    return type(error).__name__


def _last_of_python(text: str) -> str:
    """Return the exception in a traceback of Python, without the traceback; else the first line."""
    if _TRACEBACK not in text:
        return _first(text)
    lines = text[text.rindex(_TRACEBACK) :].splitlines()[1:]
    return next((line.strip() for line in lines if line and not line.startswith(" ")), _first(text))[:_FIRST_MAX]


def _known_cause(text: str, cause: str) -> CarrypostError:
    if ours := _OURS.search(text):
        return LocalError(ours[1].strip())
    for pattern, sentence in _SENTENCES:
        if pattern.search(text):
            file = _FILE.search(text)
            return LabError(f"{file[1]}: {sentence}" if file else f"Spark failed: {sentence}")
    return LabError(f"Spark failed: {cause}")


def _first(text: str) -> str:
    """Return the first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")[:_FIRST_MAX]


LOCAL = "local[*]"
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Variable by which `spark-submit` names its JVM to the program."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_KEPT = {".py", ".properties", ".toml", ".css"}
"""Endings of files of the package that executors need."""
_GIB = 1 << 30
_MEMORY = re.compile(r"[1-9][0-9]*[mMgG]")
_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[\d+,\d+,\d+\]|(spark|k8s)://.+|yarn")
_LOCAL = re.compile(r"local(-cluster)?(\[.+\])?|spark://(localhost|127\.[0-9.]+)(:\d+)?")
_CORES = re.compile(r"local\[(\d+|\*)(,\d+)?\]")
_SETTING = re.compile(r"([^#\s=:]+)[\s=:]+(.*)")
_SCRATCH = "carrypost-spark-"
"""Beginning of the names of scratch folders; then come the process and what makes a name unique."""
_LOG_TAIL = 2_000
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")
"""Loggers that write every mistake in a query, and every lost connection, out as screens of JSON and tracebacks."""
_HOSTS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """The options for the start of Spark."""

    master: str = LOCAL
    """Address of the master; see Spark's documentation for how clusters are written."""
    memory: str = ""
    """Memory of the driver, such as 4g; empty: a quarter of this machine's, from 1 to 8 GiB."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Any of Spark's own settings; they win."""
    name: str = "carrypost"
    """Name of the application and its jobs, where people look at what runs."""

    def __post_init__(self) -> None:
        if not _MASTER.fullmatch(self.master):
            raise LocalError(
                f"--master must be such as local[2], spark://host:7077, k8s://… or yarn, not {self.master!r}"
            )
        if self.memory and not _MEMORY.fullmatch(self.memory):
            raise LocalError(f"the driver's memory must be written such as 4g or 512m, not {self.memory!r}")

    @property
    def in_process(self) -> bool:
        """True if executors are threads of the driver's JVM, which see the same files and the same code."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def on_this_machine(self) -> bool:
        """True if no other machine has to reach the driver."""
        return _LOCAL.fullmatch(self.master) is not None

    @property
    def starts(self) -> bool:
        """True if a session has to be started on this machine: there is none, and no cluster was named."""
        if not self.in_process or find_spec("pyspark") is None:
            return False
        from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded only where Spark is used

        return SparkSession.getActiveSession() is None

    @property
    def cores(self) -> int:
        """Of this machine that are used, or that this machine has."""
        match = _CORES.fullmatch(self.master)
        if match is None or match[1] == "*":
            return os.cpu_count() or 1
        return int(match[1])

    @property
    def settings(self) -> dict[str, str]:
        """All of Spark's settings that are not its own defaults, but for folders.

        Those in its ``spark-defaults.conf`` win over ours, except where a choice was made for this command.
        """
        quarter = psutil.virtual_memory().total // 4 // _GIB
        usual = {
            "spark.app.name": self.name,
            "spark.driver.memory": f"{min(8, max(1, quarter))}g",
            "spark.ui.enabled": str(not self.master.startswith("local")).lower(),
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            # A cluster is not as large as this machine: there Spark begins with many, and makes as few as it needs.
            **({"spark.sql.shuffle.partitions": str(max(4, 2 * self.cores))} if self.in_process else {}),
            # Records are files of some ten megabytes: more tasks than processors, or one waits for the other.
            "spark.sql.files.maxPartitionBytes": "16m",
            "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
            **(_HOSTS if self.on_this_machine else {}),
        }
        theirs = defaults(conf_folder())
        asked = {"spark.master": self.master, **({"spark.driver.memory": self.memory} if self.memory else {})}
        return {key: value for key, value in usual.items() if key not in theirs} | asked | dict(self.conf)


def conf_folder() -> Path:
    """Return the folder of Spark's own settings: that of the environment, of an installed Spark, or ours."""
    if match := os.environ.get("SPARK_CONF_DIR"):
        return Path(match)
    home = os.environ.get("SPARK_HOME")
    if home and (Path(home) / "conf").is_dir():
        return Path(home) / "conf"
    return Path(__file__).with_name("conf")


def defaults(folder: Path) -> dict[str, str]:
    """Return the settings in ``spark-defaults.conf``: a key and a value in each line, white space or = between them."""
    try:
        text = (folder / "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return {}
    found = (_SETTING.fullmatch(line.strip()) for line in text.splitlines())
    return {each[1]: each[2] for each in found if each is not None}


@contextlib.contextmanager
def session(options: SparkOptions | None = None) -> Iterator[SparkSession]:
    """Yield Spark while the block lasts; the existing session, if there is one."""
    needs_extra()
    from pyspark import SparkContext  # noqa: PLC0415 - loaded only where Spark is used
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # The active session belongs to one thread of the JVM. Another thread, or the same one over a new connection, has
    # none, though Spark runs.
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no public way to ask
        with explained():
            yield SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        return
    options = options or SparkOptions()
    if _GATEWAY in os.environ:
        with _quiet(), _submitted(options) as spark, explained():
            yield spark
        return
    if sys.stderr.isatty():
        sys.stderr.write(f"carrypost: starting Spark, {options.master}\n")
    scratch = scratch_folder()
    with contextlib.ExitStack() as ending:
        ending.callback(shutil.rmtree, scratch, ignore_errors=True)
        ending.enter_context(_environment(options, scratch))
        ending.enter_context(_quiet())
        spark = ending.enter_context(_started(options, scratch))
        with explained():
            yield spark


def scratch_folder() -> Path:
    """Return a new scratch folder; those that killed processes left a day ago or earlier are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}[0-9]*-*"):
        process = left.name.removeprefix(_SCRATCH).partition("-")[0]
        with suppress(OSError):  # Another command has just removed it.
            # Containers may share the folder, and cannot see each other's processes.
            old = left.stat().st_mtime < time.time() - DAY_S
            if old and process.isdecimal() and not psutil.pid_exists(int(process)):
                shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-"))


@contextlib.contextmanager
def _submitted(options: SparkOptions) -> Iterator[SparkSession]:
    """Yield a session in the JVM that `spark-submit` started before this program, on the master given there."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - loaded only where Spark is started
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    SparkContext._ensure_initialized()  # noqa: SLF001 - otherwise the settings of the JVM are not read
    given = SparkConf()
    master = given.get("spark.master", options.master) or options.master
    if options.master not in {LOCAL, master}:
        raise LocalError(f"spark-submit was given --master {master}: leave out --master {options.master} behind it")
    wanted = {key: value for key, value in options.settings.items() if key.startswith("spark.sql.")} | dict(
        options.conf
    )
    builder = SparkSession.builder.appName(options.name)
    for key, value in wanted.items():
        if key in options.conf or not given.contains(key):
            builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (Py4JError, PySparkException, OSError) as error:
        raise LabError(f"Spark cannot be started with --master {master}: {cause_of(error)}") from None
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as scratch:
        if not SparkOptions(master=master).in_process:
            spark.sparkContext.addPyFile(str(package_zip(Path(scratch))))
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
        with contextlib.suppress(Exception):  # The JVM may be gone.
            spark.stop()


def _environment(options: SparkOptions, scratch: Path) -> contextlib.AbstractContextManager[None]:
    """Set the environment that Spark and its executors need; afterwards it is as it was."""
    changes = {
        "JAVA_HOME": str(java_home(scratch)),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        # Otherwise they are in the folder of the installed package, or where the command was given.
        "SPARK_WORKER_DIR": str(scratch / "work"),
        "SPARK_LOCAL_DIRS": str(scratch / "local"),
        "SPARK_CONF_DIR": str(conf_folder()),
    }
    if options.on_this_machine:
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
    if options.master.startswith("local-cluster"):
        changes["SPARK_HOME"] = str(_home(scratch))
    return setting(changes)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what PySpark logs from people: their commands say what matters in a sentence."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    root = logging.getLogger()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    root.addFilter(_not_of_py4j)
    try:
        yield
    finally:
        root.removeFilter(_not_of_py4j)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for what Py4J logs as nobody: the traceback of a Ctrl-C during a call of the JVM."""
    return Path(record.pathname).parent.name != "py4j"


def _home(scratch: Path) -> Path:
    """Return the installed Spark, except that workers of `local-cluster`, which ignore the setting, write elsewhere."""
    import pyspark  # noqa: PLC0415 - loaded only where Spark is started

    installed = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    made = scratch / "home"
    made.mkdir()
    for each in installed.iterdir():
        if each.name != "work":
            (made / each.name).symlink_to(each)
    return made


@contextlib.contextmanager
def _started(options: SparkOptions, scratch: Path) -> Iterator[SparkSession]:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - loaded only where Spark is started
    from pyspark.sql import SparkSession  # noqa: PLC0415

    settings = options.settings | {"spark.sql.warehouse.dir": str(scratch / "warehouse")}
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with (
        (scratch / "spark.log").open("w+b") as log,
        _forgotten(SparkContext),
        contextlib.ExitStack() as ending,
    ):
        with _refused(options, log), _own_ctrl_c():
            gateway = ending.enter_context(connected(conf, scratch, log))
            context = SparkContext(conf=conf, gateway=gateway)
        with _refused(options, log):  # A cluster that does not answer shows only now, and Spark is over by then.
            context.setLogLevel("ERROR")
            context.setJobDescription(options.name)
            if not options.in_process:
                context.addPyFile(str(package_zip(scratch)))
            made = SparkSession.builder.getOrCreate()
        try:
            yield made
        except BaseException:
            # This server would print a traceback when the JVM, from which it reads, is ended in the middle of a job.
            with contextlib.suppress(Exception):
                context._accumulatorServer.shutdown()  # noqa: SLF001 - there is no public way
            raise
        with contextlib.suppress(Exception):  # The JVM may be gone, killed or out of memory.
            context.stop()


@contextlib.contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """Keep the handler of Ctrl-C. Spark's own one asks the JVM, maybe in the middle of another question to it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _forgotten(kind: type[SparkContext]) -> Iterator[None]:
    """Afterwards PySpark knows neither context nor JVM, so that another session may have other settings."""
    try:
        yield
    finally:
        # There is no other way to ask, and the JVM is gone already.
        context = kind._active_spark_context  # noqa: SLF001
        with contextlib.suppress(Exception):
            if context is not None:
                context.stop()
        kind._gateway = kind._jvm = None  # noqa: SLF001


@contextlib.contextmanager
def _refused(options: SparkOptions, log: IO[bytes]) -> Iterator[None]:
    """Raise a sentence with the JVM's message if Spark cannot start."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - loaded only where Spark is started
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (LabError, Py4JError, PySparkException, OSError) as error:
        raise LabError(f"Spark cannot be started with --master {options.master}: {_cause(error, log)}") from None


def _cause(error: Exception, log: IO[bytes]) -> str:
    """Return the first line that says why, and the end of what the JVM said."""
    log.seek(0)
    text = log.read().decode("utf-8", "replace").strip()[-_LOG_TAIL:]
    first = cause_of(error)
    return f"{first}\n{text}" if text else first


def needs_extra() -> None:
    """Raise with the command that installs what is missing, rather than the name of a module."""
    try:
        import pyspark  # noqa: F401, PLC0415 - only to see whether it is there
    except ImportError:
        raise LocalError(
            "Spark is not installed: pip install 'carrypost[lab]'; in the source tree, '.[lab]'; or work without it, "
            "by --engine local where a command has this option"
        ) from None


def package_zip(folder: Path) -> Path:
    """Return a zip file of carrypost in this folder, for executors elsewhere; the same code gives the same bytes.

    What carrypost needs (numpy, pyarrow, msgspec and so on) has compiled parts, and has to be installed where executors
    run, or be sent along as a packed environment by Spark's own ``spark.archives``.
    """
    root = Path(carrypost.__file__).parent
    path = folder / "carrypost.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(each for each in root.rglob("*") if each.suffix in _KEPT):
            name = file.relative_to(root.parent).as_posix()
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path

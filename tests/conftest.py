"""Profiles of Hypothesis: `dev` by default, `ci` in `make test`, `soak` and `more` in `make soak`.

Time limits per example are off everywhere: a busy machine is not a bug. What fails prints the blob that
repeats it.
"""

from __future__ import annotations

import gc
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from tests.support.examples import LONG
from tests.support.packages import Environment, build

from carrypost.cli import _exit
from carrypost.extensions import BUILD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.support.shells import Shell

_SLOW_IS_FINE = (HealthCheck.too_slow,)

# The same few examples on every run: a red build is due to the change, and stays red until it is mended.
settings.register_profile(
    "ci", deadline=None, print_blob=True, derandomize=True, max_examples=25, suppress_health_check=_SLOW_IS_FINE
)
# New examples on every run, few of them; the failing ones are remembered.
settings.register_profile("dev", deadline=None, print_blob=True, max_examples=50, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "soak", deadline=None, print_blob=True, max_examples=5_000, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile("more", deadline=None, print_blob=True, max_examples=500, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile("dev")


def pytest_configure() -> None:
    """Let signals end the processes of tests, also where this one ignores them: behind `nohup`, or in the background.

    What is ignored stays ignored in other processes. A function that does nothing does not: `exec` removes it.
    """
    for number in _exit.ENDING:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_finish() -> None:
    """Collect garbage seldom: objects that exist before the first test stay, and emulated runs are many and short."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need the sources where what is compiled is used."""
    marker = item.get_closest_marker("pure")
    if marker is not None and BUILD == "compiled":
        pytest.skip(f"needs the sources: {marker.args[0]}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that are marked `attached` once more, with programs attached to their nodes."""
    if metafunc.definition.get_closest_marker("attached") is not None:
        metafunc.parametrize("provider_over", ["local", "socket"], indirect=True)


# Every test uses it, because pytest forgets a fixture that is added to single tests while they are
# collected.
@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with carrypost installed from its wheel; other libraries are those of these tests."""
    (wheel,) = build(tmp_path_factory.mktemp("wheel"), "--wheel")
    made = Environment(tmp_path_factory.mktemp("environment"))
    made.install("--no-deps", "--no-index", str(wheel))
    made.borrow_libraries()
    return made


@pytest.fixture(autouse=True)
def provider_over(request: pytest.FixtureRequest) -> None:
    """Let contexts in virtual time use their node in this process, or attached to it by a socket."""
    if getattr(request, "param", "local") == "socket":
        from tests.support.jms_attached import AttachedNetwork  # noqa: PLC0415 - most tests do without

        from carrypost import testing  # noqa: PLC0415 - likewise

        monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        monkeypatch.setattr(testing, "Network", AttachedNetwork)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell in a folder of the test; nodes that it started are ended."""
    from tests.support.shells import Shell  # noqa: PLC0415 - most tests do without

    made = Shell(tmp_path, monkeypatch)
    yield made
    made.clean_up()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark for all tests: two tasks at a time, in processes of their own.

    Where searches are long it is a small cluster of two executors, so that code and files are really sent to them. A
    cluster takes twice the CPU time.
    """
    from carrypost.lab.spark.session import SparkOptions, session  # noqa: PLC0415 - most tests do without

    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    conf = {
        "spark.driver.extraJavaOptions": quick,
        "spark.executor.extraJavaOptions": quick,
        "spark.sql.shuffle.partitions": "2",
    }
    master = "local-cluster[2,1,1024]"
    if settings().max_examples <= LONG:
        master = "local[2]"
        # Rows are few: to compile each query to Java costs more than to run it as it is.
        conf |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    with session(SparkOptions(master=master, memory="1g", conf=conf)) as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Yield a function that makes folders that are disks of their own, of a given size, during the test; needs root."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    made: list[Path] = []

    def make(nbytes: int) -> Path:
        if mount is None or unmount is None:
            pytest.skip("no small disk: this system has no mount and umount")
        folder = tmp_path / f"disk-{len(made)}"
        folder.mkdir()
        mounting = subprocess.run(  # noqa: S603 - a file system in memory, in a folder of this test
            [mount, "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", folder], capture_output=True, text=True, check=False
        )
        if mounting.returncode:
            pytest.skip(f"no small disk, mounting is not permitted: {mounting.stderr.strip()}")
        made.append(folder)
        return folder

    yield make
    for folder in made:
        assert unmount is not None
        subprocess.run([unmount, "-l", folder], check=True)  # noqa: S603 - lazily: also if something still runs there

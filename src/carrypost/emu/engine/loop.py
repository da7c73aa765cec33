"""An asyncio event loop whose time is virtual.

Sleeping takes no real time: when no task can go on, the clock jumps to the next timer or to the next event in an
attached emulation, which so advances in step with the tasks. A loop that nothing can wake any more is a deadlock, and
the error names where each task waits; tasks that spin while time stands still are stopped. Real I/O and threads would
wait in real time and are refused.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, NoReturn, TypeVar

from carrypost.emu.arguments import is_number
from carrypost.emu.engine.scheduler import Scheduler
from carrypost.errors import CarrypostError, LocalError, RunawayError, StateError
from carrypost.model.times import MICROSECONDS

LIMIT_S = 86_400.0
INSTANT_TURNS_MAX = 100_000
"""Number of turns that tasks may take without time advancing."""
T = TypeVar("T")

_REAL_IO = (
    "add_reader", "add_signal_handler", "add_writer", "connect_accepted_socket", "connect_read_pipe",
    "connect_write_pipe", "create_connection", "create_datagram_endpoint", "create_server",
    "create_unix_connection", "create_unix_server", "getaddrinfo", "getnameinfo", "remove_reader",
    "remove_signal_handler", "remove_writer", "sendfile", "sock_accept", "sock_connect", "sock_recv",
    "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendfile", "sock_sendto",
    "start_tls", "subprocess_exec", "subprocess_shell",
)  # fmt: skip
_THREADS = ("run_in_executor", "set_default_executor")


class DeadlockError(CarrypostError):
    """Every task waits, and nothing can happen any more."""


class TimeLimitError(CarrypostError, TimeoutError):
    """The virtual time that a scene was given is over, and it is not."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs tasks in virtual time, in step with the emulations attached to it."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        super().__init__()
        self._selector = _VirtualSelector(self, round(limit_s * MICROSECONDS))
        self._thread = threading.get_ident()
        self._clock_resolution = 1 / MICROSECONDS

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._selector.now_us / MICROSECONDS

    def attach(self, scheduler: Scheduler) -> None:
        """Advance this emulation with the loop from now on."""
        self._selector.attached[scheduler] = self._selector.now_us - scheduler.now

    def detach(self, scheduler: Scheduler) -> None:
        """Stop advancing this emulation."""
        self._selector.attached.pop(scheduler, None)

    def _process_events(self, event_list: list[object]) -> None:
        """Do nothing: the selector waits for no file."""

    def _write_to_self(self) -> None:
        """Refuse calls from threads: the loop itself never sleeps."""
        if threading.get_ident() != self._thread:
            _refuse("call_soon_threadsafe", "a thread")


class _VirtualSelector:
    """Replacement of a selector that lets virtual time pass instead of waiting."""

    def __init__(self, loop: VirtualLoop, limit_us: int) -> None:
        self.now_us = 0
        self.attached: dict[Scheduler, int] = {}
        """Time by which the loop is ahead of each emulation."""
        self._loop = loop
        self._limit_us = limit_us
        self._end_us = limit_us
        self._turns = 0
        """Number of turns since time last advanced."""

    def select(self, timeout: float | None) -> list[object]:
        """Let time pass until something can go on; `timeout`: to the next timer, None if there is none."""
        self._turns += 1
        if self._turns > INSTANT_TURNS_MAX:
            self._turns = 0  # Tasks that are cancelled now get as many once more.
            raise RunawayError(
                (
                    f"virtual time does not advance at {self.now_us / MICROSECONDS:g} s after {INSTANT_TURNS_MAX:,} "
                    "turns: it passes only while every task waits (`await net.run(1)`), and these do not:"
                )
                + self._tasks(spinning=True)
            )
        if timeout is not None and timeout <= 0:
            return []
        dues = [] if timeout is None else [self.now_us + round(timeout * MICROSECONDS)]
        for scheduler, ahead_us in self.attached.items():
            due = scheduler.next_time()
            if due is not None:
                dues.append(due + ahead_us)
        if not dues:
            raise DeadlockError("no events are left, but tasks still wait:" + self._tasks())
        target = min(dues)
        if target > self._end_us:
            # Tasks that are cancelled now may need time to end well; they get as much once more.
            self._end_us = target + self._limit_us
            limit_s = self._limit_us / MICROSECONDS
            raise TimeLimitError(f"not finished after {limit_s:,g} virtual seconds; tasks wait:" + self._tasks())
        if target != self.now_us:
            self.now_us, self._turns = target, 0
        # All emulations reach the target, also those that have nothing to do there: a task that
        # looks at two of them must see the same time.
        for scheduler, ahead_us in list(self.attached.items()):
            scheduler.run_until(target - ahead_us)
        return []

    def _tasks(self, *, spinning: bool = False) -> str:
        """Return the tasks and their places; with `spinning` only those that wait for nothing."""
        tasks = sorted(asyncio.all_tasks(self._loop), key=lambda task: task.get_name())
        if spinning:
            tasks = [task for task in tasks if _ready(task)]
        return "".join(f"\n  {task.get_name()}: {_place(task.get_coro())}" for task in tasks) or " none"


def _ready(task: asyncio.Task[Any]) -> bool:
    """Return True if a task goes on in the next turn: it waits for nothing, or that is done."""
    awaited: asyncio.Future[Any] | None = getattr(task, "_fut_waiter", None)
    return awaited is None or awaited.done()


def _place(waiting: object) -> str:
    """Return the place where a task waits: the innermost line that is neither asyncio's nor ours, and our function."""
    place, ours = "", ""
    while isinstance(waiting, CoroutineType):
        frame, waiting = waiting.cr_frame, waiting.cr_await
        module = "" if frame is None else frame.f_globals.get("__name__", "")
        if frame is None or "asyncio" in module:
            continue
        found = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        if not module.startswith("carrypost."):
            place, ours = found, ""
        elif not place:
            place = found
        else:
            ours = ours or f", in {frame.f_code.co_qualname}"
    return f"{place}{ours}" or "somewhere"


def _refuse(name: str, what: str) -> NoReturn:
    raise StateError(f"{name} needs {what}, which waits in real time: this is not possible in virtual time")


def _refusal(name: str, what: str) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        _refuse(name, what)

    return refused


for _name in _REAL_IO:
    setattr(VirtualLoop, _name, _refusal(_name, "real I/O"))
for _name in _THREADS:
    setattr(VirtualLoop, _name, _refusal(_name, "a thread"))


def _check_scene(scene: object) -> None:
    if not callable(scene):
        if isinstance(scene, CoroutineType):
            scene.close()
        raise LocalError(f"testing.run takes an async function without calling it, not {scene!r}")


def run(scene: Callable[[], Coroutine[Any, Any, T]], limit_s: float = LIMIT_S) -> T:
    """Run an async function to its end, like `asyncio.run` but in virtual time; past `limit_s` it raises."""
    if not is_number(limit_s) or not 0 < limit_s < math.inf:
        raise LocalError(f"limit_s must be a number of seconds greater than 0, not {limit_s!r}")
    _check_scene(scene)
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(limit_s)) as runner:
        return runner.run(scene())

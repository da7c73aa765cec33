"""Modules that come from others: plugins that a node loads at its start, and modules of clients, which it compiles.

Plugins are named in the settings (`[node] plugins`), and register what is theirs. Modules of clients are compiled in a
process of its own.
"""

# The attack. Compiling is not metered. A module of 24 kB with 50,000 local variables in each of
# 3,000 functions took 13 s of CPU time. In the node's loop that would be 13 s without a datagram
# read. A thread would let the loop go on, as wasmtime releases the interpreter's lock, but a thread
# cannot be ended, and its memory cannot be limited.
#
# So a process with low priority compiles one module at a time; the system ends it after `CPU_S` of
# processor time, or beyond `MEMORY_BYTES`. After each module the broker waits until compiling has
# taken no more than `overlay.compile_share` of a processor, so that a client with many modules only
# delays its own. The process is this module as a program: it reads a module, and writes the time
# that it took, and machine code or the reason why there is none.

from __future__ import annotations

import asyncio
import importlib
import math
import os
import struct
import sys
import time
from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple

from carrypost.config import Limits
from carrypost.errors import NodeError
from carrypost.overlay.modulators import programs


def load_plugins(names: Iterable[str]) -> list[ModuleType]:
    """Load modules, and return them; raises `NodeError` if one cannot be loaded."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except Exception as error:
            raise NodeError(f"[node] plugins: the module {name!r} cannot be loaded: {error!r}") from error
    return found


CPU_S = 2
"""Processor time for one module. Honest ones of the largest size that brokers accept need a quarter of a second."""
MEMORY_BYTES = 1024 * 1024 * 1024
_WALL_S = 60.0
"""Time after which a process is ended in any case."""
_HEAD = struct.Struct("<QQ?")
"""Microseconds of processor time, in all and for compiling alone; True if machine code follows."""


class Compiled(NamedTuple):
    """Outcome of compiling a module."""

    code: bytes
    refusal: str
    """Reason why there is no machine code; empty if there is."""
    took_us: int
    """Processor time of the process, its start included."""
    alone_us: int
    """Processor time of compiling alone."""


class Compiler:
    """Compiles one module after the other for one broker."""

    def __init__(self, limits: Limits, share: float, cpu_s: int = CPU_S) -> None:
        self._memory_bytes_max, self._share, self._cpu_s = limits.modulator_memory_bytes_max, share, cpu_s
        self._after_s = 0.0
        """Time of the event loop before which nothing is compiled."""

    async def compile(self, module: bytes) -> Compiled:
        """Compile a module, once the share of a processor allows for it; raises `OSError` if no process can start."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._after_s - loop.time()))
        # -P: no file of the working folder takes the place of a module of the same name.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", __name__, str(self._memory_bytes_max), str(self._cpu_s),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            answer, _ = await asyncio.wait_for(process.communicate(module), _WALL_S)
        except TimeoutError:
            answer = b""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        # Machine code that was cut short, as the process was ended while it wrote, must never run.
        found = self._read(answer if process.returncode == 0 else b"")
        self._after_s = loop.time() + found.took_us / 1e6 * (1 / self._share - 1)
        return found

    def _read(self, answer: bytes) -> Compiled:
        if len(answer) < _HEAD.size:
            refusal = f"the module takes more than {self._cpu_s} s, or too much memory, to compile"
            return Compiled(b"", refusal, self._cpu_s * 1_000_000, self._cpu_s * 1_000_000)
        took_us, alone_us, good = _HEAD.unpack_from(answer)
        rest = answer[_HEAD.size :]
        return Compiled(rest if good else b"", "" if good else rest.decode(), took_us, alone_us)


def _main() -> None:
    import resource  # noqa: PLC0415 - Windows has none

    os.nice(5)
    memory_bytes_max, cpu_s = map(int, sys.argv[1:])
    limits = Limits(modulator_memory_bytes_max=memory_bytes_max)
    module = sys.stdin.buffer.read()
    programs.is_installed()  # Importing wasmtime is not the module's fault.
    used_s = math.ceil(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used_s + cpu_s, used_s + cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before_ns = time.process_time_ns()
    code, refusal = programs.compiled(module, limits)
    took_ns = time.process_time_ns()
    sys.stdout.buffer.write(
        _HEAD.pack(took_ns // 1_000, (took_ns - before_ns) // 1_000, not refusal) + (code or refusal.encode())
    )


if __name__ == "__main__":
    _main()

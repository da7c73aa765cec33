"""Programs of modulators, as the rest of the overlay sees them, with or without `carrypost[wasm]`.

`modulators.wasm` alone imports wasmtime. It is loaded when the first module is compiled or run. Without it everything
else works, and an attempt to compile or run a module raises an error that says what to install.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from carrypost.errors import LocalError

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.overlay.modulators.registry import Program


def _wasm() -> ModuleType:
    """Return `modulators.wasm`; raises `LocalError` where wasmtime is not installed."""
    try:
        import carrypost.overlay.modulators.wasm as found  # noqa: PLC0415 - most nodes run without wasmtime
    except ImportError:
        raise LocalError(
            "WebAssembly modulators need wasmtime, which is not installed: pip install 'carrypost[wasm]'; "
            "in the source tree, '.[wasm]'"
        ) from None
    return found


def check_installed() -> None:
    """Raise `LocalError` unless modules can be compiled and run in this process."""
    _wasm()


def is_installed() -> bool:
    """Return True if modules can be compiled and run in this process."""
    try:
        _wasm()
    except LocalError:
        return False
    return True


def translated(text: str) -> bytes:
    """Return the module of a text in the WebAssembly text format; raises `LocalError`."""
    return bytes(_wasm().translated(text))


def compiled(module: bytes, limits: Limits) -> tuple[bytes, str]:
    """Return the machine code of a module, and why there is none. It takes as long as the module's author wants."""
    try:
        return bytes(_wasm().compiled(module, limits.modulator_memory_bytes_max)), ""
    except LocalError as error:
        return b"", str(error)


def program(code: bytes, limits: Limits) -> Program:
    """Return a program of machine code that `compiled` returned; raises `LocalError` for exports other than ABI 1."""
    found: Program = _wasm().Program(code, limits.modulator_memory_bytes_max)
    return found

"""WebAssembly modules for tests: the examples, and good modules with one part exchanged."""

from __future__ import annotations

import struct
from pathlib import Path

from carrypost.overlay.modulators.modulator import Modulator

FOLDER = Path(__file__).parents[2] / "examples" / "modulators"


def example(name: str, params: bytes = b"") -> Modulator:
    return Modulator.wat((FOLDER / f"{name}.wat").read_text(), params)


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


ABI = '(func (export "abi") (result i32) (i32.const 1))'
ALLOC = '(func (export "alloc") (param i32) (result i32) (i32.const 4096))'
OPEN = '(func (export "open") (param i32 i32) (result i32) (i32.const 0))'
PROCESS = '(func (export "process") (param i32 i32) (result i64) (i64.const 0))'
MEMORY = '(memory (export "memory") 8)'
ENDLESS = "(loop $again (br $again))"
SAVE = '(func (export "save") (result i64) (i64.const 0x40000000001))'
LOAD = '(func (export "load") (param i32 i32) (result i32) (i32.const 0))'
STATE = SAVE + LOAD


def module(*parts: str) -> str:
    """Return a module of these parts, completed by those of a good module."""
    own = "".join(parts)
    rest = [each for each in (MEMORY, ABI, ALLOC, OPEN, PROCESS) if each.split('"')[1] not in own.split('"')[1::2]]
    return f"(module {' '.join(rest)} {own})"


def process(body: str, *more: str) -> str:
    return module(f'(func $process (export "process") (param i32 i32) (result i64) {body})', *more)


HOSTILE = [
    process(ENDLESS + "(unreachable)"),
    process("(loop $l (drop (ref.func $process)) (br $l)) (unreachable)", "(elem declare func $process)"),
    process("(loop $l (drop (memory.grow (i32.const 0))) (br $l)) (unreachable)"),
    process("(loop $l (br_if $l (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0)))) (memory.fill (i32.const 0)"
            "(i32.const 1) (i32.const 900000)) (i64.const 0)"),
    process("(call $process (local.get 0) (local.get 1))"),
    module(f'(func (export "save") (result i64) {ENDLESS} (unreachable))', LOAD),
    module(SAVE.replace("0x40000000001", "0x40000"), LOAD),  # A state of 256 KiB after every event.
    process("(i64.const 0x84)", '(data (i32.const 0) "\\10\\00\\00\\00")'),  # Sixteen results of every event.
    module(f"(func $start {ENDLESS}) (start $start)"),
    process("(unreachable)"),
]  # fmt: skip
"""Modules of clients that want to take more from a broker than their share."""

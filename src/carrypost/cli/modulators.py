"""Commands about modulators: those that this node could run, and what a broker would say of a module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli import _message_options
from carrypost.cli._exit import orderly
from carrypost.cli._options import Changes, Commands, Config, Json, Node, option, path_argument, path_option
from carrypost.cli._output import figures, line, say, table
from carrypost.errors import LocalError
from carrypost.log.files import read_bytes

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.overlay.modulators.modulator import Modulator

modulators = Commands("modulators", shows_help=False)
_SAMPLE_BYTES = 100


@modulators.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    *,
    config: Config = None,
    changes: Changes = [],  # noqa: B006 - typer makes a new list
    json: Json = False,
) -> None:
    """List the modulators that a node with these settings could run: those of carrypost and of `[node] plugins`.

    For example:

    * `carrypost modulators` lists them

    * `carrypost modulators --set node.plugins=my_modulators` lists those of a plugin, too

    * `carrypost modulators check examples/modulators/hoard.wat` checks a module as a broker would
    """
    if context.invoked_subcommand is not None:
        return
    from carrypost.node.modules import load_plugins  # noqa: PLC0415 - keeps --help quick
    from carrypost.overlay.modulators.registry import registered  # noqa: PLC0415 - likewise

    load_plugins(Node(config, None, changes).settings().place.plugins)
    found = [
        {
            "name": name, "version": version, "cost_us": each.cost_us, "reads_payload": each.payload,
            "does": (each.kind.__doc__ or "").strip().partition("\n")[0],
        }
        for name, versions in registered().items()
        for version, each in sorted(versions.items())
    ]  # fmt: skip
    if json:
        for each in found:
            line(each)
    else:
        columns = ("name", "version", "cost_us", "reads_payload", "does")
        table("", columns, [[row[name] for name in columns] for row in found], breakable=("does",))


@modulators.command()
def check(
    file: Annotated[Path, path_argument("A WebAssembly module, binary or text.")],
    *,
    params: Annotated[str, option("--params", "Parameters, as hexadecimal digits.")] = "",
    event: Annotated[
        Path | None, path_option("--event", "The payload of the sample event; default: 100 zero bytes.", "FILE")
    ] = None,
    config: Config = None,
    changes: Changes = [],  # noqa: B006 - typer makes a new list
    json: Json = False,
) -> None:
    """Check a module as a broker would: its exports, and the cost of compiling it and of processing an event.

    The limits of the settings apply. Fails if a broker would refuse the module, or if the module fails on the event.

    For example:

    * `carrypost modulators check examples/modulators/hoard.wat`

    * `carrypost modulators check examples/modulators/every_nth.wat --params 02`

    * `carrypost modulators check sum.wasm --event one.bin`
    """
    limits = Node(config, None, changes).settings().core.limits
    payload = bytes(_SAMPLE_BYTES) if event is None else read_bytes(event, limits.message_bytes_max)
    modulator = _message_options.module(file, _message_options.digits("--params", params))
    with orderly():
        found, refusal = _examined(modulator, limits, payload)
    figures({"file": str(file), **found, "broker": refusal or "runs it"}, json=json)
    if refusal:
        if "compile_s" not in found:
            say("build the module for size, and strip it: debugging information counts, too")
        elif "exports" in found and not params:
            say("no parameters were given; --params passes some")
        if "start_fuel" in found and event is None:
            say(f"the sample event had {_SAMPLE_BYTES} zero bytes; --event passes the payload of another")
        raise typer.Exit(1)


def _examined(modulator: Modulator, limits: Limits, payload: bytes) -> tuple[dict[str, object], str]:
    """Return what is known of a module, and why a broker would refuse it, or what it does wrong."""
    import asyncio  # noqa: PLC0415 - keeps --help quick

    from carrypost.node.modules import Compiler  # noqa: PLC0415 - likewise
    from carrypost.overlay.modulators import programs  # noqa: PLC0415 - likewise
    from carrypost.overlay.modulators.modulator import Instance  # noqa: PLC0415 - likewise
    from carrypost.overlay.modulators.registry import Event  # noqa: PLC0415 - likewise

    size = len(modulator.module)
    found: dict[str, object] = {"sha256": modulator.digest.hex(), "size_bytes": size}
    if size > limits.module_bytes_max:
        return found, f"the module has {size:,} bytes, more than {limits.module_bytes_max:,} (limits.module_bytes_max)"
    programs.check_installed()
    compiled = asyncio.run(Compiler(limits, 1.0).compile(modulator.module))
    found["compile_s"] = compiled.alone_us / 1e6
    if compiled.refusal:
        return found, compiled.refusal
    try:
        program = programs.program(compiled.code, limits)
        found["exports"] = ", ".join(program.exports)
        at_work = Instance(modulator, limits, limits.modulator_state_bytes_max, program=program)
    except LocalError as error:
        return found, str(error)
    found["start_fuel"] = at_work.spent
    results = at_work.process(Event(payload))
    found["event_fuel"] = at_work.spent
    found["results"] = 0 if results is None else len(results)
    state = None if results is None else at_work.save()
    found["state_bytes"] = 0 if state is None else len(state)
    if state:
        at_work.rebuild(state)  # As after a move, which reveals a module that does not load its own state.
    return found, at_work.fault

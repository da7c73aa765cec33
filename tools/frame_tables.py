"""Tables of the frames for the protocol's documentation, made from the frames themselves.

    python tools/frame_tables.py            write them into docs/protocol.md, between the markers
    python tools/frame_tables.py --check    only say whether they are up to date

Types and bounds come from the annotations that the decoder enforces, meanings from the docstrings under the
fields (or, for a field without one, under the alias that is its type). Without the file or its markers the
tables go to standard output.
"""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import pairwise
from pathlib import Path

import msgspec

from carrypost.gossip import frames

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "protocol.md"
BEGIN = "<!-- frame tables: made by tools/frame_tables.py -->"
END = "<!-- end of frame tables -->"
ENTRIES = (frames.Bucket, frames.OfferEntry, frames.PieceRequest)
_EXPONENTS = {
    2**exponent - less: f"2^{exponent}" + " - 1" * less for exponent in (16, 31, 53, 63) for less in (0, 1)
}


def frame_table() -> str:
    """A table per frame and per entry of a frame, in Markdown."""
    source = ast.parse(inspect.getsource(frames))
    aliases = _docstrings(source)
    classes = {node.name: node for node in source.body if isinstance(node, ast.ClassDef)}
    sections = [_section(kind, classes[kind.__name__], aliases) for kind in (*frames.WIRE_KINDS, *ENTRIES)]
    return "\n\n".join(sections)


def _section(kind: type[msgspec.Struct], source: ast.ClassDef, aliases: dict[str, str]) -> str:
    tag = kind.__struct_config__.tag
    title = f"### {kind.__name__}" if tag is None else f"### {tag}: {kind.__name__}"
    meanings = _docstrings(source)
    names = {
        node.target.id: node.annotation.id
        for node in source.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
    }
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for field in info.fields:
        meaning = meanings.get(field.name) or aliases.get(names.get(field.name, ""), "")
        optional = "" if field.required else ", optional"
        rows.append(f"| `{field.name}` | {_type(field.type)}{optional} | {meaning} |")
    return "\n".join([title, "", inspect.getdoc(kind) or "", "", *rows])


def _docstrings(source: ast.Module | ast.ClassDef) -> dict[str, str]:
    """Names that are given a value or a type, with the text that stands under them."""
    found = {}
    for above, below in pairwise(source.body):
        target = above.targets[0] if isinstance(above, ast.Assign) else getattr(above, "target", None)
        if (
            isinstance(target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[target.id] = " ".join(str(below.value.value).split())
    return found


def _type(kind: msgspec.inspect.Type) -> str:  # noqa: PLR0911 - one answer per kind
    """What the decoder accepts, in words."""
    match kind:
        case msgspec.inspect.Metadata():
            return _type(kind.type)
        case msgspec.inspect.IntType():
            return f"{kind.ge} to {_EXPONENTS.get(kind.le or -1, kind.le or '2^64 - 1')}"
        case msgspec.inspect.BoolType():
            return "boolean"
        case msgspec.inspect.StrType():
            return f"text, {kind.min_length} to {kind.max_length} bytes"
        case msgspec.inspect.BytesType(min_length=least, max_length=most):
            return (
                "bytes" if most is None else f"{most} bytes" if least == most else f"{least} to {most} bytes"
            )
        case msgspec.inspect.VarTupleType():
            return f"array ({_type(kind.item_type)})"
        case msgspec.inspect.StructType():
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
        case msgspec.inspect.UnionType():
            return " or ".join(_type(each) for each in kind.types)
        case msgspec.inspect.NoneType():
            return "nil"
    raise TypeError(f"a field of a kind that has no words yet: {kind}")


def updated(document: str) -> str | None:
    """The document with the tables of now; None if it has no place for them."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return None
    return f"{before}{BEGIN}\n\n{frame_table()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write, print or check; the exit code."""
    document = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    wanted = updated(document)
    if "--check" in arguments:
        if wanted == document:
            return 0
        if wanted is None:
            print(
                f"{DOCUMENT.name}: no place for the frame tables between {BEGIN} and {END}", file=sys.stderr
            )
            return 1
        print(
            f"{DOCUMENT.name}: the frame tables are not up to date; run tools/frame_tables.py",
            file=sys.stderr,
        )
        return 1
    if wanted is None:
        print(frame_table())
    elif wanted != document:
        DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

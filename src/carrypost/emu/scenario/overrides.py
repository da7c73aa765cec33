"""Single values of a scenario changed from outside (``--set workload.0.lifetime_s=600``), and TOML written again.

Overrides go into the parsed tables before anything is checked, so they obey the same rules. The writer knows what a
scenario can hold: texts, numbers, flags, lists, tables and lists of tables.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from carrypost.errors import ConfigError


def applied(content: dict[str, Any], overrides: Sequence[str] | Mapping[str, object]) -> list[str]:
    """Put the overrides into the tables; the keys that were set."""
    pairs = list(overrides.items()) if isinstance(overrides, Mapping) else [_pair(each) for each in overrides]
    for key, value in pairs:
        _put(content, key, value)
    return [key for key, _ in pairs]


def toml(content: Mapping[str, Any]) -> str:
    """The tables as TOML."""
    return "\n".join(_lines(content, "")).strip() + "\n"


def _pair(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes KEY=VALUE, as in workload.0.lifetime_s=600, not {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()  # Text need not be quoted.


def _put(content: dict[str, Any], key: str, value: object) -> None:
    *path, last = key.split(".")
    place: Any = content
    for depth, name in enumerate(path):
        place = _inside(place, name, key, ".".join(path[:depth]))
    if isinstance(place, list):
        place[_index(place, last, key, ".".join(path))] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise ConfigError(f"--set {key}: {'.'.join(path)} is a value, not a table")


def _inside(place: object, name: str, key: str, where: str) -> object:
    if isinstance(place, list):
        return place[_index(place, name, key, where)]
    if isinstance(place, dict):
        return place.setdefault(name, {})
    raise ConfigError(f"--set {key}: {where} is a value, not a table")


def _index(rows: list[Any], name: str, key: str, where: str) -> int:
    if not name.isdecimal() or int(name) >= len(rows):
        raise ConfigError(f"--set {key}: {where} is a list of {len(rows)}, counted from 0; there is no {where}.{name}")
    return int(name)


def _lines(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in table.items():
        if not isinstance(value, Mapping) and not _tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        name = prefix + _key(key)
        if isinstance(value, Mapping):
            yield from ("", f"[{name}]", *_lines(value, f"{name}."))
        elif _tables(value):
            for each in value:
                yield from ("", f"[[{name}]]", *_lines(each, f"{name}."))


def _tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _key(key: str) -> str:
    bare = key and all(each.isascii() and (each.isalnum() or each in "-_") for each in key)
    return key if bare else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_value(each)}' for key, each in value.items())}}}"
    return str(value)

"""Values that go between a program and its node, as bytes and back: commands, answers, news and errors.

Commands are one tagged union. An answer has the type that its command names, and `provider.News` has the types of news,
so a new one needs nothing here. A descriptor goes as its author signed it (`Descriptor.wire`): decoding and encoding it
anew would lose what a later version says in it. An opened one takes its key along. Bytes that are no such value raise a
`LocalError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import GenericAlias, NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from carrypost import errors
from carrypost.errors import JMSException, LocalError
from carrypost.jms.provider import News, NodeInfo, Perform
from carrypost.log.events import Handed
from carrypost.messaging import commands
from carrypost.messaging.commands import Command
from carrypost.model import descriptor as descriptors
from carrypost.model.descriptor import Descriptor
from carrypost.security.hpke import KEY_BYTES
from carrypost.security.sealing import opened, seal_of

_OPENED = b"\xff"
"""First byte of an opened descriptor; others begin with the length of a signature."""
_encode = msgspec.msgpack.Encoder().encode


class _Form(NamedTuple):
    """Form in which values of one type travel: as values of another type, made by `pack`. None: as they are."""

    kind: Any
    pack: Callable[[Any], Any] | None = None
    unpack: Callable[[Any], Any] | None = None


def pack_descriptor(descriptor: Descriptor) -> bytes:
    """Return a descriptor as it goes over the socket; an opened one takes the key of its content along."""
    unsealed = descriptor.unsealed
    if unsealed is None:
        return descriptor.wire
    circle = unsealed.circle.encode()
    return b"".join((_OPENED, bytes([len(circle)]), circle, unsealed.key, descriptor.wire))


def unpack_descriptor(data: bytes) -> Descriptor:
    """Return the descriptor that `pack_descriptor` was given; raises `RemoteError`."""
    if data[:1] != _OPENED:
        return descriptors.decode(data)
    end = 2 + data[1]
    circle, key, wire = data[2:end].decode(), data[end : end + KEY_BYTES], data[end + KEY_BYTES :]
    sealed = descriptors.decode(wire)
    return opened(sealed, seal_of(sealed), key, circle=circle)[0]


def _same(value: Any) -> Any:  # noqa: ANN401 - any value
    return value


def _form(kind: Any) -> _Form:  # noqa: ANN401 - any type
    """Return how values of this type travel: those without a descriptor in them as they are."""
    origin, inner = get_origin(kind), get_args(kind)
    form = _Form(kind)
    if kind is Descriptor:
        form = _Form(bytes, pack_descriptor, unpack_descriptor)
    elif origin in {Union, UnionType} and len(inner) == 2 and NoneType in inner:  # noqa: PLR2004 - it, or None
        of, pack, unpack = _form(inner[0])
        form = _Form(of | None, pack and _unless_none(pack), unpack and _unless_none(unpack))
    elif origin is tuple and Ellipsis in inner:
        form = _many(_form(inner[0]))
    elif origin is tuple:
        form = _fields([_form(each) for each in inner], tuple, _same)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints, names = get_type_hints(kind, include_extras=True), kind.__struct_fields__
        read = attrgetter(*names) if len(names) > 1 else _same
        form = _fields([_form(hints[name]) for name in names], lambda parts: kind(*parts), read)
    return form if form.pack is not None else _Form(kind)


def _unless_none(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else change(value)


def _each(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: tuple([change(each) for each in values])


def _many(form: _Form) -> _Form:
    """Return the form of a tuple of any length, of values of one form."""
    of, pack, unpack = form
    return _Form(GenericAlias(tuple, (of, ...)), pack and _each(pack), unpack and _each(unpack))


def _fields(forms: list[_Form], make: Callable[[list[Any]], Any], read: Callable[[Any], Any]) -> _Form:
    """Return the form of what has a fixed number of parts, if one of them travels in another form."""
    kinds = GenericAlias(tuple, tuple(each.kind for each in forms))
    if all(each.pack is None for each in forms):
        return _Form(kinds)
    packs = [(at, each.pack) for at, each in enumerate(forms) if each.pack is not None]
    unpacks = [(at, each.unpack) for at, each in enumerate(forms) if each.unpack is not None]

    def pack(value: Any) -> list[Any]:  # noqa: ANN401 - a value of the type
        parts = list(read(value))
        for at, change in packs:
            parts[at] = change(parts[at])
        return parts

    def unpack(given: tuple[Any, ...]) -> Any:  # noqa: ANN401 - likewise
        parts = list(given)
        for at, change in unpacks:
            parts[at] = change(parts[at])
        return make(parts)

    return _Form(kinds, pack, unpack)


def _codec(form: _Form) -> tuple[Callable[[Any], bytes], Callable[[Any], Any]]:
    """Return what encodes values of a form, and what decodes them."""
    decode, pack, unpack = msgspec.msgpack.Decoder(form.kind).decode, form.pack, form.unpack

    def decoded(data: bytes) -> Any:  # noqa: ANN401 - a value of the type
        try:
            value = decode(data)
            return value if unpack is None else unpack(value)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, errors.RemoteError) as error:
            raise LocalError(f"not understood: {error}") from None

    return _encode if pack is None else lambda value: _encode(pack(value)), decoded


class Codec:
    """Encoder and decoder of the values of one type."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - any type
        self.encode, self.decode = _codec(_form(kind))


def _answer_to(command: type[Command[Any]]) -> Any:  # noqa: ANN401 - any type
    """Return the type of the answers to a command; to `Perform`, of the descriptors of its messages."""
    (base,) = command.__orig_bases__  # type: ignore[attr-defined]  # as every generic class has
    return get_args(base)[0]


COMMANDS: Mapping[str, type[Command[Any]]] = {
    str(each.__struct_config__.tag): each
    for each in [Perform, *vars(commands).values()]
    if isinstance(each, type) and issubclass(each, Command) and each.__struct_config__.tag
}
"""Commands by their tags."""
ANSWERS = {each: Codec(_answer_to(each)) for each in COMMANDS.values()}
MESSAGES = "Handed"
"""Name of messages that are handed over, each with its body, or None."""
NEWS = {each.__name__: Codec(GenericAlias(tuple, (each, ...))) for each in get_args(News)} | {
    MESSAGES: Codec(tuple[tuple[Handed, bytes | None], ...])
}
"""News of a node for a program, by the names of their classes: those of one name that follow each other go together."""
encode_command: Callable[[Command[Any]], bytes] = _encode
_decode_command = _codec(_Form(Union[tuple(COMMANDS.values())]))[1]  # noqa: UP007 - of classes that are in a list
encode_node_info, decode_node_info = _codec(_form(NodeInfo))


def decode_command(data: bytes) -> Command[Any]:
    """Return a command of a program; raises `JMSException` for other bytes, as a command of a later version."""
    try:
        return _decode_command(data)  # type: ignore[no-any-return]  # one of them
    except LocalError as error:
        raise JMSException(f"the command is {error}: use the same version of carrypost for program and node") from None

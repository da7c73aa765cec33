"""Names in Java's spelling: programs that use them get an `AttributeError` that has the name here."""
# A `__getattr__` in a class would find such names, too. But in Python 3.11 every attribute of a
# class that has one, existing or not, is looked up by a slower path. Class attributes that raise
# cost nothing, unless they are used.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

_ACRONYMS = {"id": "ID", "jms": "JMS", "jmsx": "JMSX", "utf": "UTF"}
"""Words that JMS writes in capitals."""


class JavaName:
    """A name in Java's spelling: to use it raises an `AttributeError` that has the name here."""

    __slots__ = ("_java", "_ours")

    def __init__(self, java: str, ours: str) -> None:
        self._java, self._ours = java, ours

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__!r} has no attribute {self._java!r}: in Python, use {self._ours}",
            name=self._java,
            obj=owner if instance is None else instance,
        )


class JavaNamed:
    """A base of public classes: their names in Java's spelling raise an error that has the name here."""

    __slots__ = ()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        members = {name: member for name, member in vars(cls).items() if not name.startswith("_")}
        for name, member in members.items():
            add_java_names(cls, dict(_java_names(name, member, members)))

    def __dir__(self) -> Iterable[str]:
        return [each for each in super().__dir__() if not is_java_name(type(self), each)]


def add_java_names(kind: type, names: Mapping[str, str]) -> None:
    """Let names in Java's spelling, which have these names here, raise an error that says so."""
    for java, ours in names.items():
        if java not in vars(kind):
            setattr(kind, java, JavaName(java, ours))


def is_java_name(kind: type, name: str) -> bool:
    """Return True if a class has this name only to raise an error."""
    return isinstance(next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None), JavaName)


def _java_names(name: str, member: object, members: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the names that Java has for a method or an attribute, and how it is used here."""
    if not name.islower():
        return  # A constant, which has the same name in Java.
    for java in _camel_cases(name):
        if callable(member) or isinstance(member, staticmethod | classmethod):
            if java != name:
                yield java, f"{name}(…)"
            continue
        for prefix in ("get", "is") if f"set_{name}" in members else ("get", "is", "set"):
            yield f"{prefix}{java[0].upper()}{java[1:]}", f"the attribute {name}"


def _camel_cases(name: str) -> set[str]:
    """Return a name in Java's spelling, with acronyms in capitals and without."""
    first, *others = name.split("_")
    capital = "".join(_ACRONYMS.get(each, each.capitalize()) for each in others)
    return {first + "".join(each.capitalize() for each in others), _ACRONYMS.get(first, first) + capital}

"""A message selector, compiled for matching messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from carrypost.model.selector import evaluation, syntax
from carrypost.model.selector.evaluation import Properties
from carrypost.model.selector.syntax import parse
from carrypost.model.selector.tokens import BOUND, END, NAME, NAMES, STRING, TYPE, Fault, shortened, tokens
from carrypost.model.selector.tree import Node, weight

_WHITESPACE: Final = " \t\f\r\n"


class Selector:
    """A condition on the header fields and properties of a message.

    ``Selector("price > 3 AND colour LIKE 'r%'")`` parses and checks the text; what may not be used raises
    `InvalidSelectorException`, whose message says where the text goes wrong and what is expected there. A blank text is
    no condition: it matches everything. Selectors are equal if their normal forms are, which `str` gives and which
    parse back to an equal selector (unless they are longer than `TEXT_MAX`, to which only texts near it can grow).
    """

    __slots__ = ("_condition", "_normal_form", "text", "weight")

    def __init__(self, text: str) -> None:
        self.text: Final = text
        """The text as given."""
        try:
            tree = _parsed(text)
        except Fault as fault:
            raise fault.exception(text) from None
        self.weight: Final = 0 if tree is None else weight(tree)
        """Largest number of steps of an evaluation."""
        if self.weight > syntax.STEPS_MAX:
            reason = f"an evaluation could take {self.weight:,} steps; {syntax.STEPS_MAX:,} are allowed"
            raise Fault(None, f"{reason}; LIKE with '_' between two '%' costs most", BOUND).exception(text)
        self._condition: Final = evaluation.everything if tree is None else evaluation.condition(tree)
        self._normal_form: str | None = None

    def matches(self, properties: Properties) -> bool:
        """Return True if a message with these properties is selected; unknown is not. Never raises."""
        return self._condition(properties) is True

    def evaluate(self, properties: Properties) -> bool | None:
        """Return True, False, or None for unknown; never raises."""
        return self._condition(properties)

    @property
    def equality(self) -> tuple[str, str] | None:
        """The identifier and the text of a selector ``IDENTIFIER = 'text'``; None for any other."""
        kinds, values, _ = zip(*tokens(self.text), strict=True)
        return (values[0], values[2]) if kinds == (NAME, "=", STRING, END) else None

    def refuse(self, refused: Callable[[str], bool], reason: str) -> None:
        """Raise `InvalidSelectorException` at the first identifier that is refused; `reason` follows its name."""
        for kind, name, at in tokens(self.text):
            if kind == NAME and refused(name):
                raise Fault(at, f"{shortened(name)} {reason}", NAMES).exception(self.text)

    def __str__(self) -> str:
        if self._normal_form is None:
            tree = _parsed(self.text)  # Read again: a tree takes as much memory as all the rest, and few are printed.
            self._normal_form = "" if tree is None else syntax.printed(tree)
        return self._normal_form

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Selector) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type[Selector], tuple[str]]:
        return Selector, (self.text,)  # Closures cannot be copied; the text says everything.


def _parsed(text: str) -> Node | None:
    if not isinstance(text, str):
        raise Fault(None, f"a selector must be a str, not {type(text).__name__}", TYPE)
    if len(text) > syntax.TEXT_MAX:
        raise Fault(None, f"a text of {len(text):,} characters; {syntax.TEXT_MAX:,} are allowed", BOUND)
    return parse(text) if text.strip(_WHITESPACE) else None

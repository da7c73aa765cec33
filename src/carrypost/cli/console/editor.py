"""Lines of a terminal by prompt_toolkit: edited, coloured, completed by Tab, and remembered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style

from carrypost.cli import _output
from carrypost.cli.console.words import PROMPT, REPEATED, WORDS
from carrypost.errors import CarrypostError

Names = Callable[[str], Awaitable[list[str]]]
"""Returns the topics, or the queues, that are known."""
_STYLE = Style.from_dict({"prompt": "bold ansigreen", "word": "bold ansicyan", "comment": "ansibrightblack"})


class Editor:
    """A terminal on which lines are edited."""

    def __init__(self, history: Path, names: Names) -> None:
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", PROMPT)], history=_history(history), completer=_Names(names), lexer=_Colours(),
            style=_STYLE, auto_suggest=AutoSuggestFromHistory(), complete_while_typing=False,
        )  # fmt: skip

    def say(self, text: str, *, head: str = "", fg: str | None = None) -> None:
        """Print a line above the one that is typed."""
        typer.echo(_output.styled(head, dim=True) + _output.styled(text, fg=fg))

    async def line(self) -> str | None:
        """Return the next line, or several that were pasted; None after Ctrl-D, and "" after Ctrl-C."""
        try:
            with patch_stdout(raw=True):  # What is printed meanwhile stands above the line.
                return await self._session.prompt_async(handle_sigint=False)
        except EOFError:
            return None
        except KeyboardInterrupt:
            return ""


def _history(path: Path) -> History:
    """Return what was typed before, of which only this user learns; without a place for it, an empty one."""
    with suppress(OSError):
        path.touch(mode=0o600)
        path.read_bytes()
        return FileHistory(str(path))
    return InMemoryHistory()


class _Names(Completer):
    """Completes words, options, topics and queues."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def get_completions(self, _document: Document, _event: CompleteEvent) -> Iterable[Completion]:
        """Return nothing: completions are asked for in the loop."""
        return ()

    async def get_completions_async(
        self, document: Document, _event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield what may stand at the end of the line."""
        text = document.text_before_cursor
        kind, found = candidates(text)
        if kind:
            with suppress(CarrypostError, TimeoutError):
                found = await self._names(kind)
        typed = text.split(" ")[-1]
        for each in found:
            if each.startswith(typed):
                yield Completion(each, -len(typed))


class _Colours(Lexer):
    """Shows words and comments in colours."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """Return the styles of each line."""

        def styles(number: int) -> StyleAndTextTuples:
            line = document.lines[number]
            if line.lstrip().startswith("//"):
                return [("class:comment", line)]
            head, space, rest = line.partition(" ")
            return [("class:word" if head in WORDS else "", head), ("", space + rest)]

        return styles


def candidates(text: str) -> tuple[str, list[str]]:
    """Return what may follow a beginning of a line: a kind of names, ``topic`` or ``queue`` or none, and texts."""
    name, *rest = text.lstrip().removeprefix(PROMPT).split(" ")
    word = WORDS.get(name)
    if not rest:
        return "", list(WORDS)
    if word is None:
        return "", []
    before = rest[-2] if len(rest) > 1 else ""
    if before in word.options:
        return {"-t": "topic", "-q": "queue"}.get(before, ""), []
    left = [each for each in word.options if each not in rest or each in REPEATED]
    return "", list(WORDS) if name == "help" else left

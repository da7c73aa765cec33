"""The console: figure 6 of the JOMS paper, word for word, with and without a terminal, and errors of lines."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from tests.support.shells import Shell, Terminal

from carrypost.cli.app import app
from carrypost.cli.console import words
from carrypost.cli.console.editor import candidates
from carrypost.cli.console.words import help_
from carrypost.errors import LocalError

HOST_1 = """\
// Publish a message named “firstMSG” with payload “Hello”
// and selector “language=English” to “ChatRoom1”
% pub -t ChatRoom1 -id firstMSG -p Hello -ssl language=English
"""
HOST_2 = """\
// Subscribe to the topic “ChatRoom1” to receive messages
// with properties “language=English or French”
% sub -t ChatRoom1 -ssl language=English|French
"""
RECEIVED = "You have received a new message with the content: "


@pytest.fixture
def terminals() -> Iterator[Callable[..., Terminal]]:
    """Opens consoles on terminals of this test."""
    opened: list[Terminal] = []

    def open_(*arguments: str, columns: int = 80, plain: bool = False) -> Terminal:
        def without() -> None:
            sys.modules["prompt_toolkit"] = None  # type: ignore[assignment]  # as if it were not installed

        opened.append(Terminal("console", *arguments, columns=columns, before=without if plain else lambda: None))
        opened[-1].process.expect_exact("Ctrl-D leaves")
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture(scope="module")
def noded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell beside a node that runs, for all tests: each has topics and queues of its own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = Shell(tmp_path_factory.mktemp("noded"), monkeypatch)
        made.copied_node()
        yield made
        made.clean_up()


def scripted(shell: Shell, text: str) -> tuple[int, list[str], str]:
    """Run a script; return its exit code, its lines and its stderr."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        file.write(text)
    code, out, err = shell.beside("console", "-d", str(shell.data), stdin=reading).ended()
    os.close(reading)
    return code, out.splitlines(), err


# --- figure 6 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 140])
def test_figure_6_pasted_on_two_nodes_gives_its_answers_to_the_letter(
    noded: Shell, tmp_path: Path, terminals: Callable[..., Terminal], columns: int
) -> None:
    topic = f"ChatRoom{columns}"
    host_1 = terminals("-d", str(noded.data), columns=columns)
    # Without a node, the console runs one.
    host_2 = terminals("-d", str(tmp_path / "second"), "--create", columns=columns)
    host_2.type(HOST_2.replace("ChatRoom1", topic))
    host_2.see("Waiting ....")
    paste = HOST_1.replace("ChatRoom1", topic)
    host_1.type(f"\x1b[200~{paste}\x1b[201~\r" if columns == 80 else paste)  # As terminals mark what is pasted, or not.
    host_1.see("The Message has been published")
    host_2.see(f"{RECEIVED}Hello")
    host_2.type("peers\r")
    host_2.process.expect("linked")
    host_1.type("\x04")
    host_2.type("exit\r")
    assert (host_1.ended()[0], host_2.ended()[0]) == (0, 0)


def test_figure_6_in_scripts_and_on_plain_lines(noded: Shell, terminals: Callable[..., Terminal]) -> None:
    """Without prompt_toolkit a terminal has plain lines; without a terminal a script waits for counted messages."""
    reader = terminals("-d", str(noded.data), plain=True)
    for line in HOST_2.splitlines():
        reader.process.expect_exact("% ")
        reader.type(f"{line}\r")
    reader.see("Waiting ....")
    assert scripted(noded, HOST_1) == (0, ["The Message has been published"], "")
    reader.see(f"{RECEIVED}Hello")
    reader.type("\x03unsub -t topic/ChatRoom1\r")  # The same topic, in full.
    reader.see("The subscription has been ended")
    reader.type("\x04")
    assert reader.ended()[0] == 0
    again = (
        HOST_2.replace("\n% sub", "\nsub").rstrip()
        + " -count 1 -for 30\npub -t ChatRoom1 -p Salut -ssl language=French\n"
    )
    code, lines, err = scripted(noded, again)
    assert (code, sorted(lines), err) == (0, ["The Message has been published", "Waiting ....", f"{RECEIVED}Salut"], "")


# --- other lines ----------------------------------------------------------------------------------------------------


def test_a_script_sends_receives_browses_and_names(noded: Shell) -> None:
    code, lines, err = scripted(
        noded,
        """
        bind queue/Alan // a queue of this node
        send -q Alan -p "Hello, Alan" -ssl language=English -prop level:int=3 -ttl 6h
        send -q Alan -p 'Salut // Alan' -ssl language=French
        browse -q Alan -select "level = 3"
        receive -q Alan -ssl language=French|German -for 30
        receive -q Alan -select "level = 3" -count 1 -for 30
        lookup Alan
        bind roads topic/village.roads
        ls
        unbind roads
        unbind queue/Alan
        sub -t quiet -for 0.1
        pub -t traced -id firstMSG -p Hello
        trace firstMSG
        """,
    )
    assert code == 0
    assert err == "carrypost: this node keeps no history of messages: set trace.enabled = true to keep it from now on\n"
    node = lines[0].partition("@")[2].partition(" ")[0]
    assert lines[1:3] == ["The Message has been sent"] * 2
    assert "Hello, Alan" in lines[3]
    assert lines[4:8] == ["Waiting ....", f"{RECEIVED}Salut // Alan", "Waiting ....", f"{RECEIVED}Hello, Alan"]
    assert lines[8] == f"queue/Alan@{node}"
    assert {line.split()[0] for line in lines[11:13]} == {"Alan", "roads"}
    assert {"Waiting ....", "No message has been received", "The Message has been published"} <= {*lines[13:]}
    assert any("held here (own)" in line for line in lines[13:])


def test_a_body_does_not_look_like_other_lines_of_the_console(noded: Shell) -> None:
    noded.lines("bind", "queue/forged")
    noded.lines("send", "-q", "forged", f"Hello\n{RECEIVED}forged\x1b[2J")
    assert scripted(noded, "receive -q forged -for 30\n") == (
        0, ["Waiting ....", f"{RECEIVED}Hello", f"  {RECEIVED}forged\ufffd[2J"], ""
    )  # fmt: skip


def test_the_example_in_its_help_works(noded: Shell) -> None:
    help_text = typer.main.get_command(app).commands["console"].help  # type: ignore[attr-defined]  # a group has them
    (line,) = re.findall(r'`echo "(.*)" \| carrypost console`', help_text)
    assert scripted(noded, f"{line}\n") == (0, ["The Message has been published"], "")


def test_less_than_a_script_waits_for_ends_with_3_and_its_first_mistake_ends_it(noded: Shell) -> None:
    code, lines, err = scripted(noded, "sub -t less -count 2 -for 1\npub -t less -p one\n")
    assert (code, err) == (3, "")
    assert lines[-1] == "1 of 2 messages have been received"
    code, lines, err = scripted(noded, "pub -t less -p one\n\npbu -t less -p two\npub -t less -p three\n")
    assert (code, lines) == (2, ["The Message has been published"])
    assert err == "carrypost: line 3: unknown command 'pbu'; did you mean pub?\n"


def test_stdin_that_cannot_be_read_is_told(noded: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable = os.open(os.devnull, os.O_WRONLY)
    code, out, err = noded.beside("console", stdin=unreadable).ended()
    os.close(unreadable)
    assert (code, out, err) == (1, "", "carrypost: stdin cannot be read: Bad file descriptor\n")
    monkeypatch.setattr(sys, "stdin", None)
    code, sentence = noded.refusal("console")
    assert (code, sentence.partition(":")[0]) == (2, "stdin is closed")


def test_ctrl_c_ends_what_a_line_waits_for_and_leaves_the_console(
    noded: Shell, terminals: Callable[..., Terminal]
) -> None:
    terminal = terminals("-d", str(noded.data))
    terminal.type("bind queue/Waiting\r")
    terminal.type("receive -q Waiting\r")
    terminal.see("Waiting ....")
    terminal.type("\x03")
    terminal.type("pbu -t x")
    terminal.type("\x03")
    terminal.type('send -q Waiting -p "not lost\r')
    terminal.process.expect("is not closed")
    terminal.type('send -q Waiting -p "not lost"\r')
    terminal.see("The Message has been sent")
    terminal.type("bro\t")
    terminal.process.expect("wse")
    terminal.type(" -q Wai\t")
    terminal.process.expect("ting")
    terminal.type("\r")
    terminal.process.expect("not lost")
    terminal.type("receive -q Waiting -for 30\r")
    terminal.see(f"{RECEIVED}not lost")
    terminal.type("send -q Waitin -p x\r")
    terminal.process.expect("near it: 'Waiting'")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.ended()[0] == 143
    history = noded.data / "console.history"
    assert "not lost" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_script_ends_by_ctrl_c_and_a_console_with_its_node(shell: Shell, terminals: Callable[..., Terminal]) -> None:
    node = shell.copied_node()
    reading, writing = os.pipe()  # Nothing more comes, and it does not end.
    script = shell.beside("console", stdin=reading)
    os.write(writing, b"sub -t x -count 1\n")
    assert script.out.readline() == "Waiting ....\n"
    assert script.end(signal.SIGINT) == (130, "", "")
    os.close(reading)
    os.close(writing)
    terminal = terminals()
    terminal.type("sub -t x\r")
    terminal.see("Waiting ....")
    assert node.end() == (0, "", "")
    code, shown = terminal.ended()
    assert (code, "the node has ended; start one with: carrypost node" in shown) == (4, True), shown


# --- the grammar ----------------------------------------------------------------------------------------------------

MISTAKES = {
    "pbu -t x": "did you mean pub?",
    "xyzzy": "help lists them",
    "pub -t x": "pub needs -p",
    "pub -p x": "pub needs -t",
    "pub -t x -p": "-p needs a value",
    "pub -t -p x": "-t needs a value",
    "pub -t x -t y -p z": "-t was given twice",
    "pub -t x -p Hello there": "quote values that contain spaces",
    "sub -t x -cuont 3": "did you mean -count?",
    "send -q x -count 3": "send has no option -count",
    'pub -t x -p "Hello': 'the quote " at character 13 is not closed',
    "pub -t x -p it's": "the quote ' at character 15 is not closed",
    "bind": "bind needs NAME",
    "ls a b": "unexpected argument 'b'",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_line_that_is_wrong_is_told_why(line: str) -> None:
    with pytest.raises(LocalError, match=re.escape(MISTAKES[line])):
        words.parse(line)


def test_a_very_long_line_is_read_quickly() -> None:
    long = "x" * 1_000_000
    begun_s = time.process_time()
    for body in (long, f'"{long}"'):
        line = words.parse(f"pub -t x -p {body}")
        assert line is not None
        assert line.options["-p"] == long
    assert time.process_time() - begun_s < 5


def test_lines_keep_quoted_texts_together_and_leave_comments_out() -> None:
    assert words.parse("  // nothing") is None
    assert words.parse("% ") is None
    line = words.parse(
        r"""% pub -t http://x -p "it's \"me\" \\ // no comment" -ssl a=1 -ssl "b=2 3" -id '' // a comment"""
    )
    assert line is not None
    assert line.options == {"-t": "http://x", "-p": 'it\'s "me" \\ // no comment', "-id": ""}
    assert line.repeated == {"-ssl": ["a=1", "b=2 3"]}
    quoted = words.parse("pub -t x -p '-t'")
    assert quoted is not None
    assert quoted.options["-p"] == "-t"
    negative = words.parse("pub -t x -p -5")
    assert negative is not None
    assert negative.options["-p"] == "-5"


@pytest.mark.parametrize("name", [None, *words.WORDS])
def test_help_fits_a_terminal_and_its_examples_are_lines(name: str | None) -> None:
    lines = help_(name)
    assert max(map(len, lines)) <= 80
    if name is not None:
        assert words.parse(lines[-1].removeprefix("For example: ")) is not None


def test_what_may_follow_is_offered() -> None:
    assert candidates("pu") == ("", list(words.WORDS))
    assert candidates("% pub -t ")[0] == "topic"
    assert candidates("receive -q Al")[0] == "queue"
    assert candidates("receive -q Alan -") == ("", ["-ssl", "-select", "-count", "-for"])
    assert candidates("help ") == ("", list(words.WORDS))
    assert candidates("xyzzy -t ") == ("", [])

"""The examples that people use: they do what they announce, and end in order."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
CHAT = EXAMPLES / "chat.py"
README = Path(__file__).parents[2] / "README.md"


def loopback() -> dict[str, str]:
    return os.environ | {f"CARRYPOST_UDP_{name.upper()}": json.dumps(value) for name, value in apart().items()}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_chat_ends_at_once_and_in_order(tmp_path: Path, sent: signal.Signals) -> None:
    ours, theirs = pty.openpty()  # Somebody sits there, and types nothing.
    with subprocess.Popen(  # noqa: S603 - our own
        [sys.executable, str(CHAT), "anna"], cwd=tmp_path, stdin=theirs, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env=loopback(),
    ) as chat:  # fmt: skip
        try:
            assert chat.stderr is not None
            assert b"anna is here as" in chat.stderr.readline()
            chat.send_signal(sent)
            assert (chat.wait(PATIENCE_S), chat.stderr.read()) == (0, b"")
        finally:
            chat.kill()
            os.close(theirs)
            os.close(ours)


def test_the_program_of_the_readme_meets_itself_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    (source,) = re.findall(
        r"^```\n(import sys\n.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "first.py").write_text(source)
    env, pipe = loopback() | {"PYTHONUNBUFFERED": "1"}, subprocess.PIPE
    with ExitStack() as stack:
        waits, sends = (
            stack.enter_context(
                subprocess.Popen([sys.executable, "first.py", name], cwd=tmp_path, stdout=pipe, stderr=pipe, env=env)  # noqa: S603 - our own
            )
            for name in ("wait", "send")
        )
        stack.callback(waits.kill)
        stack.callback(sends.kill)
        assert waits.stdout is not None
        assert waits.stdout.readline() == b"The bridge is closed.\n"
        assert (sends.wait(PATIENCE_S), *sends.communicate()) == (0, b"", b"")
        waits.send_signal(signal.SIGINT)
        assert (waits.wait(PATIENCE_S), *waits.communicate()) == (0, b"", b"")


def test_a_web_server_with_threads_sends_what_is_posted_and_shows_it(tmp_path: Path) -> None:
    with subprocess.Popen(  # noqa: S603 - our own
        [sys.executable, str(EXAMPLES / "web_form.py"), "0"], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=loopback(), text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            url = server.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            for note in ("The bridge is closed.", "<Apples>"):
                with urlopen(url, data=note.encode(), timeout=PATIENCE_S) as answer:  # noqa: S310 - our own
                    assert (answer.status, answer.read().startswith(b"STORED ID:")) == (202, True)
            until = time.monotonic() + PATIENCE_S
            while b"&lt;Apples&gt;</li><li>The bridge" not in (page := urlopen(url, timeout=PATIENCE_S).read()):  # noqa: S310 - our own
                assert time.monotonic() < until, page
                time.sleep(0.05)
            server.send_signal(signal.SIGINT)
            assert (server.wait(PATIENCE_S), server.stdout.read(), server.stderr.read()) == (0, "closed\n", "")
        finally:
            server.kill()

"""The example that people type into: how it ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.loopback import apart
from tests.nodes import PATIENCE_S

CHAT = Path(__file__).parent.parent / "examples" / "chat.py"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_chat_ends_at_once_and_in_order(tmp_path: Path, sent: signal.Signals) -> None:
    udp = {f"CARRYPOST_UDP_{name.upper()}": json.dumps(value) for name, value in apart().items()}
    ours, theirs = pty.openpty()  # Somebody sits there, and types nothing.
    with subprocess.Popen(  # noqa: S603 - our own
        [sys.executable, str(CHAT), "anna"], cwd=tmp_path, stdin=theirs, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env=os.environ | udp,
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

"""A threaded web server that sends posted notes to a topic, and shows the notes of others.

``python examples/web_form.py`` serves http://127.0.0.1:8000/ and keeps its node in the folder ``web-form``. Start a
second one in another folder, ``python ../examples/web_form.py 8001``: each shows the notes posted to the
other. Posting without a browser: ``curl -d "The bridge is closed." http://127.0.0.1:8000/``
"""

from __future__ import annotations

import html
import sys
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs

from carrypost.sync import ConnectionFactory, Context, Message

TOPIC = "topic/village.board"
BODY_BYTES_MAX = 4_096
PAGE = """<!doctype html><title>Board</title><h1>Board</h1>
<form method="post"><input name="text" autofocus><button>Post</button></form><ul>{notes}</ul>"""


class Board(BaseHTTPRequestHandler):
    """One request, in a thread of its own."""

    context: ClassVar[Context]
    notes: ClassVar[deque[str]] = deque(maxlen=50)

    def do_GET(self) -> None:
        """Show the board."""
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in list(self.notes))
        self._answer(200, PAGE.format(notes=notes))

    def do_POST(self) -> None:
        """Send a note. It is on the disk of this node when the answer is sent, and travels when a node is near."""
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= BODY_BYTES_MAX:
            self._answer(413, f"a note has 1 to {BODY_BYTES_MAX} bytes\n")
            return
        text = self.rfile.read(length).decode(errors="replace")
        note = parse_qs(text).get("text", [text])[0]  # The form's field, or the body that curl posts.
        sent = self.context.send(TOPIC, note, time_to_live=86_400)
        self._answer(202, f"{sent.state.name} {sent.message_id}\n")

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server has
        """Be quiet."""


def main() -> None:
    """Serve until Ctrl-C."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000
    with ConnectionFactory(data="web-form", client_id="board").create_context() as ctx:
        Board.context = ctx

        def note(message: Message) -> None:
            Board.notes.appendleft(message.get_body(str) or "")

        ctx.create_durable_consumer(TOPIC, "board").set_message_listener(note)
        with ThreadingHTTPServer(("127.0.0.1", port), Board) as server:
            print(f"http://127.0.0.1:{server.server_port}/", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("closed")

"""The command `carrypost web`: its address, its port, its end; the token is nowhere but in the printed address."""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import socket
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import psutil
import pytest
from tests.support.forked import Running, forked

ROW = '{"t":1,"kind":"join","node":"a","run":"r"}\n'


@pytest.fixture
def record(tmp_path: Path) -> Path:
    (tmp_path / "run.jsonl").write_text(ROW)
    return tmp_path / "run.jsonl"


def get(url: str, path: str, cookie: str | None = None, host: str | None = None) -> tuple[int, http.client.HTTPMessage]:
    given = {"Cookie": cookie, "Host": host}
    with closing(http.client.HTTPConnection("127.0.0.1", urlsplit(url).port or 0, timeout=30)) as connection:
        connection.request("GET", path, headers={name: value for name, value in given.items() if value is not None})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_pages_are_served_on_loopback_alone_until_a_signal(record: Path, number: int) -> None:
    running = Running(["web", str(record)])
    url = msgspec.json.decode(running.out.readline())["url"]
    token = parse_qs(urlsplit(url).query)["token"][0]
    process = psutil.Process(running.pid)
    listening = [each.laddr.ip for each in process.net_connections() if each.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]
    assert get(url, "/")[0] == 403
    status, headers = get(url, f"/?token={token}")
    assert (status, headers["Location"]) == (303, "/")
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert get(url, "/api/runs", cookie)[0] == 200
    assert get(url, "/api/runs", cookie, "evil.example")[0] == 421
    assert get(url, "/api/runs", cookie, f"localhost:{urlsplit(url).port}")[0] == 200
    assert token not in " ".join(process.cmdline())
    # A connection that stays open must not keep the command.
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)):
        begun_s = time.monotonic()
        code, _, told = running.end(number)
        took_s = time.monotonic() - begun_s
    assert (code, told) == (0, "")
    assert took_s < 10  # A second, on a machine that is not busy.


def test_a_port_that_is_taken_is_another_one_unless_it_was_given(record: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, told = forked(["web", str(record), "--port", port])
        assert (code, out, told.count("\n")) == (1, "", 1)
        assert f"cannot serve pages at 127.0.0.1:{port}" in told
    first, second = Running(["web", str(record)]), Running(["web", str(record)])
    try:
        urls = [msgspec.json.decode(each.out.readline())["url"] for each in (first, second)]
        assert len({urlsplit(url).port for url in urls}) == 2
    finally:
        for each in (first, second):
            each.end()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["none.parquet"], 2),
        (["damaged.parquet"], 1),
        (["empty"], 2),
        (["run.jsonl", "--positions", "none.csv"], 2),
        (["run.jsonl", "--scenario", "none.toml"], 2),
        (["run.jsonl", "--port", "70000"], 2),
    ],
    ids=str,
)
def test_what_cannot_be_shown_ends_in_one_sentence(
    record: Path, arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(record.parent)
    Path("damaged.parquet").write_bytes(b"PAR1 nothing PAR1")
    Path("empty").mkdir()
    found, out, told = forked(["web", *arguments])
    assert (found, out) == (code, "")
    assert "Traceback" not in told
    assert os.linesep not in told.strip() or "--port" in arguments


def test_pages_of_nodes_do_without_the_packages_of_the_emulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    missing = {"numpy", "pyarrow"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name))
    monkeypatch.setenv("CARRYPOST_NODE_DATA", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    code, _, told = forked(["web"])
    assert (code, "pip install 'carrypost[web,emu]'" in told) == (2, True)
    (tmp_path / "node").mkdir()
    running = Running(["web", "--node", "node"])
    url = msgspec.json.decode(running.out.readline())["url"]
    try:
        token = parse_qs(urlsplit(url).query)["token"][0]
        cookie = f"carrypost-{urlsplit(url).port}={token}"
        status, headers = get(url, "/", cookie)
        assert status == 303
        assert headers["Location"].startswith("/live/")
        assert get(url, headers["Location"], cookie)[0] == 200
        assert get(url, "/api/runs", cookie)[0] == 200
        assert get(url, f"/api/nodes/{headers['Location'].removeprefix('/live/')}/sample", cookie)[0] == 200
    finally:
        running.end()

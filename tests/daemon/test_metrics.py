"""The port for metrics: what a real node serves to Prometheus, the dashboard, and requests that are wrong or slow."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, QUICK, Nodes, scene, until
from tests.support.stomp_clients import free_port

from carrypost.attach.served_node import ServedNode
from carrypost.daemon import metrics_server
from carrypost.daemon.metric_families import MEANS, READINGS, exposition
from carrypost.daemon.metrics_server import CONNECTIONS_MAX, HEAD_BYTES_MAX, Server, serve
from carrypost.errors import ConfigError, NodeError
from carrypost.host.steps import Steps
from carrypost.node.settings import parse

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana.json"
GET = b"GET /metrics HTTP/1.1\r\nHost: localhost:9\r\n\r\n"
ALL_ON: dict[str, object] = {"island": True, "overlay": {"enabled": True, "broker": True}}
NOT_METRICS = {
    "pid", "carries.altruistic", "carries.horizon_hops", "carries.lifetime_s_default", "carries.lifetime_s_max",
    "recipients.messages", "recipients.left", "addresses", "udp.addresses", "udp.interfaces",
}  # fmt: skip
"""Parts of the status that are settings, say nothing over time, would take a look at every message, or have labels."""
PATHS = {each.path for each in READINGS}


class Metrics(dict[str, Metric]):
    """Parsed metrics by name."""

    @classmethod
    def parse(cls, text: bytes) -> Metrics:
        found = text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call]  # it has no types
        return cls({each.name: each for each in found})

    def value(self, name: str, **labels: str) -> float:
        (found,) = (each for each in self.samples() if each.name == name and each.labels == labels)
        return float(found.value)

    def samples(self) -> Iterator[Any]:
        for metric in self.values():
            yield from metric.samples


async def ask(port: int, request: bytes, *, hang_up: bool = False) -> tuple[str, dict[str, str], bytes]:
    """Return status line, headers and body of the answer to a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    if hang_up:
        writer.write_eof()
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    line, *headers = head.decode().split("\r\n")
    return line, dict(each.split(": ", 1) for each in headers), body


@asynccontextmanager
async def serving(folder: Path, **more: object) -> AsyncIterator[tuple[int, ServedNode]]:
    """Run a node in this process that serves its metrics."""
    port = free_port()
    given = {**QUICK, "udp": apart(), "node": {"data": str(folder)}, "metrics": {"port": port}, **more}
    served = await ServedNode.start(parse("", {}, given), stopping=asyncio.Event())
    try:
        assert await serve(served) is not None
        yield port, served
    finally:
        await served.stop()


@asynccontextmanager
async def server_of(text: bytes = b"# EOF\n") -> AsyncIterator[tuple[int, list[int]]]:
    """Serve a text as metrics; each entry of the list stands for one time that it was made."""
    made: list[int] = []

    def make() -> bytes:
        made.append(len(made))
        return text

    port = free_port()
    server = Server(port, make, "text/plain")
    await server.open()
    try:
        yield port, made
    finally:
        await server.close()


def counted(value: object, path: str = "") -> Iterator[str]:
    """Yield the paths of everything in a status that is counted: numbers, flags, lists, and mappings with a metric."""
    if isinstance(value, Mapping) and path not in PATHS:
        for name, each in value.items():
            yield from counted(each, f"{path}.{name}" if path else name)
    elif isinstance(value, int | float | list | tuple | Mapping):
        yield path


# --- metrics -----------------------------------------------------------------------------------------------------


@scene
async def test_a_real_node_serves_what_its_status_shows_to_the_parser_of_prometheus(tmp_path: Path) -> None:
    port = free_port()
    async with Nodes(tmp_path, udp=apart(), metrics={"port": port}) as nodes:
        (node,) = await nodes.start("a")
        await node.program.subscribe("roads", durable=True)
        await node.program.send("roads", b"The bridge is closed.")

        async def announced() -> bool:
            return bool((await node.client.status())["udp"]["counters"]["sent_bytes"])

        await until(announced)
        line, headers, text = await ask(port, GET)
        status = await node.client.status()
    assert (line, headers["Content-Type"]) == (
        "HTTP/1.1 200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8",
    )  # fmt: skip
    metrics = Metrics.parse(text)
    labels = {name: status[name] for name in ("node", "version", "security", "strategy")}
    assert metrics.value("carrypost_node_info", **labels) == 1
    assert metrics.value("carrypost_cache_messages") == 2  # One has the sealing key.
    assert metrics.value("carrypost_cache_bytes") == len("The bridge is closed.")
    assert metrics.value("carrypost_subscriptions_durable") == 1
    assert metrics.value("carrypost_messages_to_deliver") == 1
    assert 0 < metrics.value("carrypost_udp_sent_bytes_total") <= status["udp"]["counters"]["sent_bytes"]
    assert metrics.value("process_cpu_seconds_total") > 0
    assert not any(name.startswith("carrypost_overlay") for name in metrics)  # It is switched off.
    assert status["services"] == {"metrics": {"url": f"http://127.0.0.1:{port}/metrics"}}


@scene
async def test_everything_that_a_status_counts_is_a_metric_and_reading_it_runs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, **ALL_ON) as (_, served):
        status = served.status()
        steps = list[object]()
        monkeypatch.setattr(Steps, "step", lambda *given, **_: steps.append(given))
        metrics = Metrics.parse(exposition(served.status(quick=True)))
        monkeypatch.undo()
        assert not steps
    clients = {f"services.{each}.{what}" for each in ("stomp", "openwire") for what in ("clients", "slow")}
    others = {"store.failure", *clients}
    assert {*counted(status)} - NOT_METRICS == PATHS - others
    assert metrics.value("carrypost_overlay_broker") == 1
    for sample in metrics.samples():
        assert set(sample.labels) <= {"reason", "error", "interface", "means"} or sample.name == "carrypost_node_info"


def test_metrics_have_their_units_in_their_names_and_are_named_once() -> None:
    names = [each.name for each in (*READINGS, *MEANS)]
    assert len(names) == len(set(names))
    for path, name in ((each.path, each.name) for each in READINGS):
        ending = name.removesuffix("_total")
        assert path.endswith("bytes") == ending.endswith("bytes") or path.endswith("bytes_max"), path
        assert path.endswith(("_s", "_us")) == ending.endswith("seconds"), path


def test_values_of_every_kind_become_numbers() -> None:
    status = {
        "node": "n", "version": "1", "security": "signed", "strategy": "s", "dropped": {"evicted": 3, 'a"\n': 1},
        "store": {"failure": "disk full", "reserve": False}, "overlay": {"busy_us": 1_500_000, "brokers": ["b", "c"]},
        "udp": {"interfaces": [{"name": f"veth{n}", "means": [
            {"means": "ipv4-multicast", "usable": True, "heard": 2, "peers": 1}]} for n in range(40)]},
    }  # fmt: skip

    class Lenient(dict[str, Any]):
        def __missing__(self, _name: str) -> Any:  # noqa: ANN401 - as in a status
            return 0

    whole = Lenient({name: Lenient(each) if isinstance(each, dict) else each for name, each in status.items()})
    whole |= {"refused": {}, "udp": {**status["udp"], "counters": Lenient({"errors": {"ENETDOWN": 2}})}}  # type: ignore[dict-item]
    metrics = Metrics.parse(exposition(whole))
    assert metrics.value("carrypost_messages_dropped_total", reason="evicted") == 3
    assert metrics.value("carrypost_messages_dropped_total", reason='a"\n') == 1
    assert metrics.value("carrypost_udp_errors_total", error="ENETDOWN") == 2
    assert metrics.value("carrypost_store_failing") == 1
    assert metrics.value("carrypost_store_reserve_intact") == 0
    assert metrics.value("carrypost_overlay_modulator_seconds") == 1.5
    assert metrics.value("carrypost_overlay_brokers") == 2
    assert len(metrics["carrypost_udp_means_usable"].samples) == 32


def test_the_dashboard_shows_only_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["query"] for each in dashboard["templating"]["list"]]
    used = {name for each in asked for name in re.findall(r"\b(?:carrypost|process)_\w+", each)}
    known = {f"carrypost_{each.name}" for each in (*READINGS, *MEANS)} | {"carrypost_node_info"}
    assert len(used) > 20
    assert used - known == {"process_cpu_seconds_total", "process_resident_memory_bytes"}
    for each in asked:
        for name in re.findall(r"(?:rate|increase)\((\w+)", each):
            assert name.endswith("_total"), each
    for panel in dashboard["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


# --- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET, 200),
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", 200),
        (b"GET http://127.0.0.1/metrics HTTP/1.1\n\n", 200),
        (b"GET /metrics HTTP/1.1\r\nhost: [::1]:1\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9999\r\n\r\n" + 9_999 * b"x", 405),
        (b"GET /metrics HTTP/1.1\r\nHost: carrypost.example\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: [\r\n\r\n", 421),
        (b"GET HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\n\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + HEAD_BYTES_MAX * b"x" + b"\r\n\r\n", 431),
        (HEAD_BYTES_MAX * b"\n" + b"x", 400),
    ],
)
@scene
async def test_each_request_gets_an_answer(request_: bytes, status: int) -> None:
    async with server_of() as (port, made):
        line, headers, body = await ask(port, request_)
        assert int(line.split()[1]) == status
        assert int(headers["Content-Length"]) == len(body) > 0
        assert len(made) == (status == 200)


@scene
async def test_metrics_are_made_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_of() as (port, made):
        for _ in range(5):
            line, _, body = await ask(port, GET, hang_up=True)
            assert (line, body) == ("HTTP/1.1 200 OK", b"# EOF\n")
        line, headers, body = await ask(port, GET.replace(b"GET", b"HEAD"))
        assert (line, headers["Content-Length"], body) == ("HTTP/1.1 200 OK", "6", b"")
        assert len(made) == 1
        monkeypatch.setattr(metrics_server, "FRESH_S", 0.0)
        await ask(port, GET)
        assert len(made) == 2


@scene
async def test_clients_that_are_silent_or_do_not_read_or_do_not_end_are_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S", 0.3)
    async with server_of(64 * 1024 * 1024 * b"x") as (port, _):
        for request in (b"", b"GET", GET):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(request)
                await until(partial(asyncio.to_thread, ended, client))
    monkeypatch.setattr(metrics_server, "REQUEST_S", 600.0)
    async with server_of() as (port, _), asyncio.timeout(PATIENCE_S):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(ConnectionError):
            await endless(writer)
        writer.close()


async def endless(writer: asyncio.StreamWriter) -> None:
    """Send a request without end."""
    while True:
        writer.write(b"POST / HTTP/1.1\n\n" + 64 * 1024 * b"x")
        await writer.drain()


def ended(client: socket.socket) -> bool:
    """Return True if the other side has cut the connection off, whatever was not read."""
    client.settimeout(1.0)
    try:
        client.send(b"x")
    except ConnectionError:
        return True
    return False


@scene
async def test_of_too_many_connections_the_oldest_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S", 600.0)
    async with server_of() as (port, _):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX + 4)]
        async with asyncio.timeout(PATIENCE_S):
            for reader, _ in silent[:4]:
                assert await reader.read() == b""
            last, writer = silent[-1]
            writer.write(GET)
            assert (await last.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        for _, writer in silent:
            writer.close()


@scene
async def test_metrics_that_cannot_be_made_do_not_end_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as (port, served):
        monkeypatch.setattr(served, "status", lambda **_: {})
        line, _, body = await ask(port, GET)
        assert (line, body[:16]) == ("HTTP/1.1 500 Internal Server Error", b"the node failed:")
        assert "the metrics could not be made" in caplog.text
        monkeypatch.undo()
        assert (await ask(port, GET))[0] == "HTTP/1.1 200 OK"


# --- settings ----------------------------------------------------------------------------------------------------


@scene
async def test_a_port_in_use_and_a_missing_extra_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as (port, served):
        with pytest.raises(NodeError, match=rf"127\.0\.0\.1:{port}: Address already in use; choose another metrics\."):
            await serve(served)
        monkeypatch.delitem(sys.modules, "carrypost.daemon.metric_families")
        monkeypatch.delattr("carrypost.daemon.metric_families")
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(ConfigError, match=r"pip install 'carrypost\[metrics\]'.*or set metrics\.port = 0"):
            await serve(served)
    plain = await ServedNode.start(parse("", {}, {"udp": apart(), "node": {"data": str(tmp_path / "plain")}}))
    assert await serve(plain) is None
    await plain.stop()

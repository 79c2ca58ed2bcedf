"""The service as a process on a port, under attack: slow clients, garbage, floods; it refuses, and goes on."""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from rows_as_json import body, records, stream
from typer.testing import CliRunner, Result

from tabmoco.cli import app

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason=f"the service needs {package}, of the extra serve")

READ_SECONDS = 1.0
AS_JSON = {"content-type": "application/json"}
AS_ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


@dataclass(frozen=True)
class Service:
    process: subprocess.Popen
    told: dict
    log: Path

    @property
    def port(self) -> int:
        return int(self.told["url"].rpartition(":")[2])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def ask(self, path: str, content: bytes | None = None, headers=AS_JSON, method: str | None = None):
        """Status and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method or ("GET" if content is None else "POST"), path, content, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def figure(self, name: str) -> float:
        """A figure of `/metrics`."""
        found = re.search(rf"^{name} (\S+)$", self.ask("/metrics")[1].decode(), re.MULTILINE)
        return float(found[1])


@pytest.fixture(scope="module")
def service(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    model.save(folder / "model")
    limits = ["--read-seconds", str(READ_SECONDS), "--max-body-mb", "0.2", "--max-rows", "500"]
    command = [sys.executable, "-m", "tabmoco", "serve", str(folder / "model"), "--port", "0", "--json", *limits]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.rstrip() == "}":
            break
    try:
        yield Service(process, json.loads("".join(lines)), folder / "log")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def read_all(connection: socket.socket) -> bytes:
    """Whatever comes until the other side hangs up."""
    received = b""
    with suppress(ConnectionError):
        while piece := connection.recv(65_536):
            received += piece
    return received


def error_of(received: bytes) -> tuple[int, str]:
    head, _, content = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)["error"]


def test_it_tells_where_it_is_and_what_it_serves(service):
    assert service.told["url"].startswith("http://127.0.0.1:") and service.told["needs_token"] is False
    status, content = service.ask("/health")
    assert status == 200 and json.loads(content)["model"] == service.told["model"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /hea",
        b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
        b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n5\r\n{",
    ],
    ids=["nothing", "half a head", "half a body", "half a chunk"],
)
def test_clients_that_send_too_slowly_are_let_go(service, sent):
    start = time.monotonic()
    with service.connect() as connection:
        connection.sendall(sent)
        received = read_all(connection)
    assert error_of(received) == (408, "the whole request must come within 1 seconds.")
    assert READ_SECONDS * 0.9 < time.monotonic() - start < READ_SECONDS + 10


def test_a_drop_now_and_then_does_not_keep_a_connection(service):
    head = b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n"
    start = time.monotonic()
    with service.connect() as connection:
        connection.sendall(head)
        with suppress(ConnectionError):
            while time.monotonic() - start < 15:
                connection.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() - start < READ_SECONDS + 10


@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 200,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x99" * 200,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100_000,
        b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-length: minus\r\n\r\n",
        b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["zeros", "TLS", "HTTP 9", "no host", "long header", "bad length", "bad chunk"],
)
def test_what_is_no_http_is_refused(service, sent):
    with service.connect() as connection:
        connection.sendall(sent)
        received = read_all(connection)
    assert received == b"" or error_of(received)[0] in (400, 403, 415), received
    assert service.ask("/health")[0] == 200


def test_a_body_that_is_too_large_is_refused_whether_or_not_its_size_is_told(service):
    with service.connect() as connection:
        connection.sendall(
            b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 99999999999\r\n\r\n"
        )
        assert b"413" in connection.recv(65_536).splitlines()[0]
        start = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - start < 15:
                connection.sendall(b" " * 10_000)
                time.sleep(0.01)
        assert time.monotonic() - start < READ_SECONDS + 10
    before = service.figure("process_resident_memory_bytes")
    status, content = service.ask("/score", b" " * 30_000_000)
    assert status == 413 and b"at most 209,715 bytes" in content
    assert service.figure("process_resident_memory_bytes") - before < 20e6


def test_a_client_that_does_not_read_is_let_go(service, table):
    content = body(pa.concat_tables([table, table]))
    head = "POST /search?k=200 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", service.port))
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        time.sleep(READ_SECONDS + 5)
        received = read_all(connection)
    assert len(received) < int(re.search(rb"content-length: (\d+)", received)[1])  # more than the system keeps for it


def test_thousands_of_bad_requests_get_4xx_and_leave_no_trace(service, table):
    good = records(table.slice(0, 3))
    arrow = stream(table.slice(0, 20))

    def bad(number: int) -> tuple[str, bytes, dict]:
        draw = random.Random(number)
        kind = number % 8
        if kind == 0:
            return "/score", draw.randbytes(draw.randrange(200)), AS_JSON
        if kind == 1:
            return "/embed", draw.randbytes(draw.randrange(200)), AS_ARROW
        if kind == 2:
            return "/score", json.dumps({"rows": [{f"column {number}": number}]}).encode(), AS_JSON
        if kind == 3:
            return "/search?k=many", b"{}", AS_JSON
        if kind == 4:
            rows = [dict(row, **{draw.choice(list(row)): [draw.random()]}) for row in good]
            return "/explain", json.dumps({"rows": rows}).encode(), AS_JSON
        if kind == 5:
            return f"/{number}", b"{}", AS_JSON
        if kind == 6:
            return "/embed", arrow[: draw.randrange(len(arrow) // 2)], AS_ARROW
        media_type = draw.choice(["text/plain", AS_JSON["content-type"]])
        return "/score", b"[" * draw.randrange(1, 50_000), {"content-type": media_type}

    def attack(first: int) -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        statuses = []
        for number in range(first, 2_000, 8):
            path, content, headers = bad(number)
            connection.request("POST", path, content, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert b"Traceback" not in text and b'File "' not in text and len(text) < 5_000
            statuses.append(answer.status)
        connection.close()
        return statuses

    attack(1_900)  # warm
    before = service.figure("process_resident_memory_bytes")
    with ThreadPoolExecutor(8) as pool:
        statuses = [status for some in pool.map(attack, range(8)) for status in some]
    assert len(statuses) == 2_000 and set(statuses) <= {400, 404, 413, 415, 422}, set(statuses)
    assert service.figure("process_resident_memory_bytes") - before < 30e6
    assert service.log.read_text() == ""


def test_clients_that_hang_up_are_forgotten(service, table):
    content = body(table.slice(0, 50))
    head = "POST /explain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(content)}\r\n\r\n".encode() + content
    for _ in range(100):
        with service.connect() as connection:
            connection.sendall(request)
    until = time.monotonic() + 40
    while time.monotonic() < until and service.figure("tabmoco_waiting_requests"):
        time.sleep(0.1)
    assert service.ask("/score", body(table.slice(0, 1)))[0] == 200
    assert service.log.read_text() == ""


def test_a_signal_ends_it_once_what_it_was_asked_is_answered(service, table):
    content, answers = body(table), []
    asking = [threading.Thread(target=lambda: answers.append(service.ask("/explain", content))) for _ in range(4)]
    for thread in asking:
        thread.start()
    until = time.monotonic() + 10
    while time.monotonic() < until and len(answers) == 0 and service.figure("tabmoco_waiting_rows") < 2 * len(table):
        time.sleep(0.005)
    service.process.send_signal(signal.SIGTERM)
    for thread in asking:
        thread.join()
    assert service.process.wait(60) == 0
    assert [status for status, _ in answers] == [200] * 4
    assert all(len(json.loads(content)["rows"]) == len(table) for _, content in answers)
    with pytest.raises(ConnectionError):
        service.connect()
    assert service.log.read_text() == ""


# ---------------------------------------------------------------- the command


def refuse(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["serve", *(str(argument) for argument in arguments)])
    assert result.exit_code == 2 and result.stdout == "", result.output
    return result.stderr


def test_the_command_refuses_what_cannot_be_served(folder, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 cannot be served" in refuse(folder, "--port", port)
    assert "manifest.json cannot be read" in refuse(tmp_path / "nothing", "--port", 0)
    assert "--host must be an address" in refuse(folder, "--host", "no.such.host.invalid", "--port", 0)
    assert "--token-file must be a text file" in refuse(folder, "--token-file", tmp_path / "none")
    for token in ("", "short", "with a blank in it, long", "é" * 20):
        (tmp_path / "token").write_text(token, encoding="utf-8")
        assert "must be one word of at least 16 ASCII" in refuse(folder, "--token-file", tmp_path / "token")
        monkeypatch.setenv("TABMOCO_TOKEN", token)
        assert "the token in TABMOCO_TOKEN must be" in refuse(folder)
    (tmp_path / "token").write_text("a-secret-of-24-letters.é")
    assert "a-secret" not in refuse(folder, "--token-file", tmp_path / "token")


def test_a_service_open_to_all_is_warned_of(folder, tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr("tabmoco.serve.app.build_app", lambda live, limits, **options: built.append((limits, options)))
    monkeypatch.setattr("tabmoco.serve.server.run", lambda app, bound, limits, *, started: started())
    monkeypatch.delenv("TABMOCO_TOKEN", raising=False)
    (tmp_path / "token").write_text("a-secret-of-24-letters--\n")

    def serve(*arguments: object) -> Result:
        result = CliRunner().invoke(app, ["serve", str(folder), "--port", "0", *(str(one) for one in arguments)])
        assert result.exit_code == 0, result.output
        return result

    warned = serve("--host", "0.0.0.0", "--max-rows", 7)
    assert "whoever reaches 0.0.0.0 can use the model" in warned.stderr
    assert built[-1][1] == {"token": None, "hosts": None, "watch": False} and built[-1][0].max_rows == 7
    known = serve("--host", "0.0.0.0", "--token-file", tmp_path / "token", "--watch")
    assert known.stderr == "" and f"Serving {folder} on http://0.0.0.0:" in known.stdout.replace("\n", "")
    assert built[-1][1] == {"token": "a-secret-of-24-letters--", "hosts": None, "watch": True}
    local = serve()
    assert local.stderr == "" and "examples on http://127.0.0.1:" in local.stdout and "secret" not in local.output
    assert built[-1][1]["hosts"] == ("localhost", "127.0.0.1", "[::1]")
    monkeypatch.setenv("TABMOCO_TOKEN", "another-secret-of-letters")
    assert json.loads(serve("--json").stdout)["needs_token"] and built[-1][1]["token"].startswith("another")


def test_without_the_extra_the_command_says_what_to_install(folder, monkeypatch):
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert "needs uvicorn; install them with pip install 'tabmoco[serve]'." in refuse(folder)

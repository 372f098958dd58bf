"""Tests `octavo report RUN --watch`: what it serves, to whom, and how it ends."""

import contextlib
import http.client
import os
import pathlib
import re
import signal
import socket
import subprocess

import pytest
from fake_runs import CONFIG, realistic, write_run

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build/bin/octavo")


def has_report():
    return (
        " report " in subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=False).stdout
    )


pytestmark = pytest.mark.skipif(not has_report(), reason="this octavo is built without the trainer")


@contextlib.contextmanager
def watched(folder, *flags):
    """Starts the server and returns its process and port."""
    command = [BINARY, "report", str(folder), "--watch", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            found = re.match(r"http://127\.0\.0\.1:(\d+)/  \(Ctrl-C stops", line)
            assert found, (line, process.poll())
            yield process, int(found[1])
        finally:
            process.kill()


def ask(port, method="GET", path="/", host=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{port}")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer, answer.read().decode()


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "first", realistic(seed=1, steps=40), CONFIG)


def test_the_page_follows_the_run(run):
    with watched(run, "--every", "3") as (_, port):
        answer, page = ask(port)
        assert answer.status == 200
        assert answer.getheader("Refresh") == "3"
        assert answer.getheader("Cache-Control") == "no-store"
        last = [int(step) for step in re.findall(r'"last_step":(\d+)', page)]
        write_run(run, realistic(seed=1, steps=80), CONFIG)
        _, later = ask(port)
        assert int(re.search(r'"last_step":(\d+)', later)[1]) > last[0]


def test_other_origins_cannot_read_it(run):
    with watched(run) as (_, port):
        answer, _ = ask(port, Origin="http://evil.example")
        assert answer.getheader("Access-Control-Allow-Origin") is None
        assert answer.getheader("X-Frame-Options") == "DENY"
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
            answer, page = ask(port, host=host)
            assert answer.status == 403, host
            assert "<html" not in page
        assert ask(port, host=f"localhost:{port}")[0].status == 200


def test_it_is_read_only(run):
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with watched(run) as (_, port):
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            answer, _ = ask(port, method)
            assert answer.status == 405, method
            assert answer.getheader("Allow") == "GET, HEAD"
        for path in ("/config.yaml", "/../config.yaml", "/metrics.jsonl", "//", "/?x"):
            assert ask(port, path=path)[0].status == 404, path
        answer, body = ask(port, "HEAD")
        assert (answer.status, body) == (200, "")
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_it_listens_on_loopback_alone(run):
    with watched(run) as (process, port):
        rows = pathlib.Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
        addresses = [
            row.split()[1]
            for row in rows
            if row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A"
        ]
        assert addresses == [f"0100007F:{port:04X}"]


@pytest.mark.parametrize(
    "text", [b"", b"nonsense", b"GET / HTTP/1.1\r\n", b"GET /\r\n\r\n", b"A" * 40000, b"\0\xff\r\n\r\n"]
)
def test_a_bad_client_does_not_end_it(run, text):
    with watched(run) as (_, port):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as client,
            contextlib.suppress(OSError),
        ):
            client.sendall(text)
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(100)
            assert answer == b"" or b" 400 " in answer or b" 403 " in answer
        assert ask(port)[0].status == 200


def test_idle_clients_delay_others_briefly(run):
    """Each idle connection is closed after half a second."""
    with watched(run) as (_, port), contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        assert ask(port)[0].status == 200


def test_a_log_line_that_is_too_deep_is_skipped(run):
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"kind": "train", "step": 41, "x": ' + "[" * 20000 + "]" * 20000 + "}\n")
    with watched(run) as (_, port):
        answer, page = ask(port)
        assert answer.status == 200
        assert '"bad_lines":1' in page


def test_a_run_that_disappears_is_reported_and_served_again(run):
    with watched(run) as (_, port):
        moved = run.rename(run.with_name("moved"))
        answer, text = ask(port)
        assert answer.status == 503
        assert "first" in text
        moved.rename(run)
        assert ask(port)[0].status == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(run, number):
    with watched(run) as (process, _):
        process.send_signal(number)
        assert process.wait(timeout=30) == 0


def test_a_port_in_use_is_named(run):
    with watched(run) as (_, port):
        done = subprocess.run(
            [BINARY, "report", str(run), "--watch", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert f"port {port} of 127.0.0.1 cannot be opened" in done.stderr


def test_a_folder_that_is_no_run_is_an_error(tmp_path):
    done = subprocess.run(
        [BINARY, "report", str(tmp_path), "--watch"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert str(tmp_path) in done.stderr

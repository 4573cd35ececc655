"""``parley drain``: the file that it writes, and how long it waits."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import psutil
import pytest

from parley_client.cli.commands import drain
from parley_client.cli.program import main


@contextmanager
def metrics_pages(*pages, port=0):
    """A server that gives one page after the other, and then the last one; a number: an error's status."""
    left = list(pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            page = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(page if isinstance(page, int) else 200)
            self.end_headers()
            self.wfile.write(b"" if isinstance(page, int) else page.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def page(*instances):
    lines = ["# HELP voice_agent_active_sessions Open sessions"]
    for number, (sessions, draining) in enumerate(instances):
        lines += [
            f'voice_agent_active_sessions{{model_instance="agent_{number}",model="a"}} {sessions}',
            f'voice_agent_draining{{model_instance="agent_{number}",model="a"}} {draining}',
        ]
    return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(drain, "_POLL_S", 0.01)


def test_drain_waits_until_no_instance_has_calls(tmp_path, capsys):
    file = tmp_path / "drain.json"
    pages = [page((1, 0), (0, 1)), page((1, 1), (2, 1)), 503, page((0, 1), (2, 1)), page((0, 1), (0, 1))]
    with metrics_pages(*pages) as metrics:
        assert main(["drain", "--file", str(file), "--metrics", metrics, "--deadline", "30"]) == 0
    assert json.loads(file.read_bytes()) == {"deadline_s": 30.0}
    said = capsys.readouterr()
    written = said.out + said.err
    for line in ("do not know of it yet", "3 calls", "answers with 503", "2 calls", "No calls are left."):
        assert line in written


@pytest.mark.parametrize("shown", [page((1, 1)), page((0, 0)), "", 503])
def test_the_wait_may_end_before(tmp_path, shown, capsys):
    with metrics_pages(shown) as metrics:
        file = str(tmp_path / "drain.json")
        assert main(["drain", "--file", file, "--metrics", metrics, "--wait", "0.1", "--absent-ok"]) == 1
    assert capsys.readouterr().err == ""


def nowhere():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_drain_of_an_absent_server_with_absent_ok_succeeds(tmp_path, capsys):
    """A pod that is deleted before its server runs, or whose server has ended."""
    file = tmp_path / "drain.json"
    metrics = nowhere()
    assert main(["drain", "--file", str(file), "--metrics", metrics, "--wait", "1800", "--absent-ok"]) == 0
    assert file.exists()
    said = capsys.readouterr()
    assert "No server runs" in said.out + said.err


def test_an_address_at_which_nothing_ever_was_is_an_error(tmp_path, capsys):
    file, metrics = tmp_path / "drain.json", nowhere()
    assert main(["drain", "--file", str(file), "--metrics", metrics]) == 1
    assert file.exists()
    said = capsys.readouterr().err
    assert f"nothing listens at {metrics}; the server was asked" in said
    assert "--absent-ok" in said
    for metrics in ("no-such-host.invalid:8002", "a b:1", "..:1"):
        assert main(["drain", "--file", str(file), "--metrics", metrics]) == 1
        assert f"{metrics}: no such host" in capsys.readouterr().err


NO_AGENT = "# TYPE nv_inference_count counter\n"


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (404, "answers with 404 Not Found"),
        (NO_AGENT, "has no sessions of an agent"),
        (
            "<html>\udcff</html>".encode("utf-8", "surrogateescape").decode("latin-1"),
            "no sessions of an agent",
        ),
    ],
    ids=["another service", "a Triton without agent", "a web page"],
)
def test_an_address_at_which_something_else_listens_is_an_error(tmp_path, capsys, shown, words):
    file = tmp_path / "drain.json"
    with metrics_pages(shown) as metrics:
        assert main(["drain", "--file", str(file), "--metrics", metrics]) == 1
        assert file.exists()
        said = capsys.readouterr().err
        assert words in said
        assert f"{metrics}" in said
        assert "--absent-ok" in said


def test_a_port_of_another_protocol_is_an_error(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        metrics = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer():
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1_024)
                    connection.sendall(b"\0\0\x12\x04\0\0\0\0\0\n")  # as gRPC begins

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            assert main(["drain", "--file", str(tmp_path / "drain.json"), "--metrics", metrics]) == 1
        finally:
            answering.join()
    assert f"what listens at {metrics} does not speak HTTP" in capsys.readouterr().err


@pytest.mark.parametrize("before", [404, NO_AGENT])
def test_a_server_whose_agent_comes_later_is_waited_for(tmp_path, capsys, before):
    """As a server that starts while its pod is deleted."""
    file = str(tmp_path / "drain.json")
    with metrics_pages(before, before, before, page((1, 1)), page((0, 1))) as metrics:
        assert main(["drain", "--file", file, "--metrics", metrics, "--wait", "60", "--absent-ok"]) == 0
    with metrics_pages(before, page((1, 1)), NO_AGENT, NO_AGENT, NO_AGENT, page((0, 1))) as metrics:
        assert main(["drain", "--file", file, "--metrics", metrics, "--wait", "60"]) == 0
    assert "No calls are left." in capsys.readouterr().out


def test_a_server_that_has_answered_and_is_gone_has_ended(tmp_path, monkeypatch, capsys):
    with ExitStack() as running:
        metrics = running.enter_context(metrics_pages(page((2, 1))))
        sleeps = []

        def end(_):
            sleeps.append(running.close())

        monkeypatch.setattr(drain, "time", SimpleNamespace(sleep=end, monotonic=time.monotonic))
        assert main(["drain", "--file", str(tmp_path / "drain.json"), "--metrics", metrics]) == 0
    assert len(sleeps) == 2
    said = capsys.readouterr()
    assert "2 calls" in said.out + said.err
    assert "No server runs" in said.out + said.err


def test_a_server_that_begins_to_listen_is_asked(tmp_path, monkeypatch, capsys):
    """Its processes may not have read the file yet when nothing listened."""
    metrics, file = nowhere(), str(tmp_path / "drain.json")
    port = int(metrics.rpartition(":")[2])
    with ExitStack() as running:

        def begin(_):
            running.enter_context(metrics_pages(page((1, 0)), page((0, 1)), port=port))
            monkeypatch.setattr(drain, "time", time)

        monkeypatch.setattr(drain, "time", SimpleNamespace(sleep=begin, monotonic=time.monotonic))
        assert main(["drain", "--file", file, "--metrics", metrics, "--wait", "60"]) == 0
    said = capsys.readouterr()
    assert "No calls are left." in said.out + said.err


@pytest.mark.parametrize(("limit", "value"), [("_MAX_PAGE_BYTES", 1_000), ("_PAGE_READ_S", 0.0)])
def test_a_page_without_end_is_not_read_to_it(tmp_path, monkeypatch, limit, value):
    sent = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                for _ in range(100_000):
                    self.wfile.write(b"# a comment\n" * 100)
                    sent.append(1)

        def log_message(self, *_):
            pass

    monkeypatch.setattr(drain, limit, value)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        look = drain._MetricsPage(f"127.0.0.1:{server.server_address[1]}").look()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert look is None
    assert len(sent) < 100_000


def test_a_drain_is_cancelled(tmp_path):
    file = tmp_path / "drain.json"
    file.write_text("{}")
    assert main(["drain", "--file", str(file), "--cancel"]) == 0
    assert not file.exists()


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """Writes what a launcher notes of its server ``mine``; returns the state folder."""
    monkeypatch.setattr(drain, "NOTES", tmp_path / ".server")
    state = tmp_path / ".server" / "mine"
    state.mkdir(parents=True)

    def write(metrics="127.0.0.1:8002", **more):
        launcher = {"launcher": os.getpid(), "launcher_started": psutil.Process().create_time()}
        endpoints = {"endpoints": f"ready grpc=a http=b metrics={metrics}"}
        (state / "server.json").write_text(json.dumps(launcher | endpoints | more))
        return state

    return write


def test_a_server_is_found_by_its_name(noted):
    with metrics_pages(page((0, 1))) as metrics:
        state = noted(metrics)
        assert main(["drain", "--name", "mine"]) == 0
    assert (state / "drain.json").exists()
    assert main(["drain", "--name", "mine"]) == 0  # its note has the address: it has ended


def test_a_server_with_a_file_of_its_own_is_drained_by_that(noted, tmp_path):
    with metrics_pages(page((0, 1))) as metrics:
        noted(metrics, drain_file=str(tmp_path / "own.json"))
        assert main(["drain", "--name", "mine"]) == 0
    assert (tmp_path / "own.json").exists()
    assert main(["drain", "--name", "mine", "--cancel"]) == 0
    assert not (tmp_path / "own.json").exists()


def test_a_server_without_a_file_cannot_be_drained(noted, capsys):
    noted(drain_file="")
    assert main(["drain", "--name", "mine"]) == 1
    assert "PARLEY_DRAIN_FILE is empty" in capsys.readouterr().err


def test_drain_of_an_unknown_name_lists_the_running_servers(noted, capsys):
    assert main(["drain"]) == 1
    assert "no server 'default' runs here; name its file with --file" in capsys.readouterr().err
    noted()
    assert main(["drain"]) == 1
    assert "no server 'default' runs here, but with --name: mine;" in capsys.readouterr().err
    noted(launcher_started=0.0)  # it was killed
    assert main(["drain"]) == 1
    assert "mine" not in capsys.readouterr().err


def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drain, "NOTES", tmp_path)
    assert main(["drain", "--file", str(tmp_path / "no" / "drain.json"), "--wait", "1"]) == 1
    assert "cannot be changed" in capsys.readouterr().err
    assert main(["drain", "--file", str(tmp_path / "drain.json"), "--deadline", "1e9"]) == 2

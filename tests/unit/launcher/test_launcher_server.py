"""The launcher's life cycle, with a script in place of tritonserver."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from parley.canaries.models import CanaryError, CanaryLateError
from parley.launcher import server as server_module
from parley.launcher.cleanup import SHARED_MEMORY
from parley.launcher.errors import (
    AlreadyRunningError,
    ModelFailedError,
    NotReadyError,
    PortBusyError,
    RestartLimitError,
    ServerCrashedError,
    ServerDiedError,
    StartInterruptedError,
)
from parley.launcher.models import find_agents_folder
from parley.launcher.options import TINY_PROFILE, ServerOptions
from parley.launcher.processes import session_members
from parley.launcher.restarts import SupervisorLimits
from parley.launcher.server import EmbeddedServer
from parley.runtime.drain import DRAIN_FILE_VARIABLE, ask_to_drain, server_start_ns

# The fake does not answer questions about its models.
LIMITS = SupervisorLimits(look_s=0.02, quiet_s=float("inf"), waits_s=(0.0,))


@pytest.fixture
def make(tmp_path, installation, repository):
    servers = []

    def build(
        scene,
        *,
        canary=lambda *_: "echo answered",
        ready_timeout_s=20.0,
        limits=LIMITS,
        grace_s=1,
        on_progress=None,
        on_log=None,
        launched_at=None,
        **environment,
    ):
        options = ServerOptions(
            model_repository=repository,
            state_dir=tmp_path / "state",
            grpc_port=0,
            http_port=0,
            metrics_port=0,
            ready_timeout_s=ready_timeout_s,
            exit_timeout_s=grace_s - 5,  # without the launcher's margin
            environment={"FAKE_SCENE": scene, **environment},
        )
        said = on_progress or (lambda _: None)
        servers.append(
            EmbeddedServer(
                options,
                installation=installation,
                canaries={"echo": canary},
                limits=limits,
                launched_at=launched_at,
                on_progress=said,
                on_log=on_log or (lambda _: None),
            )
        )
        return servers[-1]

    yield build
    for server in servers:
        server.stop()


def test_a_start_reports_its_steps_and_calls_the_canary(make):
    said, asked = [], []

    def canary(address, deadline_s):
        asked.append(address)
        return "echo answered"

    server = make("serves", canary=canary, on_progress=said.append)
    endpoints = server.start()
    assert said == ["starting tritonserver", "loaded echo (1 of 1)", "echo answered"]
    assert asked == [endpoints.grpc]
    assert server.models == ["echo"]
    assert server.poll() is None


@pytest.mark.parametrize(("named", "noted"), [(None, "state/drain.json"), ("own.json", "own.json"), ("", "")])
def test_the_file_that_drains_the_server_is_noted(make, tmp_path, monkeypatch, named, noted):
    monkeypatch.chdir(tmp_path)
    make("serves", **({} if named is None else {DRAIN_FILE_VARIABLE: named})).start()
    found = json.loads((tmp_path / "state" / "server.json").read_text())["drain_file"]
    assert found == (noted and str(tmp_path / noted))


@pytest.mark.parametrize(("named", "noted"), [("", "agents"), ("others", "others"), ("none", "")])
def test_folder_of_agents_is_the_one_of_the_settings_if_it_is_there(repository, tmp_path, named, noted):
    options = ServerOptions(model_repository=repository)
    environment = {"PARLEY_VOICE_AGENT_AGENTS": named}
    for folder in ("agents", "others"):
        (tmp_path / folder).mkdir()
    assert find_agents_folder(options, environment) == ""
    (repository / "voice_agent" / "configs").mkdir(parents=True)
    (repository / "voice_agent" / "configs" / f"{TINY_PROFILE}.pbtxt").write_text('name: "voice_agent"\n')
    assert find_agents_folder(options, environment) == (noted and str(tmp_path / noted))


def test_a_new_server_is_not_drained(make, tmp_path):
    drain = tmp_path / "state" / "drain.json"
    drain.parent.mkdir()
    drain.write_text('{"deadline_s": 10}')
    make("serves").start()
    assert not drain.exists()


def test_a_server_that_was_asked_before_it_ran_is_drained(make, tmp_path):
    """The file is newer than the launcher's process, though older than the server."""
    drain = tmp_path / "state" / "drain.json"
    drain.parent.mkdir()
    for written_at, kept in ((50.0, False), (150.0, True)):
        ask_to_drain(drain, 60.0)
        os.utime(drain, (written_at, written_at))
        server = make("serves", launched_at=100.0)
        server.start()
        assert drain.exists() == kept
        assert server_start_ns(psutil.Process(server.pid).environ()) == 100 * 10**9
        server.stop()


def test_what_a_killed_container_has_left_is_removed_by_the_next_one(make, tmp_path):
    """Its processes had other numbers, in a namespace of their own."""
    prefix = f"parley-{os.getpid()}-1-1-"
    region, folder = SHARED_MEMORY / f"{prefix}echo", Path(tempfile.gettempdir()) / f"{prefix}tmp"
    other = SHARED_MEMORY / f"parley-{os.getpid()}-2-1-echo"
    try:
        for path in (region, other):
            path.touch()
        folder.mkdir()
        state = tmp_path / "state" / "server.json"
        state.parent.mkdir()
        state.write_text(json.dumps({"launcher": 1, "launcher_started": 0.0, "session": 2, "prefix": prefix}))
        server = make("serves")
        server.start()
        assert not region.exists()
        assert not folder.exists()
        assert other.exists(), "of a server with another state folder"
        assert json.loads(state.read_text())["prefix"] == server.shm_prefix
    finally:
        for path in (region, other):
            path.unlink(missing_ok=True)


def test_models_without_weights_are_left_out_in_one_line(make, repository):
    for name in ("choir", "band"):
        folder = repository / name / "configs"
        folder.mkdir(parents=True)
        (folder / f"{TINY_PROFILE}.pbtxt").write_text(
            f'name: "{name}"\n'
            'parameters { key: "optional" value { string_value: "true" } }\n'
            'parameters { key: "weights" value { string_value: "chatterbox" } }\n'
        )
    said, log = [], []
    make("serves", on_progress=said.append, on_log=log.append).start()
    assert said[0] == "left out, weights are absent: band, choir (docs/speech.md)"
    assert ["make export MODEL=chatterbox" in line for line in log[:2]] == [True, True]


@pytest.mark.parametrize("before", [True, False])
def test_settings_are_checked_once(make, monkeypatch, before):
    checked = []
    monkeypatch.setattr(server_module, "check_agent_models", lambda *_: checked.append("agent"))
    monkeypatch.setattr(server_module, "find_server_plan", lambda *_: checked.append("plan"))
    server = make("serves")
    if before:
        server.check_settings()
    server.start()
    assert checked == ["plan", "agent"]


def test_a_second_server_of_a_name_is_refused_before_any_report(make):
    make("serves").start()
    said = []
    with pytest.raises(AlreadyRunningError, match="--name OTHER --any-port"):
        make("serves", on_progress=said.append).start()
    assert said == []


def test_temporary_files_of_killed_processes_are_removed(make, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    server = make("serves", FAKE_LEFTOVER="1")
    server.start()
    (folder,) = (tmp_path / "t").iterdir()
    assert (folder / "vllm_dist_1").exists()
    server.kill()
    server.stop()
    assert list((tmp_path / "t").iterdir()) == []


def test_a_canary_that_fails_is_asked_again(make):
    answers = [CanaryError("no"), CanaryError("not yet"), "yes"]

    def canary(*_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    make("serves", canary=canary).start()
    assert answers == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CanaryError("no answer."), r"not ready after 4 s: echo: no answer\. The log: "),
        (CanaryLateError("no answer."), r"echo: no answer\. On a slow machine .*--ready-timeout"),
    ],
)
def test_a_canary_that_never_answers_ends_the_start(make, error, words):
    def canary(*_):
        raise error

    said = []
    with pytest.raises(NotReadyError, match=words):
        make("serves", canary=canary, ready_timeout_s=4.0, on_progress=said.append).start()
    assert said.count("not answering yet: echo: no answer.") == 1


def test_a_misspelt_setting_of_a_model_is_reported_at_the_start(make):
    said = []
    make("serves", on_progress=said.append, PARLEY_ECHO_VOLUMN="1").start()
    assert "warning: PARLEY_ECHO_VOLUMN has no effect: echo has no such setting" in said


def test_a_long_start_says_what_it_waits_for(make, monkeypatch):
    monkeypatch.setattr("parley.launcher.server.REPEAT_S", 0.2)
    said = []
    with pytest.raises(NotReadyError):
        make("hangs", ready_timeout_s=2.0, on_progress=said.append).start()
    assert any(re.fullmatch(r"still loading echo \(\d+ of at most 2 s\)", line) for line in said)


def test_a_server_that_crashes_is_started_once_more(make, tmp_path):
    runs = tmp_path / "runs"
    make("crashes", FAKE_RUNS=str(runs)).start()
    assert len(runs.read_text().splitlines()) == 2


def test_another_port_is_tried_when_a_free_one_was_taken_meanwhile(make, tmp_path):
    runs = tmp_path / "runs"
    make("port taken", FAKE_RUNS=str(runs)).start()
    first, second = runs.read_text().splitlines()
    assert [word for word in first.split() if "grpc-port" in word] != [
        word for word in second.split() if "grpc-port" in word
    ]


@pytest.mark.parametrize(
    ("scene", "kind", "words"),
    [
        ("fails", ModelFailedError, r"'echo' did not load:\n    ValueError: bad\n\n    At:\n      m\(3\)"),
        ("dies", ServerDiedError, r"status 7(?s:.*)Signal \(11\) received"),
        ("crashes", ServerCrashedError, "status -6"),
        ("hangs", NotReadyError, r"still loading\. Not loaded: echo\."),
        ("port taken", PortBusyError, "GRPC service"),
    ],
)
def test_failed_start_has_its_reason_and_leaves_no_process_and_no_lock(make, tmp_path, scene, kind, words):
    children = tmp_path / "children"
    server = make(scene, ready_timeout_s=1.0, FAKE_CHILDREN=str(children))
    with pytest.raises(kind, match=words):
        server.start()
    pids = [int(line) for line in children.read_text().split()]
    assert pids
    assert not [pid for pid in pids if _command(pid)[:1] == ["/bin/sleep"]]
    make("serves").start()


def _command(pid):
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []


def test_a_stop_request_ends_a_start(make):
    server = make("hangs")
    timer = threading.Timer(0.3, server.request_stop)
    timer.start()
    with pytest.raises(StartInterruptedError):
        server.start()
    timer.join()


def test_stop_kills_a_server_that_does_not_obey_and_what_it_started(make, tmp_path):
    said = []
    server = make(
        "serves", on_progress=said.append, FAKE_STUBBORN="1", FAKE_CHILDREN=str(tmp_path / "children")
    )
    server.start()
    session = server.pid
    server.stop()
    assert "the server did not stop in time and is killed" in said
    assert session_members(session) == []
    assert server.pid == 0
    server.stop()  # a second time changes nothing


def test_a_start_while_the_server_before_is_being_stopped_says_so(make):
    refused = []

    def tell(line):
        if "is killed" in line:
            with pytest.raises(AlreadyRunningError, match="is stopping") as caught:
                make("serves").start()
            refused.append(caught.value)

    server = make("serves", on_progress=tell, FAKE_STUBBORN="1")
    server.start()
    server.stop()
    assert len(refused) == 1


def test_a_kill_request_ends_the_wait_for_a_server_that_does_not_obey(make):
    said = []
    server = make("serves", on_progress=said.append, grace_s=60, FAKE_STUBBORN="1")
    server.start()
    session = server.pid
    server.kill()
    assert server.wait() == 0
    server.stop()
    assert session_members(session) == []
    assert not any("in time" in line for line in said)


@pytest.mark.parametrize(("look_s", "waits"), [(60.0, True), (0.02, False)], ids=["loading", "dead"])
def test_stop_cuts_the_wait_only_for_instances_that_the_supervisor_counts_as_dead(make, look_s, waits):
    """A region without a process may be that of a process that has just begun."""
    said = []
    limits = SupervisorLimits(look_s=look_s, quiet_s=float("inf"))
    server = make("serves", on_progress=said.append, limits=limits, FAKE_STUBBORN="1", FAKE_STUB="1")
    server.start()
    for name in ("echo", "other"):
        (SHARED_MEMORY / f"{server.shm_prefix}{name}").touch()
    until(lambda: waits or server._supervisor.holds_dead_instances)
    server.stop()
    assert ("the server did not stop in time and is killed" in said) == waits


def test_an_interrupted_stop_leaves_nothing(make, tmp_path, monkeypatch):
    server = make("serves", grace_s=60, FAKE_STUBBORN="1", FAKE_CHILDREN=str(tmp_path / "children"))
    server.start()
    session, region = server.pid, SHARED_MEMORY / f"{server.shm_prefix}left"
    region.touch()

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("parley.launcher.server.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert session_members(session) == []
    assert not region.exists()
    assert server.pid == 0


def test_unsupervised_wait_returns_the_status_of_a_server_that_ends_by_itself(make):
    server = make("serves", limits=None)
    server.start()
    os.kill(server.pid, 9)
    assert server.wait() == -9


def kill_stub(server):
    while not (stubs := [each.pid for each in server.usage() if each.name == "echo_0_0"]):
        pass
    os.kill(stubs[0], 9)


def until(happened, limit_s=60.0):
    end = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_server_that_ends_is_started_again_on_the_same_ports(make):
    said = []
    server = make("serves", on_progress=said.append)
    endpoints = server.start()
    first, prefix = server.pid, server.shm_prefix
    os.kill(first, 9)
    until(lambda: any("the server answers again" in line for line in said))
    assert server.endpoints == endpoints
    assert server.pid not in {0, first}
    assert server.restarts()[""] == {"died": 1}
    assert session_members(first) == []
    assert not list(SHARED_MEMORY.glob(f"{prefix}*"))
    timer = threading.Timer(0.2, server.request_stop)
    timer.start()
    assert server.wait() == 0, "callers of wait get no error"
    timer.join()


def test_a_server_that_is_started_again_goes_on_draining(make, tmp_path):
    said = []
    server = make("serves", on_progress=said.append)
    server.start()
    drain = tmp_path / "state" / "drain.json"
    ask_to_drain(drain, 60.0)
    os.kill(server.pid, 9)
    until(lambda: any("the server answers again" in line for line in said))
    assert drain.stat().st_mtime_ns > server_start_ns(psutil.Process(server.pid).environ()) > 0


def test_a_model_that_nothing_can_load_again_costs_a_new_server(make):
    server = make("serves", FAKE_STUB="1")  # and no control model
    server.start()
    kill_stub(server)
    until(lambda: server.restarts()[""])
    assert server.restarts() == {"": {"model_not_restored": 1}, "echo": {"died": 1}}


def test_wait_raises_when_the_server_is_given_up(make):
    server = make("serves", limits=SupervisorLimits(look_s=0.02, quiet_s=float("inf"), server_attempts=0))
    server.start()
    os.kill(server.pid, 9)
    with pytest.raises(RestartLimitError, match="given up: tritonserver ended with status -9"):
        server.wait()
    server.stop()


def test_nothing_is_launched_any_more_after_a_stop(make):
    server = make("serves", limits=None)
    server.start()
    server.stop()
    log = server.log_path.stat().st_ino
    with pytest.raises(StartInterruptedError):
        server.restart()
    assert server.log_path.stat().st_ino == log, "another start makes a new log"
    assert server.pid == 0


def test_a_stop_ends_a_restart_that_gets_nowhere(make, tmp_path):
    said = []
    answers = ["echo answered"]

    def canary(*_):
        if answers:
            return answers.pop()
        raise CanaryError("not yet")

    server = make("serves", canary=canary, on_progress=said.append)
    server.start()
    os.kill(server.pid, 9)
    until(lambda: "not answering yet: echo: not yet" in said)
    session = server.pid
    server.stop()
    assert session_members(session) == []
    assert server.pid == 0


def test_the_log_of_the_last_run_is_kept(make):
    for _ in range(2):
        with make("serves") as server:
            path = server.log_path
    assert path.exists()
    assert path.with_suffix(".previous.log").exists()

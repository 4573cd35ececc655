"""What the supervisor replaces, with sleeping processes in the place of models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from parley.canaries.models import CanaryError, CanaryLateError
from parley.launcher import liveness, restarts, supervisor
from parley.launcher.control import ControlError
from parley.launcher.errors import NotReadyError, RestartLimitError
from parley.launcher.models import read_config, renew_instances, renew_model
from parley.launcher.options import ServerOptions
from parley.launcher.processes import STUB
from parley.launcher.restarts import Failure, RestartRecord, SupervisorLimits
from parley.launcher.supervisor import Supervisor
from parley.triton.model_control import CONTROL_MODEL, loss_path
from parley.triton.request_loop import heartbeat_path

LIMITS = {
    "look_s": 0.01,
    "silent_s": 0.2,
    "stopped_s": 0.2,
    "model_stopped_s": 0.2,
    "quiet_s": float("inf"),
    "canary_s": 0.02,
    "reload_canary_s": 0.2,
    "waits_s": (0.05,),
}
CONFIGS = {
    "echo": 'name: "echo" instance_group [{ kind: KIND_CPU count: 1 }]',
    "agent": (
        'name: "agent" sequence_batching { oldest { max_candidate_sequences: 4 } } instance_group ['
        '{ name: "agent_0" kind: KIND_CPU count: 1 rate_limiter { priority: 1 } },'
        '{ name: "agent_1" kind: KIND_CPU count: 1 rate_limiter { priority: 2 } }]'
    ),
    CONTROL_MODEL: f'name: "{CONTROL_MODEL}" instance_group [{{ kind: KIND_CPU count: 1 }}]',
}


def config_of(text):
    return text_format.Parse(text, model_config_pb2.ModelConfig())


class FakeServer:
    """This process, whose children are the models."""

    own_address = "127.0.0.1:1"
    pid = os.getpid()

    def __init__(self, folder, models):
        self.models = models
        self.control = self
        self.processes = {}
        self._started = []
        self.loads = []
        self.unloads = []
        self.unshown = []
        self.refusals = []
        self.starts = []
        self.status = None
        self.restarted = self.protected = self.regions = 0
        self.drain_file = folder / "drain.json"
        self.drains = []
        self.shown = []
        for name in (*models, CONTROL_MODEL):
            (folder / name / "1").mkdir(parents=True)
            (folder / name / "1" / "model.py").write_text("import time\ntime.sleep(600)\n")
        self._folder = self.folder = folder
        self._start_all()

    def _start_all(self):
        for name in (*self.models, CONTROL_MODEL):
            for instance in ("agent_0_0", "agent_1_0") if name == "agent" else (f"{name}_0_0",):
                self.spawn(name, instance)

    def spawn(self, model, instance):
        path = str(self._folder / model / "1" / "model.py")
        process = subprocess.Popen([f"/x/{STUB}", path, instance, "DEFAULT"], executable=sys.executable)
        self.processes[instance] = process
        self._started.append(process)
        # Until then its command line is that of this process.
        while psutil.Process(process.pid).cmdline()[:1] != [f"/x/{STUB}"]:
            time.sleep(0.001)

    def poll(self):
        return self.status

    def protect_memory(self):
        self.protected += 1
        return self.regions

    def model_config(self, model):
        return config_of(CONFIGS[model])

    def restart(self):
        self.restarted += 1
        self.drains.append(self.drain_file.exists())
        self.regions = 0
        self.end()
        if self.starts:
            raise self.starts.pop(0)
        self.status = None
        self._start_all()

    def log_tail(self):
        return "its last words"

    def load(self, model, config, timeout_s):
        new = json_format.Parse(config, model_config_pb2.ModelConfig())
        self.loads.append((model, new))
        if self.refusals:
            raise self.refusals.pop(0)
        for instance, process in list(self.processes.items()):
            # Triton keeps the process of a dead instance until the server ends: it is not waited for here.
            if instance.startswith(model) and psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE:
                self.spawn(model, instance)

    def unload(self, model):
        self.unloads.append(model)

    def show(self, restarts, dead_instances):
        if self.unshown:
            raise self.unshown.pop(0)
        self.shown.append((restarts, dead_instances))

    def dead_shown(self):
        return [dead for _, dead in self.shown]

    def counted(self):
        """Restarts that are on the metrics page."""
        return {
            (model, reason): number
            for model, counts in self.shown[-1][0].items()
            for reason, number in counts.items()
            if number
        }

    def end(self):
        for process in self._started:
            process.kill()
            process.wait()


class FakeCounts:
    """Nothing is ever completed; or the server does not answer."""

    def __init__(self):
        self.numbers = {}
        self.answers = True

    def read(self, address):
        if not self.answers:
            raise ConnectionError("no answer")
        return dict(self.numbers)


class FakeClock:
    """A wall clock that can be set."""

    def __init__(self):
        self.ahead_s = 3_600.0
        """Of a monotonic one."""
        self.reads = 0

    def read(self):
        self.reads += 1
        return time.monotonic() + self.ahead_s


class Case:
    """One supervisor with its server."""

    def __init__(self, tmp_path, models, canaries, called, limits):
        self.server = FakeServer(tmp_path / "repository", models)
        self.counts = FakeCounts()
        self.said = []
        self.clock = FakeClock()
        self.path = tmp_path / "supervisor.json"
        self.supervisor = Supervisor(
            self.server,
            canaries,
            limits=SupervisorLimits(**(LIMITS | limits)),
            record=self.path,
            report=self.said.append,
            load_s=5,
            called=lambda model: called.get(model, set()),
            counts=self.counts.read,
            clock=liveness.WallClock(self.clock.read),
        )
        self.supervisor.start()

    def signal(self, instance, number=signal.SIGKILL):
        os.kill(self.server.processes[instance].pid, number)

    def record(self):
        return json.loads(self.path.read_text())

    def until(self, happened, limit_s=20.0):
        end = time.monotonic() + limit_s
        while not happened():
            assert time.monotonic() < end, (self.said, self.record())
            time.sleep(0.01)

    def look(self):
        """Let the supervisor look at the server several times."""
        protected = self.server.protected
        self.until(lambda: self.server.protected > protected + 5)

    def until_replaced(self, times=1):
        """Wait until the server has been started again so many times, and serves."""
        self.until(lambda: self.server.restarted == times)
        self.until(lambda: self.record()["server"]["state"] == "serving")

    def until_restored(self, model="echo", times=1):
        def restored():
            entry = self.record()["models"][model]
            return entry["state"] == "serving" and sum(entry["restarts"].values()) == times

        self.until(restored)


def failing(*failures):
    """A canary that raises these errors, and is answered from then on."""
    left = list(failures)

    def echo(address, deadline_s):
        if left:
            raise left.pop(0)
        return "echo answered"

    return echo


@pytest.fixture
def make(tmp_path):
    cases = []

    def build(models=("echo",), canaries=None, called=None, **limits):
        cases.append(Case(tmp_path, list(models), canaries or {}, called or {}, limits))
        return cases[-1]

    yield build
    for case in cases:
        case.supervisor.stop()
        case.server.end()


@pytest.mark.parametrize(
    ("number", "reason", "words"),
    [(signal.SIGKILL, "died", "died"), (signal.SIGSTOP, "stopped", "was stopped")],
)
def test_model_whose_process_ends_is_loaded_again_alone(make, number, reason, words):
    case = make(models=("echo", "agent"))
    case.signal("echo_0_0", number)
    case.until_restored()
    assert [model for model, _ in case.server.loads] == ["echo"]
    case.until(lambda: case.server.counted() == {("echo", reason): 1})
    assert case.supervisor.restarts() == {"": {}, "echo": {reason: 1}, "agent": {}}
    assert case.record()["models"]["echo"]["last"]["reason"] == reason
    assert any(f"{words}: echo is loaded again" in line for line in case.said)
    assert any("echo answers again after" in line for line in case.said)
    assert case.server.restarted == 0


def test_loss_is_noted_of_a_model_that_has_no_process_left(make):
    case = make(models=("echo", "agent"))
    case.signal("agent_0_0")
    case.until_restored("agent")
    assert not loss_path(case.server.folder, "agent").exists()
    case.signal("echo_0_0")
    case.until_restored("echo")
    assert loss_path(case.server.folder, "echo").exists()


def test_the_new_process_is_watched_too(make):
    case = make()
    case.signal("echo_0_0")
    case.until_restored()
    case.signal("echo_0_0")
    case.until_restored(times=2)
    numbers = [config.parameters["parley_restart"].string_value for _, config in case.server.loads]
    assert numbers == ["1", "2"], "Triton loads nothing if nothing has changed"


def test_a_process_that_is_stopped_for_a_moment_is_left_alone(make):
    case = make(model_stopped_s=3600.0)
    case.signal("echo_0_0", signal.SIGSTOP)
    pid = case.server.processes["echo_0_0"].pid
    case.until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    time.sleep(0.1)  # several looks
    case.signal("echo_0_0", signal.SIGCONT)
    assert case.server.loads == []


def test_only_the_dead_instance_is_replaced_where_each_has_a_group(make):
    case = make(models=("agent",))
    case.signal("agent_1_0")
    case.until_restored("agent")
    ((_, config),) = case.server.loads
    assert [group.rate_limiter.priority for group in config.instance_group] == [1, 3]
    assert "parley_restart" not in config.parameters
    case.signal("agent_0_0")
    case.until_restored("agent", times=2)
    _, config = case.server.loads[-1]
    assert [group.rate_limiter.priority for group in config.instance_group] == [4, 3]


def test_a_load_that_fails_is_tried_again_and_the_dead_model_is_taken_away(make):
    case = make()
    case.server.refusals = [ControlError("no weights", refused=True)] * 2
    case.signal("echo_0_0")
    case.until_restored(times=3)
    assert case.server.unloads == ["echo", "echo"], "so that Triton calls it ready no more"
    assert sum("echo was not loaded: no weights" in line for line in case.said) == 2


def test_a_model_that_does_not_answer_after_its_load_is_loaded_again(make):
    canary = failing(*[CanaryError("no")] * 3)

    def echo(address, deadline_s):
        time.sleep(0.1)
        return canary(address, deadline_s)

    case = make(canaries={"echo": echo})
    case.signal("echo_0_0")
    case.until(lambda: len(case.server.loads) == 1)
    case.until(lambda: case.record()["models"]["echo"]["state"] == "serving")


def test_every_counter_is_there_before_anything_is_counted(make):
    case = make(models=("echo", "agent"))
    begun = {(model, reason) for model in ("echo", "agent") for reason in ("died", "stopped", "unresponsive")}
    begun |= {
        ("", reason)
        for reason in (
            "died",
            "stopped",
            "unresponsive",
            "clock_set_back",
            "model_not_restored",
            "dead_instances",
        )
    }

    def shown():
        restarts, _ = case.server.shown[0]
        return {(model, reason) for model, counts in restarts.items() for reason in counts}

    case.until(lambda: case.server.shown)
    assert shown() == begun
    assert case.server.counted() == {}
    case.server.shown.clear()
    case.server.status = 1
    case.until(lambda: case.server.shown)
    assert shown() == begun
    assert case.server.restarted == 1


def test_a_model_that_keeps_failing_costs_a_new_server(make):
    case = make(model_attempts=2)
    case.server.refusals = [ControlError("no weights", refused=True)] * 2
    case.signal("echo_0_0")
    case.until_replaced()
    assert case.record()["server"]["restarts"] == {"model_not_restored": 1}
    assert any("was loaded again 2 times" in line for line in case.said)
    # A new server's counters begin at zero: they are brought up to date.
    counted = {("echo", "died"): 2, ("", "model_not_restored"): 1}
    case.until(lambda: case.server.counted() == counted)
    case.signal("echo_0_0")
    case.until_restored(times=3)


def test_dead_instances_below_the_limit_are_shown_and_the_server_stays(make):
    case = make(dead_instances=2, drain_s=0.0)
    case.server.regions = 3  # of echo, the control model, and a process that has ended
    case.until(lambda: case.server.dead_shown()[-1:] == [1])
    case.look()
    assert case.server.restarted == 0
    assert not case.server.drain_file.exists()


def test_dead_instances_at_the_limit_cost_a_new_server_once_calls_could_leave(make):
    case = make(dead_instances=2, drain_s=0.1)
    case.server.regions = 4
    case.until(case.server.drain_file.exists)
    assert case.server.restarted == 0
    case.until(lambda: case.record()["server"]["restarts"] == {"dead_instances": 1})
    case.until(lambda: case.record()["server"]["state"] == "serving")
    assert case.server.drains == [False], "the next server accepts calls"
    assert case.server.restarted == 1
    case.until(lambda: case.server.dead_shown()[-1:] == [0])
    assert any("holds 2 dead instances" in line for line in case.said)


def test_drain_requested_before_outlasts_the_restart_for_dead_instances(make):
    case = make(dead_instances=1, drain_s=0.0)
    case.server.drain_file.write_text('{"deadline_s": 60}')
    case.server.regions = 3
    case.until_replaced()
    assert case.server.drain_file.read_text() == '{"deadline_s": 60}'


def test_drain_for_dead_instances_ends_where_they_are_gone_in_time(make):
    case = make(dead_instances=1, drain_s=60.0)
    case.server.regions = 3
    case.until(case.server.drain_file.exists)
    case.server.regions = 2
    case.until(lambda: not case.server.drain_file.exists())
    assert case.server.restarted == 0


def test_drain_of_an_operator_after_that_for_dead_instances_stays(make):
    case = make(dead_instances=1, drain_s=60.0)
    case.server.regions = 3
    case.until(case.server.drain_file.exists)
    case.server.drain_file.write_text('{"deadline_s": 60}')
    case.server.regions = 2
    case.until(lambda: case.server.dead_shown()[-1:] == [0])
    case.look()
    assert case.server.drain_file.read_text() == '{"deadline_s": 60}'


def test_server_with_dead_instances_goes_on_where_its_budget_is_used_up(make):
    case = make(dead_instances=1, drain_s=0.0, server_attempts=1)
    case.server.regions = 3
    case.until_replaced()
    case.server.regions = 3
    case.look()
    assert case.server.restarted == 1
    assert case.record()["server"]["state"] == "serving"


def test_regions_of_processes_that_are_being_loaded_are_not_dead(make):
    case = make(dead_instances=1, drain_s=0.0)
    case.server.refusals = [ControlError("no weights", refused=True)]
    case.server.regions = 2
    case.signal("echo_0_0")
    case.until_restored(times=2)
    case.look()
    assert case.server.restarted == 0


def fail_once(monkeypatch, owner, name):
    """The next call of a function has no descriptor left; later ones work."""
    usual = getattr(owner, name)
    failed = threading.Event()

    def function(*args):
        if failed.is_set():
            return usual(*args)
        failed.set()
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(owner, name, function)
    return failed


def test_load_that_fails_in_the_launcher_is_tried_again(make, monkeypatch):
    case = make()
    case.server.refusals = [ControlError("no weights", refused=True)]
    fail_once(monkeypatch, case.server, "unload")
    case.signal("echo_0_0")
    case.until_restored(times=2)
    assert any("echo was not loaded: OSError" in line for line in case.said)


def test_canary_that_fails_in_the_launcher_is_asked_again(make, monkeypatch):
    failed = fail_once(monkeypatch, liveness, "processor_demand_s")
    asked = threading.Event()

    def echo(*_):
        if not failed.is_set():
            raise CanaryLateError("full")
        asked.set()

    case = make(canaries={"echo": echo}, quiet_s=0.04)
    case.until(asked.is_set)
    assert case.said == []


def test_numbers_that_could_not_be_shown_are_shown_later(make, monkeypatch):
    monkeypatch.setattr(supervisor, "_SHOW_AGAIN_S", 0.0)
    case = make()
    case.until(lambda: case.server.shown)
    case.server.unshown = [ControlError("no answer", refused=False), OSError(24, "Too many open files")]
    case.signal("echo_0_0")
    case.until(lambda: case.server.counted() == {("echo", "died"): 1})
    assert case.server.unshown == []


def test_regions_of_a_server_behind_another_program_are_not_dead(make, monkeypatch):
    monkeypatch.setattr(FakeServer, "pid", 2**22 + 1)
    case = make(dead_instances=1, drain_s=0.0)
    case.server.regions = 2
    case.look()
    assert case.server.restarted == 0
    assert not case.supervisor.holds_dead_instances


def test_a_control_model_that_does_not_answer_costs_a_new_server(make):
    case = make()
    case.server.refusals = [ControlError("no answer", refused=False)]
    case.signal("echo_0_0")
    case.until_replaced()


def test_the_death_of_the_control_model_alone_changes_nothing(make):
    case = make()
    case.signal(f"{CONTROL_MODEL}_0_0")
    case.until(lambda: any("none can any more" in line for line in case.said))
    assert case.server.loads == []
    assert case.server.restarted == 0


def test_a_server_that_ends_is_started_again(make):
    case = make()
    case.server.status = -9
    case.server.end()
    case.until_replaced()
    assert case.record()["server"]["restarts"] == {"died": 1}
    assert case.server.loads == [], "its models died with it"


def test_a_server_that_ended_on_a_signal_is_left_alone(make):
    case = make()
    case.server.status = 0
    case.until(lambda: case.supervisor.ended)
    assert case.server.restarted == 0


def test_a_server_that_cannot_be_started_is_given_up_with_its_reason(make):
    case = make(server_attempts=2)
    case.server.starts = [NotReadyError("it is still loading"), NotReadyError("no memory")]
    case.server.status = 7
    case.until(lambda: case.supervisor.failure is not None)
    assert isinstance(case.supervisor.failure, RestartLimitError)
    assert "status 7; it was started again 2 times in 600 s. no memory" in str(case.supervisor.failure)
    assert case.record()["server"]["state"] == "failed"


def test_start_without_memory_counts_as_an_attempt(make):
    case = make(server_attempts=2)
    case.server.starts = [OSError(12, "Cannot allocate memory")]
    case.server.status = 7
    case.until_replaced(2)
    assert case.record()["server"]["restarts"] == {"died": 1}
    assert not any("error of its own" in line for line in case.said)


def test_a_record_that_could_not_be_written_is_written_later(make, caplog):
    case = make()
    draft = case.path.with_suffix(".new")
    draft.mkdir()  # as little can be written there as on a full disk
    case.signal("echo_0_0")
    case.until(lambda: any("echo answers again" in line for line in case.said))
    assert case.record()["models"]["echo"]["restarts"] == {}
    draft.rmdir()
    case.until_restored()
    assert caplog.text.count("was not written") == 1


def test_the_record_of_a_stopped_supervisor(make):
    case = make()
    case.supervisor.stop()
    assert case.record()["server"]["state"] == "stopped"


def test_without_attempts_the_first_failure_ends_it(make):
    case = make(server_attempts=0, model_attempts=0)
    case.signal("echo_0_0")
    case.until(lambda: case.supervisor.failure is not None)
    assert case.server.loads == []
    assert "of echo_0_0 died" in str(case.supervisor.failure)
    assert "its last words" in str(case.supervisor.failure)
    assert "again" not in str(case.supervisor.failure)
    assert case.said == [], "nothing is announced that is not done"


def test_a_server_that_does_not_give_its_counts_is_replaced(make):
    case = make(quiet_s=0.04)
    case.counts.answers = False
    case.until(lambda: case.server.restarted >= 1)
    case.counts.answers = True
    case.until(lambda: case.record()["server"]["state"] == "serving")
    assert "unresponsive" in case.record()["server"]["restarts"]


def test_a_server_whose_clock_was_set_back_is_replaced(make):
    case = make()
    case.until(lambda: case.clock.reads > 1)
    case.clock.ahead_s = 0.0
    case.until_replaced()
    assert case.record()["server"]["restarts"] == {"clock_set_back": 1}
    assert case.said[0].startswith("the clock was set back by 3600 s")
    assert case.server.loads == []


def set_back(case):
    case.until(lambda: case.clock.reads > 1)
    case.clock.ahead_s -= 60.0


def test_a_clock_that_is_set_back_often_is_no_failure_of_the_server(make):
    case = make(server_attempts=3)
    for restarted in (1, 2, 3):
        set_back(case)
        case.until_replaced(restarted)
    for _ in range(2):
        set_back(case)
        reads = case.clock.reads
        case.until(lambda reads=reads: case.clock.reads > reads + 1)
    assert case.server.restarted == 3
    assert sum("started again 3 times within" in line for line in case.said) == 1
    case.server.status = 1
    case.until_replaced(4)
    assert case.supervisor.failure is None


def test_a_clock_that_was_set_back_too_often_costs_a_new_server_later(make):
    case = make(server_attempts=1, window_s=0.5)
    for restarted in (1, 2):
        set_back(case)
        case.until_replaced(restarted)


def test_a_server_that_does_not_start_after_a_set_back_is_given_up(make):
    case = make(server_attempts=2)
    case.server.starts = [NotReadyError("it is still loading")] * 3
    set_back(case)
    case.until(lambda: case.supervisor.failure is not None)
    assert case.server.restarted == 3
    assert "it was started again 2 times" in str(case.supervisor.failure)


def test_without_attempts_a_clock_that_is_set_back_ends_it(make):
    case = make(server_attempts=0)
    set_back(case)
    case.until(lambda: case.supervisor.failure is not None)
    assert case.server.restarted == 0


def test_a_clock_that_is_set_forward_or_by_little_changes_nothing(make):
    case = make()
    for ahead_s in (7_200.0, 7_191.0):
        case.clock.ahead_s, reads = ahead_s, case.clock.reads
        case.until(lambda reads=reads: case.clock.reads > reads + 1)
    assert case.server.restarted == 0


def test_a_restart_takes_as_long_as_it_takes_though_the_clock_is_set_meanwhile(monkeypatch):
    record, wall = RestartRecord(), [7_200.0]
    monkeypatch.setattr(restarts, "time", SimpleNamespace(time=lambda: wall[0], monotonic=time.monotonic))
    record.on_failure(Failure("died", "process 1 died"))
    wall[0] = 3_600.0
    assert 0 <= record.on_restored() < 60
    assert record.last.answered == 3_600.0


def test_a_quiet_model_that_fails_its_canary_twice_is_replaced(make):
    case = make(canaries={"echo": failing(*[CanaryError("no answer within 8 s")] * 2)}, quiet_s=0.04)
    case.until_restored()
    assert case.supervisor.restarts()["echo"] == {"unresponsive": 1}


def test_one_canary_that_fails_changes_nothing(make):
    asked = threading.Event()
    canary = failing(CanaryError("no answer within 8 s"))

    def echo(address, deadline_s):
        canary(address, deadline_s)
        asked.set()

    case = make(canaries={"echo": echo}, quiet_s=0.04)
    assert asked.wait(10)
    assert case.server.loads == []


def test_canaries_use_one_pool_of_channels_until_the_server_is_started_again(make):
    pools = []
    case = make(canaries={"echo": lambda address, _: pools.append(address) or "answered"}, quiet_s=0.04)
    case.until(lambda: len(pools) > 2)
    before = pools[-1]
    assert all(one is before for one in pools)
    case.server.status = 1
    case.until(lambda: pools[-1] is not before)
    assert case.server.restarted == 1


def test_canary_of_a_replaced_process_does_not_count_against_the_new_one(make):
    asked, over, again = threading.Event(), threading.Event(), threading.Event()

    def echo(address, deadline_s):
        if asked.is_set():
            if over.is_set():
                again.set()
            return "echo answered"
        asked.set()
        assert over.wait(10)
        raise CanaryError("Stub process 'echo_0_0' is not healthy.")

    case = make(canaries={"echo": echo}, quiet_s=0.04)
    assert asked.wait(10)
    case.signal("echo_0_0")
    case.until_restored()
    over.set()
    assert again.wait(10)
    assert not any("failed its canary" in line for line in case.said)


@pytest.fixture
def used(monkeypatch):
    """Processor time of each process, in seconds for each second that has passed."""
    rates = {}
    clock = time.monotonic

    def processor_demand_s(processes):
        return clock() * sum(rates.get(pid, 0.0) for pid in processes)

    monkeypatch.setattr(liveness, "processor_demand_s", processor_demand_s)
    return rates


def late(address, deadline_s):
    raise CanaryLateError("no answer in time")


@pytest.fixture
def late_canary():
    """A canary that is late every time, with its calls."""
    calls = []

    def canary(address, deadline_s):
        calls.append(address)
        late(address, deadline_s)

    canary.calls = calls
    return canary


def test_a_model_that_works_is_not_replaced_though_it_is_late(make, used, late_canary):
    case = make(canaries={"echo": late_canary}, quiet_s=0.04)
    used[case.server.processes["echo_0_0"].pid] = 0.2
    case.until(lambda: len(late_canary.calls) > 5)
    assert case.server.loads == []
    used.clear()
    case.until(lambda: len(case.server.loads) > 0)


def test_a_model_whose_called_models_work_is_not_replaced_though_it_is_late(make, used, late_canary):
    case = make(
        models=("agent", "echo"),
        canaries={"agent": late_canary, "echo": lambda *_: "echo answered"},
        called={"agent": {"echo"}},
        quiet_s=0.04,
    )
    used[case.server.processes["echo_0_0"].pid] = 0.2
    case.until(lambda: len(late_canary.calls) > 5)
    assert case.server.loads == []


def test_a_model_that_works_for_too_long_is_replaced(make, used):
    case = make(canaries={"echo": late}, quiet_s=0.04, working_s=0.3)
    used[case.server.processes["echo_0_0"].pid] = 1.0
    case.until(lambda: len(case.server.loads) > 0)
    assert case.supervisor.restarts()["echo"]["unresponsive"] >= 1


def test_an_instance_whose_event_loop_stands_still_is_replaced_alone(make, used):
    case = make(models=("agent",))
    heartbeat_path(case.server.folder, case.server.processes["agent_1_0"].pid).touch()  # and never again
    case.until_restored("agent")
    assert case.supervisor.restarts()["agent"] == {"unresponsive": 1}
    assert "stands still" in case.record()["models"]["agent"]["last"]["detail"]
    (_, config), *_ = case.server.loads
    assert [group.rate_limiter.priority for group in config.instance_group] == [1, 3]


def test_a_hanging_model_is_noticed_within_ten_seconds():
    limits = SupervisorLimits()
    looks = 3 * limits.look_s  # the counts, and each answer
    assert limits.quiet_s * 5 / 4 + 2 * limits.canary_s + looks < 10.0
    assert limits.silent_s + looks < 10.0


def test_a_model_that_completes_work_is_not_asked(make):
    case = make(canaries={"echo": lambda *_: pytest.fail("asked")}, quiet_s=2.0)
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        case.counts.numbers["echo"] = (time.monotonic_ns(),)
        time.sleep(0.05)
    assert case.server.loads == []


@pytest.mark.parametrize("order", [("agent", "echo"), ("echo", "agent")])
def test_a_model_is_not_blamed_for_one_that_it_calls(make, order):
    failures = [CanaryLateError("no answer within 8 s")] * 2

    def agent(address, deadline_s):
        if failures:
            raise CanaryError("the echo that I need does not answer")
        return "agent answered"

    def echo(address, deadline_s):
        if failures:
            time.sleep(0.1)  # the agent's failure is known long before
            raise failures.pop()
        return "echo answered"

    canaries = {"agent": agent, "echo": echo}
    case = make(
        models=order,
        canaries={model: canaries[model] for model in order},
        called={"agent": {"echo"}},
        quiet_s=0.04,
    )
    case.until_restored()
    assert [model for model, _ in case.server.loads] == ["echo"]


def test_a_model_that_hangs_is_found_while_one_that_calls_it_is_loaded_again(make):
    """As where the dead caller has left the called model's thread in its shared memory's lock."""
    case = None

    def is_hanging():
        return "echo" not in [model for model, _ in case.server.loads]

    def agent(address, deadline_s):
        if is_hanging():
            raise CanaryError("the echo that I need does not answer")
        return "agent answered"

    def echo(address, deadline_s):
        if is_hanging():
            raise CanaryLateError("no answer in time")
        return "echo answered"

    case = make(
        models=("agent", "echo"),
        canaries={"agent": agent, "echo": echo},
        called={"agent": {"echo"}},
        reload_canary_s=20.0,
        quiet_s=1.0,
    )
    case.signal("agent_0_0")
    case.until_restored("echo")
    case.until_restored("agent")
    assert [model for model, _ in case.server.loads] == ["agent", "echo"]


def test_attempts_are_spread_and_bounded_within_a_window():
    attempts = SupervisorLimits(waits_s=(1.0, 5.0), window_s=100.0).attempts(3)
    assert attempts.next_at(10.0) == 10.0
    attempts.add(10.0)
    assert attempts.next_at(10.5) == 11.0
    attempts.add(11.0)
    assert attempts.next_at(50.0) == 50.0
    assert attempts.next_at(12.0) == 16.0
    attempts.add(16.0)
    assert attempts.next_at(20.0) is None
    assert attempts.next_at(110.5) == 110.5, "the first one counts no more"


@pytest.mark.parametrize(
    "text",
    [
        # Its scheduler would wait for the end of a dead instance.
        'name: "echo" instance_group [{ count: 1 }, { count: 1 rate_limiter { priority: 2 } }]',
        # To Triton both instances are the same.
        'name: "echo" sequence_batching {} instance_group [{ name: "a" count: 1 }, { name: "b" count: 1 }]',
        'name: "echo" sequence_batching {} instance_group [{ count: 2 }]',
        'name: "echo" sequence_batching {} instance_group [{ name: "other" count: 1 }]',
    ],
)
def test_where_an_instance_cannot_be_replaced_alone_the_model_is(text):
    config = config_of(text)
    assert not renew_instances(config, ["echo_0_0"])
    assert config == config_of(text)
    renew_model(config, 3)
    assert config.parameters["parley_restart"].string_value == "3"


def test_groups_without_names_are_named_as_triton_names_them():
    config = config_of('name: "echo" sequence_batching {} instance_group [{ kind: KIND_CPU count: 1 }]')
    assert renew_instances(config, ["echo_0_0"])
    assert config.instance_group[0].rate_limiter.priority == 1


@pytest.mark.parametrize("profile", ["gpu", "tiny"])
def test_an_instance_of_the_agent_can_be_replaced_while_the_others_go_on(profile):
    config = read_config(ServerOptions().model_repository / "voice_agent", profile)
    assert len(config.instance_group) > 1
    assert renew_instances(config, [f"{config.instance_group[-1].name}_0"])

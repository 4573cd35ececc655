"""How many sessions a server accepts by default."""

from __future__ import annotations

import tomllib

import pytest

from parley.agent.config import AgentConfig
from parley.launcher.models import count_instances
from parley.launcher.options import ROOT
from parley.runtime.parameters import Parameters
from parley.runtime.repository import read_parameters
from parley.runtime.sessions import count_cores, default_sessions

AGENT = ROOT / "model_repository" / "voice_agent"
TABLE = tomllib.loads((ROOT / "src/parley/runtime/sessions.toml").read_text())


@pytest.mark.parametrize(
    ("profile", "cores", "each"),
    [
        ("open", 2, 1),
        ("open", 0.5, 1),
        ("open", 4, 2),
        ("open", 5.9, 2),
        ("open", 1_000, 16),
        ("tiny", 2, 16),
    ],
)
def test_sessions_of_an_instance_follow_the_cores(profile, cores, each):
    assert default_sessions(profile, cores) == each


@pytest.mark.parametrize("profile", ["gpu", "own"])
def test_other_profiles_have_no_number_by_cores(profile):
    assert default_sessions(profile, 8) is None


@pytest.mark.parametrize("profile", TABLE)
def test_the_table_has_the_instances_of_the_configurations(profile):
    assert TABLE[profile]["instances"] == count_instances(AGENT, profile)


@pytest.mark.parametrize(("profile", "recognizer"), [("tiny", "nemotron_streaming"), ("open", "moonshine")])
def test_the_recogniser_has_a_stream_for_every_session_and_as_many_more(profile, recognizer):
    parameters = read_parameters(AGENT.parent / recognizer, profile, {})
    assert parameters.integer("max_sessions", 0) >= 2 * TABLE[profile]["most"]


def test_a_setting_counts_over_the_table(monkeypatch):
    monkeypatch.setattr("parley.agent.config.count_cores", lambda: 4.0)
    values = {"profile": "open"}
    assert AgentConfig.from_parameters(Parameters("voice_agent", values, environment={})).max_sessions == 2
    given = {"PARLEY_VOICE_AGENT_MAX_SESSIONS": "7"}
    assert AgentConfig.from_parameters(Parameters("voice_agent", values, environment=given)).max_sessions == 7


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/", {"cpu.max": "25000 100000"}, 0.25),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ("0::/elsewhere", {"cpu.max": "30000 100000"}, 0.3),
        (
            "4:cpu,cpuacct:/docker/x\n0::/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "40000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            0.4,
        ),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("0::/", {"cpu.max": "nonsense"}, 1),
    ],
)
def test_control_groups_limit_the_cores(tmp_path, monkeypatch, own, files, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    (tmp_path / "own").write_text(f"{own}\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    assert count_cores(tmp_path / "groups", tmp_path / "own") == cores


def test_without_control_groups_the_affinity_counts(tmp_path):
    assert count_cores(tmp_path, tmp_path / "none") >= 1

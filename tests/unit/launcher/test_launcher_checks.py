"""Settings that are checked before a start: the agent's models, the tools file, variables."""

from __future__ import annotations

import dataclasses
import re
import socket

import pytest

from parley.agent.config import AgentConfig
from parley.agent.defined_agents import AgentOpener
from parley.launcher.__main__ import main
from parley.launcher.checks import (
    check_agent_models,
    check_log_format,
    check_tools_file,
    find_unknown_settings,
    find_wrong_agents,
)
from parley.launcher.errors import AlreadyRunningError, LauncherSettingsError, ToolsFileError
from parley.launcher.options import ROOT, TINY_PROFILE, ServerOptions, choose_ports, leave_busy_ports
from parley.launcher.processes import StateLock
from parley.runtime.parameters import Parameters

ASR = "PARLEY_VOICE_AGENT_ASR"
LLM = "PARLEY_VOICE_AGENT_LLM"
TTS = "PARLEY_VOICE_AGENT_TTS"
TURN = "PARLEY_VOICE_AGENT_TURN"
OPEN = ServerOptions(profile="open")


@pytest.mark.parametrize("profile", ["open", "tiny", "gpu"])
def test_every_profile_has_the_models_that_its_agent_names(profile):
    check_agent_models(ServerOptions(profile=profile), {})


@pytest.mark.parametrize(
    "environment",
    [{LLM: "openai_chat"}, {TURN: "none"}, {TTS: "kokoro,piper"}, {TTS: "chatterbox, espeak"}, {ASR: ""}],
)
def test_other_models_may_be_named(environment):
    check_agent_models(OPEN, environment)


def test_a_synthesizer_of_another_profile_is_one_of_that():
    check_agent_models(ServerOptions(), {TTS: "chatterbox"})


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (
            ASR,
            "parakeet_tdt",
            f"open has no model parakeet_tdt for {ASR}; it has moonshine, whisper, sherpa_onnx.",
        ),
        (ASR, "none", f"open has no model none for {ASR}; it has moonshine, whisper, sherpa_onnx."),
        (LLM, "gpt", f"open has no model gpt for {LLM}; it has qwen3, openai_chat."),
        (TTS, "chatterbox", f"open has no model chatterbox for {TTS}; it has espeak, piper, hibari, kokoro."),
        (TTS, "piper,kokroo", f"open has no model kokroo for {TTS}; it has espeak, piper, hibari, kokoro."),
        (TURN, "smart", f"open has no model smart for {TURN}; it has smart_turn, none."),
    ],
)
def test_a_model_that_the_profile_has_not_is_refused(variable, value, words):
    with pytest.raises(LauncherSettingsError) as caught:
        check_agent_models(OPEN, {variable: value})
    assert str(caught.value) == f"The profile {words}"


def test_a_fallback_may_be_the_only_synthesizer():
    models = ("voice_agent", "parakeet_tdt", "nemotron_streaming", "smart_turn", "qwen3")
    check_agent_models(ServerOptions(profile="gpu", load_models=(*models, "espeak")), {})
    with pytest.raises(LauncherSettingsError, match=r"The model chatterbox, which the parameter tts .* none"):
        check_agent_models(ServerOptions(profile="gpu", load_models=models), {})


def test_a_model_of_the_profile_must_be_loaded():
    chosen = ServerOptions(load_models=("voice_agent", "qwen3"))
    with pytest.raises(
        LauncherSettingsError, match=r"nemotron_streaming, which the parameter asr .* is not loaded"
    ):
        check_agent_models(chosen, {})
    check_agent_models(ServerOptions(load_models=("espeak",)), {ASR: "whisper"})


def test_a_model_that_is_left_out_is_answered_with_the_reason():
    chosen = ServerOptions(load_models=("voice_agent", "qwen3"))
    with pytest.raises(LauncherSettingsError, match=r"there are none\. Weights of it are away\.$"):
        check_agent_models(chosen, {}, {"nemotron_streaming": "weights of it are away"})


def test_the_command_ends_with_status_2_at_once(monkeypatch, capfd):
    monkeypatch.setenv(ASR, "parakeet_tdt")
    assert main(["--profile", "open", "--name", "never", "--any-port", "--no-fetch"]) == 2
    assert not (ROOT / ".server/never/triton.log").exists()
    assert "error: The profile open has no model parakeet_tdt" in capfd.readouterr().err


def test_a_profile_that_there_is_not_is_told_though_a_server_runs(monkeypatch, capfd):
    def refuse(_):
        raise AlreadyRunningError("A server is already running")

    monkeypatch.setattr(StateLock, "check", refuse)
    arguments = ["--name", "never", "--any-port", "--no-fetch"]
    assert main(["--profile", "opne", *arguments]) == 2
    error = capfd.readouterr().err
    assert "no profile 'opne' (did you mean open?); it has gpu, open, tiny." in error
    assert main(["--profile", "open", *arguments]) == 1
    assert "error: A server is already running" in capfd.readouterr().err


VARIABLE = "PARLEY_VOICE_AGENT_TOOLS_FILE"
GOOD = """
allowed_hosts = ["api.example.com"]

[[http]]
name = "look_up"
url = "https://api.example.com/words"
headers = { Authorization = "Bearer ${WORDS_KEY}" }
"""


@pytest.fixture
def options(repository, tmp_path):
    """Of a server with a ``voice_agent`` whose settings name ``tools.toml``."""
    folder = repository / "voice_agent" / "configs"
    folder.mkdir(parents=True)
    (folder / f"{TINY_PROFILE}.pbtxt").write_text(
        'name: "voice_agent"\nparameters { key: "tools_file" value { string_value: "tools.toml" } }\n'
    )
    return ServerOptions(model_repository=repository, environment={"WORDS_KEY": "abcd"})


def test_a_good_tools_file_in_the_folder_of_the_repository(options, tmp_path):
    (tmp_path / "tools.toml").write_text(GOOD)
    check_tools_file(options, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[http]", "cannot be read"),
        (GOOD.replace("https", "http"), "tool 'look_up'"),
        (GOOD.replace("WORDS_KEY", "OTHER_KEY"), "OTHER_KEY is not set"),
        (None, "No such file"),
    ],
)
def test_a_bad_tools_file_is_one_line(options, tmp_path, text, words):
    if text is not None:
        (tmp_path / "tools.toml").write_text(text)
    with pytest.raises(ToolsFileError, match=words) as caught:
        check_tools_file(options, {})
    assert "\n" not in str(caught.value)


def test_the_environment_names_another_tools_file(options, tmp_path):
    (tmp_path / "other.toml").write_text("nonsense")
    with pytest.raises(ToolsFileError, match=r"other\.toml"):
        check_tools_file(options, {VARIABLE: str(tmp_path / "other.toml")})


def test_the_tools_file_is_not_read_without_the_agent(options, repository):
    check_tools_file(ServerOptions(model_repository=repository, load_models=("echo",)), {})


MODELS = ROOT / "model_repository"


@pytest.mark.parametrize(
    ("variable", "model", "meant"),
    [
        ("PARLEY_VOICE_AGENT_GREETNG", "voice_agent", "PARLEY_VOICE_AGENT_GREETING"),
        ("PARLEY_VOICE_AGENT_SYSTEMPROMPT", "voice_agent", "PARLEY_VOICE_AGENT_SYSTEM_PROMPT"),
        ("PARLEY_MOONSHINE_TRANSCRIBE_THREDS", "moonshine_transcribe", "PARLEY_MOONSHINE_TRANSCRIBE_THREADS"),
        ("PARLEY_S3GEN_ZZZ", "s3gen", ""),
    ],
)
def test_a_misspelt_setting_is_reported(variable, model, meant):
    (line,) = find_unknown_settings(MODELS, {variable: "1"})
    assert line.startswith(f"warning: {variable} has no effect: {model} has no such setting")
    assert line.endswith(f" (did you mean {meant}?)" if meant else "setting")


@pytest.mark.parametrize(
    "variable",
    [
        "PARLEY_VOICE_AGENT_TOOLS_FILE",
        "PARLEY_VOICE_AGENT_LLM_KEY",  # read by its variable alone
        "PARLEY_VOICE_AGENT_SILENCE_HANG_UP_AFTER_S",  # in no configuration
        "PARLEY_MOONSHINE_TRANSCRIBE_THREADS",
        "PARLEY_CHATTERBOX_VOICES",
        "PARLEY_S3GEN_WHOLE_BUCKETS",
        "PARLEY_PIPER_WEIGHTS",
        "PARLEY_KOKORO_LETTERS",
        "PARLEY_GATEWAY_LISTEN_NONSENSE",
        "PARLEY_VOICES_ENDPOINT",
        "PARLEY_MODELS_DIR",
        "PATH",
    ],
)
def test_what_is_read_is_not_reported(variable):
    assert find_unknown_settings(MODELS, {variable: "1"}) == []


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PARLEY_VOICE_AGNT_ASR", "PARLEY_VOICE_AGENT_ASR"),
        ("PARLEY_VOICEAGENT_GREETNG", "PARLEY_VOICE_AGENT_GREETING"),
        ("PARLEY_QUEN3_MAX_REQUESTS", "PARLEY_QWEN3_MAX_REQUESTS"),
        ("PARLEY_MOONSHIN_TRANSCRIBE_THREADS", "PARLEY_MOONSHINE_TRANSCRIBE_THREADS"),
    ],
)
def test_a_misspelt_model_is_reported(variable, meant):
    assert find_unknown_settings(MODELS, {variable: "x"}) == [
        f"warning: {variable} has no effect: it names no model (did you mean {meant}?)"
    ]


def test_what_other_parts_of_the_project_read_is_not_reported():
    files = [MODELS.parent / "Makefile"]
    for folder in ("src", "clients", "scripts", "deploy", "perf", "build"):
        files += (
            path for path in (MODELS.parent / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"
        )
    names = {
        name
        for path in files
        for name in re.findall(r"\bPARLEY_[A-Z0-9_]*[A-Z0-9]", path.read_text(errors="replace"))
    }
    assert {"PARLEY_WEIGHTS_CACHE", "PARLEY_GATEWAY_LISTEN_PORT", "PARLEY_FRONT_SUBNET"} <= names
    assert find_unknown_settings(MODELS, dict.fromkeys(names, "1")) == []


def test_an_empty_variable_counts_as_unset():
    assert find_unknown_settings(MODELS, {"PARLEY_VOICE_AGENT_GREETNG": ""}) == []


def test_all_that_the_agent_reads_is_found():
    asked = set()

    class Recorder(dict):
        def get(self, key, default=None):
            asked.add(key)
            return default

    AgentConfig.from_parameters(Parameters("voice_agent", {}, environment=Recorder()))
    settings = {name for name in asked if name.startswith("PARLEY_VOICE_AGENT_")}
    assert len(settings) > 40
    assert find_unknown_settings(MODELS, dict.fromkeys(settings, "1")) == []


def test_a_model_of_ones_own_may_read_its_variables_itself(repository):
    (repository / "echo" / "1").mkdir()
    (repository / "echo" / "1" / "model.py").write_text('VOLUME = os.environ["PARLEY_ECHO_VOLUME"]\n')
    environment = {"PARLEY_ECHO_VOLUME": "1", "PARLEY_ECHO_VOLUMN": "1"}
    assert [line.split()[1] for line in find_unknown_settings(repository, environment)] == [
        "PARLEY_ECHO_VOLUMN"
    ]


def test_a_log_format_that_there_is_not_is_refused_before_the_start():
    check_log_format({"PARLEY_LOG_FORMAT": "json"})
    with pytest.raises(LauncherSettingsError, match="PARLEY_LOG_FORMAT is 'xml'; it must be text or json"):
        check_log_format({"PARLEY_LOG_FORMAT": "xml"})


def test_leave_busy_ports_replaces_only_those_that_are_taken():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = busy.getsockname()[1]
        usual = choose_ports(ServerOptions(grpc_port=0, http_port=0, metrics_port=0))
        left = leave_busy_ports(dataclasses.replace(usual, http_port=taken))
    assert (left.grpc_port, left.http_port, left.metrics_port) == (usual.grpc_port, 0, usual.metrics_port)


AGENTS = {
    "restaurant": 'instructions = "You take bookings."\nvoice = "af_heart"',
    "clinic": '\ninstrucions = "You make appointments."',
    "help": 'instructions = "x"\nvoice = "af_hart"\n[tools]\nallowed_hosts = ["h"]',
}


@pytest.fixture
def agents(tmp_path):
    folder = tmp_path / "agents"
    folder.mkdir()
    for name, text in AGENTS.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def test_wrong_agent_is_one_line_before_the_start(agents):
    options = ServerOptions(profile="open")
    lines = find_wrong_agents(options, {"PARLEY_VOICE_AGENT_AGENTS": str(agents)})
    assert [line.partition(" (did")[0].partition("; possible")[0] for line in lines] == [
        "an agent cannot be served: agents/clinic.toml:2: unknown field 'instrucions'",
        "an agent cannot be served: agents/help.toml:2: there is no voice 'af_hart'",
    ]
    assert all("did you mean" in line for line in lines)


def test_check_of_an_agent_that_fails_is_one_line_and_a_trace(agents, monkeypatch, caplog):
    (agents / "clinic.toml").write_text(AGENTS["restaurant"])
    check = AgentOpener.open

    async def open_agent(opener, file, **options):
        if file.name == "clinic":
            raise ZeroDivisionError("nothing to share")
        return await check(opener, file, **options)

    monkeypatch.setattr(AgentOpener, "open", open_agent)
    lines = find_wrong_agents(OPEN, {"PARLEY_VOICE_AGENT_AGENTS": str(agents)})
    assert lines[0] == (
        "an agent cannot be served: agents/clinic.toml:1: it could not be checked: "
        "ZeroDivisionError: nothing to share"
    )
    assert [line.partition(".toml")[0] for line in lines[1:]] == ["an agent cannot be served: agents/help"]
    assert "the agent clinic could not be checked" in caplog.text
    assert "Traceback" in caplog.text


async def test_agents_are_checked_for_callers_with_an_event_loop_too(agents):
    options = ServerOptions(profile="open")
    assert len(find_wrong_agents(options, {"PARLEY_VOICE_AGENT_AGENTS": str(agents)})) == 2


def test_agents_are_not_checked_where_there_are_none(agents):
    assert find_wrong_agents(ServerOptions(profile="open"), {}) == []
    only_echo = ServerOptions(profile="open", load_models=("echo",))
    assert find_wrong_agents(only_echo, {"PARLEY_VOICE_AGENT_AGENTS": str(agents)}) == []


def test_agents_of_a_server_with_wrong_settings_are_reported_as_unchecked(agents):
    environment = {"PARLEY_VOICE_AGENT_AGENTS": str(agents), "PARLEY_VOICE_AGENT_TTS": "kokoro,kokoro"}
    (line,) = find_wrong_agents(ServerOptions(profile="open"), environment)
    assert "cannot be checked: a synthesizer is named twice" in line

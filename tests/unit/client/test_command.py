"""What the command says to mistakes, before and after it asks a server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
from contextlib import asynccontextmanager
from functools import partial

import grpc
import httpx2
import numpy as np
import psutil
import pytest
import soundfile
from fake_agent import FakeAgent, polite, refusing, serve
from fake_unary import serving

from parley import protocol
from parley.agent.config import AgentConfig
from parley.agent.validation import check_start
from parley.canaries.asking import CanaryResult
from parley.engines.speech import KnownSpeaker
from parley.errors import (
    InvalidMessageError,
    ModelUnavailableError,
    ShuttingDownError,
    TooManySessionsError,
    UnknownAgentError,
    UnsupportedLanguageError,
)
from parley.tts import espeak
from parley.tts.kokoro import voices as kokoro
from parley_client import DEFAULT_SERVER, NO_RETRY, connect
from parley_client.audio.files import read_speech
from parley_client.cli import CHECKOUT, PARLEY
from parley_client.cli.advice import advice, advice_on_waiting
from parley_client.cli.arguments import check_output, open_call, tool_table
from parley_client.cli.commands import demo, probe, say, transcribe
from parley_client.cli.commands.demo import serve_page
from parley_client.cli.launcher_notes import noted_state
from parley_client.cli.program import build_parser, main
from parley_client.cli.view import make_console
from parley_client.errors import (
    AudioFileError,
    CallLostError,
    CallRefusedError,
    ConnectError,
    NoGrpcError,
    NoServerError,
    ServersRefusedError,
    UnknownHostError,
    WrongPortError,
)
from parley_stages.transcription import TRANSCRIBERS

NOWHERE = "127.0.0.1:1"


async def get(url):
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.get(url)


async def test_the_page_is_there_for_as_long_as_it_is_needed():
    async with serve_page(NOWHERE, None) as url:
        page = await get(f"{url}/")
        assert page.status_code == 200
        assert "<title>Parley</title>" in page.text
        assert (await get(f"{url}/readyz")).status_code == 503  # there is no server behind it
    port = int(url.rpartition(":")[2])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


async def test_taken_port_is_replaced():
    async with serve_page(NOWHERE, None) as first, serve_page(NOWHERE, None) as second:
        assert first != second
        assert (await get(f"{second}/")).status_code == 200


async def test_without_the_gateways_packages_there_is_none(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    async with serve_page(NOWHERE, None) as url:
        assert url is None


NO_SERVER = "127.0.0.1:1"


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "clip.wav"
    soundfile.write(path, np.full(1_600, 900, np.int16), 16_000)
    return path


@pytest.mark.parametrize("server", ["nonsense", "host:", ":8001", "host:99999", "host:x", "http://h:8001"])
def test_an_address_has_a_host_and_a_port(server, capsys):
    for command in (["probe"], ["voices", "list"], ["transcribe", "a.wav"], ["say", "a.wav"], ["demo"]):
        with pytest.raises(SystemExit) as caught:
            main([*command, "--server", server])
        assert caught.value.code == 2
        assert "HOST:PORT expected, for example 127.0.0.1:8001" in capsys.readouterr().err


@pytest.mark.parametrize("server", ["localhost:8001", "10.0.0.1:1", "[::1]:8001", "agent.example:65535"])
def test_addresses_that_are_taken(server):
    assert build_parser().parse_args(["probe", "--server", server]).server == server


@pytest.mark.parametrize("length", ["5", "501", "many", "-20"])
def test_piece_length_out_of_range_is_refused_with_the_range(length, capsys):
    with pytest.raises(SystemExit):
        main(["say", "a.wav", f"--chunk-ms={length}"])
    error = capsys.readouterr().err.splitlines()[-1]
    assert "10 to 500 expected" in error
    assert len(error) < 100


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--exaggeration=2.5", "0 to 2 expected"),
        ("--guidance=-0.1", "0 to 1 expected"),
        ("--temperature=nan", "0 to 2 expected"),
        ("--silence-after=700", "0 to 600 expected"),
        ("--hang-up-after=soon", "invalid number value: 'soon'"),
        ("--min-words=-1", "a whole number expected"),
    ],
)
def test_numbers_out_of_range_are_wrong_usage(argument, words, capsys):
    for command in (["talk"], ["say", "a.wav"], ["demo"]):
        with pytest.raises(SystemExit) as caught:
            main([*command, argument])
        assert caught.value.code == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "command", "words"),
    [
        ("gateway --lisen 9000", "gateway", "unrecognized arguments: --lisen (did you mean --listen?)"),
        ("gateway keys new --nam kiosk --scpoe chat", "gateway keys new", "--scpoe (did you mean --scope?)"),
        ("say a.wav --voise ef_dora", "say", "--voise (did you mean --voice?)"),
        ("say a.wav --zzz=1", "say", "unrecognized arguments: --zzz=1"),
        ("voices enrol", "voices", "invalid choice: 'enrol'"),
        ("voices show anna --tiemout 3", "voices show", "--tiemout (did you mean --timeout?)"),
        ("drain all of it", "drain", "unrecognized arguments: all of it"),
        ("--verison", "", "--verison (did you mean --version?)"),
    ],
)
def test_misspelt_option_prints_the_usage_of_its_command(arguments, command, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    error = capsys.readouterr().err
    assert f"usage: parley {command}".strip() in error
    assert f"parley {command}".strip() + ": error: " in error
    assert words in error


def test_without_a_command_all_commands_are_listed(capsys):
    assert main([]) == 2
    error = capsys.readouterr().err
    assert "usage: parley" in error
    for command in ("say", "talk", "gateway", "transcribe"):
        assert re.search(rf"^ +{command}\b", error, re.MULTILINE)


@pytest.mark.parametrize(
    "text", ["--- be brief ---", "--brief = good, but kind", "--x=be brief"], ids=["dashes", "=", "an option"]
)
def test_a_text_with_spaces_may_begin_with_dashes(text):
    """As everywhere in argparse."""
    assert start_of("--system-prompt", text).system_prompt == text
    args = build_parser().parse_args(["say", "--system", text, "--greeting", "Good day", "a.wav"])
    assert (args.system_prompt, [str(file) for file in args.files]) == (text, ["a.wav"])


def test_arguments_after_two_dashes_are_no_options():
    args = build_parser().parse_args(["say", "--voice", "anna", "--", "--mine.wav", "--voise"])
    assert [str(file) for file in args.files] == ["--mine.wav", "--voise"]


def test_a_misspelt_option_is_found_by_its_text_with_spaces_too(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["say", "a.wav", "--greting=Hello there"])
    assert "--greting=Hello there (did you mean --greeting?)" in capsys.readouterr().err


def start_of(*arguments):
    """The start message that the server gets."""
    args = build_parser().parse_args(["talk", *arguments])
    return open_call(args, tool_table(args))._start


def test_the_arguments_of_a_session_become_its_options():
    start = start_of(
        *("--min-words", "2", "--greeting", "Good day.", "--temperature", "0.2", "--eagerness", "patient"),
        *("--silence-prompt", "Hello?", "--silence-prompt", "Still there?", "--silence-after", "7.5"),
        *("--hang-up-after", "60", "--exaggeration", "0.7", "--guidance", "0.3"),
    )
    assert start.barge_in == protocol.BargeInOptions(min_words=2)
    assert start.greeting == "Good day."
    assert start.sampling == protocol.SamplingOptions(temperature=0.2)
    assert start.turn == protocol.TurnOptions(eagerness="patient")
    assert start.silence == protocol.SilenceOptions(
        prompt_after_ms=7_500, prompts=["Hello?", "Still there?"], hang_up_after_ms=60_000
    )
    assert (start.exaggeration, start.guidance_weight) == (0.7, 0.3)


def test_named_agent_gets_no_demo_tools(tmp_path):
    mine = tmp_path / "mine.py"
    code = 'def book(day: str) -> str:\n    """Book."""\n    return day\n'
    mine.write_text(f"from parley_client import tool\n\n@tool\n{code}")
    start = start_of("--agent", "restaurant", "--tools", str(mine))
    assert (start.agent, [one.name for one in start.tools]) == ("restaurant", ["book"])
    assert start_of().agent == ""


@pytest.mark.parametrize(
    ("agent", "ok", "detail"),
    [
        (polite, True, "a session was opened"),
        (refusing(UnknownAgentError("no agent 'restaurant' on this server")), False, "no agent 'restaurant'"),
    ],
)
def test_probe_opens_a_session_of_an_agent(agent, ok, detail, monkeypatch, capsys):
    async def ask(*_):
        return [CanaryResult("espeak", ok=True, duration_ms=1.0, detail="it answered")]

    server = FakeAgent(agent)
    monkeypatch.setattr(probe, "_ask", ask)
    monkeypatch.setattr(probe, "connect", partial(connect, transport=server))
    assert main(["probe", "--agent", "restaurant", "--json"]) == (0 if ok else 1)
    answer = json.loads(capsys.readouterr().out)
    assert [model["model"] for model in answer["models"]] == ["espeak", "voice_agent restaurant"]
    assert (answer["ok"], answer["models"][1]["ok"]) == (ok, ok)
    assert detail in answer["models"][1]["detail"]
    assert protocol.decode_message(server.streams[0].seen[0].message).agent == "restaurant"


def test_omitted_options_are_left_to_the_server():
    start = start_of()
    assert (start.barge_in, start.silence) == (protocol.BargeInOptions(), protocol.SilenceOptions())
    assert (start.sampling, start.greeting) == (protocol.SamplingOptions(), None)
    assert start_of("--silence-prompt", "Hello?").silence.prompt_after_ms == 10_000


def test_the_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("parley 0.")


@pytest.mark.parametrize(
    "command", [["probe"], ["voices", "list"], ["transcribe", "CLIP"], ["say", "CLIP"]], ids=lambda c: c[0]
)
def test_every_command_says_the_same_where_nothing_answers(command, clip, capsys):
    arguments = [str(clip) if word == "CLIP" else word for word in command]
    assert main([*arguments, "--server", NO_SERVER]) == 1
    said = capsys.readouterr().err
    assert f"parley: nothing answers at {NO_SERVER} (connect_failed)" in said
    assert "make serve" in said


# --- playing a script -----------------------------------------------------------------------


@pytest.mark.parametrize("command", ["say", "demo"])
def test_failed_turn_sets_the_exit_status(command, tmp_path, monkeypatch, capsys):
    script = tmp_path / "script.toml"
    script.write_text('[[turn]]\nwrite = "hello"\n')

    async def agent(stream):
        def on_frame(frame):
            if isinstance(frame.message and protocol.decode_message(frame.message), protocol.Text):
                stream.say(protocol.ResponseText(turn=1, response_id="r", text="Hi!"))
                stream.say(protocol.ErrorEvent(code="model_unavailable", message="no voice", retryable=True))
                stream.say(protocol.ResponseDone(turn=1, response_id="r", audio_ms=0))
                stream.say(protocol.TurnMetrics(turn=1))

        await serve(stream, on_frame)

    @asynccontextmanager
    async def no_page(_server, _calls):
        yield None

    def open_fake(args, tools, **options):
        return connect(transport=FakeAgent(agent), tools=tools, retry=NO_RETRY)

    monkeypatch.setattr(say, "open_call", open_fake)
    monkeypatch.setattr(demo, "serve_page", no_page)
    out = str(tmp_path / "out.wav")
    assert main([command, "--script", str(script), "--server", NO_SERVER, "--out", out]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "hello: no voice (model_unavailable)" in lines  # a line about a busy machine follows
    assert any(line.endswith("agent  Hi! (not heard)") for line in lines)


# --- what to do ---------------------------------------------------------------------------


def test_a_tool_that_the_server_has_too_can_be_left_out():
    class Server:
        names = frozenset({"get_time"})
        tools = ()

    start = protocol.Start(tools=start_of().tools)
    with pytest.raises(InvalidMessageError) as caught:
        check_start(start, KnownSpeaker(None, model="espeak"), AgentConfig(), Server())
    assert "--no-demo-tools" in advice(caught.value, NO_SERVER)
    assert advice(InvalidMessageError("something else"), NO_SERVER) == ""
    assert not start_of("--no-demo-tools").tools


def test_a_language_that_the_server_lacks_is_answered_with_what_brings_it():
    refusal = UnsupportedLanguageError("language 'es' is understood by none of moonshine")
    for error in (refusal, CallRefusedError(refusal)):
        said = advice(error, NO_SERVER)
        assert "`make fetch MODEL=whisper-base`" in said
        named = set(re.findall(r"\((\w\w)\)", said))
        assert named == {tag.partition("-")[0] for tag in espeak.LANGUAGES} - {"en"}
        assert {"es", "fr"} <= set(kokoro.LANGUAGES)
    guide = (CHECKOUT / "docs/how-to.md").read_text()
    assert "how-to.md#a-conversation-in-another-language" in said
    assert "### A conversation in another language\n" in guide


def test_a_language_that_another_machine_lacks_is_not_brought_by_make():
    refusal = UnsupportedLanguageError("language 'es' is understood by none of moonshine")
    for command in ("say", "transcribe"):
        said = advice(refusal, "10.0.0.5:8001", command=command)
        assert "10.0.0.5:8001 needs" in said
        assert "make" not in said
    assert f"`{PARLEY} voices --server 10.0.0.5:8001`" in advice(refusal, "10.0.0.5:8001", command="say")


def test_a_language_of_recordings_needs_no_voice():
    said = advice(
        UnsupportedLanguageError("language 'es' is not one of the model's"), NO_SERVER, command="transcribe"
    )
    assert "`make fetch MODEL=whisper-base`" in said
    assert "voice" not in said
    assert advice(UnsupportedLanguageError("language 'xx' is unknown"), NO_SERVER, command="voices") == ""


def test_no_server_is_to_be_started_for_a_model_that_is_not_loaded():
    error = ConnectError("no call")
    error.__cause__ = ModelUnavailableError("the model voice_agent is not loaded by this server")
    assert advice(error, NO_SERVER) == ""
    assert "make serve" in advice(NoServerError("nothing"), NO_SERVER)


def test_drained_server_error_names_the_end_of_the_drain(tmp_path):
    refusal = ServersRefusedError([NO_SERVER], ShuttingDownError("the server takes no new sessions"))
    assert "drain --cancel`" in advice(refusal, NO_SERVER, tmp_path)
    assert advice(ServersRefusedError([NO_SERVER], TooManySessionsError("full")), NO_SERVER, tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "option"),
    [("default", ""), ("mine", " --name mine"), ("it's mine", " --name 'it'\"'\"'s mine'")],
)
def test_the_end_of_a_drain_names_the_server_of_the_call(noted, tmp_path, name, option):
    refusal = ServersRefusedError(["127.0.0.1:8001"], ShuttingDownError("the server takes no new sessions"))
    noted("serving", name=name)
    assert f"`{PARLEY} drain --cancel{option}`" in advice(refusal, "127.0.0.1:8001", tmp_path)


def test_which_of_several_servers_is_drained_is_not_guessed(noted, tmp_path):
    servers = ["127.0.0.1:8001", "10.0.0.5:8001"]
    refusal = ServersRefusedError(servers, ShuttingDownError("the server takes no new sessions"))
    noted("serving", name="mine")
    said = advice(refusal, servers[0], tmp_path)
    assert f"`{PARLEY} drain --cancel`" in said
    assert "mine" not in said


def test_commands_of_advice_go_to_the_server_of_the_call(tmp_path):
    lost, refusal = CallLostError("the stream broke"), UnsupportedLanguageError("language 'es' is unknown")
    for server, option in (("127.0.0.1:8101", " --server 127.0.0.1:8101"), (DEFAULT_SERVER, "")):
        assert f"`{PARLEY} probe{option}`" in advice(lost, server, tmp_path)
        assert f"`{PARLEY} voices{option}`" in advice(refusal, server, tmp_path)


def test_unresolvable_name_advises_to_check_it():
    said = advice(UnknownHostError("no address is known for the host of tritno:8001"), "tritno:8001")
    assert "Look at the name" in said
    assert "make serve" not in said
    problem = "DNS resolution failed for tritno:8001: ..."
    assert advice_on_waiting("tritno:8001", problem, is_connected=False) == said


def test_gateway_without_a_server_gets_advice(noted, tmp_path):
    def said(problem="Connection refused", *, is_connected=False):
        return advice_on_waiting("127.0.0.1:8001", problem, is_connected=is_connected, notes=tmp_path)

    assert "make serve" in said()
    there = said("the model voice_agent is not ready", is_connected=True)
    assert "make serve" not in there
    assert "It answers" in there
    noted()
    assert "still loading" in said()


@pytest.mark.parametrize("command", ["demo", "say", "talk", "transcribe", "voices", "probe", "gateway"])
def test_every_command_has_examples_that_it_understands(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    examples = re.split(r"examples.*:\n", capsys.readouterr().out)[1]
    lines = [line for line in examples.splitlines() if re.match(r"  (\S+=\S+ )?parley ", line)]
    assert len(lines) >= 2
    for line in lines:
        called = re.split(r" {3,}| >> ", line.strip().partition("parley ")[2])[0]
        build_parser().parse_args(shlex.split(called))


def test_at_a_port_that_is_not_grpc_the_right_one_is_to_be_named():
    assert "gRPC port with --server" in advice(NoGrpcError("it closes"), NO_SERVER)
    assert "gRPC port with --server" in advice(WrongPortError("it speaks HTTP"), NO_SERVER)


STARTED = psutil.Process().create_time()
NOTE = {
    "launcher": os.getpid(),
    "launcher_started": STARTED,
    "endpoints": "ready grpc=127.0.0.1:8001 http=127.0.0.1:8000 metrics=h:1",
}


@pytest.fixture
def noted(tmp_path):
    """Writes what a launcher notes, and what its supervisor does after it (or before); returns both files."""

    def write(state=None, *, name="a", before=False, **more):
        record, supervised = tmp_path / name / "server.json", tmp_path / name / "supervisor.json"
        record.parent.mkdir(exist_ok=True)
        record.write_text(json.dumps(NOTE | more))
        os.utime(record, ns=(2_000, 2_000))
        if state is not None:
            supervised.write_text(json.dumps({"server": {"state": state}, "models": {}}))
            os.utime(supervised, ns=(1_000, 1_000) if before else (3_000, 3_000))
        return record, supervised

    return write


@pytest.mark.parametrize(
    ("server", "is_known"),
    [
        ("127.0.0.1:8001", True),
        ("localhost:8001", True),
        ("localhost:8000", False),
        ("elsewhere:8001", False),
    ],
)
def test_a_server_of_the_checkout_is_known_by_its_launcher(noted, tmp_path, server, is_known):
    assert noted_state(server, tmp_path) == ""
    record, _ = noted()
    assert noted_state(server, tmp_path) == ("loading" if is_known else "")
    noted(launcher=2**22 + 1)  # above the largest process id
    assert noted_state(server, tmp_path) == ""
    noted(launcher_started=STARTED - 3_600.0)  # of a launcher that was killed; another program has its number
    assert noted_state(server, tmp_path) == ""
    record.write_text("{")
    assert noted_state(server, tmp_path) == ""


@pytest.mark.parametrize(
    ("state", "before", "words"),
    [
        (None, False, "still loading its models"),
        ("stopped", True, "still loading its models"),
        ("restarting", True, "still loading its models"),
        ("restarting", False, "is being started again"),
        ("stopped", False, "is being stopped"),
        ("serving", False, "does not answer, but its launcher runs"),
    ],
)
def test_only_a_loading_server_is_called_loading(noted, tmp_path, state, before, words):
    noted(state, before=before)
    said = advice(NoServerError("nothing"), "127.0.0.1:8001", tmp_path)
    assert words in said
    assert ("loading" in said) == (words == "still loading its models")


def test_notes_that_cannot_be_read_say_nothing_of_loading(noted, tmp_path):
    _, supervised = noted("restarting")
    supervised.write_text("{")
    assert noted_state("127.0.0.1:8001", tmp_path) == "lost"


def test_lost_call_prints_advice(noted, tmp_path):
    lost = CallLostError("the stream broke")
    assert f"call again. `{PARLEY} probe`" in advice(lost, "127.0.0.1:8001", tmp_path)
    assert f"call again. `{PARLEY} probe`" in advice(lost, None, tmp_path)
    noted("restarting")
    assert "is being started again" in advice(lost, "127.0.0.1:8001", tmp_path)
    noted("serving")  # it was one of its processes
    assert "call again" in advice(lost, "127.0.0.1:8001", tmp_path)


# --- files --------------------------------------------------------------------------------


async def run_transcribe(*files, server):
    args = build_parser().parse_args(["transcribe", *map(str, files), "--server", server])
    return await transcribe.run(args, make_console())


async def test_bad_recording_does_not_stop_the_others(clip, tmp_path, capsys):
    async with serving(b'{"text": "hello", "duration_ms": 62}') as triton:
        assert await run_transcribe(tmp_path / "none.wav", clip, server=triton.address) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "hello"
    assert "none.wav: no such file (audio_file)" in shown.err


async def test_a_recording_that_the_server_refuses_is_named(clip, capsys):
    async with serving(None) as triton:
        triton.failure = (grpc.StatusCode.INVALID_ARGUMENT, "invalid_audio: too long")
        assert await run_transcribe(clip, server=triton.address) == 1
    assert f"{clip}: too long (invalid_audio)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "language", "words"),
    [
        (', "speech_ms": 0', "de", "no speech"),
        (', "speech_ms": 1460', "de", "no words of language de recognised in 1.5 s of speech"),
        (', "speech_ms": 1460', "auto", "no words recognised in 1.5 s of speech"),
        ("", "de", "no words of language de recognised"),  # an older server
    ],
)
async def test_recording_without_text_is_reported_with_its_details(clip, capsys, found, language, words):
    answer = f'{{"text": "", "duration_ms": 2000{found}}}'
    async with serving(answer.encode()) as triton:
        assert await run_transcribe(clip, "--language", language, server=triton.address) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"{clip}: ({words})\n")


async def test_a_recording_is_read_by_the_model_that_is_named(clip, capsys):
    async with serving(b'{"text": "hola", "duration_ms": 62}') as triton:
        triton.ready = {"moonshine_transcribe", "whisper_transcribe", "sherpa_onnx_transcribe"}
        for name in ("sherpa_onnx", "whisper_transcribe"):
            assert await run_transcribe(clip, "--model", name, server=triton.address) == 0
    assert [request.model_name for request in triton.requests] == [
        "sherpa_onnx_transcribe",
        "whisper_transcribe",
    ]


async def test_unloaded_model_is_refused_with_the_loaded_ones_nearest_first(clip):
    async with serving(b"{}") as triton:
        triton.ready = {"moonshine_transcribe", "sherpa_onnx_transcribe", "piper"}
        served = r"not serve parakeet_transcribe; .* it has sherpa_onnx_transcribe, moonshine_transcribe\."
        with pytest.raises(ModelUnavailableError, match=served):
            await run_transcribe(clip, "--model", "parakeet", server=triton.address)
        assert not triton.requests


@pytest.mark.parametrize("model", TRANSCRIBERS)
async def test_unloaded_model_for_recordings_names_its_weights(clip, model):
    config = CHECKOUT / "model_repository" / model / "config.pbtxt"
    (weights,) = re.findall(r'"weights" value \{ string_value: "(.+?)"', config.read_text())
    async with serving(b"{}") as triton:
        with pytest.raises(ModelUnavailableError, match=rf"it has none\. .*make fetch MODEL={weights}`"):
            await run_transcribe(clip, "--model", model, server=triton.address)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--model", "wisper"],
            "recordings 'wisper' (did you mean whisper?); there are parakeet,",
        ),
        (["--model", "piper"], "no model for recordings 'piper'"),
        (["--phrase-weight", "nan"], "0 to 10 expected, not 'nan'"),
        (["--nbest", "-1"], "a whole number expected"),
        *(
            (["--timeout", value], f"seconds above 0 expected, 86400 at most, not '{value}'")
            for value in ("nan", "inf", "1e308", "0")
        ),
        (["--timeout=-1"], "seconds above 0 expected"),
    ],
)
def test_options_for_recordings_are_checked_before_a_request(arguments, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["transcribe", "a.wav", *arguments])
    assert words in capsys.readouterr().err


def test_a_folder_is_no_recording(tmp_path):
    with pytest.raises(AudioFileError, match="is a folder"):
        read_speech(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AudioFileError, match="from its beginning to its end"):
        read_speech(tmp_path / "pipe")
    with pytest.raises(AudioFileError, match="File name too long"):
        read_speech(tmp_path / ("x" * 5_000))


def test_unwritable_output_is_reported_before_the_call(clip, tmp_path, capsys):
    assert main(["say", str(clip), "--out", str(tmp_path), "--server", NO_SERVER]) == 1
    assert f"{tmp_path}: is a folder" in capsys.readouterr().err
    with pytest.raises(AudioFileError, match="cannot be written"):
        check_output(clip / "call.wav")
    check_output(clip)
    check_output(tmp_path / "new" / "call.wav")
    check_output(None)


@pytest.mark.parametrize("stay", [True, False])
def test_the_demonstration_names_its_page_only_where_that_stays(monkeypatch, capsys, stay):
    served = []

    @asynccontextmanager
    async def page(server, _calls):
        served.append(server)
        yield "http://127.0.0.1:9999"

    async def play(*_, slow_ms):
        if stay:
            asyncio.current_task().cancel()  # Ctrl-C
        return 0

    monkeypatch.setattr(demo, "serve_page", page)
    monkeypatch.setattr(demo, "play", play)
    arguments = ["demo", "--server", NO_SERVER, "--out", "/dev/null", "--stay" if stay else "--no-stay"]
    assert main(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert served == ([NO_SERVER] if stay else [])
    for words in ("8080 is taken", "Talk to it yourself at http://127.0.0.1:9999/", "your turn"):
        assert (words in shown) == stay


@pytest.mark.parametrize(
    ("flags", "said"), [(["--profile", "tiny"], "hello"), ([], "Hello! What can you do for me?")]
)
def test_the_demonstration_speaks_of_what_the_models_know(flags, said, monkeypatch):
    played = []

    async def play(_args, _console, script, _out, *, slow_ms):
        played.append(script)
        return 0

    monkeypatch.setattr(demo, "play", play)
    assert main(["demo", "--server", NO_SERVER, "--out", "/dev/null", "--no-stay", *flags]) == 0
    assert played[0].turns[0].text == said


def test_the_demonstration_needs_the_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "_EXAMPLES", tmp_path)
    assert main(["demo", "--server", NO_SERVER]) == 1
    assert "the demonstration needs the repository" in capsys.readouterr().err

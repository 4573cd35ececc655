"""The client for voices and its command, against a server that answers what the test says."""

from __future__ import annotations

import json

import grpc
import msgspec
import pytest
from fake_unary import serving

from parley.errors import InferenceError, ModelUnavailableError, ReferenceTooShortError
from parley.tts.voice_messages import VoiceDetails, VoicesReply, VoiceSummary
from parley_client.cli import PARLEY
from parley_client.cli.commands import voices as voices_command
from parley_client.cli.program import build_parser
from parley_client.cli.program import main as command
from parley_client.cli.view import make_console
from parley_stages import Voices, open_server
from parley_stages.voices import MAX_FILE_BYTES

ANNA = VoiceSummary(
    voice_id="anna-1234",
    digest="d" * 64,
    prompt_s=4.0,
    details=VoiceDetails(
        name="Anna [bold]",
        languages=["en", "de"],
        consent="I agree.",
        checkpoint="0123",
        reference_s=12.5,
        warnings=["noisy"],
    ),
)
BUILT_IN = VoiceSummary(
    voice_id="default", digest="e" * 64, prompt_s=10.0, built_in=True, details=VoiceDetails(name="Default")
)


def answer(*voices):
    return msgspec.json.encode(VoicesReply(voices=list(voices)))


@pytest.fixture
async def triton():
    async with serving(answer(ANNA)) as fake:
        yield fake


@pytest.fixture
async def voices(triton):
    async with open_server(triton.address) as server, Voices(server, timeout_s=10.0) as connection:
        yield connection


def asked(triton):
    """Message and tensors of the last request."""
    request = triton.requests[-1]
    assert request.model_name == "voice_enrollment"
    shapes = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in request.inputs]
    return json.loads(request.raw_input_contents[0][4:]), shapes, list(request.raw_input_contents[1:])


async def test_a_recording_becomes_a_voice(triton, voices):
    made = await voices.enroll(b"RIFF...", name="Anna", consent="I agree.", languages=["en"])
    assert made == ANNA
    message, shapes, audio = asked(triton)
    assert (message["op"], message["name"], message["consent"]) == ("enroll", "Anna", "I agree.")
    assert message["languages"] == ["en"]
    assert shapes == [("REQUEST", "BYTES", [1]), ("AUDIO", "UINT8", [7])]
    assert audio == [b"RIFF..."]


async def test_the_other_questions(triton, voices):
    triton.answer = answer(BUILT_IN, ANNA)
    assert await voices.list() == [BUILT_IN, ANNA]
    assert asked(triton)[0] == {"op": "list"}
    triton.answer = answer(ANNA)
    assert await voices.describe("anna-1234") == ANNA
    assert asked(triton)[0] == {"op": "describe", "voice_id": "anna-1234"}
    triton.answer = answer()
    await voices.delete("anna-1234")
    assert asked(triton) == ({"op": "delete", "voice_id": "anna-1234"}, [("REQUEST", "BYTES", [1])], [])
    with pytest.raises(InferenceError, match="0 voices"):
        await voices.describe("anna-1234")


@pytest.mark.parametrize(
    ("failure", "error", "text"),
    [
        ((grpc.StatusCode.INTERNAL, "reference_too_short: 3 s of speech"), ReferenceTooShortError, "3 s"),
        (
            (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'voice_enrollment' is not found"),
            ModelUnavailableError,
            "without weights",
        ),
        ((grpc.StatusCode.UNAVAILABLE, "connection refused"), ModelUnavailableError, "refused"),
    ],
)
async def test_failures_have_their_codes(triton, voices, failure, error, text):
    triton.failure = failure
    with pytest.raises(error, match=text):
        await voices.list()


async def run(triton, *arguments):
    args = build_parser().parse_args(["voices", *arguments, "--server", triton.address])
    return await voices_command.run(args, make_console())


async def test_the_list_on_the_terminal(triton, capsys):
    triton.answer = answer(BUILT_IN, ANNA)
    assert await run(triton, "list") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["id", "name", "languages", "sample", "used"]
    assert printed[1].split() == ["default", "Default", "10.0", "s", "built", "in"]
    assert printed[2].split() == ["anna-1234", "Anna", "[bold]", "en,", "de", "4.0", "s", "noisy"]
    explained = " ".join(" ".join(printed[3:]).split())
    assert explained.startswith("sample used: how much of a voice's recording")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'voice_enrollment' is not found"),
        (grpc.StatusCode.INTERNAL, "not_in_profile: voice_enrollment is not part of the profile open"),
        (grpc.StatusCode.INTERNAL, "weights_not_found: voice_enrollment has no weights on this server"),
    ],
    ids=["not loaded", "not in profile", "no weights"],
)
@pytest.mark.parametrize("listing", [[], ["list"]], ids=["alone", "list"])
async def test_a_server_without_recorded_voices_has_those_of_its_synthesizer(
    triton, capsys, listing, code, said
):
    triton.failure = (code, said)
    assert await run(triton, *listing) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["id", "man-1", "man-2", "woman-1", "woman-2"]
    assert printed[0].split() == ["id", "name", "languages"], "no voice is made of a recording"
    assert printed[1].rstrip().endswith("espeak, male")
    assert await run(triton, *listing, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[1])["voice_id"] == "man-2"


async def test_recorded_voices_and_those_of_other_synthesizers_are_listed_together(triton, capsys):
    triton.answer, triton.agent_tts = answer(ANNA), "kokoro"
    assert await run(triton) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1:3]] == ["anna-1234", "af_heart"]
    assert printed[1 + 1 + 32] == ""
    assert printed[1 + 1 + 32 + 1].startswith("sample used: ")
    assert printed[2].rstrip().endswith("kokoro, female, American")


@pytest.mark.parametrize("action", [[], ["list"]])
def test_the_help_explains_the_sample(capsys, action):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["voices", *action, "--help"])
    assert "sample used: how much of a voice's recording" in " ".join(capsys.readouterr().out.split())


def test_options_before_the_action_count():
    def read(*arguments):
        args = build_parser().parse_args(["voices", *arguments])
        return args.action, args.server, args.timeout, args.json

    assert read() == ("list", "127.0.0.1:8001", 60.0, False)
    assert read("--server", "a:1", "--json", "list") == ("list", "a:1", 60.0, True)
    assert read("--server", "a:1", "show", "x", "--server", "b:2", "--timeout", "3")[1:3] == ("b:2", 3.0)


async def test_json_on_the_terminal(triton, capsys):
    triton.answer = answer(BUILT_IN, ANNA)
    await run(triton, "list", "--json")
    printed = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["voice_id"] for line in printed] == ["default", "anna-1234"]


async def test_enrolling_and_deleting_on_the_terminal(triton, tmp_path, capsys):
    path = tmp_path / "anna.wav"
    path.write_bytes(b"RIFFanna")
    options = "--name Anna --consent yes --id anna-1234 --language en --language de --replace".split()
    assert await run(triton, "enroll", str(path), *options) == 0
    message, _, audio = asked(triton)
    assert audio == [b"RIFFanna"]
    assert (message["voice_id"], message["languages"], message["replace"]) == (
        "anna-1234",
        ["en", "de"],
        True,
    )
    printed = capsys.readouterr().out
    assert "anna-1234" in printed
    assert "I agree." in printed
    assert await run(triton, "show", "anna-1234") == 0
    assert "12.5 s; sample used: 4.0 s" in capsys.readouterr().out
    triton.answer = answer()
    assert await run(triton, "delete", "anna-1234") == 0
    assert "Deleted anna-1234" in capsys.readouterr().out


async def test_an_empty_list_is_a_sentence(triton, capsys):
    triton.answer = answer()
    assert await run(triton, "list") == 0
    command = f"{PARLEY} voices enroll --server {triton.address}"
    assert capsys.readouterr().out == f"There are no voices yet; `{command}` makes one of a recording.\n"
    assert await run(triton, "list", "--json") == 0
    assert capsys.readouterr().out == ""


def test_unusable_recording_is_a_one_line_error(tmp_path, capsys):
    missing = tmp_path / "none.wav"
    assert command(["voices", "enroll", str(missing), "--name", "Anna"]) == 1
    assert "none.wav" in capsys.readouterr().err
    large = tmp_path / "large.wav"
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert command(["voices", "enroll", str(large), "--name", "Anna"]) == 1
    assert "16 MiB" in capsys.readouterr().err


def test_no_server_is_one_line_and_a_hint(capsys):
    assert command(["voices", "list", "--server", "127.0.0.1:9", "--timeout", "5"]) == 1
    assert "make serve" in capsys.readouterr().err


async def test_the_wait_has_an_end(triton):
    triton.may_answer.clear()
    async with open_server(triton.address) as server, Voices(server, timeout_s=0.2) as connection:
        with pytest.raises(InferenceError) as caught:
            await connection.list()
    assert caught.value.code == "deadline_exceeded"
    triton.may_answer.set()

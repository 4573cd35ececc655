"""Whole recordings through the real server."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import psutil
import pytest
import soundfile
from tritonclient import grpc

from parley.asr.messages import AsrOptions, TranscribeReply, TranscribeRequest, TranscriptEvent
from parley.engines.recognizers import ModelRecognizer
from parley.errors import (
    InferenceError,
    InvalidAudioError,
    InvalidInputError,
    InvalidMessageError,
    ModelUnavailableError,
    UnsupportedLanguageError,
)
from parley.inference import ModelRequest, struct_tensor, tensor_struct, text_tensor
from parley.launcher.options import ROOT, ServerOptions
from parley.launcher.server import EmbeddedServer
from parley.triton.grpc_client import LoopbackClient
from parley_client.cli.program import main

MODEL = "parakeet_transcribe"
MODELS = ("parakeet_encoder", "parakeet_decoder", "parakeet_tdt", MODEL)
CLIPS = ROOT / "tests/data/asr_eval"
QUIET = np.zeros(8_000, np.int16)
LONGEST = 24 * 60 * 16_000
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def clips():
    """What is said, and the recording of it with half a second of silence around it."""
    return [
        (
            entry["text"],
            np.concatenate([QUIET, soundfile.read(CLIPS / entry["file"], dtype="int16")[0], QUIET]),
        )
        for entry in json.loads((CLIPS / "manifest.json").read_text())
        if entry["text"]
    ]


def serve(tmp_path, models=MODELS):
    return EmbeddedServer(
        ServerOptions(
            load_models=models, state_dir=tmp_path / "state", grpc_port=0, http_port=0, metrics_port=0
        )
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("transcribe")) as running:
        yield running


async def send(port, audio, message=b"{}", timeout_s=60.0):
    response = await port.infer(
        ModelRequest(
            MODEL,
            {"AUDIO": audio[None], "REQUEST": text_tensor(message, batched=True)},
            ("REPLY",),
            timeout_s=timeout_s,
        )
    )
    return tensor_struct(response["REPLY"], TranscribeReply)


def errors(said, written):
    """Words to replace, remove or add (Levenshtein distance)."""
    row = list(range(len(written) + 1))
    for i, word in enumerate(said, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(written, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]


def memory(server):
    """Resident bytes of the server and its models, shared memory included."""
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    return sum(process.memory_info().rss for process in processes)


async def test_a_recording_is_what_a_call_hears(port, clips):
    for number in (0, 9, 23, 40):
        _, audio = clips[number]
        recognizer = ModelRecognizer(port, f"call-{number}", model="parakeet_tdt", timeout_s=20)
        await recognizer.start(AsrOptions(partial_interval_ms=0))
        events = (await recognizer.push(audio)).events
        await recognizer.close()
        finals = [event for event in events if isinstance(event, TranscriptEvent)]
        reply = await send(port, audio)
        assert reply.text == " ".join(event.text for event in finals)
        assert [(word.text, word.start_ms, word.end_ms) for word in reply.words] == [
            (word.text, word.start_ms, word.end_ms) for event in finals for word in event.words
        ]
        assert reply.duration_ms == len(audio) // 16


async def test_requests_at_once_say_what_each_says_alone(port, clips):
    chosen = clips[::3]
    alone = [await send(port, audio) for _, audio in chosen]
    together = await asyncio.gather(*(send(port, audio) for _, audio in chosen))
    assert [reply.text for reply in together] == [reply.text for reply in alone]
    wrong = sum(
        errors(text.split(), reply.text.split()) for (text, _), reply in zip(chosen, alone, strict=True)
    )
    assert wrong <= 0.05 * sum(len(text.split()) for text, _ in chosen)


async def test_recording_of_24_minutes_keeps_memory_bounded_and_blocks_no_call(server, port, clips):
    rng = np.random.default_rng(0)
    pieces, said, length = [], [], 0
    while True:
        text, audio = clips[rng.integers(len(clips))]
        if length + len(audio) > LONGEST:
            break
        pieces.append(audio)
        said.append(text)
        length += len(audio)
    recording = np.pad(np.concatenate(pieces), (0, LONGEST - length))
    before = peak = memory(server)
    long = asyncio.create_task(send(port, recording, timeout_s=110))
    short = []
    while not long.done():
        short.append(await send(port, clips[0][1]))
        peak = max(peak, memory(server))
    reply = await long
    assert len(short) > 3  # they were served beside the long one
    assert {answer.text for answer in short} == {clips[0][0]}
    assert reply.duration_ms == 24 * 60 * 1000
    words = " ".join(said).split()
    assert errors(words, reply.text.split()) <= 0.05 * len(words)
    # The recording itself has 44 MB, and is held where it arrives, where it is handed over and
    # where it is read; its features alone would have as much, its encoded frames more.
    assert peak - before < 400 * MEGABYTE


async def test_any_client_of_triton_can_ask(server, clips):
    client = grpc.InferenceServerClient(server.endpoints.grpc)
    text, audio = clips[0]
    inputs = [
        grpc.InferInput("AUDIO", [1, len(audio)], "INT16"),
        grpc.InferInput("REQUEST", [1, 1], "BYTES"),
    ]
    inputs[0].set_data_from_numpy(audio[None])
    inputs[1].set_data_from_numpy(struct_tensor(TranscribeRequest(words=False), batched=True))
    answer = await asyncio.to_thread(client.infer, MODEL, inputs)
    reply = json.loads(answer.as_numpy("REPLY").item())
    client.close()
    assert (reply["text"], reply["words"]) == (text, [])


def test_the_command_writes_down_what_files_say(server, clips, tmp_path, capsys):
    files = []
    for number, (_, audio) in enumerate(clips[:3]):
        files.append(str(tmp_path / f"{number}.wav"))
        soundfile.write(files[-1], audio, 16_000)
    at = ["--server", server.endpoints.grpc]
    assert main(["transcribe", *files, "--json", *at]) == 0
    replies = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [reply["file"] for reply in replies] == files
    assert [reply["text"] for reply in replies] == [text for text, _ in clips[:3]]
    assert main(["transcribe", files[0], "--words", *at]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == clips[0][0].split()
    assert main(["transcribe", files[0], "--language", "tlh", *at]) == 1
    assert "unsupported_language" in capsys.readouterr().err


def test_phrases_of_the_command_are_favoured(server, clips, tmp_path, capsys):
    said, audio = next(clip for clip in clips if "delhi" in clip[0])
    file = str(tmp_path / "delhi.wav")
    soundfile.write(file, audio, 16_000)
    at = [file, "--server", server.endpoints.grpc]
    texts = []
    for options in ([], ["--phrase", "vienna", "--phrase-weight", "6"], ["--phrase", "delhi"]):
        assert main(["transcribe", *options, *at]) == 0
        texts.append(capsys.readouterr().out.strip())
    assert texts == [said, said.replace("delhi", "vienna"), said]
    with pytest.raises(SystemExit):
        main(["transcribe", "--phrase", "vienna", "--phrase-weight", "11", *at])
    assert "phrase-weight" in capsys.readouterr().err


def test_the_best_readings_come_on_request(clips, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PARLEY_PARAKEET_DECODER_DECODING", "beam")
    file = str(tmp_path / "speech.wav")
    soundfile.write(file, clips[0][1], 16_000)
    with serve(tmp_path, (*MODELS[:3], MODEL)) as server:
        assert main(["transcribe", file, "--json", "--nbest", "3", "--server", server.endpoints.grpc]) == 0
    reply = json.loads(capsys.readouterr().out)
    # Readings of the same text are one: there may be fewer than were asked for.
    assert 2 <= len(reply["alternatives"]) <= 3
    assert reply["alternatives"][0]["text"] == reply["text"]
    scores = [own["score"] for own in reply["alternatives"]]
    assert scores == sorted(scores, reverse=True)


async def test_invalid_request_is_refused_with_its_code(port, clips):
    with pytest.raises(InvalidAudioError, match="empty"):
        await send(port, np.zeros(0, np.int16))
    with pytest.raises(InvalidAudioError, match="1440"):
        await send(port, np.zeros(LONGEST + 1, np.int16))
    with pytest.raises(InvalidMessageError):
        await send(port, clips[0][1], b"garbage")
    with pytest.raises(UnsupportedLanguageError):
        await send(port, clips[0][1], b'{"language": "tlh"}')
    with pytest.raises((InferenceError, InvalidInputError), match="INT16"):  # Triton's own check
        await send(port, np.zeros(160, np.float32))
    assert (await send(port, clips[0][1])).text == clips[0][0]


async def test_a_missing_network_is_named(tmp_path, clips):
    with serve(tmp_path, (MODEL,)) as server:
        port = LoopbackClient(server.endpoints.grpc)
        with pytest.raises(ModelUnavailableError, match="parakeet_encoder"):
            await send(port, clips[0][1])
        assert (await send(port, np.zeros(16_000, np.int16))).text == ""
        await port.close()

"""Deepgram's interfaces: recordings, live speech (v1, and Flux: v2), voices and whole agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from parley_testing.conform.checks import Checks
from parley_testing.conform.connection import (
    RATE,
    CheckedSocket,
    Event,
    FailedError,
    Query,
    RefusedByServerError,
    Samples,
    Target,
    expect,
    expect_speech,
    to_mulaw,
)

CHECKS = Checks()
_SCHEME = "Token"
_LINEAR: dict[str, Any] = {"encoding": "linear16", "sample_rate": RATE}
_FLUX: dict[str, Any] = _LINEAR | {"model": "flux-general-en"}
_LISTEN: dict[str, Any] = _LINEAR | {"model": "nova-3"}
_SAY = "Thank you for calling. Good bye."


@asynccontextmanager
async def _open(target: Target, path: str, query: Query | None = None) -> AsyncIterator[CheckedSocket]:
    async with target.connect(path, query, headers=target.authorize(_SCHEME)) as peer:
        yield peer


def _microphone(peer: CheckedSocket, speech: Samples) -> Any:
    return peer.speaking(lambda samples: peer.socket.send(samples.astype("<i2").tobytes()), speech)


def _text(result: Event) -> str:
    text: str = result["channel"]["alternatives"][0]["transcript"]
    return text


def _is_final(result: Event) -> bool:
    return bool(result["is_final"] and _text(result))


async def _post(target: Target, path: str, **options: Any) -> Any:
    return await target.request("POST", path, headers=target.authorize(_SCHEME), **options)


# --- speech to text -------------------------------------------------------------------------------


@CHECKS.add
async def recording(target: Target) -> None:
    """`POST /v1/listen` writes a recording down, with the times of its words."""
    audio = target.question.astype("<i2").tobytes()
    answer = await _post(target, "/v1/listen", params=_LISTEN, content=audio)
    body = answer.json()
    reading = body["results"]["channels"][0]["alternatives"][0]
    expect(reading["transcript"] and reading["confidence"] > 0, f"the reading is {reading}")
    expect(all(word["end"] >= word["start"] for word in reading["words"]), "a word ends before it begins")
    seconds = len(target.question) / RATE
    expect(abs(body["metadata"]["duration"] - seconds) < 0.1, f"duration: {body['metadata']['duration']}")


@CHECKS.add
async def live_results(target: Target) -> None:
    """`WS /v1/listen` sends partial and final `Results` with words and times, and `Metadata` at the end."""
    async with _open(target, "/v1/listen", _LISTEN | {"interim_results": "true"}) as peer:
        async with _microphone(peer, target.question):
            final = await peer.until("results", fits=_is_final)
        expect(any(not one["is_final"] for one in peer.named("results")), "no partial result came")
        words = final["channel"]["alternatives"][0]["words"]
        expect(words and words[0]["start"] >= final["start"] - 0.1, f"the words are {words}")
        await peer.send({"type": "CloseStream"})
        metadata = await peer.until("metadata")
        expect(metadata["request_id"] == final["metadata"]["request_id"], "request_id differs")
        expect(metadata["duration"] > 0, f"duration: {metadata['duration']}")
        expect(await peer.closed() == 1000, f"the close code is {peer.socket.close_code}")


@CHECKS.add
async def live_end_of_speech(target: Target) -> None:
    """With `vad_events` and `utterance_end_ms` come `SpeechStarted`, `speech_final` and `UtteranceEnd`."""
    query: dict[str, Any] = {
        "interim_results": "true",
        "vad_events": "true",
        "utterance_end_ms": 1_000,
        "endpointing": 300,
    }
    async with _open(target, "/v1/listen", _LISTEN | query) as peer, _microphone(peer, target.question):
        started = await peer.until("speechstarted")
        expect(started["timestamp"] >= 0, f"timestamp: {started['timestamp']}")
        await peer.until("results", fits=lambda result: result["speech_final"])
        ended = await peer.until("utteranceend")
        expect(ended["last_word_end"] > started["timestamp"], f"last_word_end: {ended['last_word_end']}")


@CHECKS.add
async def live_finalize(target: Target) -> None:
    """`Finalize` brings the text so far at once, with `from_finalize`."""
    async with _open(target, "/v1/listen", _LISTEN) as peer:
        await peer.socket.send(target.speech.astype("<i2").tobytes())
        await peer.send({"type": "Finalize"})
        final = await peer.until("results", fits=lambda result: result.get("from_finalize"))
        texts = [_text(result) for result in peer.named("results")]
        expect(any(texts) and final["is_final"], f"the texts are {texts}")


@CHECKS.add
async def live_mulaw(target: Target) -> None:
    """`encoding=mulaw` is understood."""
    query = {"model": "nova-3", "encoding": "mulaw", "sample_rate": "8000"}
    async with _open(target, "/v1/listen", query) as peer:
        await peer.socket.send(to_mulaw(target.question))
        await peer.send({"type": "CloseStream"})
        await peer.until("results", fits=_is_final)


@CHECKS.add
async def live_keep_alive(target: Target) -> None:
    """`KeepAlive` holds a stream without audio open, and gets no answer."""
    async with _open(target, "/v1/listen", _LISTEN) as peer:
        for _ in range(3):
            await peer.send({"type": "KeepAlive"})
            await asyncio.sleep(1)
        async with _microphone(peer, target.question):
            await peer.until("results", fits=_is_final)
        others = {event["type"] for event in peer.events} - {"Results"}
        expect(not others, f"{', '.join(sorted(others))} came")


@CHECKS.add
async def live_wrong_parameter(target: Target) -> None:
    """A parameter that cannot be used gets HTTP 400 with `err_code` and `err_msg`."""
    try:
        async with _open(target, "/v1/listen", _LISTEN | {"encoding": "tape"}):
            pass
    except RefusedByServerError as error:
        expect(error.status == 400 and "err_code" in str(error), str(error))
        return
    raise FailedError("the stream was opened")


@CHECKS.add
async def flux_turns(target: Target) -> None:
    """`WS /v2/listen` tells turns: `Connected`, then `StartOfTurn`, `Update` and `EndOfTurn`."""
    async with _open(target, "/v2/listen", _FLUX | {"eot_timeout_ms": 1_500}) as peer:
        expect((await peer.next())["type"] == "Connected", "Connected is not the first message")
        async with _microphone(peer, target.question):
            started = await peer.until("turninfo", fits=lambda one: one["event"] == "StartOfTurn")
            ended = await peer.until("turninfo", fits=lambda one: one["event"] == "EndOfTurn")
        expect(started["turn_index"] == ended["turn_index"], "another turn ended")
        expect(ended["transcript"] and ended["words"], f"the turn is {ended}")
        numbers = [event["sequence_id"] for event in peer.events]
        expect(numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"sequence_id: {numbers}")


@CHECKS.add
async def flux_eager_end(target: Target) -> None:
    """With `eager_eot_threshold` the last `EagerEndOfTurn` before `EndOfTurn` has its text."""
    query = {"eot_threshold": 0.9, "eager_eot_threshold": 0.3, "eot_timeout_ms": 2_000}
    async with _open(target, "/v2/listen", _FLUX | query) as peer, _microphone(peer, target.question):
        ended = await peer.until("turninfo", fits=lambda one: one["event"] == "EndOfTurn")
        eager = [one for one in peer.named("turninfo") if one["event"] == "EagerEndOfTurn"]
        expect(eager, "no EagerEndOfTurn came")
        expect(eager[-1]["transcript"] == ended["transcript"], f"eager: {eager[-1]['transcript']!r}")


@CHECKS.add
async def flux_configure(target: Target) -> None:
    """`Configure` changes thresholds, and gets `ConfigureFailure` for one that cannot be."""
    async with _open(target, "/v2/listen", _FLUX) as peer:
        await peer.send({"type": "Configure", "thresholds": {"eot_timeout_ms": 900}})
        done = await peer.until("configuresuccess")
        expect(done["thresholds"]["eot_timeout_ms"] == 900, f"thresholds: {done['thresholds']}")
        await peer.send({"type": "Configure", "thresholds": {"eot_threshold": 3}})
        await peer.until("configurefailure")


# --- text to speech -------------------------------------------------------------------------------


@CHECKS.add
async def speech(target: Target) -> None:
    """`POST /v1/speak` speaks a text, as raw audio and as MP3."""
    query = _LINEAR | {"model": "aura-2-thalia-en", "container": "none"}
    answer = await _post(target, "/v1/speak", params=query, json={"text": _SAY})
    expect_speech(answer.content, RATE)
    compressed = await _post(target, "/v1/speak", params={"encoding": "mp3"}, json={"text": _SAY})
    expect(compressed.headers["content-type"] == "audio/mpeg", compressed.headers["content-type"])


@CHECKS.add
async def speech_stream(target: Target) -> None:
    """`WS /v1/speak` speaks what `Speak` brings; `Flush` gets `Flushed`, `Close` ends the stream."""
    async with _open(target, "/v1/speak", _LINEAR | {"model": "aura-2-thalia-en"}) as peer:
        for word in _SAY.split():
            await peer.send({"type": "Speak", "text": f"{word} "})
        await peer.send({"type": "Flush"})
        await peer.until("flushed")
        expect_speech(bytes(peer.audio), RATE)
        await peer.send({"type": "Close"})
        expect(await peer.closed() == 1000, f"the close code is {peer.socket.close_code}")


@CHECKS.add
async def speech_clear(target: Target) -> None:
    """`Clear` drops what was not spoken yet, and gets `Cleared`."""
    async with _open(target, "/v1/speak", _LINEAR | {"model": "aura-2-thalia-en"}) as peer:
        await peer.send({"type": "Speak", "text": _SAY * 20})
        await peer.send({"type": "Clear"})
        await peer.until("cleared")


# --- agents ---------------------------------------------------------------------------------------


@asynccontextmanager
async def _converse(target: Target, **agent: Any) -> AsyncIterator[CheckedSocket]:
    settings = {
        "type": "Settings",
        "audio": {"input": _LINEAR, "output": _LINEAR | {"container": "none"}},
        "agent": {
            "listen": {"provider": {"type": "deepgram", "model": "nova-3"}},
            "think": {
                "provider": {"type": "open_ai", "model": "gpt-4o-mini"},
                "prompt": "Answer in one short sentence.",
            },
            "speak": {"provider": {"type": "deepgram", "model": "aura-2-thalia-en"}},
        }
        | agent,
    }
    async with _open(target, "/v1/agent/converse") as peer:
        await peer.until("welcome")
        await peer.send(settings)
        await peer.until("settingsapplied")
        yield peer


@CHECKS.add
async def agent_greeting(target: Target) -> None:
    """An agent begins with `Welcome` and `SettingsApplied`, and speaks its `greeting`."""
    async with _converse(target, greeting="Good day.") as peer, _microphone(peer, target.speech[:0]):
        said = await peer.until("conversationtext")
        expect((said["role"], said["content"]) == ("assistant", "Good day."), f"said: {said}")
        await peer.until("agentaudiodone")
        expect_speech(bytes(peer.audio), RATE)


@CHECKS.add
async def agent_answer(target: Target) -> None:
    """A question is heard (`UserStartedSpeaking`, `ConversationText` of the user) and answered."""
    async with _converse(target) as peer, _microphone(peer, target.question):
        await peer.until("userstartedspeaking")
        await peer.until("conversationtext", fits=lambda one: one["role"] == "user" and one["content"])
        await peer.until("conversationtext", fits=lambda one: one["role"] == "assistant" and one["content"])
        await peer.until("agentaudiodone")
        expect_speech(bytes(peer.audio), RATE)


@CHECKS.add
async def agent_messages(target: Target) -> None:
    """`InjectAgentMessage` is spoken, and `UpdatePrompt` gets `PromptUpdated`."""
    async with _converse(target) as peer, _microphone(peer, target.speech[:0]):
        await peer.send({"type": "InjectAgentMessage", "message": "One moment, please."})
        said = await peer.until("conversationtext")
        expect(said["content"] == "One moment, please.", f"said: {said}")
        await peer.until("agentaudiodone")
        await peer.send({"type": "UpdatePrompt", "prompt": "Be brief."})
        await peer.until("promptupdated")


@CHECKS.add
async def agent_wrong_settings(target: Target) -> None:
    """Settings that cannot be used get `Error` with `code` and `description`."""
    async with _open(target, "/v1/agent/converse") as peer:
        await peer.until("welcome")
        await peer.send({"type": "Settings", "audio": {"input": {"encoding": "tape", "sample_rate": 1}}})
        error = await peer.until("error")
        expect(error.get("code") and error.get("description"), f"the error is {error}")

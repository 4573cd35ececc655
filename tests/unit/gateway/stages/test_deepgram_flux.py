"""Deepgram's ``/v2/listen``: turns of streams, in front of an agent without a server."""

import asyncio
import json
import random
from contextlib import asynccontextmanager

import pytest
from deepgram_client import refusal, rest, say
from listening_gateway import frame_of, until
from recordings_for_tests import pages
from websockets.asyncio.client import connect

from parley.errors import InvalidMessageError, TooManySessionsError
from parley.protocol import (
    Commit,
    ErrorEvent,
    SpeechStarted,
    SpeechStopped,
    Start,
    Transcript,
    TurnDecision,
    Update,
    Updated,
    Word,
    decode_message,
)
from parley.turns.endpointing import EndpointingPolicy, ScoreTurn
from parley.turns.settings import PRESETS
from parley_gateway.apis.deepgram.flux import _FluxTurns
from parley_gateway.apis.deepgram.query import FluxOptions

OPTIONS = "model=flux-general-en&encoding=linear16&sample_rate=16000"
WINDOW = bytes(640)
HI = Word(text="hi", start_ms=100, end_ms=300, confidence=0.9)
STARTED = SpeechStarted(at_ms=96)
STOPPED = SpeechStopped(at_ms=400, detected_at_ms=560)


def heard(text, utterance=1, *, is_final=False, **more):
    return Transcript(utterance=utterance, text=text, is_final=is_final, confidence=0.8, **more)


def decided(decision, text, probability=0.9, *, reason="sounds_complete", utterance=1, needed_ms=240, **more):
    return TurnDecision(
        utterance=utterance, decision=decision, reason=reason, text=text, probability=probability,
        needed_ms=needed_ms, **more,
    )  # fmt: skip


# --- turns, without a network ------------------------------------------------------------------


class Client:
    """What a client would get."""

    def __init__(self, eager_threshold=None):
        self.messages = []
        options = FluxOptions(model="flux-general-en", eager_eot_threshold=eager_threshold)
        self.turns = _FluxTurns(lambda kind, **fields: self.messages.append(fields), options)

    def gets(self, *events):
        """The messages that events of the agent bring: (event, transcript)."""
        seen = len(self.messages)
        for event in events:
            self.turns.on_event(event)
        return [(one["event"], one["transcript"]) for one in self.messages[seen:]]


def test_turn_begins_with_its_first_words():
    client = Client()
    assert client.gets(STARTED, heard("")) == []
    assert client.gets(heard("h"), heard("hi", words=[HI])) == [("StartOfTurn", "h"), ("Update", "hi")]
    final = heard("hi", is_final=True, words=[HI])
    assert client.gets(STOPPED, final, decided("wait", "hi")) == [("Update", "hi")] * 2
    assert client.gets(decided("commit", "hi", reason="waited")) == [("EndOfTurn", "hi")]
    word = {"word": "hi", "confidence": 0.9, "start": 0.1, "end": 0.3}
    assert client.messages[-1] == {
        "event": "EndOfTurn",
        "turn_index": 0,
        "audio_window_start": 0.096,
        "audio_window_end": 0.4,
        "transcript": "hi",
        "words": [word],
        "end_of_turn_confidence": 0.9,
        "trigger": "model",
    }
    assert client.gets(heard("so", utterance=2)) == [("StartOfTurn", "so")]
    assert client.messages[-1]["turn_index"] == 1
    assert client.messages[-1]["words"] == [{"word": "so", "confidence": 0.8}]


@pytest.mark.parametrize(
    ("reason", "needed_ms", "trigger"),
    [
        ("requested", 240, "manual"),
        ("silence_limit", 5_000, "timeout"),
        ("sounds_incomplete", 5_000, "timeout"),
    ],
)
def test_trigger_says_what_ended_a_turn(reason, needed_ms, trigger):
    client = Client()
    client.gets(heard("hi", is_final=True), decided("commit", "hi", reason=reason, needed_ms=needed_ms))
    assert client.messages[-1]["trigger"] == trigger


def test_eager_end_holds_until_the_user_goes_on():
    client = Client(0.5)
    client.gets(STARTED, heard("hi", is_final=True))
    wait = decided("wait", "hi")
    assert client.gets(wait, wait) == [("EagerEndOfTurn", "hi")]
    assert client.gets(decided("resume", "hi", reason="spoke_again")) == [("TurnResumed", "hi")]
    assert client.gets(heard("there", utterance=2, is_final=True)) == [("Update", "hi there")]
    both = decided("wait", "hi there", utterance=2), decided("commit", "hi there", utterance=2)
    assert client.gets(*both) == [("EagerEndOfTurn", "hi there"), ("EndOfTurn", "hi there")]


@pytest.mark.parametrize(
    ("threshold", "wait"),
    [
        (None, decided("wait", "hi")),
        (0.5, decided("wait", "hi", 0.4)),
        (0.3, decided("wait", "hi", needed_ms=2_000, cue="conjunction")),
        (0.6, decided("wait", "hi", None, reason="not_scored")),
        (0.9, decided("wait", "hi", 0.95, text_probability=0.001)),
    ],
    ids=["not wanted", "improbable", "unfinished words", "no score", "improbable words"],
)
def test_improbable_end_is_not_eager(threshold, wait):
    client = Client(threshold)
    client.gets(heard("hi", is_final=True))
    assert client.gets(wait) == [("Update", "hi")]


def test_other_text_at_the_end_resumes_first():
    client = Client(0.5)
    client.gets(heard("hi", is_final=True), decided("wait", "hi"))
    assert client.gets(decided("commit", "hi all")) == [("TurnResumed", "hi"), ("EndOfTurn", "hi all")]


def test_turn_without_words_is_none():
    client = Client(0.5)
    assert client.gets(STARTED, STOPPED, heard("", is_final=True), decided("commit", "")) == []
    assert client.gets(heard("uh", utterance=2)) == [("StartOfTurn", "uh")]
    assert client.messages[-1]["turn_index"] == 0
    gone = heard("", utterance=2, is_final=True), decided("commit", "", utterance=2, reason="no_words")
    assert client.gets(*gone) == [("Update", ""), ("EndOfTurn", "")]


def test_next_turn_that_began_before_the_end_keeps_its_words():
    client = Client()
    client.gets(heard("hi", is_final=True), heard("and", utterance=2), decided("commit", "hi"))
    assert client.gets(heard("and so", utterance=2)) == [("StartOfTurn", "and so")]


def test_words_that_were_decoded_again_replace_the_first_ones():
    client = Client()
    client.gets(heard("hi", is_final=True, words=[HI]))
    again = heard("there", utterance=2, is_final=True, first=1, before="high")
    assert client.gets(again) == [("Update", "high there")]
    assert [word["word"] for word in client.messages[-1]["words"]] == ["high", "there"]


def any_turns(rng):
    """What a client gets of the agent's decisions on any speech and scores."""
    client, at, pauses = Client(0.3), 0.0, []
    policy = EndpointingPolicy(PRESETS["normal"], "en")

    def apply(outputs):
        pauses.extend(output.pause for output in outputs if isinstance(output, ScoreTurn))
        client.gets(*(output.decision for output in outputs if hasattr(output, "decision")))

    for utterance in range(1, 61):
        client.gets(SpeechStarted(at_ms=round(1000 * at)))
        apply(policy.on_speech_started(at))
        text = rng.choice(["hi", "what time is it", "set a timer for", "four two", ""])
        client.gets(*(heard(text[:end].strip(), utterance) for end in range(0, len(text), 4)))
        at += 0.5
        apply(policy.on_speech_stopped(at, at + 0.16))
        for step in rng.sample(["text", "score"], 2):
            if step == "text":
                client.gets(heard(text, utterance, is_final=True))
                apply(policy.on_transcript(utterance, text, at))
            else:
                apply(policy.on_score(pauses[-1], rng.choice([None, rng.random()]), at))
        at += rng.choice([0.1, 0.3, 1.0, 4.0])
        apply(policy.tick(at))
    return client.messages


@pytest.mark.parametrize("seed", range(20))
def test_rules_of_turns_hold_for_any_speech(seed):
    begun, eager, ended = False, None, 0
    for message in any_turns(random.Random(seed)):
        event, text = message["event"], message["transcript"]
        assert (event == "StartOfTurn") == (not begun)
        assert message["turn_index"] == ended
        assert text or event in ("Update", "EndOfTurn")
        assert eager is None or event in ("TurnResumed", "EndOfTurn")
        if event == "EndOfTurn":
            assert eager in (None, text)
            ended += 1
        assert event != "TurnResumed" or eager is not None
        begun, eager = event != "EndOfTurn", text if event == "EagerEndOfTurn" else None
    assert ended


# --- streams -----------------------------------------------------------------------------------


@asynccontextmanager
async def listen(gateway, query=OPTIONS):
    async with asyncio.timeout(20), connect(f"{gateway.ws_url}/v2/listen?{query}") as socket:
        yield socket


async def receive(socket):
    return json.loads(await socket.recv())


def summary(messages):
    return [message.get("event", message["type"]) for message in messages]


async def test_stream_ends_behind_its_last_turn(agent_gateway, agent):
    gateway = await agent_gateway()
    agent.hears = iter([[STARTED, heard("hi"), STOPPED, heard("hi", is_final=True), decided("wait", "hi")]])
    # The turn ends by itself, before the agent has come to the request.
    agent.answers[Commit] = iter([[decided("commit", "hi")], [decided("commit", "", reason="requested")]])
    async with listen(gateway, f"{OPTIONS}&eager_eot_threshold=0.5&keyterm=Anna&tag=x") as socket:
        await socket.send(WINDOW)
        await say(socket, "CloseStream")
        messages, closed = await rest(socket)
    assert closed == (1000, "")
    assert summary(messages) == ["Connected", "StartOfTurn", "Update", "EagerEndOfTurn", "EndOfTurn"]
    assert [message["sequence_id"] for message in messages] == list(range(5))
    assert len({message["request_id"] for message in messages}) == 1
    assert len(agent.received(Commit)) == 2
    sent = decode_message(agent.stream.seen[0].message)
    assert isinstance(sent, Start)
    assert (sent.phrases, sent.system_prompt, sent.greeting, sent.output) == (["Anna"], "", "", "text")
    assert (sent.turn.answer, sent.turn.limit_ms, sent.turn.threshold) == (False, 5_000, None)
    assert await frame_of(gateway.agents[0], lambda frame: frame.end)


async def test_another_language_is_hinted(agent_gateway, agent):
    gateway = await agent_gateway()
    agent.hears = iter([[heard("hallo")]])
    query = OPTIONS.replace("general-en", "general-multi") + "&language_hint=de-AT"
    async with listen(gateway, query) as socket:
        await socket.send(WINDOW)
        await receive(socket)
        assert (await receive(socket))["languages_hinted"] == ["de-AT"]
        await say(socket, "Configure", language_hints=["fr"])
        failure = await receive(socket)
    assert (failure["type"], failure["code"]) == ("ConfigureFailure", "invalid_message")
    assert decode_message(agent.stream.seen[0].message).language == "de"


async def test_container_is_heard_to_its_end(agent_gateway, agent):
    gateway = await agent_gateway()
    agent.answers[Commit] = iter([[decided("commit", "hi", reason="requested")]])
    async with listen(gateway, "model=flux-general-en") as socket:
        for piece in pages():
            await socket.send(piece)
        await say(socket, "CloseStream")
        messages, closed = await rest(socket)
    assert summary(messages) == ["Connected", "StartOfTurn", "EndOfTurn"]
    assert closed == (1000, "")
    assert abs(sum(len(frame.audio) for frame in agent.stream.seen) - 64_000) < 1_600


async def test_turn_is_ended_on_request_and_the_stream_behind_the_next(agent_gateway, agent):
    gateway = await agent_gateway()
    agent.hears = iter([[heard("hi", is_final=True)], [heard("bye", utterance=2, is_final=True)]])
    ends = (
        [decided("commit", "hi", reason="requested")],
        [decided("commit", "bye", utterance=2, reason="requested")],
    )
    agent.answers[Commit] = iter(ends)
    async with listen(gateway) as socket:
        await socket.send(WINDOW)
        await say(socket, "ForceEndTurn")
        await socket.send(WINDOW)
        await say(socket, "CloseStream")
        messages, closed = await rest(socket)
    ended = [message["transcript"] for message in messages if message.get("event") == "EndOfTurn"]
    assert (ended, closed) == (["hi", "bye"], (1000, ""))
    assert len(agent.received(Commit)) == 2


async def test_configuration_is_accepted_or_refused(agent_gateway, agent):
    gateway = await agent_gateway()
    refused = ErrorEvent.of(InvalidMessageError("too many"))
    agent.answers[Update] = iter([[Updated()], [refused]])
    agent.hears = iter([[heard("hi", is_final=True), decided("wait", "hi")]])
    async with listen(gateway, f"{OPTIONS}&eot_timeout_ms=2000&keyterm=Anna") as socket:
        assert await receive(socket) | {"request_id": ""} == {
            "type": "Connected", "request_id": "", "sequence_id": 0,
        }  # fmt: skip
        await say(socket, "Configure", thresholds={"eot_threshold": 1.0, "eager_eot_threshold": 0.4})
        done = await receive(socket)
        await say(socket, "Configure", keyterms="Bob", thresholds=None)
        failed = await receive(socket)
        await say(socket, "Configure", thresholds={"eot_threshold": 2})
        wrong = await receive(socket)
        await socket.send(WINDOW)
        events = summary([await receive(socket), await receive(socket)])
    thresholds = {"eot_threshold": 1.0, "eager_eot_threshold": 0.4, "eot_timeout_ms": 2_000}
    assert (done["type"], done["thresholds"], done["keyterms"]) == ("ConfigureSuccess", thresholds, ["Anna"])
    assert (failed["type"], failed["code"]) == ("ConfigureFailure", "invalid_message")
    assert (wrong["type"], wrong["sequence_id"]) == ("ConfigureFailure", 3)
    assert "eot_threshold" in wrong["description"]
    assert events == ["StartOfTurn", "EagerEndOfTurn"]
    first, second = agent.received(Update)
    assert (first.turn.threshold, first.turn.complete_ms, first.turn.limit_ms) == (1.0, 2_000, 2_000)
    assert (second.phrases, second.turn.threshold) == (["Bob"], 1.0)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("encoding=linear16", "model"),
        ("model=nova-3&encoding=linear16", "flux-general-en"),
        ("model=flux-general-en&encoding=opus", "encoding"),
        ("model=flux-general-multi", "language_hint"),
        (f"{OPTIONS}&language_hint=de", "language_hint"),
        (f"{OPTIONS}&eot_threshold=0.2", "eot_threshold"),
        (f"{OPTIONS}&eager_eot_threshold=0.8&eot_threshold=0.6", "above eot_threshold"),
        (f"{OPTIONS}&eot_timeout_ms=60000", "eot_timeout_ms"),
        (f"{OPTIONS}&redact=numbers", "redact"),
    ],
)
async def test_unsupported_options_are_refused(agent_gateway, agent, query, said):
    response, body = await refusal(listen(await agent_gateway(), query))
    assert (response.status_code, body["err_code"]) == (400, "Bad Request")
    assert said in body["err_msg"]
    assert agent.stream is None


async def test_full_server_refuses_the_stream(agent_gateway):
    gateway = await agent_gateway(TooManySessionsError("full"), servers={"retry_s": 0.01})
    response, _ = await refusal(listen(gateway))
    assert response.status_code in (429, 503)


async def test_invalid_message_ends_the_stream(agent_gateway):
    async with listen(await agent_gateway()) as socket:
        await say(socket, "Finalize")
        messages, closed = await rest(socket)
    assert summary(messages) == ["Connected", "Error"]
    assert (messages[1]["code"], messages[1]["sequence_id"], closed) == (
        "invalid_message", 1, (1008, "invalid_message"),
    )  # fmt: skip


async def test_silent_client_is_closed(agent_gateway):
    async with listen(await agent_gateway(stages={"idle_s": 0.1})) as socket:
        await say(socket, "KeepAlive")
        _, closed = await rest(socket)
    assert closed == (1011, "NET-0001")


async def test_failures_are_warnings_until_the_server_ends_the_stream(agent_gateway, agent):
    gateway = await agent_gateway()
    agent.hears = iter([[ErrorEvent(code="asr_fallback", message="slow", retryable=True)]])
    async with listen(gateway) as socket:
        await socket.send(WINDOW)
        assert summary([await receive(socket), await receive(socket)]) == ["Connected", "Warning"]
        agent.stream.close("idle")
        messages, closed = await rest(socket)
    assert (summary(messages), closed) == (["Error"], (1011, "NET-0000"))


async def test_client_that_vanishes_ends_the_call(agent_gateway, agent):
    gateway = await agent_gateway()
    async with listen(gateway) as socket:
        socket.transport.abort()
        await until(lambda: gateway.gateway.calls.count == 0)
    assert agent.stream.seen[-1].end


async def test_shutdown_closes_the_stream(agent_gateway):
    gateway = await agent_gateway()
    async with listen(gateway) as socket:
        gateway.gateway.calls.going_away.set()
        assert (await rest(socket))[1] == (1001, "going_away")

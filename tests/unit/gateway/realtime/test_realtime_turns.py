"""The user's turns: their audio, events and texts."""

import base64
import json

import numpy as np
import pytest
from openai_session import delta_text, run

from parley import protocol

SECOND = base64.b64encode(bytes(48_000)).decode()


def transcript(text, *, utterance=1, is_final=False):
    return protocol.Transcript(utterance=utterance, text=text, is_final=is_final, confidence=0.9)


def decision(text, kind="commit", reason="waited"):
    return protocol.TurnDecision(utterance=1, decision=kind, reason=reason, text=text)


def test_a_turn_is_one_item_with_a_text_that_grows(session):
    session.on_agent(
        protocol.SpeechStarted(at_ms=1_000),
        transcript("set a"),
        transcript("set a timer for"),
        transcript("set a timer for ten"),
        protocol.SpeechStopped(at_ms=1_900, detected_at_ms=2_100),
        transcript("set a timer for", is_final=True),
        decision("set a timer for", "wait"),
        protocol.SpeechStarted(at_ms=2_600),
        decision("set a timer for", "resume", "spoke_again"),
        protocol.SpeechStopped(at_ms=3_300, detected_at_ms=3_500),
        transcript("ten minutes", utterance=2, is_final=True),
        decision("set a timer for ten minutes"),
    )
    events = session.take()
    assert delta_text(events) == "set a timer for ten minutes"
    assert [event["type"] for event in events if not event["type"].endswith(".delta")] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.completed",
    ]
    by_kind = {event["type"]: event for event in events}
    assert by_kind["input_audio_buffer.speech_started"]["audio_start_ms"] == 700
    assert by_kind["input_audio_buffer.speech_stopped"]["audio_end_ms"] == 3_300
    completed = by_kind["conversation.item.input_audio_transcription.completed"]
    assert completed["transcript"] == "set a timer for ten minutes"
    assert completed["usage"] == {"type": "duration", "seconds": 2.3}
    assert len({event["item_id"] for event in events if "item_id" in event}) == 1


def test_texts_are_sent_to_those_who_want_them(make_session):
    session = make_session(session={})
    session.user_says("hello")
    assert "conversation.item.input_audio_transcription.completed" not in session.kinds()


def test_words_have_log_probabilities_on_request(make_session):
    wanted = ["item.input_audio_transcription.logprobs"]
    audio = {"input": {"transcription": {"model": "whisper-1"}}}
    session = make_session(session={"include": wanted, "audio": audio})
    words = [protocol.Word(text="hello", start_ms=0, end_ms=9, confidence=value) for value in (0.5, 0.0)]
    heard = protocol.Transcript(utterance=1, text="hello hello", is_final=True, confidence=0.9, words=words)
    session.on_agent(protocol.SpeechStarted(at_ms=100), heard, decision("hello hello"))
    logprobs = session.one("conversation.item.input_audio_transcription.completed")["logprobs"]
    assert [(one["token"], one["bytes"]) for one in logprobs] == [("hello", list(b"hello"))] * 2
    assert logprobs[0]["logprob"] == pytest.approx(-0.693, abs=0.001)
    assert -30 < logprobs[1]["logprob"] < -20  # finite: it is JSON


def test_the_text_can_be_looked_up_later(session):
    session.user_says("hello")
    item_id = session.one("conversation.item.added")["item"]["id"]
    session.send("conversation.item.retrieve", item_id=item_id)
    item = session.one("conversation.item.retrieved")["item"]
    assert item["content"] == [{"type": "input_audio", "transcript": "hello"}]


def test_a_cough_over_the_agent_sends_no_event(speaking):
    speaking.on_agent(
        protocol.SpeechStarted(at_ms=5_000),
        transcript("mhm"),
        protocol.SpeechStopped(at_ms=5_300, detected_at_ms=5_500),
        transcript("mhm", is_final=True),
    )
    speaking.agent_finishes()
    speaking.wait(10)
    assert not [
        kind for kind in speaking.kinds() if kind.startswith(("input_audio", "conversation.item.input"))
    ]


def test_an_interruption_is_sent_before_the_response_is_cancelled(speaking):
    speaking.on_agent(protocol.SpeechStarted(at_ms=5_000), transcript("no stop it"))
    assert speaking.kinds() == []
    speaking.interrupted()
    kinds = speaking.kinds()
    assert kinds[0] == "input_audio_buffer.speech_started"
    assert kinds[-1] == "response.done"


def test_speech_that_outlasts_the_agents_is_announced_at_its_end(session):
    session.user_says("hello")
    session.agent_says("Hello!")
    session.on_agent(protocol.SpeechStarted(at_ms=5_000))
    session.take()
    session.agent_finishes()
    assert session.kinds()[-1] == "input_audio_buffer.speech_started"


def test_without_interruptions_speech_is_announced_at_once(make_session):
    detection = {"type": "server_vad", "interrupt_response": False}
    session = make_session(session={"audio": {"input": {"turn_detection": detection}}})
    session.user_says("hello")
    session.agent_says("Hello!")
    session.take()
    session.on_agent(protocol.SpeechStarted(at_ms=5_000))
    assert session.kinds() == ["input_audio_buffer.speech_started"]


def test_a_text_that_replaces_earlier_ones_is_the_turns(session):
    session.on_agent(
        protocol.SpeechStarted(at_ms=1_000),
        transcript("Nine five.", is_final=True),
        protocol.SpeechStopped(at_ms=2_500, detected_at_ms=2_700),
        protocol.Transcript(
            utterance=2, text="one.", is_final=True, confidence=0.9, first=1, before="My number is 95"
        ),
    )
    session.take()
    session.wait(3.1)
    completed = session.one("conversation.item.input_audio_transcription.completed")
    assert completed["transcript"] == "My number is 95 one."


def test_speech_without_a_decision_ends(session):
    session.on_agent(
        protocol.SpeechStarted(at_ms=1_000),
        protocol.SpeechStopped(at_ms=1_500, detected_at_ms=1_700),
        transcript("hello", is_final=True),
    )
    session.take()
    session.wait(2.9)
    assert session.kinds() == []
    session.wait(0.2)
    assert session.kinds()[0] == "input_audio_buffer.speech_stopped"


@pytest.fixture
def manual(make_session):
    """A session whose client ends turns."""
    wanted = {"audio": {"input": {"turn_detection": None, "transcription": {"model": "x"}}}}
    return make_session(session=wanted)


def test_the_client_ends_a_turn_and_asks_for_an_answer(manual):
    manual.send("input_audio_buffer.append", audio=SECOND)
    manual.on_agent(protocol.SpeechStarted(at_ms=100), transcript("hello"))
    assert manual.kinds() == []
    manual.send("input_audio_buffer.commit")
    manual.send("response.create", response={"instructions": "Be brief."})
    assert manual.kinds() == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    assert manual.commands.take() == [("commit",)]
    manual.on_agent(decision("hello", reason="requested"))
    completed = manual.one("conversation.item.input_audio_transcription.completed")
    assert completed["transcript"] == "hello"
    assert completed["usage"]["seconds"] == 1.0
    assert manual.commands.take() == [("respond", "Be brief.", True, None)]


def test_a_commit_that_crosses_the_agents_own_end_of_the_turn_gets_its_text(session):
    session.send("input_audio_buffer.append", audio=SECOND)
    session.on_agent(
        protocol.SpeechStarted(at_ms=100),
        protocol.SpeechStopped(at_ms=600, detected_at_ms=800),
        transcript("What is new?", is_final=True),
    )
    session.take()
    session.send("input_audio_buffer.commit")
    committed = session.one("input_audio_buffer.committed")
    session.on_agent(decision("What is new?", reason="waited"), decision("", reason="requested"))
    completed = session.one("conversation.item.input_audio_transcription.completed")
    assert (completed["item_id"], completed["transcript"]) == (committed["item_id"], "What is new?")


def test_speech_that_is_reported_after_its_commit_begins_no_turn(session):
    session.send("input_audio_buffer.append", audio=SECOND)
    session.send("input_audio_buffer.commit")
    committed = session.one("input_audio_buffer.committed")
    session.on_agent(protocol.SpeechStarted(at_ms=900), transcript("Hi.", is_final=True))
    assert session.kinds() == []
    session.on_agent(decision("Hi.", reason="requested"))
    completed = session.one("conversation.item.input_audio_transcription.completed")
    assert (completed["item_id"], completed["transcript"]) == (committed["item_id"], "Hi.")
    session.send("input_audio_buffer.append", audio=SECOND)
    session.on_agent(protocol.SpeechStarted(at_ms=1_200))
    assert session.kinds() == ["input_audio_buffer.speech_started"]


def test_an_answer_does_not_wait_for_a_text_for_ever(manual):
    manual.send("input_audio_buffer.append", audio=SECOND)
    manual.send("input_audio_buffer.commit")
    manual.send("response.create")
    manual.wait(9.9)
    assert manual.commands.take() == [("commit",)]
    manual.wait(0.2)
    assert manual.commands.take() == [("respond", None, True, None)]


def test_an_empty_turn_cannot_be_ended(manual):
    manual.send("input_audio_buffer.append", audio=base64.b64encode(bytes(4_000)).decode())
    manual.send("input_audio_buffer.commit", event_id="e")
    assert manual.error() == ("input_audio_buffer_commit_empty", "e")
    assert manual.commands.take() == []


def test_clear_drops_the_current_speech(manual):
    manual.send("input_audio_buffer.append", audio=SECOND)
    manual.send("input_audio_buffer.clear")
    assert manual.kinds() == ["input_audio_buffer.cleared"]
    assert manual.commands.take() == [("discard",)]
    manual.send("input_audio_buffer.commit")
    assert manual.one("error")["error"]["code"] == "input_audio_buffer_commit_empty"


def test_a_silent_user_is_asked(make_session):
    detection = {"type": "server_vad", "idle_timeout_ms": 6_000}
    session = make_session(session={"audio": {"input": {"turn_detection": detection}}})
    for _ in range(4):
        session.send("input_audio_buffer.append", audio=SECOND)
    session.user_says("hm")
    session.on_agent(protocol.AgentState(state="listening"))  # it is not answered
    session.take()
    for _ in range(6):
        session.send("input_audio_buffer.append", audio=SECOND)
    session.agent_says("Are you still there?")
    events = session.take()
    assert events[0]["type"] == "input_audio_buffer.timeout_triggered"
    assert (events[0]["audio_start_ms"], events[0]["audio_end_ms"]) == (4_000, 10_000)
    assert events[1]["type"] == "input_audio_buffer.committed"
    session.agent_finishes()
    session.user_says("yes")
    session.agent_says("Good.", turn=2)
    session.agent_finishes(turn=2)
    session.on_agent(protocol.AgentState(state="processing"))  # the result of a tool in the background
    session.agent_says("Your taxi is there.", turn=3)
    assert "input_audio_buffer.timeout_triggered" not in session.kinds()


@pytest.mark.parametrize(("form", "rate"), [("audio/pcmu", 8_000), ("audio/pcma", 8_000)])
def test_the_telephones_audio_is_understood_and_spoken(make_session, form, rate):
    audio = {"input": {"format": {"type": form}}, "output": {"format": {"type": form}}}
    session = make_session(session={"audio": audio})
    assert session.commands.start.output_sample_rate == rate
    session.send("input_audio_buffer.append", audio=base64.b64encode(b"\xd5" * 8_000).decode())
    assert session.commands.audio_samples == pytest.approx(16_000, abs=200)


def append(audio):
    return json.dumps({"type": "input_audio_buffer.append", "event_id": "e", "audio": audio})


def tone(seconds):
    at = np.arange(24_000 * seconds)
    return (8_000 * np.sin(at * 2 * np.pi * 440 / 24_000)).astype("<i2").tobytes()


def test_long_audio_yields_to_other_tasks(session):
    turns = run(session.conversation.on_client_event(append(base64.b64encode(tone(60)).decode())))
    assert turns > 60
    assert session.commands.audio_samples == pytest.approx(60 * 16_000, abs=300)


def test_long_audio_is_decoded_as_in_pieces(make_session):
    audio = []
    for step in (len(tone(5)), 4_801):
        session, pieces = make_session(), []
        session.commands.send_audio = pieces.append
        for at in range(0, len(tone(5)), step):
            session.receive(append(base64.b64encode(tone(5)[at : at + step]).decode()))
        audio.append(np.concatenate(pieces))
    whole, in_pieces = audio
    assert whole.shape == in_pieces.shape
    # Resampled in other pieces: a float32 sum near a half may be rounded to the neighbour.
    assert np.abs(whole.astype(int) - in_pieces).max() <= 1


@pytest.mark.parametrize(
    "wrong", ["A" * 200_000 + "?", "A" * 65_534 + "==" + "A" * 65_536, "A" * 70_001, "é" * 8]
)
def test_invalid_base64_is_refused(session, wrong):
    session.receive(append(wrong))
    assert session.error("code", "param", "event_id") == ("invalid_value", "audio", "e")
    assert session.commands.audio_samples == 0

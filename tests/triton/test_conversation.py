"""A whole call with the real server: speech in, speech out."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from harness.stats import word_errors
from local_models import Transcriber

from parley.asr import checkpoint
from parley.launcher.options import ROOT
from parley.protocol import AgentState, Interrupted, ResponseDone, SpeechStarted, SpeechStopped, Transcript
from parley_client import AgentAudio, connect
from parley_client.audio.files import resample
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.script import load_script

SCRIPT = ROOT / "examples" / "conversation.toml"
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
ONES += "sixteen seventeen eighteen nineteen"
TENS = "zero ten twenty thirty forty fifty"


class Notes:
    """Remembers every event of the call and what was said when it came."""

    def __init__(self):
        self.events = []

    def begin_turn(self, turn, at_s):
        self.events.append(turn)

    def show(self, event, at_s):
        self.events.append(event)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def call_report(server):
    """The conversation of the demonstration, held once for all tests of this module."""
    notes = Notes()
    script = load_script(SCRIPT)
    async with connect(server.endpoints.grpc, tools=DEMO_TOOLS) as call:
        conversation = ScriptedConversation(call, notes)
        reports = await conversation.run(script.turns)
    return notes, {report.said: report for report in reports}, conversation


@pytest.fixture(scope="module")
def transcriber():
    return Transcriber(ROOT / "models" / checkpoint.DEFAULT)


def spell(match):
    number = int(match.group())
    words = ONES.split()
    if number < 20:
        return words[number]
    return TENS.split()[number // 10] + (f" {words[number % 10]}" if number % 10 else "")


def spoken_words(answer):
    """What a recogniser should write for ``answer``."""
    answer = re.sub(r"-(?=\d)", "minus ", answer.lower())
    return re.sub(r"[^a-z' ]", " ", re.sub(r"\d+", spell, answer)).split()


def test_all_utterances_are_recognised(call_report):
    _, turns, _ = call_report
    assert [(said, turn.problem) for said, turn in turns.items() if turn.problem] == []
    errors = sum(word_errors(said.split(), turn.heard.split()) for said, turn in turns.items())
    words = sum(len(said.split()) for said in turns)
    assert errors / words <= 0.05, {said: turn.heard for said, turn in turns.items()}


def test_partial_transcripts_come_while_the_user_speaks(call_report):
    notes, turns, _ = call_report
    partials = [event for event in notes.of(Transcript) if not event.is_final]
    assert len(partials) >= len(turns)
    began = [i for i, event in enumerate(notes.events) if isinstance(event, SpeechStarted)]
    ended = [i for i, event in enumerate(notes.events) if isinstance(event, SpeechStopped)]
    assert len(began) == len(ended) == len(turns)
    for index, event in enumerate(notes.events):
        if isinstance(event, Transcript) and not event.is_final:
            assert any(start < index < end for start, end in zip(began, ended, strict=True))


def test_words_have_times_within_the_utterance_and_confidences(call_report):
    notes, _, _ = call_report
    finals = [event for event in notes.of(Transcript) if event.is_final]
    for final in finals:
        assert [word.text for word in final.words] == final.text.split()
        starts = [word.start_ms for word in final.words]
        assert starts == sorted(starts)
        assert all(word.start_ms < word.end_ms and 0 <= word.confidence <= 1 for word in final.words)


def test_tools_are_called_with_what_was_said(call_report):
    _, turns, _ = call_report
    called = {
        said: [(tool.name, tool.arguments) for tool in turn.tools]
        for said, turn in turns.items()
        if turn.tools
    }
    assert called == {
        "what's the weather in paris": [("get_weather", {"city": "Paris"})],
        "and in london": [("get_weather", {"city": "London"})],
        "set a timer for ten minutes for the pasta": [("set_timer", {"minutes": 10, "label": "pasta"})],
        "no make it twelve minutes": [("set_timer", {"minutes": 12, "label": "pasta"})],
        "what time is it in tokyo": [("get_time", {"city": "Tokyo"})],
    }


def test_the_answer_tells_what_the_tool_returned(call_report):
    _, turns, _ = call_report
    get_weather = next(tool for tool in DEMO_TOOLS if tool.__name__ == "get_weather")
    weather = get_weather("Paris")
    answer = turns["what's the weather in paris"].answer
    assert str(weather["temperature"]) in answer
    assert weather["sky"] in answer


def test_the_answer_is_spoken(call_report, transcriber):
    """Transcribing the agent's own audio gives the text that it said it would speak."""
    notes, turns, _ = call_report
    audio = {}
    for event in notes.of(AgentAudio):
        audio.setdefault(event.turn, []).append(event)
    answered = {turn.metrics.turn: turn for turn in turns.values() if not turn.interrupted}
    errors = words = 0
    heard = {}
    for number, turn in answered.items():
        said = spoken_words(turn.answer)
        pieces = audio[number]
        samples = np.concatenate([piece.samples for piece in pieces])
        text = transcriber.words(resample(samples, pieces[0].sample_rate, 16_000))
        heard[turn.answer] = " ".join(word.text for word in text)
        errors += word_errors(said, heard[turn.answer].split())
        words += len(said)
    assert errors / words <= 0.2, heard


def test_audio_pieces_follow_each_other_without_gap(call_report):
    notes, _, _ = call_report
    by_response = {}
    for event in notes.of(AgentAudio):
        by_response.setdefault(event.response_id, []).append(event)
    for pieces in by_response.values():
        position = 0
        for piece in pieces:
            assert piece.offset_ms == pytest.approx(1000 * position / piece.sample_rate, abs=1)
            position += len(piece.samples)


def test_barge_in_stops_the_speech_and_forgets_what_was_not_heard(call_report):
    notes, turns, _ = call_report
    story = turns["tell me a story"]
    assert story.interrupted
    (interrupted,) = notes.of(Interrupted)
    # The caller speaks 3 s after the first audio; on a busy machine less of it has come by then.
    assert 0 < interrupted.played_ms < 5000
    full = "Once upon a time, a little robot lived in a big house by the sea."
    spoken = interrupted.spoken_text.rstrip("…. ")
    assert 0 < len(spoken) < 200
    assert full.startswith(spoken[: len(full)])
    after = notes.events[notes.events.index(interrupted) :]
    assert not [e for e in after if isinstance(e, AgentAudio) and e.response_id == interrupted.response_id], (
        "audio of the interrupted answer came after the interruption"
    )
    assert story.metrics.interrupted


def test_every_answer_that_was_not_interrupted_is_announced_as_done(call_report):
    notes, _, _ = call_report
    done = {event.response_id: event for event in notes.of(ResponseDone)}
    sent = {}
    for event in notes.of(AgentAudio):
        sent[event.response_id] = sent.get(event.response_id, 0) + event.duration_ms
    cut = {event.response_id for event in notes.of(Interrupted)}
    assert set(done) >= set(sent) - cut
    for response_id, event in done.items():
        if response_id not in cut:
            assert event.audio_ms == pytest.approx(sent.get(response_id, 0), abs=2)


def test_states_alternate(call_report):
    notes, _, _ = call_report
    states = [event.state for event in notes.of(AgentState)]
    assert {"listening", "processing", "speaking"} <= set(states)
    assert all(before != after for before, after in pairwise(states))


def test_the_recording_holds_both_sides(call_report, tmp_path: Path):
    import soundfile

    _, turns, conversation = call_report
    conversation.recording.write(tmp_path / "call.wav")
    samples, rate = soundfile.read(tmp_path / "call.wav")
    assert samples.shape[1] == 2
    seconds = len(samples) / rate
    longest = max(turn.speech_ended_s for turn in turns.values()) - conversation.microphone.began_s
    assert seconds > longest
    for side in (0, 1):
        assert np.abs(samples[:, side]).max() > 0.05


def test_every_turn_is_measured(call_report):
    _, turns, _ = call_report
    for said, turn in turns.items():
        metrics = turn.metrics
        assert metrics.asr_final_ms is not None, said
        assert metrics.llm_first_token_ms is not None, said
        assert metrics.first_audio_ms is not None, said
        assert metrics.prompt_tokens > 0, said
        assert (metrics.tool_ms is not None) == bool(turn.tools), said

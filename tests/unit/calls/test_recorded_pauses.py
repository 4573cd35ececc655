"""Pauses of recorded calls, labelled by what came after them."""

from __future__ import annotations

import json
import wave

import numpy as np
import pytest
from call_infos import info

from parley.calls.folder import CallFolder
from parley.calls.pauses import read_pauses, score_pauses
from parley.calls.settings import RecordSettings
from parley.calls.writing import CallRecord, CallWriter
from parley.errors import InvalidAudioError
from parley.protocol import Audio, ResponseDone, SpeechStarted, SpeechStopped, Transcript, TurnDecision
from parley.turns.smart_turn import BEFORE_ONSET_MS


class Call:
    """The folder of a call, written event by event; times are milliseconds of the recording."""

    def __init__(self, path) -> None:
        self.path = path
        path.mkdir()
        self._lines: list[dict] = []
        self._utterances = 0

    def event(self, line_ms, kind, **fields):
        self._lines.append({"at_ms": line_ms, "event": {"type": kind, **fields}})

    def says(self, began, ended, text, *, probability=None, said_after=300, first=0, before=""):
        self._utterances += 1
        self.event(began + 60, "speech_started", at_ms=began)
        self.event(ended + 170, "speech_stopped", at_ms=ended, detected_at_ms=ended + 160)
        at, number = ended + said_after, self._utterances
        self.event(at, "transcript", utterance=number, text=text, is_final=True, first=first, before=before)
        if probability is not None:
            decision = {"utterance": number, "decision": "wait", "probability": probability}
            self.event(at + 1, "turn_decision", **decision)

    def hears(self, *times, response="r1"):
        for at in times:
            self.event(at, "words", response_id=response, text="word")

    def write(self):
        lines = "".join(f"{json.dumps(line)}\n" for line in self._lines)
        (self.path / "events.jsonl").write_text(lines + '{"at_ms": 99, "ev')
        return self.path

    @property
    def pauses(self):
        return [one.pause for one in read_pauses(self.write(), "en")]


@pytest.fixture
def call(tmp_path):
    return Call(tmp_path / "call")


def decision(utterance, probability):
    return TurnDecision(
        utterance=utterance, decision="wait", reason="sounds_incomplete", text="", probability=probability
    )


def labels(pauses):
    return [(one.is_end, one.length_ms) for one in pauses]


END = (True, float("inf"))


def test_pause_after_which_the_user_goes_on_is_a_hold_and_the_last_an_end(call):
    call.says(1_000, 2_000, "a table for")
    call.says(2_700, 3_200, "four")
    assert labels(call.pauses) == [(False, 700), END]


def test_pause_after_which_the_agent_was_heard_is_an_end(call):
    call.says(1_000, 2_000, "a table for four")
    call.hears(2_600, 4_000)
    call.says(5_000, 6_000, "at eight")
    assert labels(call.pauses) == [END, END]


@pytest.mark.parametrize(("began", "is_end"), [(3_050, False), (3_150, True)])
def test_user_who_goes_on_before_the_agent_can_have_been_understood_was_cut_off(call, began, is_end):
    call.says(1_000, 2_000, "a table for")
    call.hears(2_600, 3_300)
    call.event(began + 100, "interrupted", response_id="r1")
    call.says(began, 3_900, "four")
    call._lines.append(call._lines.pop(2))  # the interruption comes while the user speaks
    call._lines.sort(key=lambda line: line["at_ms"])
    assert call.pauses[0].is_end is is_end
    assert len(call.pauses) == 2


def test_speech_over_the_agent_that_did_not_interrupt_it_has_no_pause(call):
    call.says(1_000, 2_000, "tell me a story")
    call.hears(2_600, 3_000, 9_000)
    call.says(5_000, 5_300, "mhm")
    assert labels(call.pauses) == [END]


def test_speech_without_words_does_not_divide_a_pause(call):
    call.says(1_000, 2_000, "a table for")
    call.says(2_400, 2_600, "")
    call.says(3_500, 4_000, "four")
    assert labels(call.pauses) == [(False, 1_500), END]


def test_words_of_the_whole_turn_give_the_cue(call):
    call.says(1_000, 2_000, "my number is five five five")
    call.says(2_700, 3_200, "one two one two")
    call.hears(4_000)
    call.says(6_000, 6_500, "one two one two")
    first, second, third = read_pauses(call.write(), "en")
    assert first.pause.cue.kind == "digits"
    assert second.pause.cue is None
    assert [first.turn_ms, second.turn_ms, third.turn_ms] == [1_000, 1_000, 6_000]


def test_words_that_were_decoded_again_replace_the_earlier_ones(call):
    call.says(1_000, 2_000, "set a timer for")
    call.says(2_700, 3_200, "ten", first=1, before="stop it and")
    assert call.pauses[1].cue is None or call.pauses[1].cue.kind != "digits"
    call.says(3_600, 4_000, "please", first=1, before="set a timer for ten minutes")
    assert call.pauses[2].cue is None


def test_score_of_the_call_and_the_time_of_its_words_are_kept(call):
    call.says(1_000, 2_000, "a table for", probability=0.2, said_after=450)
    call.says(2_700, 3_200, "four")
    first, second = call.pauses
    assert first.scores == ((160, 0.2),)
    assert first.ready_ms == 450
    assert second.scores == ()


def test_turn_goes_on_over_a_pause_that_was_committed_too_early(call):
    call.says(1_000, 2_000, "a table for")
    call.event(2_310, "turn_decision", utterance=1, decision="commit", probability=0.9, text_probability=0.25)
    call.says(2_900, 3_200, "four")
    assert [one.text_probability for one in call.pauses] == [0.25, None]
    found = read_pauses(call.write(), "en")
    assert [one.turn_ms for one in found] == [1_000, 1_000]


def test_after_a_very_long_pause_another_turn_begins(call):
    call.says(1_000, 2_000, "a table for")
    call.says(9_000, 9_500, "hello")
    assert [one.turn_ms for one in read_pauses(call.write(), "en")] == [1_000, 9_000]


class Network:
    def __init__(self) -> None:
        self.heard = []

    def score(self, speech):
        self.heard += speech
        return np.array([0.25], np.float32)


def write_audio(path, user, channels=2, rate=16_000):
    with wave.open(str(path / "audio.wav"), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        frames = np.stack([user, np.full_like(user, 9)][:channels], axis=1)
        file.writeframes(frames.tobytes())


def test_network_hears_the_user_until_the_silence_was_noticed_and_no_further(call):
    call.says(1_000, 2_000, "a table for", probability=0.9)
    call.says(2_700, 3_200, "four")
    found = read_pauses(call.write(), "en")
    user = np.arange(16 * 4_000).astype(np.int16)
    write_audio(call.path, user)
    network = Network()
    scored = score_pauses(call.path, found, network)
    assert [one.scores for one in scored] == [((300, 0.25),), ((300, 0.25),)]
    for heard, until in zip(network.heard, (2_160, 3_360), strict=True):
        np.testing.assert_array_equal(heard, user[16 * (1_000 - BEFORE_ONSET_MS) : 16 * until])


def test_network_hears_at_most_eight_seconds_of_a_long_turn(call):
    call.says(1_000, 15_000, "once upon a time")
    write_audio(call.path, np.zeros(16 * 16_000, np.int16))
    network = Network()
    score_pauses(call.path, read_pauses(call.write(), "en"), network)
    assert len(network.heard[0]) == 16 * 8_000


def test_call_without_audio_or_with_its_end_missing_keeps_its_own_scores(call):
    call.says(1_000, 2_000, "a table for four", probability=0.9)
    found = read_pauses(call.write(), "en")
    assert score_pauses(call.path, found, Network())[0].scores == ((160, 0.9),)
    write_audio(call.path, np.zeros(16 * 2_100, np.int16))
    assert score_pauses(call.path, found, Network())[0].scores == ((160, 0.9),)


def test_audio_that_is_no_recorded_call_is_refused(call):
    call.says(1_000, 2_000, "a table")
    found = read_pauses(call.write(), "en")
    write_audio(call.path, np.zeros(16_000, np.int16), channels=1)
    with pytest.raises(InvalidAudioError, match="has 1 channels"):
        score_pauses(call.path, found, Network())
    (call.path / "audio.wav").write_bytes(b"no audio")
    with pytest.raises(InvalidAudioError, match="no WAV file"):
        score_pauses(call.path, found, Network())


def test_call_as_it_is_recorded_is_understood(tmp_path):
    folder, call = CallFolder(tmp_path / "calls"), info()
    writer = CallWriter(folder, lambda _: None)
    record = CallRecord(writer, call, RecordSettings(), 0.0)
    for second in range(1, 9):
        record.add_user(np.full(16_000, second, np.int16), float(second))
    audio = np.full(22_050, 5, np.int16)
    for at, event, sound in [
        (8.1, SpeechStarted(at_ms=1_000), None),
        (8.1, SpeechStopped(at_ms=2_000, detected_at_ms=2_160), None),
        (8.2, Transcript(utterance=1, text="a table for", is_final=True, confidence=0.9), None),
        (8.2, decision(1, 0.25), None),
        (8.3, SpeechStarted(at_ms=2_700), None),
        (8.4, SpeechStopped(at_ms=3_200, detected_at_ms=3_360), None),
        (8.5, Transcript(utterance=2, text="four", is_final=True, confidence=0.9), None),
        (
            8.6,
            Audio(turn=1, response_id="r1", sample_rate=22_050, offset_ms=0, samples=22_050, text="yes"),
            audio,
        ),
        (8.7, ResponseDone(turn=1, response_id="r1", audio_ms=1_000), None),
    ]:
        record.add("event", event, at, sound, {} if sound is None else None)
    record.finish(call, 13.0)
    assert writer.close(30.0)
    network = Network()
    path = folder.path / call.call
    found = read_pauses(path, "en")
    assert labels(one.pause for one in found) == [(False, 700), END]
    assert found[0].pause.scores == ((160, 0.25),)
    score_pauses(path, found, network)
    assert network.heard[0][[0, -1]].tolist() == [1, 3]

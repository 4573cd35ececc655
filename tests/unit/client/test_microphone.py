"""The paced microphone on a clock of its own, and the clips that it speaks."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import soundfile

from parley_client.audio import microphone
from parley_client.audio.files import read_speech, speech_span
from parley_client.audio.microphone import PacedMicrophone
from parley_client.cli.script import load_script, script_of_files
from parley_client.errors import AudioFileError, ScriptError


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Stop(Exception):  # noqa: N818 - ends the endless microphone
    pass


def record(clock, monkeypatch, chunks, on_chunk=lambda _: None, delay=lambda _: 0.0):
    """A microphone and what it sent: (time, chunk)."""
    monkeypatch.setattr(microphone.asyncio, "sleep", clock.sleep)
    sent = []

    async def send(chunk):
        sent.append((clock.now, chunk))
        clock.now += delay(len(sent))
        on_chunk(len(sent))
        if len(sent) == chunks:
            raise Stop

    return PacedMicrophone(send, chunk_ms=20, clock=clock), sent


async def test_chunks_leave_when_their_last_sample_was_spoken(monkeypatch):
    clock = Clock()
    mic, sent = record(clock, monkeypatch, 5)
    with pytest.raises(Stop):
        await mic.run()
    assert [at for at, _ in sent] == pytest.approx([100.02, 100.04, 100.06, 100.08, 100.1])
    assert all(len(chunk) == 320 and not chunk.any() for _, chunk in sent)


async def test_being_late_once_does_not_delay_what_follows(monkeypatch):
    clock = Clock()
    mic, sent = record(clock, monkeypatch, 6, delay=lambda n: 0.05 if n == 1 else 0.0)
    with pytest.raises(Stop):
        await mic.run()
    assert [at for at, _ in sent] == pytest.approx([100.02, 100.07, 100.07, 100.08, 100.1, 100.12])
    assert mic.worst_late_s == pytest.approx(0.03)


async def test_a_clip_is_spoken_and_its_true_span_is_known(monkeypatch):
    clip = np.concatenate([np.zeros(100), np.full(500, 1000), np.zeros(60)]).astype(np.int16)
    clock, spoken = Clock(), []

    def on_chunk(number):
        if number == 2:
            spoken.append(mic.speak(clip))
        if number == 3:
            assert (spoken[0].began.is_set(), spoken[0].ended.is_set()) == (False, False)
        if number == 5:
            assert spoken[0].began.is_set()

    mic, sent = record(clock, monkeypatch, 7, on_chunk)
    with pytest.raises(Stop):
        await mic.run()
    audio = np.concatenate([chunk for _, chunk in sent])
    assert speech_span(audio) == (2 * 320 + 100, 2 * 320 + 600)
    assert spoken[0].began_s == pytest.approx(100 + (2 * 320 + 100) / 16_000)
    assert spoken[0].ended_s == pytest.approx(100 + (2 * 320 + 600) / 16_000)
    assert spoken[0].ended.is_set()


async def test_microphone_that_speaks_refuses_another_recording():
    mic = PacedMicrophone(lambda _: asyncio.sleep(0))
    mic.speak(np.ones(1600, np.int16))
    with pytest.raises(RuntimeError, match="speaking already"):
        mic.speak(np.ones(1600, np.int16))


def test_the_span_of_speech_ignores_what_is_quiet():
    quiet = np.full(100, 20, np.int16)
    assert speech_span(np.concatenate([quiet, np.full(50, -8000, np.int16), quiet])) == (100, 150)
    assert speech_span(np.zeros(80, np.int16)) == (0, 80)


def test_any_rate_and_channels_become_16_khz_mono(tmp_path):
    tone = np.sin(np.arange(22_050) * 0.1) * 0.5
    soundfile.write(tmp_path / "a.flac", np.stack([tone, tone], axis=1), 22_050)
    samples = read_speech(tmp_path / "a.flac")
    assert samples.dtype == np.int16
    assert abs(len(samples) - 16_000) <= 1
    assert abs(np.abs(samples).max() - 16_384) < 400


def test_files_that_are_no_audio_are_refused(tmp_path):
    (tmp_path / "text.wav").write_text("hello")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16_000)
    for name, why in (
        ("text.wav", "not an audio file"),
        ("empty.wav", "no audio"),
        ("none.wav", "no such file"),
    ):
        with pytest.raises(AudioFileError, match=why):
            read_speech(tmp_path / name)


def test_a_script_names_its_clips(tmp_path):
    for name in ("hello", "stop"):
        soundfile.write(tmp_path / f"{name}.wav", np.ones(160) * 0.1, 16_000)
    file = tmp_path / "call.toml"
    file.write_text(
        'title = "t"\nsystem_prompt = "p"\n'
        '[[turn]]\nsay = "hello.wav"\ntext = "hello"\npause_ms = 50\n'
        '[[turn]]\nsay = "stop.wav"\nbarge_in_ms = 700\n'
        '[[turn]]\nwrite = "two coffees"\n'
        '[[turn]]\npress = "12#"\nbarge_in_ms = 5\n'
    )
    script = load_script(file)
    assert (script.title, script.system_prompt) == ("t", "p")
    assert [(turn.name, turn.text, turn.pause_ms, turn.barge_in_ms) for turn in script.turns] == [
        ("hello", "hello", 50, None),
        ("stop", "", 600, 700),
        ("two coffees", "", 600, None),
        ("12#", "", 600, 5),
    ]
    assert [(turn.write, turn.press, len(turn.samples)) for turn in script.turns[1:]] == [
        ("", "", 160),
        ("two coffees", "", 0),
        ("", "12#", 0),
    ]
    plain = script_of_files([tmp_path / "hello.wav", tmp_path / "stop.wav"], barge_in_ms=300)
    assert [turn.barge_in_ms for turn in plain.turns] == [None, 300]


def test_a_script_takes_a_part_of_a_recording_among_the_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path / "weights"))
    folder = tmp_path / "weights" / "people"
    folder.mkdir(parents=True)
    ramp = np.arange(16_000, dtype=np.int16)
    soundfile.write(folder / "reading.wav", ramp, 16_000)
    file = tmp_path / "call.toml"
    file.write_text('[[turn]]\nsay = "models:people/reading.wav"\npart = [250, 500]\n')
    (turn,) = load_script(file).turns
    assert turn.name == "reading"
    assert abs(int(turn.samples[0]) - 4_000) <= 1
    assert len(turn.samples) == 4_000
    (folder / "reading.wav").unlink()
    with pytest.raises(ScriptError, match="make fetch MODEL=people"):
        load_script(file)


def test_a_turn_may_be_left_out_for_want_of_its_recording(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path / "weights"))
    absent = '[[turn]]\nsay = "models:people/reading.wav"\ntext = "It was."\noptional = true\n'
    file = tmp_path / "call.toml"
    file.write_text(f'{absent}[[turn]]\nwrite = "two coffees"\n')
    script = load_script(file)
    assert [turn.write for turn in script.turns] == ["two coffees"]
    assert script.left_out == ("It was.",)
    file.write_text(absent)
    with pytest.raises(ScriptError, match="no turn is left"):
        load_script(file)


@pytest.mark.parametrize("part", ["[0, 1001]", "[500, 500]", "[-1, 20]", "[20, 10]"])
def test_a_part_that_is_not_in_the_recording_is_refused(tmp_path, part):
    soundfile.write(tmp_path / "a.wav", np.ones(16_000) * 0.1, 16_000)
    file = tmp_path / "call.toml"
    file.write_text(f'[[turn]]\nsay = "a.wav"\npart = {part}\n')
    with pytest.raises(ScriptError, match="not within the 1000 ms of"):
        load_script(file)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[turn]]\nwrite = "a"\npause_ms = -1\n', ">= 0"),
        ('[[turn]]\nwrite = "a"\nbarge_in_ms = -1\n', ">= 0"),
        (None, "No such file"),
        ("turn = 3", "array"),
        ("turn = []", "at least one"),
        ('[[turn]]\nsay = "a.wav"\nlater = 1', "later"),
        ("[[turn]", "call.toml"),
        ("[[turn]]\ntext = 'a'", "one of say, write and press"),
        ("[[turn]]\nwrite = 'a'\npress = '1'", "one of say, write and press"),
        ("[[turn]]\npress = '1x'", "'x' in '1x'"),
        ("[[turn]]\nwrite = 'a'\npart = [0, 5]", "part belongs to say"),
        ("[[turn]]\nwrite = 'a'\noptional = true", "optional belongs to say"),
    ],
)
def test_a_bad_script_says_why(tmp_path, text, why):
    file = tmp_path / "call.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ScriptError, match=why):
        load_script(file)

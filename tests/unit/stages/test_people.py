"""Recordings of people out of packages, and what conditions do to them."""

from __future__ import annotations

import gzip
import io
import json
import subprocess

import av
import numpy as np
import pytest
import soundfile
from harness import people
from harness.people import Clip, add_noise, conditions, far, hear_in, load_people, spread
from harness.recordings import RATE, RecordingError

TEXTS = """\
; comment
beep: [a tone]
enter: Please press # or * (after the tone), thru the represenatives.
letters/at: at [@]
"""
STM = """\
sample 1 Diane 0.10 0.30 Oh, hello.
sample 1 Diane 0.30 0.50 I'm here.
sample 1 Sheila 0.50 0.90 So am I.
"""


def tone(seconds, hertz=440.0):
    return 0.3 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE).astype(np.float32)


def sound(samples, rate=RATE, form="WAV"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form)
    return file.getvalue()


def g722(samples):
    encoder = av.CodecContext.create("g722", "w")
    encoder.layout, encoder.format, encoder.sample_rate = "mono", "s16", RATE
    frame = av.AudioFrame.from_ndarray((samples[None] * 32_767).astype(np.int16), format="s16", layout="mono")
    frame.sample_rate = RATE
    return b"".join(bytes(packet) for one in (frame, None) for packet in encoder.encode(one))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Small packages in the form of the real ones."""
    folder = tmp_path / "people"
    folder.mkdir()

    def pack(name, members):
        root = tmp_path / name
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN" / "control").write_text(
            "Package: some\nVersion: 1\nArchitecture: all\nMaintainer: M <m@example.com>\nDescription: d\n"
        )
        for member, data in members.items():
            path = root / "usr/share" / member
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        subprocess.run(["dpkg-deb", "--build", root, folder / name], check=True, stdout=subprocess.DEVNULL)

    prompts = "asterisk/sounds/en_US_f_Allison"
    pack("asterisk-texts.deb", {"doc/core-sounds-en.txt.gz": gzip.compress(TEXTS.encode())})
    names = ("beep", "enter", "letters/at")
    pack("asterisk-prompts.deb", {f"{prompts}/{name}.g722": g722(tone(0.5)) for name in names})
    data = "pocketsphinx/test/data"
    pack(
        "pocketsphinx.deb",
        {
            f"{data}/librivox/transcription": b"<s> he was young </s> (sense-1)\n",
            f"{data}/librivox/sense-1.wav": sound(tone(0.4)),
            f"{data}/cards/cards.transcription": b"<s> ten of clubs  </s> (001)\n",
            f"{data}/cards/001.wav": sound(tone(0.3)),
        },
    )
    names = ("en/alpha/A", "en_GB/alpha/b", "fr/alpha/C", "en/syllab/key")
    letter = sound(tone(0.2), form="OGG")
    pack("klettres.deb", {f"klettres/{name}.ogg": letter for name in names})
    stereo = np.stack([tone(1.0), np.zeros(RATE, np.float32)], axis=1)
    (folder / "sample.wav").write_bytes(sound(stereo))
    (folder / "sample.stm").write_text(STM)
    (tmp_path / "a.wav").write_bytes(sound(tone(0.6)))
    (tmp_path / "readers.json").write_text(json.dumps([{"file": "a.wav", "text": "It was."}]))
    monkeypatch.setattr(people, "_FOLDER", folder)
    monkeypatch.setattr(people, "_READERS", tmp_path / "readers.json")
    return folder


def test_each_recording_has_its_text_and_its_speaker(folder):
    found = {clip.name: clip for clip in load_people()}
    assert {name: (clip.speaker, clip.text) for name, clip in found.items()} == {
        "asterisk/enter": ("Allison Smith", "Please press  pound  or  star  , through the representatives."),
        "asterisk/letters/at": ("Allison Smith", "at"),
        "pocketsphinx/librivox-sense-1": ("librivox", "he was young"),
        "pocketsphinx/cards-001": ("cards", "ten of clubs"),
        "pyannote/0": ("Diane", "Oh, hello. I'm here."),
        "pyannote/1": ("Sheila", "So am I."),
        "klettres/en-A.ogg": ("klettres en", "A"),
        "klettres/en_GB-b.ogg": ("klettres en_GB", "B"),
        "moonshine/0-a.wav": ("a.wav", "It was."),
    }
    assert {clip.samples.dtype for clip in found.values()} == {np.dtype(np.float32)}
    seconds = {name: len(clip.samples) / RATE for name, clip in found.items()}
    assert seconds["asterisk/enter"] == pytest.approx(0.5, abs=0.01)
    assert seconds["pyannote/1"] == pytest.approx(0.4, abs=0.001)
    assert found["asterisk/enter"].source == "asterisk"
    assert np.abs(found["asterisk/enter"].samples).max() == pytest.approx(0.3, abs=0.03)


def test_so_many_of_each_source(folder):
    assert [clip.name for clip in load_people(1)] == [
        "asterisk/enter",
        "pocketsphinx/librivox-sense-1",
        "pyannote/0",
        "klettres/en-A.ogg",
        "moonshine/0-a.wav",
    ]


def test_a_few_recordings_are_from_all_over_the_list():
    clips = [Clip(f"x/{number}", "", "", tone(0.1)) for number in range(10)]
    assert [clip.name for clip in spread(clips, 4)] == ["x/0", "x/2", "x/5", "x/7"]
    assert spread(clips, 12) == spread(clips, None) == clips


def test_missing_recordings_name_the_command(folder):
    (folder / "klettres.deb").unlink()
    with pytest.raises(RecordingError, match=r'klettres\.deb.*make fetch MODEL="people test-recordings"'):
        load_people()


def test_noise_is_measured_against_what_is_spoken():
    speech = np.concatenate([np.zeros(RATE, np.float32), tone(1.0), np.zeros(RATE, np.float32)])
    noise = np.random.default_rng(1).normal(0.0, 0.1, RATE // 2).astype(np.float32)
    added = add_noise(speech, noise, 10.0) - speech
    assert len(added) == len(speech)
    assert 10 * np.log10(0.3**2 / 2 / np.mean(added**2)) == pytest.approx(10.0, abs=0.01)


def test_a_room_answers_later_and_is_as_loud():
    click = np.zeros(RATE, np.float32)
    click[0] = 0.5
    heard = far(click)
    assert np.sum(heard**2) == pytest.approx(np.sum(click**2), rel=1e-3)
    first = int(np.argmax(np.abs(heard) > 0.2 * np.abs(heard).max()))
    assert 3.0 < first / RATE * 343 < 4.5  # meters
    late = [np.sum(heard[RATE * ms // 1000 :] ** 2) for ms in (50, 300, 600)]
    assert late[0] > 10 * late[1] > 100 * late[2] > 0


def energy_above(wave, hertz):
    spectrum = np.abs(np.fft.rfft(wave)) ** 2
    return spectrum[np.fft.rfftfreq(len(wave), 1 / RATE) > hertz].sum() / spectrum.sum()


@pytest.mark.parametrize("name", ["telephone", "mobile"])
def test_a_telephone_is_narrow_and_loses_packets(name):
    high = np.random.default_rng(2).normal(0.0, 0.1, 10 * RATE).astype(np.float32)
    clip = Clip("x/1", "", "", high + tone(10.0))
    heard = hear_in(clip, name, conditions()[name])
    assert len(heard.samples) == len(clip.samples) + 2 * RATE * 800 // 1000
    assert heard.condition == name
    assert energy_above(clip.samples, 4_200) > 0.05
    assert energy_above(heard.samples, 4_200) < 0.02
    spoken = heard.samples[RATE : 10 * RATE].reshape(-1, RATE // 50)
    lost = np.mean(np.all(spoken == 0, axis=1))
    assert 0.002 < lost < 0.06


def test_amr_carries_speech():
    said = tone(1.0)
    heard = people._amr(said)
    assert len(heard) == len(said)
    spectrum = np.abs(np.fft.rfft(heard[RATE // 4 : -RATE // 4]))
    assert np.argmax(spectrum) * RATE / (len(heard) - RATE // 2) == pytest.approx(440, abs=5)


def test_a_condition_changes_a_recording_the_same_way_each_time(folder):
    (folder / "crowd.ogg").write_bytes(sound(np.random.default_rng(3).normal(0, 0.1, RATE), form="OGG"))
    change = conditions()["crowd 10 dB"]
    one, other = (Clip(f"x/{name}", "", "", tone(0.5)) for name in "ab")
    people._noise.cache_clear()
    first = hear_in(one, "crowd 10 dB", change).samples
    assert np.array_equal(first, hear_in(one, "crowd 10 dB", change).samples)
    assert not np.array_equal(first, hear_in(other, "crowd 10 dB", change).samples)
    people._noise.cache_clear()
    assert first[: RATE // 10].any()  # before what is said too

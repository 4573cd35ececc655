"""What callers say."""

import wave

import numpy as np
import pytest
from load.recordings import load_repertoire

from parley.launcher.options import ROOT


def write(path, samples):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.asarray(samples, "<i2").tobytes())


@pytest.mark.parametrize("folder", ["conversation", "open_conversation"])
def test_the_projects_recordings_are_questions_and_a_command(folder):
    found = load_repertoire(ROOT / "tests" / "data" / folder)
    assert [one.name for one in found.commands] == ["stop"]
    assert "weather" in [one.name for one in found.questions]
    for one in (*found.questions, *found.commands):
        assert 0 <= one.first < one.last <= len(one.pcm) // 2


def test_speech_ends_with_the_last_loud_sample(tmp_path):
    tone = 8_000 * np.ones(1_600)
    write(tmp_path / "01-hello.wav", np.concatenate([np.zeros(800), tone, np.zeros(3_200)]))
    write(tmp_path / "02-stop.wav", tone)
    found = load_repertoire(tmp_path)
    assert (found.questions[0].first, found.questions[0].last) == (800, 2_400)
    assert len(found.questions[0].pcm) == 2 * 5_600


def test_a_folder_without_a_command_is_refused(tmp_path):
    write(tmp_path / "01-hello.wav", np.ones(160))
    with pytest.raises(ValueError, match="stop"):
        load_repertoire(tmp_path)

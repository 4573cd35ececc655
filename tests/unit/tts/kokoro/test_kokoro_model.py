"""The model with a voice that hums: English does not depend on espeak-ng's process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "model_server"))

import fake_pb_utils
from fake_pb_utils import Request
from kokoro_weights import write_weights

from parley.errors import WeightsNotFoundError
from parley.inference import struct_tensor
from parley.models import kokoro
from parley.runtime.parameters import Parameters
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.espeak_phonemes.client import PHONEME_RESTARTS, PhonemeProcess
from parley.tts.messages import SpeakRequest

LIMIT_S = 60.0
# Says its own number for every text.
PROGRAM = """
import json, os, sys
print('"ready"', flush=True)
for line in sys.stdin:
    print(json.dumps([str(os.getpid())] * len(json.loads(line)[1])), flush=True)
"""


class English:
    def pronounce(self, text):
        return [PronouncedWord(text, "hə", 0, len(text), "", "")]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens the model; ``program``: espeak-ng's process, None: it is not installed."""
    monkeypatch.setattr(kokoro, "load_front_end", lambda _: English())
    models = []

    def opened(program=PROGRAM):
        folder = tmp_path / "kokoro-82m"
        if not folder.exists():
            write_weights(folder)
        monkeypatch.setattr(kokoro, "is_installed", lambda: program is not None)
        monkeypatch.setattr(
            kokoro,
            "PhonemeProcess",
            lambda: PhonemeProcess((sys.executable, "-c", program), timeout_s=LIMIT_S, start_s=LIMIT_S),
        )
        parameters = Parameters("kokoro", {}, environment={"PARLEY_MODELS_DIR": str(tmp_path)})
        models.append(kokoro.KokoroModel(fake_pb_utils, parameters))
        return models[-1]

    yield opened
    for model in models:
        model.close()


def ask(model, language):
    """Whether a text was spoken, and else its error."""
    request = Request({"REQUEST": struct_tensor(SpeakRequest(request_id="a", text="x", language=language))})
    model.execute([request])
    assert request.sender.final.wait(LIMIT_S)
    kind, *rest = request.sender.sent[0]
    return kind if kind == "data" else rest[0].partition(":")[0]


def test_without_espeak_english_is_spoken_and_nothing_else(opened):
    model = opened(None)
    assert [ask(model, language) for language in ("en", "es", "fr-FR")] == [
        "data",
        "unsupported_language",
        "unsupported_language",
    ]


def test_a_process_that_cannot_run_leaves_english_alone(opened, caplog):
    model = opened("import sys; sys.exit(1)")
    assert [ask(model, language) for language in ("en", "es")] == ["data", "model_unavailable"]
    assert "espeak-ng does not run" in caplog.text


def test_a_process_that_dies_is_replaced_and_counted(opened):
    model = opened()
    assert [ask(model, language) for language in ("es", "en", "fr")] == ["data"] * 3
    phonemes = model._phonemes
    os.kill(int(phonemes.phonemes("roa/es", ["x"])[0]), signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while phonemes.restarts() != Counter(died=1) or ask(model, "es") != "data":
        assert time.monotonic() < end
        time.sleep(0.01)
    counts = model.metrics.recorder.drain().counts
    labels = {"model": "kokoro", "reason": "died"}
    assert counts[PHONEME_RESTARTS, tuple(labels.items())] == 1


def test_a_model_that_is_not_loaded_leaves_no_process(opened, monkeypatch):
    processes = []

    def fail(_):
        raise WeightsNotFoundError("no dictionary")

    closing = PhonemeProcess.close

    def close(process):
        closing(process)
        processes.append(process)

    monkeypatch.setattr(PhonemeProcess, "close", close)
    monkeypatch.setattr(kokoro, "load_front_end", fail)
    with pytest.raises(WeightsNotFoundError):
        opened()
    assert [process.wait_until_tried() for process in processes] == [False]

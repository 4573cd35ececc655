"""Have Kokoro's voices of Spanish and French read sentences, and Whisper write what it hears.

    .venv/bin/python -m perf eval-languages

It needs the weights whisper-base and kokoro-82m (`make fetch MODEL=...`). A figure for a word is an error.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import soxr
from harness.stats import word_errors

from parley.asr.families import load_reader
from parley.launcher.options import ROOT
from parley.runtime.onnx import Stop, open_session
from parley.tts.espeak_phonemes.client import PhonemeProcess
from parley.tts.espeak_phonemes.front_end import EspeakFrontEnd
from parley.tts.kokoro.network import SAMPLE_RATE, load_network
from parley.tts.kokoro.voices import DEFAULTS

SENTENCES = {
    "es": (
        "Quiero reservar una mesa para cuatro personas.",
        "¿Cuál es la capital de Francia?",
        "Hola, ¿cómo estás hoy?",
        "El tren a Sevilla sale a las diez y llega por la tarde.",
        "Mañana va a llover en el norte del país.",
    ),
    "fr": (
        "Je voudrais réserver une table pour quatre personnes.",
        "Quelle est la capitale de l'Espagne ?",
        "Bonjour, comment allez-vous aujourd'hui ?",
        "Les enfants jouent dans le jardin avec leurs amis.",
        "Il va pleuvoir demain dans le nord du pays.",
    ),
}


def main() -> None:
    """Print each sentence that is heard wrongly, and the word error rate of each language."""
    models = Path(os.environ.get("PARLEY_MODELS_DIR") or ROOT / "models")
    reader = load_reader(models / "whisper-base", "whisper", open_session)
    phonemes = PhonemeProcess()
    front_ends = {language: EspeakFrontEnd(phonemes, language) for language in SENTENCES}
    phonemes.wait_until_tried()
    voices = load_network(models / "kokoro-82m", front_ends, threads=1)
    for language, sentences in SENTENCES.items():
        options = reader.options(language, [], 1.0)
        wrong = count = 0
        for sentence in sentences:
            sound = voices.make(voices.pronounce(sentence, language), DEFAULTS[language], Stop())
            audio = soxr.resample(sound.audio, SAMPLE_RATE, 16_000) * 32_767
            heard = reader.read(audio.clip(-32_768, 32_767).astype(np.int16), options).text
            errors = word_errors(_words(sentence), _words(heard))
            if errors:
                print(f"  {sentence} - {heard}")
            wrong, count = wrong + errors, count + len(_words(sentence))
        print(f"{language}: {wrong} of {count} words heard wrongly ({wrong / count:.1%})")
    phonemes.close()


def _words(text: str) -> list[str]:
    """Words without case and marks."""
    return "".join(c if c.isalnum() or c in " '" else " " for c in text.lower()).split()


if __name__ == "__main__":
    main()

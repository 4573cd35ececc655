"""Make the recordings of a caller who speaks open English: one WAV for each turn, with a manifest.

``tests/data/open_conversation`` is what the caller of the demonstration says in the profile ``open``. The
voice is one of Kokoro's, not the agent's default; the weights are those of ``models/kokoro-82m``.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import soundfile
import soxr

from parley.runtime.parameters import Parameters
from parley.tts.clauses.network import Stop, trim
from parley.tts.english.pronouncer import load_front_end
from parley.tts.kokoro.network import load_network

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_RATE = 16_000
VOICE = "af_bella"
LEVEL_DB = -23.0
"""RMS below full scale."""
EDGE_S = 0.05

CONVERSATION = {
    "01-hello": "Hello! What can you do for me?",
    "02-weather": "What's the weather like in Paris?",
    "03-and-in-london": "And in London?",
    "04-timer": "Please set a timer for ten minutes, for the pasta.",
    "05-capital": "What is the capital of Japan?",
    "06-book": "Who wrote Romeo and Juliet?",
    "07-pancakes": "How do I make pancakes?",
    "08-stop": "Okay, stop.",
    "09-thanks": "Thank you. Goodbye!",
}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "tests/data/open_conversation")
    parser.add_argument("--voice", default=VOICE)
    args = parser.parse_args()
    parameters = Parameters(
        "kokoro", {}, model_dir=ROOT / "model_repository/kokoro", environment=dict(os.environ)
    )
    models = Path(os.environ.get("PARLEY_MODELS_DIR") or ROOT / "models")
    network = load_network(
        models / "kokoro-82m", {"en": load_front_end(parameters)}, threads=os.cpu_count() or 1
    )
    args.out.mkdir(parents=True, exist_ok=True)
    manifest = []
    for name, text in CONVERSATION.items():
        sound = network.make(network.pronounce(text, "en"), args.voice, Stop())
        speech = soxr.resample(trim(sound.audio, network.sample_rate).audio, network.sample_rate, SAMPLE_RATE)
        speech *= 10 ** (LEVEL_DB / 20) / np.sqrt(np.square(speech).mean())
        edge = np.zeros(int(EDGE_S * SAMPLE_RATE), np.float32)
        audio = np.concatenate([edge, speech, edge])
        if np.abs(audio).max() > 1.0:
            raise SystemExit(f"{name} would be clipped at {LEVEL_DB} dB")
        soundfile.write(args.out / f"{name}.wav", audio, SAMPLE_RATE, subtype="PCM_16")
        manifest.append({"file": f"{name}.wav", "text": text})
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Make the recordings of the tests: a small evaluation set, and a caller's side of one conversation.

``tests/data/asr_eval``      FLAC clips of held-out sentences and voices, and of nothing, with a manifest
``tests/data/conversation``  what a caller says in the demo, one WAV for each turn, with a manifest

The evaluation clips are taken from the splits of ``tiny.corpus``.  Needs the programs of ``tiny.speech``.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np
import soundfile

from tiny.augment import Heard, clean, silent
from tiny.corpus import SPLITS, make
from tiny.speech import SAMPLE_RATE, Voice, say

ROOT = Path(__file__).resolve().parents[2]

EVALUATION = {"sentences": 12, "sentences_and_voices": 22, "short_and_voices": 22}
"""Clips of each split in the small evaluation set."""
SILENT_CLIPS = 4

CALLER = Voice("espeak", "en-us+f3")
CONVERSATION = {
    "01-hello": "hello",
    "02-weather": "what's the weather in paris",
    "03-and-in-london": "and in london",
    "04-timer": "set a timer for ten minutes for the pasta",
    "05-correction": "no make it twelve minutes",
    "06-story": "tell me a story",
    "07-stop": "stop",
    "08-time": "what time is it in tokyo",
    "09-sum": "what is seven plus five",
    "10-my-name": "my name is anna",
    "11-whats-my-name": "what's my name",
    "12-music": "play some jazz music",
    "13-thank-you": "thank you",
    "14-goodbye": "goodbye",
}
_EDGE = 0.05


def write_evaluation(folder: Path, work: Path, seed: int, processes: int) -> None:
    """Write the small evaluation set, with 0.1 to 0.5 s of silence around each clip."""
    rng = random.Random(seed)
    noise_rng = np.random.default_rng(seed)
    manifest = []
    for split, count in EVALUATION.items():
        clips = make(split, SPLITS[split], seed, work / "data", processes)
        for number, index in enumerate(sorted(rng.sample(range(len(clips)), count))):
            heard = clean(clips[index], lead=rng.uniform(0.1, 0.5), trail=rng.uniform(0.1, 0.5))
            entry = {"text": clips.texts[index], "voice": clips.voices[index], "held_out": split}
            manifest.append(_write(folder, f"{split}-{number:02}.flac", heard, entry))
    for number in range(SILENT_CLIPS):
        entry = {"text": "", "voice": "", "held_out": "silence"}
        manifest.append(_write(folder, f"silence-{number:02}.flac", silent(1.0, noise_rng), entry))
    _write_manifest(folder, manifest)


def write_conversation(folder: Path) -> None:
    """Write the caller's turns, with 50 ms of silence around each."""
    manifest = []
    for name, text in CONVERSATION.items():
        heard = clean(say(text, CALLER), lead=_EDGE, trail=_EDGE)
        manifest.append(_write(folder, f"{name}.wav", heard, {"text": text}))
    _write_manifest(folder, manifest)


def _write(folder: Path, name: str, heard: Heard, entry: dict[str, str]) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / name, heard.audio, SAMPLE_RATE, subtype="PCM_16")
    return {"file": name, **entry}


def _write_manifest(folder: Path, manifest: list[dict[str, str]]) -> None:
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def main() -> None:
    """Write both folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "tests/data")
    parser.add_argument("--work", type=Path, default=ROOT / "out/tiny-asr", help="clips")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="synthesizers at a time")
    args = parser.parse_args()
    write_evaluation(args.out / "asr_eval", args.work, args.seed, args.processes)
    write_conversation(args.out / "conversation")


if __name__ == "__main__":
    main()

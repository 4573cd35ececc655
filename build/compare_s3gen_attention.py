"""Write the same utterance with chunked and with full attention, for the ear to decide.

Chunked attention makes streamed audio exact, but weights may have been trained without it. Three
files go to ``--out``: ``whole.wav`` (full attention, in one piece: what upstream makes),
``chunked.wav`` (streamed, chunked attention: the default) and ``crossfaded.wav`` (streamed, full
attention with crossfades: the parameter ``attention`` of ``s3gen`` set to ``full``); the
differences of their spectrograms are printed.

``--utterance`` is a safetensors file with ``tokens`` i32 [n], ``speaker`` f32 [192],
``prompt_tokens`` i32 [P] and ``prompt_mel`` f32 [2P, 80].
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from parley_torch.tts.s3gen import checkpoint
from parley_torch.tts.s3gen.flow import AudioVoice
from parley_torch.tts.s3gen.state import Past
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley_torch.tts.s3gen.utterance import AudioUtterance, Plan

RATE = 24_000


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", type=Path, required=True, help="folder with a checkpoint")
    parser.add_argument("--utterance", type=Path, required=True, help="tokens and voice")
    parser.add_argument("--out", type=Path, default=Path("out/s3gen"), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    arguments = parser.parse_args()
    synthesizer = AudioSynthesizer(
        checkpoint.load(checkpoint.find_checkpoint(arguments.weights)), torch.device("cpu")
    )
    given = load_file(arguments.utterance)
    voice = AudioVoice(given["speaker"], given["prompt_tokens"].astype(np.int64), given["prompt_mel"])
    tokens = given["tokens"]
    full = Plan(full_attention=True, max_tokens=len(tokens))
    chunked = replace(full, full_attention=False, max_step=1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    reference: torch.Tensor | None = None
    for name, plan, pieces in (
        ("whole", full, len(tokens)),
        ("chunked", chunked, 1),
        ("crossfaded", replace(full, max_step=1), 1),
    ):
        utterance = _RecordedUtterance(voice, plan, seed=arguments.seed)
        audio = speak(synthesizer, utterance, tokens, pieces)
        soundfile.write(arguments.out / f"{name}.wav", audio, RATE)
        mel = torch.cat(utterance.mels, dim=1)
        reference = mel if reference is None else reference
        print(f"{name + '.wav':15} {len(audio) / RATE:6.2f} s", end="")
        print(
            f"  spectrogram differs by {(mel - reference).abs().mean() / reference.std():.4f} of its spread"
        )


class _RecordedUtterance(AudioUtterance):
    """An utterance that stores its spectrogram."""

    def __init__(self, voice: AudioVoice, plan: Plan, *, seed: int) -> None:
        super().__init__(voice, plan, seed=seed, rate=RATE)
        self.mels: list[torch.Tensor] = []

    def frames(self, mel: torch.Tensor, end: int, past: Past | None = None) -> torch.Tensor:
        """As of any utterance."""
        self.mels.append(super().frames(mel, end, past))
        return self.mels[-1]


def speak(
    synthesizer: AudioSynthesizer, utterance: AudioUtterance, tokens: NDArray[np.int32], pieces: int
) -> NDArray[np.int16]:
    """The audio of tokens that arrive in pieces; in one piece, it is made in one step."""
    audio = []
    for first in range(0, len(tokens), pieces):
        utterance.push(tokens[first : first + pieces])
        if utterance.tokens == len(tokens):
            utterance.end()
        while (end := utterance.next_end()) is not None:
            if pieces == len(tokens):
                end = len(tokens)
            (result,) = synthesizer.step([Job(utterance, end)])
            if isinstance(result, Exception):
                raise result
            audio.append(result)
    return np.concatenate(audio)


if __name__ == "__main__":
    main()

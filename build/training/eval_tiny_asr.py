"""Measure the exported tiny recogniser on sentences and voices that it was not trained on.

Everything is decoded by onnx-asr (https://github.com/istupakov/onnx-asr), which shares no code with
the training or with Parley.  Prints the word error rate of each split, clean and on a noisy line,
and by held-out voice; what is written for segments without speech; every mistake; and how far
padding changes the encoder's output.  With ``--checkpoint`` (needs NeMo), the transcripts are
also compared with NeMo's own greedy decoding.

The clips are made from ``--seed`` by the programs of ``tiny.speech``, or taken from ``--work``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import parley  # noqa: F401 - first: it turns ONNX Runtime's telemetry off

# isort: split
import jiwer
import numpy as np
import numpy.typing as npt
import onnx_asr
from onnx_asr.preprocessors.numpy_preprocessor import NemoPreprocessorNumpy
from onnxruntime import SessionOptions

from parley.runtime.onnx import open_session
from tiny.augment import Heard, clean, silent, varied
from tiny.corpus import SPLITS, Clips, make
from tiny.speech import HELD_OUT_VOICES

ROOT = Path(__file__).resolve().parents[2]
SILENT_CLIPS = 200
PADDED_CLIPS = 16


@dataclass(frozen=True)
class Transcript:
    """What one clip says, and what was written for it."""

    split: str
    voice: str
    text: str
    clean: str
    noisy: str


class Recogniser:
    """The exported model under onnx-asr."""

    def __init__(self, folder: Path) -> None:
        options = SessionOptions()
        options.intra_op_num_threads = 1
        self._model = onnx_asr.load_model("nemo-conformer-tdt", folder, sess_options=options)

    def transcribe(self, heard: Sequence[Heard]) -> list[str]:
        """The transcript of each clip."""
        return [self._model.recognize(clip.audio) for clip in heard]


def transcribe_all(recogniser: Recogniser, splits: dict[str, Clips], seed: int) -> list[Transcript]:
    """Transcribe every clip twice: with silence around it, and on a noisy line."""
    transcripts = []
    for split, clips in splits.items():
        rng = np.random.default_rng(seed)
        quiet = recogniser.transcribe([clean(clips[index]) for index in range(len(clips))])
        noisy = recogniser.transcribe([varied(clips[index], rng) for index in range(len(clips))])
        rows = zip(clips.voices, clips.texts, quiet, noisy, strict=True)
        transcripts += [Transcript(split, *row) for row in rows]
    return transcripts


def print_rates(transcripts: Sequence[Transcript]) -> None:
    """Word error rates by split, and by held-out voice."""
    print(f"{'':36}{'clips':>6}{'clean':>8}{'noisy':>8}   (word error rate)")
    for split in dict.fromkeys(row.split for row in transcripts):
        _print_rate(split, [row for row in transcripts if row.split == split])
    for voice in map(str, HELD_OUT_VOICES):
        _print_rate(voice, [row for row in transcripts if row.voice == voice])


def _print_rate(name: str, rows: Sequence[Transcript]) -> None:
    texts = [row.text for row in rows]
    quiet, noisy = (
        jiwer.wer(texts, [row.clean for row in rows]),
        jiwer.wer(texts, [row.noisy for row in rows]),
    )
    print(f"{name:36}{len(rows):6}{quiet:8.1%}{noisy:8.1%}")


def print_silence(recogniser: Recogniser, seed: int) -> None:
    """What is written for segments without speech."""
    rng = np.random.default_rng(seed)
    written = recogniser.transcribe([silent(rng.uniform(0.3, 3), rng) for _ in range(SILENT_CLIPS)])
    texts = [text for text in written if text]
    print(f"\nsegments without speech: {len(texts)} of {SILENT_CLIPS} gave text: {texts}")


def print_mistakes(transcripts: Sequence[Transcript]) -> None:
    """Every wrong transcript of a clean clip, and the words most often confused."""
    wrong = [row for row in transcripts if row.clean != row.text]
    print(f"\nwrong: {len(wrong)} of {len(transcripts)} clips")
    for row in wrong:
        print(f"  {row.text}\n    {row.clean}   [{row.voice}]")
    confusions = Counter(pair for row in wrong for pair in _confused(row.text, row.clean))
    print("\nmost confused")
    for (said, written), count in confusions.most_common(25):
        print(f"  {count:3} {said or '(nothing)'} > {written or '(nothing)'}")


def _confused(text: str, hypothesis: str) -> list[tuple[str, str]]:
    said, written = text.split(), hypothesis.split()
    return [
        (
            " ".join(said[chunk.ref_start_idx : chunk.ref_end_idx]),
            " ".join(written[chunk.hyp_start_idx : chunk.hyp_end_idx]),
        )
        for chunk in jiwer.process_words(text, hypothesis).alignments[0]
        if chunk.type != "equal"
    ]


def padding_error(folder: Path, heard: Sequence[Heard]) -> float:
    """The largest change of an encoder output when a clip is encoded in a padded batch instead of alone."""
    encoder = open_session(folder / "encoder-model.onnx")
    lengths = np.array([len(clip.audio) for clip in heard])
    audio = np.zeros((len(heard), lengths.max()), np.float32)
    for row, clip in zip(audio, heard, strict=True):
        row[: len(clip.audio)] = clip.audio
    features, frames = NemoPreprocessorNumpy("nemo80")(audio, lengths)

    def encode(first: int, last: int, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        inputs = {"audio_signal": features[first:last, :, :width], "length": frames[first:last]}
        outputs, encoded_lengths = encoder.run(["outputs", "encoded_lengths"], inputs)
        return outputs, encoded_lengths

    together, together_lengths = encode(0, len(heard), features.shape[2])
    errors = []
    for row, width in enumerate(frames):
        alone, (length,) = encode(row, row + 1, width)
        assert length == together_lengths[row]
        errors.append(float(np.abs(together[row, :, :length] - alone[0, :, :length]).max()))
    return max(errors)


def nemo_transcripts(tokenizer: Path, checkpoint: Path, splits: Iterable[Clips]) -> list[str]:
    """Transcripts by NeMo's greedy decoding of the weights before export, one clip at a time."""
    import torch

    from tiny.asr_model import build
    from tiny.asr_training import transcribe

    model = build(tokenizer)
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    return [transcribe(model, [clean(clips[index])])[0] for clips in splits for index in range(len(clips))]


def main() -> None:
    """Print the whole evaluation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "models/tiny-parakeet-tdt")
    parser.add_argument("--work", type=Path, default=ROOT / "out/tiny-asr", help="clips, tokenizer")
    parser.add_argument("--checkpoint", type=Path, help="compare with NeMo's decoding of this checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="synthesizers at a time")
    args = parser.parse_args()

    splits = {
        split: make(split, count, args.seed, args.work / "data", args.processes)
        for split, count in SPLITS.items()
        if split != "train"
    }
    recogniser = Recogniser(args.model)
    transcripts = transcribe_all(recogniser, splits, args.seed)
    print_rates(transcripts)
    print_silence(recogniser, args.seed)
    print_mistakes(transcripts)
    answers = splits["answers"]
    heard = [clean(answers[index]) for index in range(PADDED_CLIPS)]
    print(f"\nlargest change of the encoder's output by padding: {padding_error(args.model, heard):.1e}")
    if args.checkpoint:
        expected = nemo_transcripts(args.work / "tokenizer", args.checkpoint, splits.values())
        same = sum(row.clean == text for row, text in zip(transcripts, expected, strict=True))
        print(f"{same} of {len(transcripts)} transcripts of clean clips are as NeMo's")


if __name__ == "__main__":
    main()

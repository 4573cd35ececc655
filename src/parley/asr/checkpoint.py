"""A Parakeet export on disk: its sizes and its vocabulary.

The layout is that of published exports: ``encoder-model.onnx``, ``decoder_joint-model.onnx``,
``vocab.txt`` (one ``token id`` per line) and ``config.json``, whose missing fields have the values
that all of NVIDIA's Parakeet TDT models share.
See https://huggingface.co/istupakov/parakeet-tdt-0.6b-v2-onnx.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.languages import understood_language
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights

ENCODER_FILE = "encoder-model.onnx"
DECODER_FILE = "decoder_joint-model.onnx"
VOCABULARY_FILE = "vocab.txt"
CONFIG_FILE = "config.json"
FILES = (ENCODER_FILE, DECODER_FILE, VOCABULARY_FILE, CONFIG_FILE)
DESCRIPTION = (VOCABULARY_FILE, CONFIG_FILE)
"""Files that describe an export; its weights may be in several forms."""
WEIGHTS_FILE = "model.safetensors"
"""All weights of an export for torch, in the place of the ONNX files."""
DEFAULT = "tiny-parakeet-tdt"
"""Folder of the export that the project ships."""
BLANK = "<blk>"


class ParakeetConfig(msgspec.Struct, frozen=True):
    """What ``config.json`` says about the model."""

    model_type: str = "nemo-conformer-tdt"
    """What ends in ``rnnt`` has no durations."""
    features_size: int = 80
    """Mel bands."""
    subsampling_factor: int = 8
    """Feature frames per encoder frame."""
    max_tokens_per_step: int = 10
    """Tokens that may be emitted at one encoder frame."""
    sample_rate: Literal[16_000] = 16_000
    """Hertz."""
    n_fft: int = 512
    win_length: int = 400
    """Samples under the analysis window."""
    hop_length: int = 160
    """Samples between two feature frames."""
    preemphasis: float = 0.97
    normalize: Literal["per_feature", "NA"] = "per_feature"
    """Each band by its own mean and deviation, or not at all."""
    durations: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Encoder frames that each duration class advances by; none for an RNN-T."""
    prompts: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    """Indices of language prompts by tag, such as ``en-US`` or ``auto``; none in a model without them."""
    languages: tuple[str, ...] = ()
    """Of a model without prompts: what it understands by its publisher's word. Empty: that is not known."""

    @property
    def frame_ms(self) -> int:
        """Milliseconds of audio per encoder frame."""
        return self.feature_ms * self.subsampling_factor

    @property
    def feature_ms(self) -> int:
        """Milliseconds of audio per feature frame."""
        return self.hop_length * 1000 // self.sample_rate


@dataclass(frozen=True)
class Checkpoint:
    """An export's folder, read but without its networks."""

    folder: Path
    config: ParakeetConfig
    vocabulary: tuple[str, ...]
    """Tokens by id; SentencePiece's ``▁`` begins a word."""
    blank: int
    """Id of the blank, which is the start symbol too."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of its prompts, or that its publisher lists; empty: not known."""
        return tuple(self.config.prompts) or self.config.languages

    def prompt(self, language: str) -> int:
        """Index of the prompt for a language tag; 0 in a model without prompts.

        Raises:
            UnsupportedLanguageError: there is no prompt for the language.
        """
        prompts = self.config.prompts
        return prompts[understood_language(language, tuple(prompts))] if prompts else 0

    @property
    def encoder(self) -> Path:
        """The encoder's ONNX file."""
        return self.folder / ENCODER_FILE

    @property
    def decoder(self) -> Path:
        """The prediction and joint networks' ONNX file."""
        return self.folder / DECODER_FILE


def load(folder: Path, files: Sequence[str] = FILES) -> Checkpoint:
    """Read ``config.json`` and ``vocab.txt`` of an export.

    Raises:
        WeightsNotFoundError: a file of the export is missing.
        ModelLoadingError: a file cannot be understood, or describes another kind of model.
    """
    for name in files:
        if not (folder / name).is_file():
            raise WeightsNotFoundError(f"{folder} has no {name}: it is not a Parakeet export")
    config = _read_config(folder / CONFIG_FILE)
    vocabulary = _read_vocabulary(folder / VOCABULARY_FILE)
    if BLANK not in vocabulary:
        raise ModelLoadingError(f"{folder / VOCABULARY_FILE} has no {BLANK}")
    return Checkpoint(folder, config, vocabulary, vocabulary.index(BLANK))


def load_description(parameters: Parameters) -> Checkpoint:
    """Read the export that a model's setting ``weights`` names; its networks may be in any form.

    Raises:
        WeightsNotFoundError: the folder or a file of the description is missing.
        ModelLoadingError: a file cannot be understood.
    """
    return load(resolve_weights(parameters, DEFAULT, DESCRIPTION), DESCRIPTION)


def _read_config(path: Path) -> ParakeetConfig:
    try:
        config = msgspec.json.decode(path.read_bytes(), type=ParakeetConfig)
    except msgspec.MsgspecError as error:
        raise ModelLoadingError(f"{path} cannot be used: {error}") from error
    if config.model_type.endswith("rnnt"):
        return msgspec.structs.replace(config, durations=())
    if any(duration < 0 for duration in config.durations) or config.durations == (0,):
        raise ModelLoadingError(f"{path}: with durations {list(config.durations)} nothing would advance")
    return config


def _read_vocabulary(path: Path) -> tuple[str, ...]:
    tokens: dict[int, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        token, _, number = line.rpartition(" ")
        if not number.isdecimal():
            raise ModelLoadingError(f"{path}: {line!r} is not a token and its id")
        tokens[int(number)] = token
    if sorted(tokens) != list(range(len(tokens))):
        raise ModelLoadingError(f"{path}: the ids are not 0 to {len(tokens) - 1}")
    return tuple(tokens[number] for number in range(len(tokens)))

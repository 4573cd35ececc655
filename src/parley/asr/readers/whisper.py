"""Whisper: 99 languages in one model, or English alone; text with case and punctuation.

The encoder always takes thirty seconds, so that a short stretch costs as much as a long one. Texts are
written without timestamps. The exports are those of Optimum and transformers.js, and any fine-tuned model of
the same architecture; sizes, tokens and what is never written are read from the files beside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.words import WORD_MARK
from parley.asr.readers.attention import (
    AttentionModel,
    AttentionNetwork,
    EncodedAudio,
    GreedyRules,
    Prompt,
    TextLimits,
    Vocabulary,
)
from parley.audio.whisper_mel import HOP, SAMPLE_RATE, WhisperMel
from parley.errors import ModelLoadingError
from parley.runtime.onnx import Stop

FILES = {
    "encoder": "encoder_model.onnx",
    "decoder": "decoder_model_merged.onnx",
    "tokenizer": "tokenizer.json",
    "features": "preprocessor_config.json",
    "generation": "generation_config.json",
}
_START, _TRANSCRIBE, _PLAIN = "<|startoftranscript|>", "<|transcribe|>", "<|notimestamps|>"
_SILENCE = ("<|nospeech|>", "<|nocaptions|>")
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_TOKENS_PER_S = 12.0
"""Languages with few words in the vocabulary need several tokens for each."""
_FEWEST_TOKENS = 8
# The limits of OpenAI's own program. It then draws again with chance; here there is no text.
LIMITS = TextLimits(least_logprob=-1.0, silence=0.6, sure_logprob=-0.5, most_compression=2.4)

StructT = TypeVar("StructT")


class _AddedToken(msgspec.Struct, frozen=True):
    id: int
    content: str


class _Bpe(msgspec.Struct, frozen=True):
    vocab: dict[str, int]


class _Tokenizer(msgspec.Struct, frozen=True):
    model: _Bpe
    added_tokens: list[_AddedToken]


class _Features(msgspec.Struct, frozen=True):
    feature_size: int
    n_samples: int
    hop_length: int
    sampling_rate: int


class _Generation(msgspec.Struct, frozen=True):
    eos_token_id: int
    is_multilingual: bool = True
    max_length: int = 448
    suppress_tokens: list[int] = []
    begin_suppress_tokens: list[int] = []


class WhisperNetwork(AttentionNetwork):
    """Front end, encoder and decoder of Whisper.

    Raises:
        ModelLoadingError: they do not go together.
    """

    def __init__(self, encoder: Any, decoder: Any, *, tokens: int, bands: int, samples: int) -> None:
        super().__init__(encoder, decoder, tokens=tokens)
        self._mel = WhisperMel(bands)
        self._samples = samples

    def encode(self, audio: NDArray[np.float32], stop: Stop) -> EncodedAudio:
        """See :meth:`AttentionNetwork.encode`."""
        padded = np.pad(audio, (0, self._samples - len(audio)))
        return EncodedAudio(self.run_encoder({"input_features": self._mel.compute(padded)[None]}, stop))


def load(files: Mapping[str, Path], open_network: Callable[[Path], Any]) -> AttentionModel:
    """Load a model; see :class:`parley.asr.readers.AttentionFamily`."""
    tokenizer = _read(files["tokenizer"], _Tokenizer)
    features = _read(files["features"], _Features)
    generation = _read(files["generation"], _Generation)
    if (features.sampling_rate, features.hop_length) != (SAMPLE_RATE, HOP):
        raise ModelLoadingError(
            f"{files['features']} has {features.sampling_rate} Hz and frames of {features.hop_length} "
            f"samples; they must be {SAMPLE_RATE} and {HOP}"
        )
    vocabulary = read_vocabulary(tokenizer, end=generation.eos_token_id)
    prompt = read_prompt(tokenizer, multilingual=generation.is_multilingual)
    network = WhisperNetwork(
        open_network(files["encoder"]),
        open_network(files["decoder"]),
        tokens=len(vocabulary.pieces),
        bands=features.feature_size,
        samples=features.n_samples,
    )
    unwritten = (vocabulary.control | set(generation.suppress_tokens)) - {generation.eos_token_id}
    rules = GreedyRules(
        end=generation.eos_token_id,
        tokens_per_s=_TOKENS_PER_S,
        fewest_tokens=_FEWEST_TOKENS,
        most_tokens=generation.max_length - len(prompt.tokens(prompt.languages[0])),
        never=np.array(sorted(unwritten), np.int64),
        never_first=np.array(generation.begin_suppress_tokens, np.int64),
    )
    if max(rules.end, *rules.never, *rules.never_first) >= len(vocabulary.pieces):
        raise ModelLoadingError(f"{files['generation']} names tokens that the vocabulary does not have")
    return AttentionModel(network, vocabulary, prompt, rules, HOP, features.n_samples, LIMITS)


def read_vocabulary(tokenizer: _Tokenizer, *, end: int) -> Vocabulary:
    """The tokens of a byte-level BPE; those from ``end`` on are no text.

    Raises:
        ModelLoadingError: there are gaps between the ids, or a token is no bytes.
    """
    control = {token.id for token in tokenizer.added_tokens}
    by_id = {number: piece for piece, number in tokenizer.model.vocab.items()}
    by_id.update({token.id: token.content for token in tokenizer.added_tokens})
    if set(by_id) != set(range(len(by_id))):
        raise ModelLoadingError("the ids of the tokenizer's tokens have gaps")
    try:
        pieces = tuple(
            by_id[number].encode() if number in control else _bytes_of(by_id[number])
            for number in range(len(by_id))
        )
    except KeyError as error:
        raise ModelLoadingError(f"the tokenizer is no byte-level BPE: it has {error}") from None
    return Vocabulary(pieces, frozenset(control | set(range(end, len(by_id)))))


def read_prompt(tokenizer: _Tokenizer, *, multilingual: bool) -> Prompt:
    """The tokens of the prompt.

    Raises:
        ModelLoadingError: the tokenizer lacks one.
    """
    ids = {token.content: token.id for token in tokenizer.added_tokens}
    languages = {match[1]: number for text, number in ids.items() if (match := _LANGUAGE.fullmatch(text))}
    task = (_TRANSCRIBE, _PLAIN) if multilingual else (_PLAIN,)
    if missing := [name for name in (_START, *task) if name not in ids]:
        raise ModelLoadingError(f"the tokenizer has no {', '.join(missing)}")
    if multilingual and not languages:
        raise ModelLoadingError("the tokenizer of a multilingual model has no languages")
    nothing = next((ids[name] for name in _SILENCE if name in ids), None)
    return Prompt(ids[_START], languages if multilingual else {}, [ids[name] for name in task], nothing)


def _byte_characters() -> Mapping[str, int]:
    """The characters that stand for bytes in GPT-2's tokenizers: printable ones for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


_BYTES = _byte_characters()


def _bytes_of(piece: str) -> bytes:
    return bytes(_BYTES[character] for character in piece).replace(b" ", WORD_MARK.encode())


def _read(file: Path, kind: type[StructT]) -> StructT:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelLoadingError(f"{file} cannot be read: {error}") from error

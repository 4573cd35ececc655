"""Moonshine's networks on ONNX Runtime, their vocabulary, and greedy decoding with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton, PhraseForest, share
from parley.errors import InferenceError, ModelLoadingError

Past: TypeAlias = dict[str, NDArray[np.float32]]
"""What the decoder remembers: keys and values of its layers by the name of the input."""
SHORTEST = 1_600
"""Samples that the encoder needs at least (100 ms)."""
_PAST, _PRESENT, _OWN = "past_key_values", "present", ".decoder."


@dataclass(frozen=True)
class EncodedAudio:
    """Encoded audio."""

    states: NDArray[np.float32]
    """f32 ``[1, T, D]``."""
    mask: NDArray[np.int64]
    """i64 ``[1, samples]``, all ones: the decoder takes the mask of the audio, not of the vectors."""


class MoonshineNetwork:
    """Encoder and decoder of Moonshine in ONNX Runtime; thread-safe.

    One recording at a time: in a batch the quantised layers share their scales, so that a text would depend
    on the audio beside it, and padding would make it worse. Failures are raised as
    :class:`parley.errors.InferenceError`.
    """

    def __init__(self, encoder: Any, decoder: Any, *, tokens: int) -> None:
        """Use the sessions.

        Args:
            encoder: of ``encoder_model.ort``.
            decoder: of ``decoder_model_merged.ort``.
            tokens: size of the vocabulary.

        Raises:
            ModelLoadingError: they are none of Moonshine's, or do not go together.
        """
        self._encoder = encoder
        self._decoder = decoder
        shapes = {tensor.name: tensor.shape for tensor in decoder.get_inputs()}
        self._nothing = {
            name: np.zeros((0, shape[1], 1, shape[3]), np.float32)
            for name, shape in shapes.items()
            if name.startswith(_PAST)
        }
        self._outputs = [tensor.name for tensor in decoder.get_outputs()]
        after = {name.replace(_PRESENT, _PAST) for name in self._outputs if name.startswith(_PRESENT)}
        if not self._nothing or set(self._nothing) != after:
            raise ModelLoadingError("the decoder has other keys and values going in than coming out")
        width = decoder.get_outputs()[self._outputs.index("logits")].shape[-1]
        if width != tokens:
            raise ModelLoadingError(f"the decoder has {width} tokens; the vocabulary has {tokens}")

    def encode(self, audio: NDArray[np.float32]) -> EncodedAudio:
        """Encode audio: f32 ``[n]`` within ±1, 16 kHz, at least :data:`SHORTEST`."""
        mask = np.ones((1, len(audio)), np.int64)
        feed = {"input_values": audio[None], "attention_mask": mask}
        try:
            (states,) = self._encoder.run(None, feed)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the encoder failed on {len(audio)} samples: {error}") from error
        if not np.isfinite(states).all():
            raise InferenceError("the encoder's output is not finite")
        return EncodedAudio(states, mask)

    def step(self, encoded: EncodedAudio, token: int, past: Past | None) -> tuple[NDArray[np.float32], Past]:
        """Decode one step.

        Args:
            encoded: audio, encoded.
            token: the last one.
            past: keys and values of the step before; None: this is the first.

        Returns:
            Scores of the next token, f32 ``[V]``, and keys and values for the next step.
        """
        feed = {
            **(past or self._nothing),
            "input_ids": np.array([[token]], np.int64),
            "encoder_hidden_states": encoded.states,
            "encoder_attention_mask": encoded.mask,
            "use_cache_branch": np.array([past is not None]),
        }
        try:
            outputs = dict(zip(self._outputs, self._decoder.run(None, feed), strict=True))
        except Exception as error:  # as above
            raise InferenceError(f"the decoder failed: {error}") from error
        logits = outputs.pop("logits")[0, -1]
        new = {name.replace(_PRESENT, _PAST): values for name, values in outputs.items()}
        # Only the first step computes what comes from the audio; later ones return nothing in its place.
        return logits, new if past is None else past | {name: new[name] for name in new if _OWN in name}


DEFAULT = "moonshine-tiny-en"
ENCODER, DECODER, TOKENIZER = "encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin"
FILES = (ENCODER, DECODER, TOKENIZER)
START, END = 1, 2
"""Ids of the tokens before and after a text; no id up to ``END`` is a part of it."""
_WORD_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_LONG = 128
"""Lengths from here on take two bytes, the lower one first."""


@dataclass(frozen=True)
class Vocabulary:
    """What the tokens stand for."""

    pieces: tuple[bytes, ...]
    """By id. A piece may be a part of a character."""

    @property
    def spelled(self) -> tuple[str, ...]:
        """The pieces as text, with ``▁`` before a word; those that are no text by themselves are empty."""
        return tuple(
            "" if number <= END else _decoded(piece) or "" for number, piece in enumerate(self.pieces)
        )

    def text(self, ids: Iterable[int]) -> str:
        """What tokens say, with single spaces; bytes that are no character are left out."""
        raw = b"".join(self.pieces[token] for token in ids if token > END)
        return " ".join(raw.decode(errors="ignore").replace(_WORD_MARK, " ").split())


def read_vocabulary(file: Path) -> Vocabulary:
    """Read ``tokenizer.bin``.

    Raises:
        ModelLoadingError: it is not one.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ModelLoadingError(f"{file} cannot be read: {error}") from error
    pieces: list[bytes] = []
    at = 0
    try:
        while at < len(content):
            length, at = content[at], at + 1
            if length >= _LONG:
                length, at = length - _LONG + _LONG * content[at], at + 1
            if at + length > len(content):
                raise IndexError  # noqa: TRY301 - the file ends within a piece, as it may within a length
            pieces.append(content[at : at + length])
            at += length
    except IndexError:
        raise ModelLoadingError(f"{file} ends within token {len(pieces)}") from None
    if len(pieces) <= END + 1:
        raise ModelLoadingError(f"{file} has {len(pieces)} tokens, and so no text")
    return Vocabulary(tuple(pieces))


def _decoded(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


_PER_S = 16_000
_TOKENS_PER_S = 6.5
"""Faster than speech: more tokens are hallucinated."""
_FEWEST_TOKENS = 4
_REPEATS = {1: 8, 2: 5}
"""How often the last n tokens may repeat, by n: "no no no no" occurs in speech, repeated phrases do not."""
_REPEATS_OF_MORE = 3
_LONGEST_PHRASE = 16


@dataclass(frozen=True)
class GeneratedTokens:
    """A text as it was read."""

    ids: list[int]
    """Without the tokens that begin and end it."""
    confidence: float
    """Mean probability (0-1) of each token where it was read, the end included if it was reached."""
    encoder_ms: float
    decoder_ms: float
    """Wall time."""


class Abandoned(Exception):  # noqa: N818 - no error: the caller has cancelled
    """The text is not wanted any more, or not now."""


def most_tokens(samples: int) -> int:
    """How many tokens are read of so much audio."""
    return max(int(samples / _PER_S * _TOKENS_PER_S) + 2, _FEWEST_TOKENS)


def read(
    network: MoonshineNetwork,
    audio: NDArray[np.float32],
    boosting: PhraseAutomaton,
    unwanted: Callable[[], bool] = lambda: False,
) -> GeneratedTokens:
    """Read audio: f32 ``[n]``, see :meth:`MoonshineNetwork.encode`.

    Args:
        network: reads.
        audio: what is read.
        boosting: phrases that are favoured.
        unwanted: asked before every token whether to go on.

    Raises:
        InferenceError: the networks failed.
        Abandoned: it was unwanted.
    """
    began = time.perf_counter()
    encoded = network.encode(audio)
    encoded_at = time.perf_counter()
    phrases = _Phrases(boosting) if len(boosting.bonus) else None
    ids: list[int] = []
    probabilities: list[float] = []
    token, past = START, None
    for _ in range(most_tokens(len(audio))):
        if unwanted():
            raise Abandoned
        token, probability, past = _next(network, encoded, token, past, phrases)
        probabilities.append(probability)
        if token == END:
            break
        ids.append(token)
        if loop := repeated(ids):
            ids = ids[:-loop]
            probabilities = probabilities[: len(ids)]
            break
    return GeneratedTokens(
        ids,
        sum(probabilities) / len(probabilities),
        round(1000 * (encoded_at - began), 3),
        round(1000 * (time.perf_counter() - encoded_at), 3),
    )


def _next(
    network: MoonshineNetwork, encoded: EncodedAudio, token: int, past: Past | None, phrases: _Phrases | None
) -> tuple[int, float, Past]:
    logits, past = network.step(encoded, token, past)
    chosen = int((logits if phrases is None else phrases.favour(logits)).argmax())
    if phrases is not None:
        phrases.advance(chosen)
    # Of the network's own belief, whatever was favoured.
    return chosen, float(np.exp(logits[chosen] - logits.max()) / np.exp(logits - logits.max()).sum()), past


def repeated(ids: list[int]) -> int:
    """How many of the last tokens say once more what stands before them; 0: the text is no loop."""
    for length in range(1, _LONGEST_PHRASE + 1):
        times = _REPEATS.get(length, _REPEATS_OF_MORE)
        tail = ids[-length * times :]
        if len(tail) == length * times and tail == tail[:length] * times:
            return length * (times - 1)
    return 0


class _Phrases:
    """Where a text stands in the phrases that are favoured."""

    _ROW = np.zeros(1, np.int64)

    def __init__(self, automaton: PhraseAutomaton) -> None:
        self._automaton = automaton
        self._forest: PhraseForest | None = None
        self._state = np.zeros(1, np.int32)

    def favour(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores with what each token earns, at the cost of the other tokens but not of the end."""
        earned = self._in(len(logits)).scores(self._ROW, self._state)
        scores = logits[None].copy()
        scores[:, END] = -np.inf
        bonus = share(scores, earned)
        # A phrase that was begun is given up where the text ends, as it is with any other token.
        bonus[:, END] = np.minimum(earned[:, END], 0.0)
        return np.asarray((logits[None] + bonus)[0], np.float32)

    def advance(self, token: int) -> None:
        """The next token."""
        assert self._forest is not None
        self._state = self._forest.advance(self._ROW, self._state, np.array([token], np.int64))

    def _in(self, tokens: int) -> PhraseForest:
        if self._forest is None:
            self._forest = PhraseForest([self._automaton], tokens)
        return self._forest

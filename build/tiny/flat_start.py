"""First alignment of tokens to frames, for a model that knows nothing yet.

A transducer trained from random weights can stay for long where it emits next to nothing.  A few
hundred steps of plain frame classification against evenly spread tokens lead it out of there: the
"flat start" of HMM recognisers (https://www.danielpovey.com/files/htkbook.pdf, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import sentencepiece

from tiny.asr_model import FRAME

_WORD_START = "\u2581"
_WORD_START_LENGTH = 0.3


def token_lengths(tokenizer: sentencepiece.SentencePieceProcessor) -> npt.NDArray[np.float64]:
    """How long each token is likely to sound, ``[V]``: its letters, and a little for a word boundary."""
    pieces = [tokenizer.id_to_piece(token) for token in range(tokenizer.vocab_size())]
    return np.array(
        [
            len(piece.lstrip(_WORD_START)) + _WORD_START_LENGTH * piece.startswith(_WORD_START)
            for piece in pieces
        ]
    )


def frame_labels(
    tokens: Sequence[int],
    span: tuple[int, int],
    frames: int,
    blank: int,
    lengths: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """The label of each encoder frame: ``tokens`` over the speech, ``blank`` around it.

    Args:
        tokens: Token ids of the clip.
        span: First and last sample of speech.
        frames: Number of labels to return.
        blank: Label of frames without speech.
        lengths: :func:`token_lengths`.
    """
    labels = np.full(frames, blank, dtype=np.int64)
    if not tokens:
        return labels
    centres = (np.arange(frames) + 0.5) * FRAME
    ends = np.cumsum(lengths[list(tokens)])
    progress = (centres - span[0]) / (span[1] - span[0]) * ends[-1]
    voiced = (progress >= 0) & (progress < ends[-1])
    labels[voiced] = np.asarray(tokens)[np.searchsorted(ends, progress[voiced], side="right")]
    return labels

"""Greedy decoding of scores for each frame (CTC), and of scores for each token.

A token is a run of frames with the same likeliest class; between two equal tokens there is a blank
(https://www.cs.toronto.edu/~graves/icml_2006.pdf).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton, PhraseForest
from parley.asr.decoding.greedy import Tokens, tsallis_confidence
from parley.asr.frames.network import check_scores

_ROW = np.zeros(1, np.int64)


def decode_frames(
    scores: NDArray[np.float32], blank: int, boosting: PhraseAutomaton, *, tokens: int
) -> Tokens:
    """Decode one row.

    A boosted phrase may win over other tokens, but not over a blank: what is not there is not written.

    Args:
        scores: f32 ``[frames, V]``, logits or their logarithms of probabilities.
        blank: its class.
        boosting: phrases that are favoured.
        tokens: size of the vocabulary, which ``V`` must be.

    Returns:
        The tokens, each with the frame at which it begins and the frames that it lasts.

    Raises:
        InferenceError: the scores cannot be used.
    """
    check_scores(scores, tokens)
    if not len(scores):
        return Tokens.none()
    likeliest = scores.argmax(axis=1)
    starts = np.flatnonzero(np.concatenate([[True], likeliest[1:] != likeliest[:-1]]))
    ends = np.append(starts[1:], len(scores))
    spoken = likeliest[starts] != blank
    if not spoken.any():
        return Tokens.none()
    starts, ends = starts[spoken], ends[spoken]
    ids = choose_tokens(scores[starts], blank, boosting)
    # Of two runs without a blank between them that have become the same token, there is one.
    begins = np.ones(len(ids), np.bool_)
    begins[1:] = (ids[1:] != ids[:-1]) | (starts[1:] > ends[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(ids)) - 1
    return Tokens(
        ids[first].astype(np.int32),
        starts[first].astype(np.int32),
        (ends[last] - starts[first]).astype(np.int32),
        tsallis_confidence(scores[starts[first]]),
    )


def choose_tokens(scores: NDArray[np.float32], never: int, boosting: PhraseAutomaton) -> NDArray[np.int64]:
    """The likeliest tokens of a text, whose places are known.

    Args:
        scores: f32 ``[n, V]``.
        never: a class that is none of them.
        boosting: phrases that are favoured.

    Returns:
        i64 ``[n]``.
    """
    scores = scores.copy()
    scores[:, never] = -np.inf
    if not len(boosting.bonus):
        return np.asarray(scores.argmax(axis=1), np.int64)
    forest = PhraseForest([boosting], scores.shape[1])
    state = np.zeros(1, np.int32)
    chosen: list[int] = []
    for row in scores:
        token = (row + forest.scores(_ROW, state)[0]).argmax()
        chosen.append(int(token))
        state = forest.advance(_ROW, state, np.array([token], np.int64))
    return np.array(chosen, np.int64)

"""Voices of Piper (VITS), spoken as they are computed.

A voice is published as one network that makes all of a sentence at once. It is cut into three here, of
which only the first needs the whole sentence::

    symbols ──► encoder ──► mean, spread, frames of each symbol      (all of the sentence, 25 ms for 5 s)
                              │  + noise of the request's seed
                              ▼
                            flow ──► decoder ──► samples             (piece by piece, with context)

The flow and the decoder are convolutions: a piece that is computed with enough context on both sides is the
same, to the last bit or nearly, as that part of the whole. So the first audio is there after the encoder and
a short piece, the sentence keeps its melody, pieces join without a seam, and an abort takes effect between
two pieces, or in the midst of one. The frames of each symbol give the start of each word.
"""

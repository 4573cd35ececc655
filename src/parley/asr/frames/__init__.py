"""Recognition by networks that score each frame of the audio, or each token, in one run.

CTC, stateless transducers, Paraformer: a whole stretch of speech goes in, its tokens and their times come
out; stretches of several callers are rows of one run. :mod:`parley.asr.families` loads a model::

    audio ──► front end ──► FrameNetwork, which scores and decodes ──► tokens ──► FrameReader ──► words
"""

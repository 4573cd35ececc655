"""Recognition by attention decoders: a stretch of audio in, its text out, without times of words.

:mod:`.greedy` writes the texts that :mod:`.reader` judges::

    audio ──► encoder ──► decoder, with a cache of keys and values ──► tokens ──► TextLimits ──► text
"""

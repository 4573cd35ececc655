"""Recognition by attention decoders: a stretch of audio in, its text out, without times of words.

:mod:`.families` loads a model, :mod:`.greedy` writes its texts, :mod:`.worker` reads for all streams, one
stretch after the other, :mod:`.pipeline` serves streams and :mod:`.recordings` whole recordings::

    audio ──► encoder ──► decoder, with a cache of keys and values ──► tokens ──► TextLimits ──► text
"""

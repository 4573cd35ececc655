"""Chatterbox as a synthesizer: text in, audio out, through the models ``t3`` and ``s3gen``.

An *utterance* is everything that one request says; its text may still be being written while it is
spoken. It is cut into *segments*, the most that T3 gets at once. A segment is normalised, T3 draws
its tokens, and S3Gen makes audio of them while they come::

    MoreText ──► utterance ──► normaliser ──► t3 ──► TokenQueue ──► s3gen ──► audio, word marks
                 (segments)                 one segment ahead       in order

While one segment is rendered, the tokens of the next may be drawn, and not more. The audio of the
segments follows without a gap. Everything of an utterance ends with it: its tasks, and what it has
under way in both models.
"""

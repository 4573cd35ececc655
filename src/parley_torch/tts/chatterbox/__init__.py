"""Chatterbox as a synthesizer: text in, audio out, through the models ``t3`` and ``s3gen``.

An *utterance* is the whole text of one request, of which more may arrive while it is spoken. It is cut
into *segments*, each a request to T3. A segment is normalised, T3 generates its tokens, and S3Gen makes
audio of them as they arrive::

    MoreText ──► utterance ──► normaliser ──► t3 ──► TokenQueue ──► s3gen ──► audio, word marks
                 (segments)                 one segment ahead       in order

While one segment is rendered, the tokens of the next one are generated, and not more. The audio of the
segments follows without a gap. When an utterance ends, so do its tasks and its requests to both models.
"""

"""Recognition of utterances, each as a whole or in segments, with any reader of :mod:`parley.asr.readers`.

:mod:`.worker` reads for all streams in a thread of its own, :mod:`.pipeline` serves streams and
:mod:`.recordings` whole recordings.
"""

"""Recognition of stretches of speech, each as a whole: an utterance, or what it is cut into.

:mod:`.reader` is what each kind of network implements, in :mod:`parley.asr.families`.
:mod:`.worker` reads for all streams in a thread of its own, :mod:`.pipeline` serves streams and
:mod:`.recordings` whole recordings.
"""

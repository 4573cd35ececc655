"""Recognition of stretches of speech, each as a whole: an utterance, or what it is cut into.

:mod:`.reader` is what a kind of network implements, such as :mod:`parley.asr.families.sherpa`.
:mod:`.worker` reads for all streams in a thread of its own, :mod:`.pipeline` serves streams and
:mod:`.recordings` whole recordings.
"""

"""The process that holds espeak-ng.

First it writes :data:`READY`. Then it answers a line of JSON, ``["roa/es", ["hola", "que tal"]]``, by one:
``["ˈola", "kˈe tˈal"]``. It ends when its input does, and is killed with its parent, because it may hang.
Exit status 1: espeak-ng cannot be loaded, or has no such voice.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys

from parley.errors import ModelLoadingError
from parley.tts.espeak_library import EspeakLibrary

READY = "ready"
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Answer until the input ends."""
    # Ctrl-C in a terminal is for the server, with which the input ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    try:
        library = EspeakLibrary()
    except ModelLoadingError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(READY), flush=True)
    chosen = ""
    for line in sys.stdin:
        voice, texts = json.loads(line)
        if voice != chosen and not library.set_voice(voice):
            print(f"espeak-ng has no voice {voice}", file=sys.stderr)
            return 1
        chosen = voice
        print(json.dumps([library.phonemes(text) for text in texts]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

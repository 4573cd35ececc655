"""The process that holds espeak-ng: a line of JSON in, ``["roa/es", "hola"]``, and one out, ``"ˈola"``.

It ends when its input does. Exit status 1: espeak-ng cannot be loaded, or has no such voice.
"""

from __future__ import annotations

import json
import sys

from parley.errors import ModelLoadingError
from parley.tts.espeak_library import EspeakLibrary


def main() -> int:
    """Answer until the input ends."""
    try:
        library = EspeakLibrary()
    except ModelLoadingError as error:
        print(error, file=sys.stderr)
        return 1
    chosen = ""
    for line in sys.stdin:
        voice, text = json.loads(line)
        if voice != chosen and not library.set_voice(voice):
            print(f"espeak-ng has no voice {voice}", file=sys.stderr)
            return 1
        chosen = voice
        print(json.dumps(library.phonemes(text)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

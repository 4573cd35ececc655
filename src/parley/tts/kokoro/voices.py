"""The voices of Kokoro: those of speakers of English, Spanish and French.

The checkpoint has 22 more, of speakers of Hindi, Italian, Japanese, Portuguese and Chinese, whose languages
are not pronounced here. Imported where there is no onnxruntime.
"""

from __future__ import annotations

from parley.languages import primary_language
from parley.tts.voice_routing import ENGLISH, Gender, KnownVoice

LANGUAGES = (*ENGLISH, "es", "fr")
DEFAULTS = {"en": "af_heart", "es": "ef_dora", "fr": "ff_siwis"}
"""By primary language."""
DEFAULT = DEFAULTS["en"]

# What brings each voice to -19 LUFS, in decibels; measured over five sentences, of the last four over one
# or two.
_GAINS_DB: dict[str, float] = {
    "af_heart": 3.3,
    "af_alloy": 2.0,
    "af_aoede": -1.5,
    "af_bella": 3.3,
    "af_jessica": 2.5,
    "af_kore": -0.8,
    "af_nicole": 2.5,
    "af_nova": 7.1,
    "af_river": 1.8,
    "af_sarah": 1.4,
    "af_sky": 4.2,
    "am_adam": -1.0,
    "am_echo": 2.5,
    "am_eric": 1.7,
    "am_fenrir": -0.4,
    "am_liam": 2.1,
    "am_michael": 4.4,
    "am_onyx": 2.6,
    "am_puck": -0.9,
    "am_santa": 3.1,
    "bf_alice": 1.1,
    "bf_emma": 0.5,
    "bf_isabella": -1.7,
    "bf_lily": 1.8,
    "bm_daniel": 2.2,
    "bm_fable": 2.0,
    "bm_george": 2.2,
    "bm_lewis": 3.8,
    "ef_dora": 4.4,
    "em_alex": 3.9,
    "em_santa": 3.8,
    "ff_siwis": 0.7,
}
_SPEAKERS: dict[str, tuple[Gender, tuple[str, ...], str]] = {
    "af": ("female", ("en", "en-us"), "American"),
    "am": ("male", ("en", "en-us"), "American"),
    "bf": ("female", ("en", "en-gb"), "British speaker, American phonemes"),
    "bm": ("male", ("en", "en-gb"), "British speaker, American phonemes"),
    "ef": ("female", ("es",), "Spanish"),
    "em": ("male", ("es",), "Spanish"),
    "ff": ("female", ("fr",), "French"),
}


def _voice(name: str) -> KnownVoice:
    gender, languages, description = _SPEAKERS[name.partition("_")[0]]
    return KnownVoice(name, languages, gender, description)


KNOWN_VOICES = tuple(_voice(name) for name in _GAINS_DB)
"""The first is the default."""

GRAPH = "kokoro-quantized.onnx"
VOICES = "voices"
"""The folder of the style vectors: one file for each voice, ``<name>.bin``."""
FILES = (GRAPH, *(f"{VOICES}/{voice.name}.bin" for voice in KNOWN_VOICES))
"""All weights. Those that were brought by an earlier version lack later voices."""


def voice_for(voice: str | None, language: str) -> str:
    """The voice itself, or that of the language where none is asked for."""
    return voice or DEFAULTS[primary_language(language)]


def gain_db(voice: str) -> float:
    """The gain that brings a voice to the common loudness."""
    return _GAINS_DB[voice]

"""From words as they are said to what a person would write: digits, e-mail and web addresses, spelling.

A recogniser writes "five five five one two one two" and "john dot smith at example dot com"; the language
model and its tools want ``5551212`` and ``john.smith@example.com``. Everything else stays as it is, byte for
byte: numbers such as "twenty five" are words that a language model reads as well.

Why not a library: the English grammars of ``nemo_text_processing`` were measured. They always write all
numbers, times and units in figures ("ten minutes" becomes "10 min"), cannot be told to do only addresses and
digits, take "meet me at noon dot the i" for an address ("me@noon.the i"), and leave "is john dot smith at
example dot com", "double five" and "oh" alone. They take 4 s to compile, 80 MB, and 2 to 19 ms for each text
in the event loop of ``voice_agent``; the rules here take no time to load and about 0.1 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parley.asr.itn.english.addresses import write_addresses
from parley.asr.itn.english.numbers import write_digits, write_spelling
from parley.asr.itn.spoken_digits import FORMS, rules_of
from parley.asr.itn.tokens import tokens_of

_MOST_WORDS = 200


# Addresses first: they have digits and spelled letters of their own.
_RULES: dict[str, Sequence[Callable[[str], str]]] = {
    "en": (write_addresses, write_spelling, write_digits),
    **{language: rules_of(language) for language in FORMS},
}


def inverse_normalizer(language: str) -> Callable[[str], str]:
    """What writes texts as a person would, and returns the same string if there is nothing to do.

    It never fails, and does nothing to what it has written itself. A text of more than 200 words stays as it
    is: the rules' time grows with the square of the words that they fit, and some look ahead as far as these
    go.

    Args:
        language: primary language ("en"); one without rules leaves every text as it is.
    """
    rules = _RULES.get(language, ())

    def write(text: str) -> str:
        if len(tokens_of(text)) > _MOST_WORDS:
            return text
        # What one rule has written may complete what another looks for. Each change makes one token of
        # several, so that this comes to an end.
        while True:
            before = text
            for rule in rules:
                text = rule(text)
            if text == before:
                return text

    return write

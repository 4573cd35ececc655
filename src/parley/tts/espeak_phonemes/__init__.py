"""Pronunciation of Spanish and French by espeak-ng's rules, for voices that take phonemes.

espeak-ng is licensed under GPL-3.0-or-later, so its library is in a process of its own
(:mod:`.process`), with which :class:`.client.PhonemeProcess` exchanges texts and phonemes through pipes::

    text ──► front_end: words and marks ──► client ══ pipe ══► process: espeak-ng ──► phonemes, word by word
"""

"""From English text to phonemes.

The notation is that of ``misaki`` for American English: one character per sound, with ``A I O W Y`` for
the diphthongs of *bay, buy, go, now, boy*, ``ʤ ʧ`` for *j* and *ch*, ``ɾ`` for the *t* of *water*, ``ᵊ`` and
``ᵻ`` for reduced vowels, and ``ˈ ˌ`` in front of the vowel that bears stress::

    SpokenText ──► tokens ──► dictionary ─── inflection ──► PronouncedWord
    (normalizer)                  │          heteronyms
                                  └────────► spelling, network: words that it lacks

Words come from misaki's two dictionaries (183,000, Apache-2.0). Forms with -s, -ed and -ing are derived from
their stems. Other words are read by the network of ``g2p-en`` (Apache-2.0), abbreviations letter by letter.
No word is lost: what has no letters that can be read (most scripts but Latin, Greek and Cyrillic) is named
in :attr:`parley.tts.english.pronouncer.Pronunciation.skipped`.
"""

"""Text as it is said: "$5 at 7:30" becomes "five dollars at seven thirty".

The rules are those of NVIDIA's ``nemo_text_processing`` (Apache-2.0): finite-state grammars for
numbers, times, dates, currency, abbreviations, telephone numbers, units, e-mail addresses and URLs
in English and a dozen other languages. Its FST library, ``pynini``, has wheels for Python 3.11 and
3.12. Compiled grammars are kept in a cache: the first start takes half a minute for English, each
later one 0.3 s and 40 MB of memory; a sentence takes 2 to 30 ms, and one without figures, signs and
abbreviations none, because it is not looked at.

What else was tried, on the cases of ``tests/unit/tts/normalization``: ``wetext`` (Apache-2.0,
kaldifst; a tenth of the size, 1.5 ms per sentence) reads "at 7:30," as "seven to thirty", "the
1990s" as "... ninety seconds", "$5.99" as "five point nine nine dollars", leaves "e.g." and "St."
as they are, fails on "#1", and has no European language but English. ``num2words`` only
spells numbers that are already found.

``english`` holds the few things that the grammars read wrongly, ``alignment`` says which spoken
words stand for which written ones. What no grammar is loaded for passes unchanged.
"""

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

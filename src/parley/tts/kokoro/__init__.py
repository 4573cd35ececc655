"""Kokoro-82M: 28 English voices from one small network, on a CPU.

The network (StyleTTS 2's decoder with ISTFTNet, 82 million weights, here in int8) takes the phonemes of a
clause and a style vector, and makes the whole waveform at once; :mod:`parley.tts.clauses` makes a stream
of it. Its notation of phonemes is misaki's, which :mod:`parley.tts.english` writes.
"""

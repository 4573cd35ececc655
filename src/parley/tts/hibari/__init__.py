"""Hibari: one English voice from a network of six million weights, which learned it from Kokoro's af_heart.

The network takes the phonemes of a clause, in Kokoro's symbols, and makes a spectrum and a pitch for every
12.5 ms; :mod:`parley.tts.hibari.waveform` makes the sound of them.
"""

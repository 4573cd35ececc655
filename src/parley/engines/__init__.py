"""Interchangeable engines.

A new ASR, LLM or TTS engine is one module here that implements a Protocol of
:mod:`parley.engines.base`, one line in :mod:`parley.engines.registry`, and one model folder.
"""

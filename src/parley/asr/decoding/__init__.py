"""Transducer decoding: greedy, beam, phrase boosting, words with times and confidence."""

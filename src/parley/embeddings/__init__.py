"""Texts as vectors: the network, its tokenizer, and the messages of the model ``embeddings``."""

"""A Whisper of a few tokens, whose networks say what a test lets them say."""

from __future__ import annotations

import numpy as np

from parley.asr.readers import load_reader

WORDS = ["Ġhola", "Ġque", "Ġtal", "!", "Ã", "©", "Ġ"]  # the fifth and sixth are the bytes of "é"
MARKS = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|es|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|nocaptions|>",
    "<|notimestamps|>",
    "<|0.00|>",
]
IDS = {text: number for number, text in enumerate([*WORDS, *MARKS])}
HOLA, QUE, TAL, CALL, SPACE = (IDS[word] for word in ("Ġhola", "Ġque", "Ġtal", "!", "Ġ"))
END, START, ES, SILENCE = (IDS[mark] for mark in (MARKS[0], MARKS[1], "<|es|>", "<|nocaptions|>"))


class Tensor:
    def __init__(self, name, shape):
        self.name, self.shape = name, shape


class Encoder:
    """Remembers what it was given."""

    def __init__(self):
        self.fed = []

    def get_outputs(self):
        return [
            Tensor("last_hidden_state", ["B", "T", 4]),
            Tensor("encoder_attentions.0", ["B", 1, "T", "T"]),
        ]

    def run(self, names, feed, _options):
        assert names == ["last_hidden_state"]
        self.fed.append(feed)
        return [np.ones((1, 2, 4), np.float32)]


class Decoder:
    """Says the tokens of a script, by their scores; ``after_start``: the scores after the first token."""

    def __init__(self, *script, after_start=()):
        self.script, self.after_start, self.fed = script, dict(after_start), []
        self.position = 0

    def get_inputs(self):
        return [Tensor("input_ids", ["B", "N"]), Tensor("past_key_values.0.decoder.key", ["B", 2, "P", 4])]

    def get_outputs(self):
        return [
            Tensor("logits", ["B", "N", len(IDS)]),
            Tensor("present.0.decoder.key", ["B", 2, "P", 4]),
            Tensor("cross_attentions.0", ["B", 2, "N", "T"]),
        ]

    def run(self, names, feed):
        assert names == ["logits", "present.0.decoder.key"]
        tokens = feed["input_ids"][0].tolist()
        self.fed.append(tokens)
        self.position = self.position + 1 if feed["use_cache_branch"][0] else 0
        logits = np.zeros((1, len(tokens), len(IDS)), np.float32)
        if tokens[0] == START:
            for token, score in self.after_start.items():
                logits[0, 0, token] = score
        if tokens != [START]:
            said = self.script[self.position] if self.position < len(self.script) else {END: 9.0}
            for token, score in said.items():
                logits[0, -1, token] = score
        return [logits, np.zeros((1, 2, 1, 4), np.float32)]


def contents(tokenizer=None, *, multilingual=True):
    """What is in the files of a model, by role."""
    return {
        "tokenizer": tokenizer
        or {
            "model": {"vocab": {word: IDS[word] for word in WORDS}},
            "added_tokens": [{"id": IDS[mark], "content": mark} for mark in MARKS],
        },
        "features": {
            "feature_size": 80,
            "n_samples": 480_000,
            "hop_length": 160,
            "sampling_rate": 16_000,
        },
        "generation": {
            "eos_token_id": END,
            "is_multilingual": multilingual,
            "suppress_tokens": [CALL],
            "begin_suppress_tokens": [SPACE, END],
        },
    }


def load(folder, decoder, encoder=None, *, family="whisper"):
    sessions = {"encoder": encoder or Encoder(), "decoder": decoder}
    return load_reader(
        folder, family, lambda path, part=b"": sessions["decoder" if "decoder" in path.name else "encoder"]
    )

"""The tiny model's tokenizer: byte-level BPE with Qwen3's special tokens and chat template.

The words and the punctuation that the assistant and its tools use are one token each. Any other
word is its first letter, and then pairs of letters. So ``paris`` and ``Paris`` differ in one token
only, and every token of a name that the model never saw is one that it has copied many times.
"""

from __future__ import annotations

import collections
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from tiny import words
from tiny.dialogs import Dialogue, dialogue
from tiny.domain import CITIES, LABELS, NAMES
from tiny.settings import DEFAULT_SYSTEM, SYSTEMS, TOOLS, setting

END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    END_OF_TURN,
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
_MARKUP = SPECIAL_TOKENS[3:]  # part of the text, as in Qwen3's tokenizer, so that decoding keeps it

TEMPLATE = Path(__file__).with_name("qwen3_chat_template.jinja").read_text()
MAX_LENGTH = 4096
_LETTER_PAIRS = 300
_FREQUENT = 25
# What may be one token. A word takes the space before it, as in Qwen3's tokenizer.
_PIECE = r"(?: |(?<!\p{{L}}))(?:{words})(?![\p{{L}}'])"
_REST = (
    r"(?: |(?<!\p{L}))\p{L}",  # the first letter of any other word
    r"\p{L}+",  # the rest of it
    r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)*[\r\n]*",  # JSON between two words is one piece
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)
_WORD = re.compile(r"[^\W\d_]+(?:'[a-z]+)?")


def _rendered(dialogues: list[Dialogue]) -> Iterator[str]:
    """Every text of the dialogues and of the prompts around them."""
    yield from ["\n\n"] * _FREQUENT  # the empty think block
    for system in (DEFAULT_SYSTEM, *SYSTEMS):
        prompts, _ = render_jinja_template(
            [[{"role": "system", "content": system}]], tools=list(TOOLS), chat_template=TEMPLATE
        )
        yield from prompts * _FREQUENT
    for one in dialogues:
        for message in one.messages:
            yield message["role"]
            yield message["content"]
        for reply in one.replies:
            yield reply.text


def _lexicon(texts: list[str]) -> list[str]:
    """The frequent words that are not names."""
    names = " ".join(
        (*CITIES, *NAMES, *LABELS, *words.UNSEEN_CITIES, *words.UNSEEN_LABELS, *words.UNSEEN_NAMES)
    )
    copied = set(names.split()) | set(words.COMMON_WORDS)
    counts = collections.Counter(word for text in texts for word in _WORD.findall(text))
    return sorted(
        (word for word, n in counts.items() if n >= _FREQUENT and word.lower() not in copied),
        key=lambda word: (-len(word), word),
    )


def _splitter(lexicon: list[str]) -> pre_tokenizers.PreTokenizer:
    words_pattern = _PIECE.format(words="|".join(map(re.escape, lexicon)))
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join((words_pattern, *_REST))), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _letter_pairs(rng: random.Random) -> list[tuple[str, str]]:
    """The merges: the most frequent pairs of letters in names, after their first letter."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + _LETTER_PAIRS,
        initial_alphabet=alphabet,
        max_token_length=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator((words.invented_word(rng)[1:] for _ in range(20_000)), trainer)
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Make the tokenizer from generated dialogues."""
    rng = random.Random(seed)
    texts = list(_rendered([dialogue(rng, 8, setting(rng)) for _ in range(3000)]))
    lexicon = _lexicon(texts)
    splitter = _splitter(lexicon)
    pieces = collections.Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    known = {word.lower() for word in lexicon}
    frequent = sorted(
        piece
        for piece, n in pieces.items()
        if n >= _FREQUENT and (piece.strip("Ġ").lower() in known or not re.search("[A-Za-z]", piece))
    )
    merges = _letter_pairs(rng)
    tokens = dict.fromkeys(
        (*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges), *frequent)
    )
    # A piece that is a token is never taken apart: ignore_merges.
    model = models.BPE({token: at for at, token in enumerate(tokens)}, merges, ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token not in _MARKUP])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in _MARKUP])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=SPECIAL_TOKENS[0],
        additional_special_tokens=["<|im_start|>", END_OF_TURN],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
    )

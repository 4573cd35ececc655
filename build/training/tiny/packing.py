"""Turns dialogues into training batches in which every reply sees its exact prompt.

Qwen3 writes an empty think block where a reply is generated, but not where an earlier reply
stands in the history. So a dialogue has as many prompts as replies, and they differ only in
their ends. They are trained in one pass as a tree::

    setting
      └ trunk:   user 1, reply 1, user 2, reply 2, user 3
        branch:         └ <think></think> reply 1
        branch:                          └ <think></think> reply 2 ...

A branch attends to the setting, to the trunk before it and to itself, with the positions that it
has in its own prompt. Only the branches are learned. A batch has one setting, which is computed
once; each of its rows holds several dialogues.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tiny.chat_tokenizer import END_OF_TURN
from tiny.dialogs import Dialogue, dialogue, tool_call_text
from tiny.settings import Message, Setting, Tool, setting

_TOKENS_PER_TURN = 110


@dataclass
class Row:
    """Dialogues with one setting as token ids; every list has one entry per token.

    A token sees the setting, a part of its own dialogue's trunk, and its own branch up to itself.
    """

    positions: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    trunk: list[int] = field(default_factory=list)
    """Where the trunk of the token's dialogue begins."""
    fork: list[int] = field(default_factory=list)
    """Where the part of that trunk ends that the token sees."""
    branch: list[int] = field(default_factory=list)
    """Where the token's branch begins; for a token of the trunk, after itself."""
    learned: list[bool] = field(default_factory=list)
    """Whether the token is part of a reply."""


@dataclass(frozen=True)
class Batch:
    """Padded rows with one setting; R tokens of the setting, B rows of S tokens."""

    setting: Tensor
    """Shape [1, R]; R may be 0."""
    ids: Tensor
    """Shape [B, S]."""
    positions: Tensor
    """Shape [B, S], counted from the setting's first token."""
    mask: Tensor
    """Added to the attention scores, shape [B, 1, S, R + S]: 0 for a token that is seen, otherwise
    minus infinity."""
    learned: Tensor
    """Shape [B, S]."""


class TreeEncoder:
    """Encodes dialogues as the chat template renders them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._opening = self._encode("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        self._end = self._encode(END_OF_TURN)
        self._settings: dict[str, list[int]] = {}

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def prompt(self, messages: list[Message], tools: list[Tool]) -> list[int]:
        """The prompt as a server makes it."""
        text = self._tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=True, enable_thinking=False, tokenize=False
        )
        return self._encode(text)

    def setting(self, chosen: Setting) -> list[int]:
        """What the template writes before the first turn."""
        key = json.dumps([chosen.system, chosen.tools])
        if key not in self._settings:
            hello: Message = {"role": "user", "content": "hello"}
            whole = self.prompt([*chosen.messages, hello], chosen.tools)
            self._settings[key] = whole[: -len(self._message(hello) + self._opening)]
        return self._settings[key]

    def _message(self, message: Message) -> list[int]:
        match message:
            case {"role": "assistant", "tool_calls": [{"function": call}]}:
                body = "assistant\n" + tool_call_text(call["name"], call["arguments"])
            case {"role": "tool", "content": result}:
                body = f"user\n<tool_response>\n{result}\n</tool_response>"
            case {"role": role, "content": content}:
                body = f"{role}\n{content}"
        return self._encode(f"<|im_start|>{body}<|im_end|>\n")

    def add(self, row: Row, source: Dialogue) -> list[range]:
        """Append a dialogue: its trunk up to the last reply, then one branch per reply.

        Returns where the branches are.
        """
        branches = []
        start, first = len(row.ids), len(self.setting(source.setting))
        ends = [start]
        for message in source.messages[: source.replies[-1].position]:
            row.ids += self._message(message)
            ends.append(len(row.ids))
        end = ends[-1]
        row.positions += range(first, first + end - start)
        row.fork += range(start + 1, end + 1)
        row.branch += range(start + 1, end + 1)
        row.learned += [False] * (end - start)
        for reply in source.replies:
            text = self._encode(reply.text) + self._end
            fork, branch = ends[reply.position], len(row.ids)
            row.ids += self._opening + text
            branches.append(range(branch, len(row.ids)))
            size = len(branches[-1])
            position = first + fork - start
            row.positions += range(position, position + size)
            row.fork += [fork] * size
            row.branch += [branch] * size
            row.learned += [False] * len(self._opening) + [True] * len(text)
        row.trunk += [start] * (len(row.ids) - start)
        return branches

    def check(self, row: Row, source: Dialogue) -> None:
        """Add a dialogue, and raise if a branch differs from the prompt that a server would send."""
        start, setting = len(row.ids), self.setting(source.setting)
        for reply, branch in zip(source.replies, self.add(row, source), strict=True):
            seen = setting + row.ids[start : row.fork[branch.start]]
            seen += row.ids[branch.start : branch.stop]
            answer = self._encode(reply.text) + self._end
            prompt = self.prompt(source.prompt_for(reply), source.setting.tools)
            if seen != prompt + answer:
                raise ValueError(f"the prompt of {reply} is not what the chat template renders")


def _batch(setting: list[int], rows: list[Row]) -> Batch:
    size = max(len(row.ids) for row in rows)

    def padded(name: str) -> Tensor:
        return torch.tensor([getattr(row, name) + [0] * (size - len(row.ids)) for row in rows])

    def column(name: str) -> Tensor:
        return padded(name)[:, :, None]

    index = torch.arange(size)
    trunk = (index >= column("trunk")) & (index < column("fork"))
    branch = (index >= column("branch")) & (index <= index[:, None])
    seen = torch.cat([torch.ones(len(rows), size, len(setting), dtype=torch.bool), trunk | branch], dim=2)
    mask = torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill(~seen, float("-inf"))
    return Batch(
        setting=torch.tensor([setting], dtype=torch.long),
        ids=padded("ids"),
        positions=padded("positions"),
        mask=mask[:, None],
        learned=padded("learned").bool(),
    )


def random_batch(encoder: TreeEncoder, rng: random.Random, most_turns: int, size: int, rows: int) -> Batch:
    """New dialogues with one setting: ``rows`` rows, each filled up to about ``size`` tokens."""
    chosen = setting(rng)
    filled = []
    for _ in range(rows):
        row = Row()
        while len(row.ids) < size:
            room = (size - len(row.ids)) // _TOKENS_PER_TURN
            encoder.add(row, dialogue(rng, min(rng.randint(1, most_turns), 1 + room), chosen))
        filled.append(row)
    return _batch(encoder.setting(chosen), filled)

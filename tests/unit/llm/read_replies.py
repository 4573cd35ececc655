"""Reads written answers with vLLM's parsers; prints what each is read as, as one JSON object.

In a process of its own: importing vLLM changes the interpreter.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import AutoTokenizer
from xgrammar import Grammar

from parley.errors import ModelLoadingError
from parley.llm.replies import TextPiece
from parley.llm.vllm_replies import VllmFormat
from parley.protocol import Tool

TINY = Path(__file__).parents[3] / "models" / "tiny-qwen3"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [Tool(name="get_time", parameters=CITY), Tool(name="get_weather", parameters=CITY)]
HERMES = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Paris"}}\n</tool_call>'
LLAMA = '{"name": "get_time", "parameters": {"city": "Paris"}}'
# What a model wrote, by parser, and whether it was offered tools.
ANSWERS = {
    "text": ("hermes", "", "  It's ten,\n\nnot twelve.\n", TOOLS),
    "call": ("hermes", "", HERMES, TOOLS),
    "text before": ("hermes", "", f"Let me see.\n{HERMES}", TOOLS),
    "parallel": ("hermes", "", f"{HERMES}\n{HERMES.replace('time', 'weather')}", TOOLS),
    "no tools": ("hermes", "", HERMES, []),
    "llama": ("llama3_json", "", LLAMA, TOOLS),
    "llama text": ("llama3_json", "", "It's ten.", TOOLS),
    "llama parallel": ("llama3_json", "", f"{LLAMA}; {LLAMA.replace('time', 'weather')}", TOOLS),
    "llama tag": ("llama3_json", "", f"<|python_tag|>{LLAMA}", TOOLS),
    "pythonic": ("pythonic", "", "[get_time(city='Paris')]", TOOLS),
    "pythonic parallel": ("pythonic", "", "[get_time(city='Paris'), get_weather(city='Rome')]", TOOLS),
    "pythonic text": ("pythonic", "", "It's ten.", TOOLS),
    "thinking": ("hermes", "deepseek_r1", f"<think>\nPerhaps.\n</think>\n\nIt's ten. {HERMES}", TOOLS),
    "thinking only": ("hermes", "deepseek_r1", "<think>\nPerhaps", TOOLS),
}


def read(tokenizer, tool_parser, reasoning_parser, text, tools, *, tokens, continued=False):
    """The pieces, texts that follow each other joined; ``tokens``: how many are read at once."""
    answers = VllmFormat(tokenizer, tool_parser, reasoning_parser, {}, None)
    reply = answers.begin(tools, [1, 2], continued=continued)
    ids = tokenizer.encode(text, add_special_tokens=False)
    groups = [ids[at : at + tokens] for at in range(0, len(ids), tokens)]
    pieces = []
    for number, group in enumerate(groups, 1):
        begun = tokenizer.decode(ids[: (number - 1) * tokens], skip_special_tokens=False)
        written = tokenizer.decode(ids[: number * tokens], skip_special_tokens=False)
        pieces += reply.read(written[len(begun) :], group, last=number == len(groups))
    found = []
    for piece in pieces:
        if isinstance(piece, TextPiece) and found and isinstance(found[-1], str):
            found[-1] += piece.text
        else:
            found.append(piece.text if isinstance(piece, TextPiece) else vars(piece))
    return found


def refusal(*names):
    try:
        VllmFormat(tokenizer, *names, {}, None)
    except ModelLoadingError as error:
        return str(error)
    return None


tokenizer = AutoTokenizer.from_pretrained(TINY)
tokenizer.add_tokens("<|python_tag|>", special_tokens=True)  # that the formats of others begin with
checked = []


def check(tag):
    checked.append(tag)
    return Grammar.from_structural_tag(tag)


hermes = VllmFormat(tokenizer, "hermes", "", {}, check)
guided = hermes.begin(TOOLS, [1])
again = hermes.begin(list(TOOLS), [1, 2])
unguided = VllmFormat(tokenizer, "pythonic", "", {}, Grammar.from_structural_tag).begin(TOOLS, [1])
found = {
    "read": {
        str(tokens): {name: read(tokenizer, *answer, tokens=tokens) for name, answer in ANSWERS.items()}
        for tokens in (1, 3, 1000)
    },
    "continued": read(tokenizer, "hermes", "", f" ten o'clock.\n{HERMES}", TOOLS, tokens=1, continued=True),
    "continues": [VllmFormat(tokenizer, "hermes", one, {}, None).continues for one in ("", "deepseek_r1")],
    "refused": [refusal("no_such_parser", ""), refusal("hermes", "no_such_parser"), refusal("mistral", "")],
    "guided": guided.structural_tag,
    "guided again": again.structural_tag,
    "checked": len(checked),
    "unguided": unguided.structural_tag,
    "forced": [hermes.begin_call(TOOLS, [1], name).structural_tag for name in ("*", "get_time")],
    "not forced": VllmFormat(tokenizer, "llama3_json", "", {}, None)
    .begin_call(TOOLS, [1], "*")
    .structural_tag,
}
sys.stdout.write(json.dumps(found) + "\n")

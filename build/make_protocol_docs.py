"""Writes docs/protocol.md from the protocol's own types.

Run ``python build/make_protocol_docs.py`` after changing ``parley/protocol.py`` or
``parley/errors.py``; a unit test fails while the document is out of date. ``--check`` only
compares.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from parley import errors, protocol

TARGET = Path(__file__).resolve().parents[1] / "docs" / "protocol.md"

_HEAD = """\
# The protocol of `voice_agent`

<!-- Written by build/make_protocol_docs.py from src/parley/protocol.py and errors.py. Do not edit. -->

One conversation is one Triton *sequence* on one `ModelStreamInfer` gRPC stream to the model `voice_agent`.
A client in Python is in `clients/parley_client`; this page is for writing another.

## Requests and responses

Every request carries the sequence's correlation id (`sequence_id`, a string, best a random UUID) and both
inputs; START, END and messages also `triton_enable_empty_final_response = true`:

| input | type | shape | content |
|---|---|---|---|
| `MESSAGE` | BYTES | [1, 1] | one client message as JSON; empty: none |
| `AUDIO` | UINT8 | [1, n] | {audio_in}; n = 0: none |

1. The request with `sequence_start = true` carries the message `start`. Its response stream carries
   **all** events of the conversation and ends with `closed`.
2. Further requests carry audio, a message, or both. Each with `triton_enable_empty_final_response` is
   answered by an empty final response, its acknowledgement (`triton_final_response = true`); four in a
   second of audio are enough to notice a server that hangs. Audio may be cut anywhere,
   in pieces of at most {max_chunk} ms; a real client sends 20-100 ms at the pace of the microphone, silence
   included.
3. The request with `sequence_end = true` ends the conversation: `closed` follows. Send it also after
   the server has closed the conversation by itself, or refused it; only then is the sequence's slot
   free again.
4. `closed` is the final response to the first request. Half-close the stream after the last request and
   read it to its end. Do not cancel it: Triton before 25.04 may abort or hang when a stream is cancelled
   while it is being ended.

A `sequence_id` that begins with `{canary_prefix}` is a health check's: each instance of `voice_agent` takes 8
such sessions beyond `max_sessions`, so that a full server answers them.

Every response with an event has these outputs:

| output | type | shape | content |
|---|---|---|---|
| `EVENT` | BYTES | [1, 1] | one server event as JSON |
| `AUDIO` | INT16 | [1, n] | the samples of an `audio` event; absent with every other event |

A message or event is one JSON object whose field `type` is the name in the heading of its section.
Times are integers in milliseconds unless a field says otherwise; `at_ms` counts the audio that the client
has sent since the start. Unknown fields of a client message are an error; clients must ignore unknown
fields of events, and events of unknown types. A field without a default is required. This page describes
protocol version {version}. In Python the types are classes of `parley.protocol`: `speech_started` is
`SpeechStarted`, unless a section names another class.

## What a turn looks like

```text
client                                 server
start                                  connected, agent_state listening
audio …                                speech_started, transcript (partial) …
audio …                                speech_stopped, transcript (final), turn_decision,
                                       agent_state processing
                                       tool_request
tool_response                          response (text) …, audio …, agent_state speaking
playback …                             response_done, metrics, agent_state listening
audio (something is heard over it)     paused
audio (it was an "mhm")                resumed
audio (the user speaks over it)        paused, speech_started, interrupted, metrics, agent_state listening
end                                    closed
```

On `paused` the client stops playback and keeps what it has not played, on `resumed` it continues, on
`interrupted` it drops all audio of that response. `playback` reports what was played: the agent
remembers only that.
"""


@dataclass(frozen=True)
class FieldDoc:
    """One field of a message or event."""

    name: str
    kind: str
    default: str
    """Empty: required."""
    text: str


@dataclass(frozen=True)
class TypeDoc:
    """One message, event or part of them."""

    tag: str
    name: str
    text: str
    fields: tuple[FieldDoc, ...]


def render() -> str:
    """The whole document."""
    types = {doc.name: doc for doc in read_types()}
    messages = [types[kind.__name__] for kind in get_args(protocol.ClientMessage)]
    events = [types[kind.__name__] for kind in get_args(protocol.ServerEvent)]
    parts = [doc for doc in types.values() if doc not in messages and doc not in events]
    head = _HEAD.format(
        audio_in=f"mono PCM16 little endian at {protocol.INPUT_SAMPLE_RATE} Hz as bytes",
        max_chunk=protocol.MAX_CHUNK_MS,
        canary_prefix=protocol.CANARY_PREFIX,
        version=protocol.PROTOCOL_VERSION,
    )
    sections = [
        head,
        "## Client messages\n",
        *map(_section, messages),
        "## Server events\n",
        *map(_section, events),
        "## Parts\n",
        *map(_section, parts),
        _errors(),
    ]
    return "\n".join(sections)


def read_types() -> Iterator[TypeDoc]:
    """The public types of the protocol module with their docstrings, in their order."""
    for node in ast.parse(inspect.getsource(protocol)).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            tags = [key.value.value for key in node.keywords if key.arg == "tag"]  # type: ignore[attr-defined]
            fields = tuple(_fields(node))
            yield TypeDoc(tags[0] if tags else "", node.name, ast.get_docstring(node) or "", fields)


def _fields(node: ast.ClassDef) -> Iterator[FieldDoc]:
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = inspect.cleandoc(str(following.value.value))
        default = ast.unparse(statement.value) if statement.value is not None else ""
        constant: Any = getattr(protocol, default, default)
        kind = ast.unparse(statement.annotation).replace(" | msgspec.UnsetType", "")
        kind = re.sub(r"^Annotated\[([\w\[\]]+), .*\]$", r"\1", kind)
        if get_origin(values := getattr(protocol, kind, None)) is Literal:
            kind = str(values).removeprefix("typing.")
        yield FieldDoc(statement.target.id, _json(kind), _json(str(constant)), text)


def _json(python: str) -> str:
    """Python's names of JSON's constants as JSON has them."""
    names = {"None": "null", "True": "true", "False": "false", "UNSET": "unchanged"}
    return re.sub(r"\b(None|True|False|UNSET)\b", lambda match: names[match[1]], python).replace("'", '"')


def _section(doc: TypeDoc) -> str:
    title = f"### `{doc.tag}`" if doc.tag else f"### {doc.name}"
    if doc.tag and doc.tag.replace("_", "") != doc.name.lower():
        title += f"\n\nIn Python: `{doc.name}`."
    lines = [title, "", _markdown(doc.text), ""]
    if doc.fields and not any(field.text or not field.default for field in doc.fields):
        lines += [f"Fields: {', '.join(f'`{field.name}`' for field in doc.fields)}.", ""]
    elif doc.fields:
        lines += ["| field | type, default | meaning |", "|---|---|---|"]
        for field in doc.fields:
            kind = f"{field.kind} = {field.default}" if field.default else field.kind
            text = _markdown(field.text).replace("\n", " ")
            lines.append(f"| `{field.name}` | {_code(kind)} | {text} |")
        lines.append("")
    return "\n".join(lines)


def _errors() -> str:
    lines = [
        "## Errors",
        "",
        "Codes of the event `error`, and of the message of a failed request (`code: text`). *Retryable*",
        "means that the same request may succeed later without being changed.",
        "",
        "| code | retryable | meaning |",
        "|---|---|---|",
    ]
    for kind in _error_classes(errors.ParleyError):
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        if kind is errors.ParleyError:
            summary = "Something that has no code of its own."
        lines.append(f"| `{kind.code}` | {'yes' if kind.retryable else 'no'} | {_markdown(summary)} |")
    return "\n".join(lines) + "\n"


def _error_classes(base: type[errors.ParleyError]) -> Iterator[type[errors.ParleyError]]:
    """``base`` and what the server's module derives from it; clients have errors of their own."""
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from _error_classes(kind)


def _markdown(text: str) -> str:
    """Sphinx roles and double backticks as Markdown code; classes with a tag by that tag."""

    def link(match: re.Match[str]) -> str:
        kind = getattr(protocol, match[1].rpartition(".")[2], None)
        tag = getattr(getattr(kind, "__struct_config__", None), "tag", None)
        return f"`{tag or match[1]}`"

    return re.sub(r"``", "`", re.sub(r":\w+:`([^`]+)`", link, text))


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"


def main() -> int:
    """Write the document, or compare it."""
    parser = argparse.ArgumentParser(description="Write docs/protocol.md from the protocol's types.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if it is out of date")
    args = parser.parse_args()
    text = render()
    if args.check:
        if TARGET.read_text() != text:
            print(f"{TARGET} is out of date; run: python build/make_protocol_docs.py", file=sys.stderr)
            return 1
        return 0
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure how often the examples' scenarios pass with a language model: `parley test` of all three.

    python -m perf pass-rates qwen2.5-coder-0.5b-w8a8 --repeat 5
    python -m perf pass-rates qwen2.5-coder-1.5b-w8a8 --repeat 5 --parallel 1
    python -m perf pass-rates right --profile tiny    a remote model that answers as right_answers.toml says
    python -m perf pass-rates right --speech          the same, of speech: what recognition and turns leave

Exit status: that of `parley test`; as text `right` has to pass all, or a scenario or the agent is at fault.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from parley.launcher.options import ROOT
from parley.llm.known_models import KNOWN_MODELS
from parley.runtime.weights import weights_variable

_RIGHT = "right"
_ANSWERS = Path(__file__).with_name("right_answers.toml")
_EXAMPLES = ROOT / "examples" / "agents"
AGENTS = [_EXAMPLES / f"{name}.py" for name in ("clinic", "helpdesk", "restaurant")]


class RightModel:
    """Chooses the answer to a request of OpenAI's chat completions."""

    def __init__(self) -> None:
        table = tomllib.loads(_ANSWERS.read_text(encoding="utf-8"))["answers"]
        self._answers = [(re.compile(pattern, re.IGNORECASE), *rest) for pattern, *rest in table]

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The only choice of the answer: words, or a call and no words.

        Raises:
            ValueError: there is no answer to what the caller said.
        """
        messages = body["messages"]
        said = _said_last(messages)
        found = next((rest for pattern, *rest in self._answers if pattern.search(said)), None)
        if found is None:
            raise ValueError(f"no answer to {said!r} in {_ANSWERS.name}")
        words, *call = found
        if not call or messages[-1]["role"] == "tool":
            return {"delta": {"content": words}, "finish_reason": "stop"}
        name, arguments = call
        results = " ".join(str(one.get("content")) for one in messages if one["role"] == "tool")
        given = {key: _result(value, results) for key, value in arguments.items()}
        function = {"name": name, "arguments": json.dumps(given)}
        return {
            "delta": {"tool_calls": [{"index": 0, "id": "c", "function": function}]},
            "finish_reason": "tool_calls",
        }


def _said_last(messages: list[dict[str, Any]]) -> str:
    """What the caller has said since the model's last words, in one or several messages."""
    words: list[str] = []
    for one in reversed(messages):
        if one["role"] == "assistant" and words:
            break
        if one["role"] == "user":
            words.insert(0, one["content"])
    return " ".join(words)


def _result(value: Any, results: str) -> Any:
    """An argument; ``$name`` stands for the last whole number of that name in the results."""
    if isinstance(value, str) and value.startswith("$"):
        numbers = re.findall(rf'"{value[1:]}":\s*(\d+)', results)
        if not numbers:
            raise ValueError(f"no result has a {value[1:]}")
        return int(numbers[-1])
    return value


class _Handler(BaseHTTPRequestHandler):
    model = RightModel()

    def do_POST(self) -> None:
        """Answer one request."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            choice = self.model.answer(body)
        except ValueError as error:  # of speech also the beginning of a turn, or what was misheard
            print(error, file=sys.stderr)
            choice = {"delta": {"content": "Please go on."}, "finish_reason": "stop"}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def main() -> int:
    """Parse the command line and run `parley test`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=(*KNOWN_MODELS, _RIGHT))
    arguments, more = parser.parse_known_args()
    environment, options = dict(os.environ), ["--profile", "open"] if "--profile" not in more else []
    with ExitStack() as stack:
        if arguments.model == _RIGHT:
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Handler))
            Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            environment |= {
                "PARLEY_VOICE_AGENT_LLM": "openai_chat",
                "PARLEY_VOICE_AGENT_LLM_URL": f"http://127.0.0.1:{server.server_port}/v1",
                "PARLEY_VOICE_AGENT_LLM_MODEL": _RIGHT,
            }
        else:
            environment[weights_variable("qwen3")] = arguments.model
        parley = ROOT / ".venv" / "bin" / "parley"
        command: list[str | Path] = [parley, "test", *AGENTS, *options, *more]
        return subprocess.run(command, env=environment, check=False).returncode

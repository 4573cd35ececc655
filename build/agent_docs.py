"""Writes the table of voice_agent's settings into docs/profiles.md; run it after changing a setting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.agent.config import AgentConfig
from parley.runtime.parameters import Parameters

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "profiles.md"
SOURCE = ROOT / "src" / "parley"
_FIELDS = ("agent/config.py", "agent/user_idle.py", "llm/messages.py", "engines/base.py")
"""Where the classes are whose fields the settings fill."""
_PROFILES = {"gpu": "config.pbtxt", "open": "configs/open.pbtxt", "tiny": "configs/tiny.pbtxt"}
_BEGIN = "<!-- settings of voice_agent: written by build/agent_docs.py -->\n"
_END = "<!-- end of settings of voice_agent -->\n"
_LONGEST = 40
# Read by functions of their own, or by the model itself.
_OTHERS = {
    "eagerness": "When a pause ends the user's turn, if a session does not say: eager, normal, patient, off.",
    "history": "What happens to the oldest part of a conversation that is too long: drop, summarise.",
    "llm_url": "Of `openai_chat`: up to the version, such as `https://api.example.com/v1`.",
    "llm_model": "Of `openai_chat`: the model's name there.",
    "llm_key_file": "Of `openai_chat`: a file with its key; `PARLEY_VOICE_AGENT_LLM_KEY` wins.",
    "llm_continuation": "Of `openai_chat`: how its server goes on with a message that has begun.",
    "profile": "",
}
_BY_MACHINE = {"max_sessions": "by the cores"}
"""Settings whose default follows the machine, and what the table has in place of this one's."""


class _Recorded(Parameters):
    """Notes each setting that is read, with its value."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(
            "voice_agent", values, model_dir=ROOT / "model_repository/voice_agent", environment={}
        )
        self.read: dict[str, Any] = {}

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("text", "choice", "boolean", "names", "integer", "number"):
            return found

        def record(setting: str, *given: Any, **options: Any) -> Any:
            value = found(setting, *given, **options)
            self.read[setting] = value
            return value

        return record


def read_profile(file: str) -> dict[str, Any]:
    """The value of every setting in a profile, by name, in the order in which they are read."""
    path = ROOT / "model_repository" / "voice_agent" / file
    config = text_format.Parse(path.read_text(encoding="utf-8"), ModelConfig())
    parameters = _Recorded({name: entry.string_value for name, entry in config.parameters.items()})
    AgentConfig.from_parameters(parameters)
    followed = {name: text for name, text in _BY_MACHINE.items() if name not in config.parameters}
    return parameters.read | followed


def descriptions() -> dict[str, str]:
    """What each setting means, by name: the docstring of the field that it fills."""
    fields: dict[tuple[str, str], str] = {}
    for file in _FIELDS:
        for node in ast.parse((SOURCE / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                fields |= {(node.name, name): text for name, text in _documented(node)}
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse((SOURCE / "agent/config.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            owner = {"cls": "AgentConfig"}.get(node.func.id, node.func.id)
            for keyword in node.keywords:
                text = fields.get((owner, keyword.arg or ""))
                if text and (setting := _setting(keyword.value)):
                    found[setting] = text  # the innermost call comes last
    return found | _OTHERS


def settings_table() -> str:
    """All settings, one row each, with their values in the profiles."""
    profiles = {name: read_profile(file) for name, file in _PROFILES.items()}
    meanings = descriptions()
    rows = ["| setting | gpu | open | tiny | |", "|---|---|---|---|---|"]
    for setting in profiles["gpu"]:
        if text := meanings[setting]:
            values = " | ".join(_shown(profiles[name][setting]) for name in _PROFILES)
            rows.append(f"| `{setting}` | {values} | {text} |")
    return "\n".join(rows) + "\n"


def with_table(document: str) -> str:
    """The document with the table as it is now."""
    before, rest = document.split(_BEGIN)
    return f"{before}{_BEGIN}\n{settings_table()}\n{_END}{rest.split(_END)[1]}"


def _documented(owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in zip(owner.body, owner.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield field.target.id, " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _setting(value: ast.expr) -> str:
    """The name of the first setting that an expression reads; empty: none."""
    if isinstance(value, ast.Name):  # read before, as its own name
        return value.id
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            names = [
                one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            if names:
                return names[0]
    return ""


def _shown(value: Any) -> str:
    if value in ("", ()):
        return ""
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return f"`{text}`" if len(text) <= _LONGEST else "a text"


if __name__ == "__main__":
    DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8")), encoding="utf-8")

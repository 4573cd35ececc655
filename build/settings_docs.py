"""Writes docs/settings.md, the settings of every model and of the gateway; run it after changing one."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec
from google.protobuf import text_format
from msgspec.inspect import ListType, LiteralType, StructType, UnionType, type_info
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.agent.config import AgentConfig
from parley.agents.definition import AgentDefinition
from parley.calls.settings import RecordSettings
from parley.llm.startup import EngineSettings
from parley.models.embeddings import EmbeddingSettings
from parley.models.nemotron_streaming import StreamingSettings
from parley.models.parakeet_tdt import ParakeetSettings
from parley.models.parakeet_transcribe import RecordingSettings, TranscriptionSettings
from parley.models.qwen3 import ChatSettings
from parley.models.recognition import RecognitionSettings
from parley.models.segments import ReaderSettings, SegmentSettings, WindowSettings
from parley.models.smart_turn import SmartTurnSettings
from parley.models.speaker_embedding import SpeakerSettings
from parley.runtime.onnx import OnnxSettings, TensorRtSettings
from parley.runtime.parameters import is_setting
from parley.triton.model_client import ClientSettings
from parley_gateway.schemas import field_docs
from parley_gateway.settings import Settings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "settings.md"
REPOSITORY = ROOT / "model_repository"
_PROFILES = {"gpu": "config.pbtxt", "open": "configs/open.pbtxt", "tiny": "configs/tiny.pbtxt"}
_AGENT_PARTS = (AgentDefinition.__module__, RecordSettings.__module__)
"""Modules of the parts of an agent's file that have a row for each field."""
_SEGMENTS = (RecognitionSettings, SegmentSettings, WindowSettings, ReaderSettings, OnnxSettings)
_RECORDINGS = (RecordingSettings, WindowSettings, ReaderSettings, OnnxSettings)
_STRUCTS: Mapping[str, Sequence[type[msgspec.Struct]]] = {
    "voice_agent": (AgentConfig, ClientSettings),
    "moonshine": _SEGMENTS,
    "whisper": _SEGMENTS,
    "sherpa_onnx": _SEGMENTS,
    "moonshine_transcribe": _RECORDINGS,
    "whisper_transcribe": _RECORDINGS,
    "sherpa_onnx_transcribe": _RECORDINGS,
    "nemotron_streaming": (RecognitionSettings, StreamingSettings, OnnxSettings, ClientSettings),
    "parakeet_tdt": (RecognitionSettings, ParakeetSettings),
    "parakeet_transcribe": (TranscriptionSettings, RecordingSettings),
    "parakeet_features": (RecordingSettings,),
    "parakeet_encoder": (OnnxSettings, TensorRtSettings),
    "parakeet_decoder": (OnnxSettings,),
    "embeddings": (EmbeddingSettings, OnnxSettings),
    "speaker_embedding": (SpeakerSettings, OnnxSettings),
    "smart_turn": (SmartTurnSettings, OnnxSettings),
    "qwen3": (ChatSettings, EngineSettings),
    "t3": (EngineSettings,),
    "chatterbox": (ClientSettings,),
}
"""Settings structs of models that have others than those of the module that their ``model.py`` runs."""
_MORE: Mapping[str, Sequence[str]] = {
    "piper": ("tts/english/pronouncer.py",),
    "hibari": ("tts/english/pronouncer.py",),
    "kokoro": ("tts/english/pronouncer.py",),
    "nemotron_streaming": ("models/recognizers.py",),
    "parakeet_encoder": ("models/recognizers.py",),
    "parakeet_decoder": ("models/recognizers.py",),
    "chatterbox": ("tts/chatterbox/limits.py", "tts/voices/store.py"),
    "voice_enrollment": ("models/voice_enrollment.py", "tts/voices/store.py"),
}
"""Other files, in a package, whose docstrings list settings of a model."""
_HAND: Mapping[str, str] = {
    "weights": "Folder of the weights, in `PARLEY_MODELS_DIR` or absolute; `PARLEY_WEIGHTS_<MODEL>` wins.",
    "optional": "`true`: the launcher leaves the model out where its weights are missing.",
    "on_request": "`true`: the model is loaded only where `--load-model` names it.",
    "memory_plan": "`true`: the GPU's memory plan replaces some settings.",
    "tools_file": "File of the server's own tools ([tools.md](tools.md)).",
    "oldest_triton": "Oldest version of Triton with which sessions are accepted. Not set: every version.",
}
"""Settings that the launcher or functions for many models read."""
_HIDDEN = frozenset({"profile"})
_BY_MACHINE = {("voice_agent", "max_sessions"): "by the cores"}
"""Defaults that follow the machine."""
_LONGEST = 40
_HEAD = """# Settings

Written by `build/settings_docs.py`. A model's settings are the `parameters` of its `config.pbtxt` (the
profile gpu) or `configs/PROFILE.pbtxt`. `PARLEY_<MODEL>_<NAME>` replaces one of them for a server:
`PARLEY_VOICE_AGENT_MAX_TOOLS=8 make serve` sets `max_tools` of `voice_agent`. With a value out of its
bounds a model does not serve, and the error names the setting. Settings whose names end in `_s` are in
seconds, in `_ms` in milliseconds; lists are written with commas. The third column names the profiles that
have the model, and their values where they differ from the default; without a name: of all of them.
"""
_GATEWAY = """## The gateway

How to set them: [gateway.md](gateway.md#settings).
"""
_AGENTS = """## Agents

A file `agents/NAME.toml` defines an agent that sessions choose by its name (`Start.agent`); the setting
`agents` of `voice_agent` names the folder. Options that a session leaves at their defaults come from the
file, of tables such as `turn` each part by itself; [protocol.md](protocol.md#start) lists these parts.
`parley agents check` reads the files as a server would, without one.

New, changed and removed files count for new calls within seconds. A wrong one leaves the agent as it was:
the log says where, and `voice_agent_wrong_agent_files` counts it. A call keeps the definition with which it
began; tools and model of an old one are closed after its last call. A call that goes on at another server
keeps its options, and gets the tools and the model of that server's file; a server without the agent
answers `unknown_agent`, and the client tries the next. A folder has at most 64 agents, a file 128 KiB.
Files with another dot in their name, such as `NAME.tests.toml`, define none.
"""


def read_values(model: str) -> dict[str, dict[str, str]]:
    """The parameters in the configurations of a model, by profile; without those that it is not part of."""
    values = {}
    for profile, file in _PROFILES.items():
        path = REPOSITORY / model / file
        if path.is_file():
            config = text_format.Parse(path.read_text(encoding="utf-8"), ModelConfig())
            values[profile] = {name: entry.string_value for name, entry in config.parameters.items()}
    return values


def settings_of(model: str) -> dict[str, tuple[str, str]]:
    """Default and meaning of each setting of a model."""
    found: dict[str, tuple[str, str]] = {}
    for kind in _STRUCTS.get(model) or _own_structs(model):
        for name, default, text in _fields(kind):
            found.setdefault(name, (_BY_MACHINE.get((model, name), default), text))
    for name, text in _documented(model):
        found.setdefault(name, ("", text))
    given = {name for values in read_values(model).values() for name in values}
    for name in sorted(given - found.keys() - _HIDDEN):
        found[name] = ("", _HAND.get(name, ""))
    return found


def page() -> str:
    """The whole page."""
    sections = [_HEAD]
    for folder in sorted(REPOSITORY.iterdir(), key=lambda one: (one.name != "voice_agent", one.name)):
        if not (settings := settings_of(folder.name)):
            continue
        values = read_values(folder.name)
        sections.append(f"## `{folder.name}`\n")
        rows = [f"| setting | default | {', '.join(values)} | |", "|---|---|---|---|"]
        for name, (default, text) in settings.items():
            given = {profile: _unified(own.get(name, default), default) for profile, own in values.items()}
            different = {profile: value for profile, value in given.items() if value != default}
            if len(different) == len(values) and len(set(different.values())) == 1:
                cell = _shown(different.popitem()[1])
            else:
                cell = ", ".join(f"{profile} {_shown(value)}" for profile, value in different.items())
            rows.append(f"| `{name}` | {_shown(default)} | {cell} | {text} |")
        sections.append("\n".join(rows) + "\n")
    agents = ["| field | default | |", "|---|---|---|", *agent_rows(AgentDefinition)]
    sections += [_AGENTS, "\n".join(agents) + "\n", _GATEWAY, "\n".join(gateway_rows()) + "\n"]
    return "\n".join(sections)


def agent_rows(kind: type[msgspec.Struct], table: str = "") -> Iterator[str]:
    """A row for each field of an agent's file; options with parts in the protocol have one row."""
    docs = field_docs(kind)
    for field in msgspec.structs.fields(kind):
        info = type_info(field.type)
        part, mark = (info.item_type, "[]") if isinstance(info, ListType) else (info, "")
        if isinstance(part, StructType) and part.cls.__module__ in _AGENT_PARTS:
            yield from agent_rows(part.cls, f"{table}{field.name}{mark}.")
            continue
        default = "" if isinstance(info, StructType) else _gateway_default(field)
        shown = f"`{default}`" if default else ""
        yield f"| `{table}{field.name}` | {shown} | {_in_markdown(docs[field.name])} |"


def gateway_rows() -> list[str]:
    """The table of the gateway's settings: its head, and a row for each."""
    rows = ["| setting | default | |", "|---|---|---|"]
    for part in msgspec.structs.fields(Settings):
        docs = field_docs(part.type)
        for field in msgspec.structs.fields(part.type):
            default = _gateway_default(field)
            shown = f"`{default}`" if default else ""
            rows.append(
                f"| `{part.name}.{field.name}` | {shown} | {_in_markdown(docs.get(field.name, ''))} |"
            )
    return rows


def _gateway_default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else ""
    if value is None or value in ("", (), [], {}):
        return ""
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fields(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of each setting in a struct."""
    docs = field_docs(kind)
    for field in msgspec.structs.fields(kind):
        info = type_info(field.type)
        if isinstance(info, StructType):
            yield from _fields(info.cls)
        elif is_setting(field):
            bounds = _bounds(info, field.type)
            text = _in_markdown(docs[field.name])
            yield field.encode_name, _default(field), f"{text} ({bounds})" if bounds else text


def _default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default
    if value is msgspec.NODEFAULT or value is None or isinstance(value, dict):
        return ""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bounds(info: Any, annotation: Any) -> str:
    if isinstance(info, UnionType):
        info = info.types[0]
    if isinstance(info, LiteralType):
        return "one of " + ", ".join(f"`{value}`" for value in get_args(annotation))
    # typing takes Meta(ge=1) and Meta(ge=1.0) for one, whichever was made first.
    least, most = (_plain(getattr(info, name, None)) for name in ("ge", "le"))
    if most is not None:
        return f"{least} to {most}"
    return f"at least {least}" if least else ""


def _plain(bound: float | None) -> float | None:
    return int(bound) if bound is not None and bound == int(bound) else bound


def _modules(model: str) -> list[str]:
    """What the ``model.py`` of a model runs."""
    code = REPOSITORY / model / "1" / "model.py"
    return re.findall(r"\"([\w.]+):\w+\"", code.read_text(encoding="utf-8")) if code.is_file() else []


def _own_structs(model: str) -> list[type[msgspec.Struct]]:
    """The settings structs that these modules define; none of a module that needs PyTorch."""
    modules = [importlib.import_module(name) for name in _modules(model) if name.startswith("parley.")]
    return [
        kind
        for module in modules
        for name, kind in vars(module).items()
        if name.endswith("Settings") and isinstance(kind, type) and kind.__module__ == module.__name__
    ]


def _documented(model: str) -> Iterator[tuple[str, str]]:
    """Settings that docstrings list below ``Parameters of the model``."""
    files = [ROOT / "src" / (module.replace(".", "/") + ".py") for module in _modules(model)]
    for file in [*files, *(path for name in _MORE.get(model, ()) for path in ROOT.glob(f"src/*/{name}"))]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node) or ""
                yield from _listed(docstring)
                if docstring.startswith("Each field is a parameter"):
                    yield from _field_texts(node)


def _listed(docstring: str) -> Iterator[tuple[str, str]]:
    for section in re.findall(r"(?ms)^Parameters of the model.*?:\n(    ``.*?)(?:\n\n|\Z)", docstring):
        for names, text in re.findall(r"(?ms)^    (``\w+``(?:,\s+``\w+``)*): (.*?)(?=^    ``|\Z)", section):
            meaning = _in_markdown(text)
            for name in re.findall(r"``(\w+)``", names):
                yield name, meaning if meaning.startswith("vLLM") else f"{meaning[:1].upper()}{meaning[1:]}"


def _field_texts(owner: ast.AST) -> Iterator[tuple[str, str]]:
    for field, after in pairwise(ast.iter_child_nodes(owner)):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, _in_markdown(text)


def _in_markdown(text: str) -> str:
    plain = re.sub(r":(?:class|func|mod|data):`([^`]+)`", r"`\1`", " ".join(text.split()))
    return plain.replace("``", "`").replace("|", "\\|")


def _unified(value: str, default: str) -> str:
    """The default where a value is the same number, such as 60 and 60.0."""
    try:
        return default if float(value) == float(default) else value
    except ValueError:
        return value


def _shown(text: str) -> str:
    if not text or text == "by the cores":
        return text
    return f"`{text}`" if len(text) <= _LONGEST else "a text"


if __name__ == "__main__":
    DOCS.write_text(page(), encoding="utf-8")

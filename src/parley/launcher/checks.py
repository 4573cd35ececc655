"""Checks of the settings before a start: agent's models, tools file, log format, unknown variables."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import parley
from parley.canaries.asking import AGENT
from parley.errors import ModelLoadingError
from parley.launcher.errors import LauncherSettingsError, ToolsFileError
from parley.launcher.models import find_agents_folder, model_folders, model_names
from parley.launcher.options import ServerOptions
from parley.logs import read_log_format
from parley.names import suggest_name
from parley.runtime.extensions import extension_folders
from parley.runtime.parameters import Parameters
from parley.runtime.repository import read_config_file, read_parameters

_NAME = re.compile(r'"([a-z][a-z0-9_]*)"|^    ([a-z][a-z0-9_]*): ', re.MULTILINE)
_CLOSE = 0.7
"""Likeness of a setting that may be meant."""
_CLOSE_MODEL = 0.8
"""Likeness of a model that may be meant."""
_CODE = Path(parley.__file__).parent


def check_agent_models(
    options: ServerOptions, inherited: Mapping[str, str], left_out: Mapping[str, str] | None = None
) -> None:
    """Refuse an agent whose canary could never be answered, because a model that it calls is not loaded.

    The agent does without a recogniser or a synthesizer that is absent, as long as another one is named, be
    it as a fallback.

    ``left_out`` has the reasons why models are not loaded, by name.

    Raises:
        LauncherSettingsError: a named model is not in this profile, or is not loaded.
    """
    loaded = [folder.name for folder in model_folders(options)]
    parameters = read_parameters(
        options.model_repository / AGENT, options.profile, {**inherited, **options.environment}
    )
    if parameters is None or AGENT not in loaded:
        return
    from parley.agent.config import NO_MODEL, AgentConfig  # noqa: PLC0415 - only where there is an agent
    from parley.engines.registry import (  # noqa: PLC0415
        CHAT_MODELS,
        RECOGNIZERS,
        REMOTE_CHAT,
        SYNTHESIZERS,
        TURN_MODELS,
    )

    default = AgentConfig()
    for setting, engines, preset, elsewhere in (
        ("asr", RECOGNIZERS, ",".join(default.asr), ""),
        ("llm", CHAT_MODELS, ",".join(default.llm), REMOTE_CHAT),
        ("tts", SYNTHESIZERS, ",".join(default.tts), ""),
        ("turn", TURN_MODELS, default.turn, NO_MODEL),
    ):
        is_list = setting in ("asr", "llm", "tts")
        named = parameters.names(setting, preset) if is_list else (parameters.text(setting, preset),)
        possible = [name for name in engines if name in loaded] + [elsewhere] * bool(elsewhere)
        unknown = [name for name in named if name not in engines and name != elsewhere]
        # Only for one that the profile has: another name is a mistake.
        is_left_out = setting == "tts" and bool(set(named) & set(model_names(options)))
        others = parameters.names("tts_fallback", "") if is_left_out else ()
        if unknown or not {*named, *others} & set(possible):
            variable = parameters.variable(setting)
            source = (
                variable if parameters.environment.get(variable) else f"the parameter {setting} of {AGENT}"
            )
            wanted = (unknown or named)[0]
            why = (left_out or {}).get(wanted, "")
            text = _describe_model(options, wanted, source, possible)
            raise LauncherSettingsError(f"{text} {why[:1].upper()}{why[1:]}." if why else text)


def _describe_model(options: ServerOptions, name: str, source: str, possible: Collection[str]) -> str:
    known = ", ".join(possible) or "none"
    if name in model_names(options):
        return f"The model {name}, which {source} names, is not loaded; there are {known}."
    return f"The profile {options.profile} has no model {name} for {source}; it has {known}."


def check_log_format(environment: Mapping[str, str]) -> None:
    """Refuse a format of the log that there is not.

    Raises:
        LauncherSettingsError: ``PARLEY_LOG_FORMAT`` names another one.
    """
    try:
        read_log_format(environment)
    except ValueError as error:
        raise LauncherSettingsError(f"{error}.") from error


def check_tools_file(options: ServerOptions, inherited: Mapping[str, str]) -> None:
    """Report what would otherwise keep ``voice_agent`` from loading minutes later, with a trace.

    Raises:
        ToolsFileError: the file, or the environment that its headers need, is not usable.
    """
    if options.load_models and AGENT not in options.load_models:
        return
    parameters = read_parameters(
        options.model_repository / AGENT, options.profile, {**inherited, **options.environment}
    )
    if parameters is None or not (file := parameters.text("tools_file", "")):
        return
    try:
        asyncio.run(_check(options.model_repository.parent / file, parameters.environment))
    except ModelLoadingError as error:
        raise ToolsFileError(f"The tools of the server are not usable (docs/tools.md): {error}") from error


def find_wrong_agents(options: ServerOptions, environment: Mapping[str, str]) -> list[str]:
    """One line for each file of an agent that the server will not serve; the log says so too."""
    folder = find_agents_folder(options, environment)
    if not folder or (options.load_models and AGENT not in options.load_models):
        return []
    from parley.agents.folder import read_folder  # noqa: PLC0415 - only where there is an agent
    from parley.agents.reader import AgentFileError  # noqa: PLC0415
    from parley.launcher.agent_files import check_agents  # noqa: PLC0415

    try:
        files = read_folder(Path(folder), {})
        checks = check_agents(files, options.model_repository, options.profile, environment)
        with ThreadPoolExecutor(1) as pool:  # the caller may have an event loop
            found = pool.submit(asyncio.run, checks).result()
    except (ModelLoadingError, OSError) as error:
        return [f"the agents in {folder} cannot be checked: {error}"]
    return [
        f"an agent cannot be served: {error}" for error in found.values() if isinstance(error, AgentFileError)
    ]


async def _check(path: Path, environment: Mapping[str, str]) -> None:
    from parley.tools.settings import read_settings  # noqa: PLC0415 - seldom needed
    from parley.tools.toolbox import Toolbox  # noqa: PLC0415 - heavy

    await Toolbox(read_settings(path), environment).close()


def find_unknown_settings(repository: Path, environment: Mapping[str, str]) -> list[str]:
    """One line for each variable ``PARLEY_<MODEL>_<NAME>`` that names a model and none of its settings.

    So does one for a name that is nearly that of a model, before what is nearly a setting of it.

    A name counts as a setting if any configuration of the model has it, or any code may read a setting of
    this name: every reported variable has no effect, but not every variable without effect is reported.
    """
    folders = {_prefix(path.name): path for path in repository.glob("*") if path.is_dir()}
    candidates = {
        variable: [prefix for prefix in folders if variable.startswith(prefix)]
        for variable, value in environment.items()
        if value and variable.startswith("PARLEY_")
    }
    configured = {
        variable: {prefix + name for prefix in prefixes for name in _configured(folders[prefix])}
        for variable, prefixes in candidates.items()
        if prefixes
    }
    unclear = {variable: names for variable, names in configured.items() if variable not in names}
    near = {
        variable: meant
        for variable, prefixes in candidates.items()
        if not prefixes and (meant := _near_prefixes(variable, folders))
    }
    if not unclear and not near:
        return []  # as usual; the code need not be read
    sources = list(_sources(repository))
    read = {name.upper() for source in sources for name in _read_names(source)}
    found = []
    for variable, names in sorted(unclear.items()):
        known = names | {prefix + name for prefix in candidates[variable] for name in read}
        if variable not in known and not any(variable in source for source in sources):
            model = folders[max(candidates[variable], key=len)].name
            found.append(_describe_setting(variable, model, known))
    for variable, meant in sorted(near.items()):
        for prefix, name in meant:
            hint = suggest_name(
                name, sorted(read | _configured(folders[prefix])), prefix=prefix, close=_CLOSE
            )
            if hint and not any(variable in source for source in sources):
                found.append(f"warning: {variable} has no effect: it names no model{hint}")
                break
    return found


def _near_prefixes(variable: str, prefixes: Collection[str]) -> list[tuple[str, str]]:
    """Models' prefixes that the variable nearly begins with, and what follows, the likeliest first."""
    words = variable.split("_")
    found = []
    for count in range(2, len(words)):
        begin, name = "_".join(words[:count]) + "_", "_".join(words[count:])
        for prefix in prefixes:
            likeness = difflib.SequenceMatcher(
                None, begin.removeprefix("PARLEY_"), prefix.removeprefix("PARLEY_")
            ).ratio()
            if likeness >= _CLOSE_MODEL:
                found.append((likeness, prefix, name))
    return [(prefix, name) for _, prefix, name in sorted(found, reverse=True)]


def _describe_setting(variable: str, model: str, known: Collection[str]) -> str:
    prefix = _prefix(model)
    names = sorted(name.removeprefix(prefix) for name in known if name.startswith(prefix))
    meant = suggest_name(variable.removeprefix(prefix), names, prefix=prefix, close=_CLOSE)
    return f"warning: {variable} has no effect: {model} has no such setting{meant}"


def _prefix(model: str) -> str:
    return Parameters(model, {}).variable("")


def _configured(folder: Path) -> set[str]:
    """Names, in capitals, in any configuration of a model."""
    configs = (read_config_file(path) for path in (folder / "config.pbtxt", *folder.glob("configs/*.pbtxt")))
    return {name.upper() for config in configs if config is not None for name in config.parameters}


def _sources(repository: Path) -> Iterator[str]:
    code = (path for folder in (_CODE, *extension_folders()) for path in folder.rglob("*.py"))
    for path in (*code, *repository.glob("*/*/*.py")):
        yield path.read_text(encoding="utf-8", errors="replace")


def _read_names(source: str) -> Iterator[str]:
    """Texts and annotated fields that may be settings, where code reads parameters or has structs."""
    if "arameters" in source or "msgspec.Struct" in source:
        yield from (text or field for text, field in _NAME.findall(source))

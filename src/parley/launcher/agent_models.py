"""The models that the agent's settings name, compared with those that are loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from parley.launcher.errors import SettingsError
from parley.launcher.models import model_folders, profile_models, read_parameters
from parley.launcher.options import ServerOptions

_AGENT = "voice_agent"


def check_agent_models(options: ServerOptions, inherited: Mapping[str, str]) -> None:
    """Find an agent that would never answer its canary, because a model that it calls is not loaded.

    An absent synthesizer counts only where no other one is named: the agent leaves it out.

    Args:
        options: of the server.
        inherited: environment that the models get besides that of the options.

    Raises:
        SettingsError: a model that the settings name is none of this profile, or is not loaded.
    """
    loaded = [folder.name for folder in model_folders(options)]
    parameters = read_parameters(
        options.model_repository / _AGENT, options.profile, {**inherited, **options.environment}
    )
    if parameters is None or _AGENT not in loaded:
        return
    from parley.agent.config import NO_TURN_MODEL, AgentConfig  # noqa: PLC0415 - only where there is an agent
    from parley.engines.registry import (  # noqa: PLC0415
        CHAT_MODELS,
        RECOGNIZERS,
        REMOTE_CHAT,
        SYNTHESIZERS,
        TURN_MODELS,
    )

    default = AgentConfig()
    for setting, engines, preset, elsewhere in (
        ("asr", RECOGNIZERS, default.asr, ""),
        ("llm", CHAT_MODELS, default.llm, REMOTE_CHAT),
        ("tts", SYNTHESIZERS, ",".join(default.tts), ""),
        ("turn", TURN_MODELS, default.turn, NO_TURN_MODEL),
    ):
        named = parameters.names(setting, preset) if setting == "tts" else (parameters.text(setting, preset),)
        possible = [name for name in engines if name in loaded] + [elsewhere] * bool(elsewhere)
        unknown = [name for name in named if name not in engines and name != elsewhere]
        if unknown or not set(named) & set(possible):
            variable = parameters.variable(setting)
            source = (
                variable if parameters.environment.get(variable) else f"the parameter {setting} of {_AGENT}"
            )
            raise SettingsError(_describe(options, (unknown or named)[0], source, possible))


def _describe(options: ServerOptions, name: str, source: str, possible: Collection[str]) -> str:
    known = ", ".join(possible) or "none"
    if name in profile_models(options):
        return f"The model {name}, which {source} names, is not loaded; there are {known}."
    return f"The profile {options.profile} has no model {name} for {source}; it has {known}."

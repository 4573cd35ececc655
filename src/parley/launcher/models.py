"""The model repository: profiles, configurations and weights."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import py_compile
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2

from parley.agents.registry import agents_folder
from parley.canaries.asking import AGENT
from parley.engines.weight_files import absence_of_weights
from parley.launcher.errors import LauncherSettingsError, SetupIncompleteError, StartInterruptedError
from parley.launcher.larger_model import LARGEST, is_to_measure
from parley.launcher.options import GPU_PROFILE, ROOT, TINY_PROFILE, ServerOptions
from parley.llm.known_models import DEMONSTRATION, KNOWN_MODELS, is_demonstration
from parley.names import suggest_name
from parley.runtime.repository import config_path, read_config_file, read_parameters
from parley.runtime.weights import INCOMPLETE, weights_variable

CONTROL_REPOSITORY = Path(__file__).parent / "repository"
"""Holds the model that reloads others."""
_GUIDE = re.compile(r"docs/[\w-]+\.md")
# Triton 24.10 starts a model's process through a shell without quoting: the process dies, and
# Triton waits for it without end.
_UNSAFE = re.compile(r"[\s\"'`$&|;<>()*?!#~{}\[\]\\]")

ELSEWHERE = "the agent's language model is elsewhere"
_ENSEMBLE = "ensemble"
PROGRAM = ROOT / "scripts/fetch_models"
_INTERRUPTED = 130
_GRACE_S = 10.0
"""For the program's own children to end."""


def list_profiles(repository: Path) -> list[str]:
    """Names of the profiles that at least one model has."""
    found = {path.stem for path in repository.glob("*/configs/*.pbtxt")}
    if any(repository.glob("*/config.pbtxt")):
        found.add(GPU_PROFILE)
    return sorted(found)


def model_folders(options: ServerOptions) -> list[Path]:
    """Folders of the models that will be loaded."""
    folders = _folders_of(options)
    if options.load_models:
        return [path for path in folders if path.name in options.load_models]
    return [path for path in folders if not _is_on_request(path, options.profile)]


def _is_on_request(folder: Path, profile: str) -> bool:
    """Whether a model is loaded only where it is named: its parameter ``on_request`` is ``true``."""
    config = read_config(folder, profile)
    return config is not None and config.parameters["on_request"].string_value == "true"


def model_names(options: ServerOptions) -> list[str]:
    """Names of all models that the profile has, loaded or not."""
    return [folder.name for folder in _folders_of(options)]


def _folders_of(options: ServerOptions) -> list[Path]:
    folders = (path for path in sorted(options.model_repository.glob("*")) if path.is_dir())
    return [folder for folder in folders if config_path(folder, options.profile).is_file()]


def check_models(options: ServerOptions) -> None:
    """Find the mistakes that Triton reports badly.

    Raises:
        SetupIncompleteError: there is no repository, or Triton cannot use a folder of this name.
        LauncherSettingsError: it has no profile or model of this name.
    """
    for folder in (options.model_repository, options.state_dir):
        if found := _UNSAFE.search(str(folder)):
            raise SetupIncompleteError(
                f"Triton cannot work in {folder}, because of the {found[0]!r} in its name. "
                "Move it to a folder without blanks and special characters."
            )
    profiles = list_profiles(options.model_repository)
    if not profiles:
        raise SetupIncompleteError(
            f"{options.model_repository} is not a model repository: no */config.pbtxt, no */configs/*.pbtxt."
        )
    if options.profile not in profiles:
        raise LauncherSettingsError(
            f"{options.model_repository} has no profile {options.profile!r}"
            f"{suggest_name(options.profile, profiles)}; it has {', '.join(profiles)}. "
            "Choose one with --profile NAME."
        )
    present = model_names(options)
    if missing := [name for name in options.load_models if name not in present]:
        raise LauncherSettingsError(
            f"The profile {options.profile} of {options.model_repository} has no model "
            f"{', '.join(missing)}{suggest_name(missing[0], present)}; it has {', '.join(present)}."
        )


def leave_out_absent(
    options: ServerOptions, inherited: Mapping[str, str]
) -> tuple[ServerOptions, dict[str, str]]:
    """Leave out models that would be of no use, unless models are chosen by name.

    These are optional models whose weights are absent, and language models beside an agent that asks one
    elsewhere. A model is optional if its parameter ``optional`` is ``true``.

    Returns:
        The options, and the reason by model.
    """
    if options.load_models:
        return options, {}
    environment = {**inherited, **options.environment}
    absent: dict[str, str] = {}
    folders = model_folders(options)
    unused = _unused_chat_models(options, environment)
    for folder in folders:
        if folder.name in unused:
            absent[folder.name] = ELSEWHERE
            continue
        parameters = read_parameters(folder, options.profile, environment)
        if parameters is None or parameters.text("optional", "") != "true":
            continue
        if reason := absence_of_weights(parameters):
            absent[folder.name] = reason
    if not absent:
        return options, {}
    present = tuple(folder.name for folder in folders if folder.name not in absent)
    return dataclasses.replace(options, load_models=present), absent


def _unused_chat_models(options: ServerOptions, environment: Mapping[str, str]) -> Collection[str]:
    """The language models of this server that no agent names, if its own agent asks one elsewhere."""
    parameters = read_parameters(options.model_repository / AGENT, options.profile, environment)
    if parameters is None:
        return ()
    from parley.agents.folder import named_models  # noqa: PLC0415 - only where there is an agent
    from parley.engines.registry import CHAT_MODELS, REMOTE_CHAT  # noqa: PLC0415

    named = {*parameters.names("llm", "")}
    if REMOTE_CHAT not in named:
        return ()
    folder = find_agents_folder(options, environment)
    return CHAT_MODELS.keys() - named - (named_models(Path(folder)) if folder else set())


def describe_language_model(options: ServerOptions, environment: Mapping[str, str]) -> list[str]:
    """A line if the language model that the server loads is a demonstration."""
    parameters = read_parameters(options.model_repository / "qwen3", options.profile, environment)
    if parameters is None or "qwen3" not in [folder.name for folder in model_folders(options)]:
        return []
    name = Path(environment.get(weights_variable("qwen3")) or parameters.text("weights", "")).name
    advice = ". `parley models --advise` looks for a better one"
    return [f"the language model {name} is {DEMONSTRATION}{advice}"] if is_demonstration(name) else []


def describe_left_out(reasons: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Lines with all models that are left out, and the reason of each that was meant to be there.

    That is one with some of its files, or whose folder a variable of ``environment`` names.
    """
    unused = [model for model, reason in reasons.items() if reason == ELSEWHERE]
    reasons = {model: reason for model, reason in reasons.items() if model not in unused}
    lines = [f"left out, {ELSEWHERE}: {', '.join(unused)}"] if unused else []
    if not reasons:
        return lines
    guides = sorted(set(_GUIDE.findall(" ".join(reasons.values()))))
    where = f" ({', '.join(guides)})" if guides else ""
    meant = [
        reason
        for model, reason in reasons.items()
        if INCOMPLETE in reason or environment.get(weights_variable(model))
    ]
    return [*lines, f"left out, weights are absent: {', '.join(reasons)}{where}", *meant]


def count_instances(folder: Path, profile: str) -> int:
    """Processes of one model; 0 of an ensemble, and 1 where Triton will refuse the configuration anyway."""
    config = read_config(folder, profile)
    if config is None:
        return 1
    if config.platform == _ENSEMBLE:
        return 0
    return sum(max(1, group.count) for group in config.instance_group) or 1


def read_config(folder: Path, profile: str) -> Any:
    """A model's configuration (``ModelConfig``) in a profile; None if Triton will refuse it.

    Like Triton, it falls back to ``config.pbtxt`` where the folder has no file for the profile, as in the
    folder of the control model.
    """
    path = config_path(folder, profile)
    return read_config_file(path if path.exists() else folder / "config.pbtxt")


def compile_entry_points(options: ServerOptions) -> None:
    """Write the byte code of every ``model.py`` now, where its folder is writable.

    Otherwise the interpreter in a model's process writes it while it loads. Triton then takes the model's
    files for changed, and replaces the whole model where one instance was to be replaced.
    """
    for folder in model_folders(options):
        for path in folder.glob("*/*.py"):
            # What cannot be compiled fails where it is loaded, with a better message.
            with contextlib.suppress(OSError, py_compile.PyCompileError):
                py_compile.compile(str(path), doraise=True, quiet=2)


def renew_instances(config: Any, instances: Collection[str]) -> bool:
    """Change a ``ModelConfig`` in place so that Triton replaces these instances and keeps the others.

    Triton 24.10 does so when nothing but groups of instances has changed, and identifies groups by their
    settings, not by their names. It may wait without end for the end of an instance whose process died: only
    the scheduler for sequences leaves that to another thread.

    Returns:
        Whether it is possible; otherwise the configuration is unchanged.
    """
    groups = list(config.instance_group)
    alone = all(group.count <= 1 for group in groups)
    if not config.HasField("sequence_batching") or not alone or not _all_differ(groups):
        return False
    names = {f"{group.name or f'{config.name}_{index}'}_0": group for index, group in enumerate(groups)}
    if not set(instances) <= set(names):
        return False
    for instance in instances:
        # Triton ignores priorities unless it is started with --rate-limit.
        unused = max(group.rate_limiter.priority for group in groups) + 1
        names[instance].rate_limiter.priority = unused
    return True


def renew_model(config: Any, number: int) -> None:
    """Change a configuration so that Triton loads the model anew, while the present one stays loaded."""
    config.parameters["parley_restart"].string_value = str(number)


def _all_differ(groups: Sequence[Any]) -> bool:
    settings = set()
    for group in groups:
        copy = model_config_pb2.ModelInstanceGroup()
        copy.CopyFrom(group)
        copy.ClearField("name")
        copy.ClearField("count")
        settings.add(copy.SerializeToString(deterministic=True))
    return len(settings) == len(groups)


def bring_weights(
    options: ServerOptions, inherited: Mapping[str, str] = os.environ, program: Path = PROGRAM
) -> None:
    """Download and convert what this machine lacks of the profile's weights and ``PARLEY_WEIGHTS_QWEN3``.

    The program reports its downloads on standard error. Nothing is brought where models are chosen one by
    one, nor for a model repository that is not the project's.

    On a machine that may be fast enough for it a larger language model is brought too, and measured.

    Raises:
        SetupIncompleteError: the program failed; it has printed the reason.
        StartInterruptedError: by Ctrl-C.
    """
    own = options.model_repository.resolve() == ROOT / "model_repository"
    if options.profile == TINY_PROFILE or options.load_models or not own or not program.exists():
        return
    environment = {**inherited, **options.environment}
    chosen = environment.get(weights_variable("qwen3"), "")
    known = [chosen] if chosen in KNOWN_MODELS else []
    status = _run([str(program), "--profile", options.profile, "--brief", *known], environment)
    if status == _INTERRUPTED:
        raise StartInterruptedError("The download was interrupted.")
    if status:
        raise SetupIncompleteError(
            f"The profile {options.profile} has not all of its weights; see above and docs/models.md."
        )
    if is_to_measure(options, environment):
        _measure_larger_model(str(program), environment)


def _measure_larger_model(program: str, environment: Mapping[str, str]) -> None:
    """Once on a machine; a failure is printed, and leaves the profile's own model."""
    instead = f"{weights_variable('qwen3')}=qwen2.5-coder-0.5b-w8a8 does without"
    print(f"measuring {LARGEST} on this machine, once ({instead})", file=sys.stderr, flush=True)
    for command in (
        [program, "--brief", LARGEST],
        [sys.executable, "-m", "parley.launcher.advice", "--keep"],
    ):
        if (status := _run(command, environment)) == _INTERRUPTED:
            raise StartInterruptedError("The measurement of the language models was interrupted.")
        if status:
            print("it was not measured: the model of the profile is served", file=sys.stderr, flush=True)
            return


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The program's exit status; an interruption of this process ends the program too."""
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def find_agents_folder(options: ServerOptions, environment: Mapping[str, str]) -> str:
    """Where the model ``voice_agent`` looks for agents; empty: nowhere."""
    settings = read_parameters(options.model_repository / AGENT, options.profile, environment)
    if settings is None:
        return ""
    folder = agents_folder(options.model_repository, settings.text("agents", ""))
    return str(folder.absolute()) if folder.is_dir() else ""

"""The memory plan of the GPU at a start: which models it has room for, and what all processes need of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from parley.canaries.asking import AGENT
from parley.errors import ModelLoadingError
from parley.launcher.errors import LauncherSettingsError
from parley.launcher.models import model_folders
from parley.launcher.options import GPU_PROFILE, ServerOptions
from parley.runtime.gpu_plan import GPU_CLASS_VARIABLE, GpuPlan, find_plan


def find_server_plan(options: ServerOptions, inherited: Mapping[str, str]) -> GpuPlan | None:
    """The plan of this start; None: another profile, no GPU, or no plan is wanted.

    Raises:
        LauncherSettingsError: there is no such class, the GPU is too small, or a model is chosen by name for
            which the plan has no memory.
    """
    if options.profile != GPU_PROFILE:
        return None
    try:
        plan = find_plan({**inherited, **options.environment})
    except ModelLoadingError as error:
        raise LauncherSettingsError(f"{error}.") from error
    refused = sorted(plan.without.intersection(options.load_models)) if plan else []
    if plan and refused:
        raise LauncherSettingsError(
            f"A GPU of the class {plan.name} has no memory for {', '.join(refused)} beside the other models. "
            f"Leave that out, name another class in {GPU_CLASS_VARIABLE}, or set it to none."
        )
    return plan


def follow_plan(options: ServerOptions, plan: GpuPlan) -> tuple[ServerOptions, str]:
    """The options without the models that have no place in the plan, and with its class for all processes.

    Returns:
        They, and a line that says so.
    """
    names = [folder.name for folder in model_folders(options)]
    left = [name for name in names if name in plan.without]
    without = f"; left out, no memory for them: {', '.join(left)}" if left else ""
    sessions = plan.settings.get(AGENT, {}).get("max_sessions", "as configured")
    line = f"memory plan {plan.name}: {sessions} sessions for each instance of {AGENT}{without}"
    environment = {**options.environment, GPU_CLASS_VARIABLE: plan.name}
    models = tuple(name for name in names if name not in left) if left else options.load_models
    return dataclasses.replace(options, load_models=models, environment=environment), line

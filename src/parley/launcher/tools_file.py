"""The file of the server's own tools, looked at before anything is started."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from parley.errors import ModelLoadingError
from parley.launcher.errors import ToolsFileError
from parley.launcher.models import read_parameters
from parley.launcher.options import ServerOptions

_AGENT = "voice_agent"


def check_tools_file(options: ServerOptions, inherited: Mapping[str, str]) -> None:
    """Find what would keep ``voice_agent`` from loading, minutes later and with a trace.

    Args:
        options: of the server.
        inherited: environment that the models get besides that of the options.

    Raises:
        ToolsFileError: the file, or the environment that its headers need, is not usable.
    """
    if options.load_models and _AGENT not in options.load_models:
        return
    parameters = read_parameters(
        options.model_repository / _AGENT, options.profile, {**inherited, **options.environment}
    )
    if parameters is None or not (file := parameters.text("tools_file", "")):
        return
    try:
        asyncio.run(_check(options.model_repository.parent / file, parameters.environment))
    except ModelLoadingError as error:
        raise ToolsFileError(f"The tools of the server are not usable (docs/tools.md): {error}") from error


async def _check(path: Path, environment: Mapping[str, str]) -> None:
    from parley.tools.settings import read_settings  # noqa: PLC0415 - seldom needed
    from parley.tools.toolbox import Toolbox  # noqa: PLC0415 - heavy

    await Toolbox(read_settings(path), environment).close()

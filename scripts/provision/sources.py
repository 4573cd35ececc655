"""Package sources: uv does not read pip's configuration, so it is handed on."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Mapping
from pathlib import Path

from provision.console import SetupError

_SECTIONS = ("global", "install", ":env:")
"""Where pip looks, the weakest first."""
_UV_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")


def read_pip_config(pip: list[str]) -> dict[str, str]:
    """The options that pip itself would use, from its files and from PIP_* variables.

    Args:
        pip: the command that runs pip.
    """
    try:
        answer = subprocess.run(
            [*pip, "config", "list"], capture_output=True, text=True, check=False, timeout=60
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError("pip did not tell its configuration within 60 s.") from error
    return parse_pip_config(answer.stdout)


def parse_pip_config(text: str) -> dict[str, str]:
    """Read the output of ``pip config list``: ``section.option='value'`` per line.

    Raises:
        SetupError: a value is not quoted as pip quotes it.
    """
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if separator and section in sections:
            sections[section][option] = _unquote(value, line)
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged.update(sections[section])
    return merged


def _unquote(value: str, line: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError) as error:
        raise SetupError(f"pip's configuration cannot be understood: {line}") from error


def uv_options(config: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """The same package sources, as options of ``uv pip``.

    Index options are left out where the person has configured uv itself.
    """
    options: list[str] = []
    for place in config.get("find-links", "").split():
        options += ["--find-links", place]
    for host in config.get("trusted-host", "").split():
        options += ["--allow-insecure-host", host]
    if any(environment.get(name) for name in _UV_INDEX_VARIABLES):
        return options
    if config.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return [*options, "--no-index"]
    for url in config.get("extra-index-url", "").split():
        options += ["--index", url]
    if config.get("index-url"):
        options += ["--default-index", config["index-url"]]
    if "--index" in options:
        # pip takes the best version from any index; uv would stop at the first that has the name.
        options += ["--index-strategy", "unsafe-best-match"]
    return options


def uv_environment(config: Mapping[str, str], environment: Mapping[str, str], root: Path) -> dict[str, str]:
    """The environment for uv: pip's certificates and proxy, and a cache inside the checkout."""
    found = dict(environment)
    found.setdefault("UV_CACHE_DIR", str(root / ".cache" / "uv"))
    found.setdefault("UV_PYTHON_INSTALL_DIR", str(root / ".cache" / "python"))
    if config.get("cert"):
        found.setdefault("SSL_CERT_FILE", config["cert"])
    if config.get("proxy"):
        found.setdefault("ALL_PROXY", config["proxy"])
    if config.get("default-timeout") or config.get("timeout"):
        found.setdefault("UV_HTTP_TIMEOUT", config.get("timeout") or config["default-timeout"])
    # A stray virtual environment must not be mistaken for the target.
    found.pop("VIRTUAL_ENV", None)
    found.pop("PYTHONPATH", None)
    return found

"""Environment variables that look like a setting of a model, and that no model reads."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import parley
from parley.launcher.models import read_config_file
from parley.runtime.parameters import Parameters

_READERS = ("text", "choice", "names", "integer", "number", "variable")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CLOSE = 0.7
"""Likeness of a name that may be meant, as ``difflib`` counts it."""
_CODE = Path(parley.__file__).parent


def find_unknown_settings(repository: Path, environment: Mapping[str, str]) -> list[str]:
    """One line for each variable ``PARLEY_<MODEL>_<NAME>`` that names a model and none of its settings.

    A name is a setting if a configuration of the model has it, or if code reads a setting of this name,
    whichever model's it is: what is reported has no effect, but not all that has none is reported.

    Args:
        repository: of the models; those of all profiles count.
        environment: of the server.
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
    if not unclear:
        return []  # as usual; the code need not be read
    sources = list(_sources(repository))
    read = {name.upper() for source in sources for name in _read_names(source)}
    found = []
    for variable, names in sorted(unclear.items()):
        known = names | {prefix + name for prefix in candidates[variable] for name in read}
        if variable not in known and not any(variable in source for source in sources):
            model = folders[max(candidates[variable], key=len)].name
            found.append(_describe(variable, model, known))
    return found


def _describe(variable: str, model: str, known: Collection[str]) -> str:
    prefix = _prefix(model)
    names = sorted(name.removeprefix(prefix) for name in known if name.startswith(prefix))
    close = difflib.get_close_matches(variable.removeprefix(prefix), names, n=1, cutoff=_CLOSE)
    meant = f"; did you mean {prefix}{close[0]}?" if close else ""
    return f"warning: {variable} has no effect: {model} has no such setting{meant}"


def _prefix(model: str) -> str:
    return Parameters(model, {}).variable("")


def _configured(folder: Path) -> set[str]:
    """Names, in capitals, in any configuration of a model."""
    configs = (read_config_file(path) for path in (folder / "config.pbtxt", *folder.glob("configs/*.pbtxt")))
    return {name.upper() for config in configs if config is not None for name in config.parameters}


def _sources(repository: Path) -> Iterator[str]:
    """All code that may read settings."""
    for path in (*_CODE.rglob("*.py"), *repository.glob("*/*/*.py")):
        yield path.read_text(encoding="utf-8", errors="replace")


def _read_names(source: str) -> Iterator[str]:
    """Names that code gives to :class:`Parameters`, or passes on together with it."""
    if "arameters" not in source:
        return
    try:
        tree = ast.parse(source)
    except SyntaxError:  # the model will say so
        return
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        is_reader = isinstance(call.func, ast.Attribute) and call.func.attr in _READERS
        if is_reader or any(map(_is_parameters, call.args)):
            for value in (*call.args, *(keyword.value for keyword in call.keywords)):
                name = value.value if isinstance(value, ast.Constant) else None
                if isinstance(name, str) and _NAME.fullmatch(name):
                    yield name


def _is_parameters(value: ast.expr) -> bool:
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
    return name.endswith("parameters")

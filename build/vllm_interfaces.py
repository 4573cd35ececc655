"""Write down the interfaces of vLLM that Parley uses, as one version's sources have them.

    pip download --no-deps --only-binary=:all: --platform manylinux_2_39_x86_64 vllm==0.33.0
    .venv/bin/python build/vllm_interfaces.py vllm-0.33.0-*.whl

A wheel, a source distribution, or a folder that holds the package ``vllm`` and has the version in its name.
The result goes to ``tests/unit/llm/vllm_interfaces/VERSION.json``, which a test compares with what Parley
uses: write it for the oldest and the newest accepted version, and for the installed one, when
:data:`parley.llm.vllm_api.SYMBOLS` or its uses change. Nothing of vLLM is imported or run.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "tests" / "unit" / "llm" / "vllm_interfaces"
_DEPTH = 12
"""Re-exports that are followed."""

Parameters = list[str]
"""Names of a function's parameters, written as in ``(a, b=, *, c=, **d)``; without ``self``."""
Interface = dict[str, Parameters | str | None]
"""By member: parameters of a function, ``"field"``, or None where there is none."""


class Sources:
    """Modules of a package by name, read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._folder = path if path.is_dir() else None
        self._texts = {} if path.is_dir() else dict(_read_archive(path))
        self._trees: dict[str, ast.Module | None] = {}

    def module(self, name: str) -> ast.Module | None:
        """The parsed module; None: there is none."""
        if name not in self._trees:
            path = name.replace(".", "/")
            text = self._text(f"{path}/__init__.py") or self._text(f"{path}.py")
            self._trees[name] = ast.parse(text) if text else None
        return self._trees[name]

    def is_package(self, name: str) -> bool:
        """Whether relative imports in the module begin in it."""
        return self._text(f"{name.replace('.', '/')}/__init__.py") is not None

    def _text(self, path: str) -> str | None:
        if self._folder is None:
            return self._texts.get(path)
        file = self._folder / path
        return file.read_text() if file.is_file() else None


def _read_archive(path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if name.startswith("vllm/") and name.endswith(".py"):
                    yield name, wheel.read(name).decode()
        return
    with tarfile.open(path) as archive:
        for member in archive:
            _, _, name = member.name.partition("/")
            if member.isfile() and name.startswith("vllm/") and name.endswith(".py"):
                content = archive.extractfile(member)
                assert content is not None  # it is a file
                yield name, content.read().decode()


class Reader:
    """Finds what a name stands for."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def describe(self, place: str, members: list[str]) -> Interface | None:
        """The members of ``module:name``; None: there is no such name."""
        module, _, name = place.partition(":")
        if not name:
            tree = self._sources.module(module)
            return None if tree is None else {one: "field" if _binds(tree, one) else None for one in members}
        found = self._find(module, name)
        if found is None:
            return None
        where, node = found
        if isinstance(node, ast.ClassDef):
            known = self._members(where, node)
            return {one: known.get(one) for one in members}
        if isinstance(node, ast.FunctionDef):
            parameters = self._parameters(node)
            return {one: parameters if not one else None for one in members}
        return dict.fromkeys(members)

    def _find(self, module: str, name: str, depth: int = _DEPTH) -> tuple[str, ast.AST] | None:
        tree = self._sources.module(module)
        if tree is None or not depth:
            return None
        last: tuple[str, ast.AST] | None = None
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=found) | ast.FunctionDef(name=found) if found == name:
                    # The last of several overloads is the implementation.
                    last = (module, node)
                case ast.ImportFrom(names=names) if any((one.asname or one.name) == name for one in names):
                    origin = next(one.name for one in names if (one.asname or one.name) == name)
                    target = self._target(module, node)
                    last = last or self._find(target, origin, depth - 1)
                case ast.Assign(targets=[ast.Name(id=found)], value=ast.Call(func=ast.Name(id=kind))) if (
                    found == name
                ):
                    last = last or self._find(module, kind, depth - 1)
                case ast.Dict(keys=keys, values=values):
                    # A table of names that a module imports when they are asked for.
                    for key, value in zip(keys, values, strict=True):
                        text = getattr(value, "value", None)
                        if getattr(key, "value", None) == name and isinstance(text, str) and ":" in text:
                            target, _, origin = text.partition(":")
                            last = last or self._find(self._absolute(module, target), origin, depth - 1)
        return last

    def _target(self, module: str, node: ast.ImportFrom) -> str:
        return self._absolute(module, "." * node.level + (node.module or ""))

    def _absolute(self, module: str, target: str) -> str:
        level = len(target) - len(target.lstrip("."))
        if not level:
            return target
        parts = module.split(".")
        if self._sources.is_package(module):
            level -= 1
        kept = parts[: len(parts) - level] if level else parts
        return ".".join([*kept, *filter(None, [target.lstrip(".")])])

    def _members(self, module: str, node: ast.ClassDef, depth: int = _DEPTH) -> Interface:
        found: Interface = {}
        for base in reversed(node.bases):
            name = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(name, ast.Name) and depth and (parent := self._find(module, name.id)):
                where, kind = parent
                if isinstance(kind, ast.ClassDef):
                    found |= self._members(where, kind, depth - 1)
        for item in node.body:
            match item:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    is_property = any("property" in ast.unparse(one) for one in item.decorator_list)
                    found[name] = "field" if is_property else self._parameters(item)
                    for part in ast.walk(item):
                        if (
                            isinstance(part, ast.Attribute)
                            and isinstance(part.ctx, ast.Store)
                            and isinstance(part.value, ast.Name)
                            and part.value.id == "self"
                        ):
                            found.setdefault(part.attr, "field")
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found[name] = "field"
                case ast.Assign(targets=targets):
                    found |= {one.id: "field" for one in targets if isinstance(one, ast.Name)}
        return found

    def _parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Parameters:
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args]
        without = len(plain) - len(arguments.defaults)
        found = [one.arg + "=" * (number >= without) for number, one in enumerate(plain)]
        decorators = {ast.unparse(one) for one in node.decorator_list}
        if found and found[0] in ("self", "cls") and "staticmethod" not in decorators:
            found = found[1:]
        if arguments.vararg:
            found.append(f"*{arguments.vararg.arg}")
        elif arguments.kwonlyargs:
            found.append("*")
        found += [
            one.arg + "=" * (default is not None)
            for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ]
        return [*found, f"**{arguments.kwarg.arg}"] if arguments.kwarg else found


def _binds(tree: ast.Module, name: str) -> bool:
    return any(
        isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name
        for node in ast.walk(tree)
    )


def describe_all(
    sources: Sources, places: Mapping[str, str], uses: Mapping[str, Mapping[str, object]]
) -> dict[str, Interface | None]:
    """The interfaces of all that is used, by its name."""
    reader = Reader(sources)
    return {name: reader.describe(place, sorted(uses[name])) for name, place in sorted(places.items())}


def write_record(version: str, interfaces: Mapping[str, Interface | None]) -> Path:
    """Write the file of a version."""
    path = RECORDS / f"{version}.json"
    path.parent.mkdir(exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in interfaces.items())
    path.write_text(f"{{\n{lines}\n}}\n")
    return path


def main(argv: list[str] | None = None) -> int:
    """Describe each of the named sources."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="SOURCE")
    sys.path[:0] = [str(ROOT / "tests" / "unit" / "llm")]
    from vllm_uses import OTHERS, SYMBOLS, USES

    for path in parser.parse_args(argv).sources:
        version = re.search(r"\d+\.\d+\.\d+", path.name)
        if version is None:
            parser.error(f"{path.name} has no version in its name")
        print(write_record(version[0], describe_all(Sources(path), {**SYMBOLS, **OTHERS}, USES)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

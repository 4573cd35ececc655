"""Measures of the project: sizes, imports, names, words; ``make house`` prints them, and ``make check`` too.

The exit status is 1 where a measure is above its budget in ``[tool.house]`` of ``pyproject.toml``. Layers
themselves are contracts of import-linter.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grimp
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "parley": ROOT / "src" / "parley",
    "parley_torch": ROOT / "src" / "parley_torch",
    "parley_gateway": ROOT / "clients" / "gateway" / "parley_gateway",
    "parley_client": ROOT / "clients" / "parley_client",
    "parley_stages": ROOT / "clients" / "parley_stages",
    "parley_testing": ROOT / "clients" / "parley_testing",
}
FOLDERS = ("tests", "perf", "build", "scripts")
PERSONS = re.compile(r"\b(told|nobody|stranger|whoever)\b", re.IGNORECASE)
"""Words for persons, which names and comments of tests used for code."""
TORCH = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """One file of a package."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def package(self) -> str:
        """The folder that it is in, dotted."""
        return self.name.rpartition(".")[0]


def read_modules(package: str, folder: Path) -> Iterator[Module]:
    """Every file of a package, without the model repositories that the launcher brings."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if "repository" in parts:
            continue
        text = path.read_text("utf-8")
        name = ".".join(parts).removesuffix(".__init__")
        yield Module(name, path, ast.parse(text), len(text.splitlines()))


def classes_of(module: Module) -> list[ast.ClassDef]:
    """The public classes of a module."""
    return [
        node for node in module.tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def cycle_of(graph: grimp.ImportGraph) -> list[str]:
    """Modules that import each other in a circle; none if there is no circle."""
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def shared_names(modules: list[Module]) -> dict[str, list[str]]:
    """Public classes whose name another folder uses for something else."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in classes_of(module):
            places[node.name].add(module.package)
    return {name: sorted(used) for name, used in sorted(places.items()) if len(used) > 1}


def texts_of(folder: Path, pattern: str = "*.py") -> list[str]:
    """The files in a folder, without what tools keep there."""
    kept = {"__pycache__", "node_modules"}
    return [path.read_text("utf-8") for path in folder.rglob(pattern) if kept.isdisjoint(path.parts)]


def lines_of(texts: Iterable[str]) -> int:
    """Lines of several files."""
    return sum(len(text.splitlines()) for text in texts)


def main() -> int:
    """Print the measures; the exit status is 1 if one is above its budget."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        budgets: dict[str, int] = tomllib.load(file)["tool"]["house"]
    sys.path[:0] = [str(folder.parent) for folder in PACKAGES.values()]
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    read = {package: list(read_modules(package, folder)) for package, folder in PACKAGES.items()}
    modules = [module for found in read.values() for module in found]
    shared, circle = shared_names(modules), cycle_of(graph)
    texts = {folder: texts_of(ROOT / folder) for folder in FOLDERS}
    measured = {
        **{f"lines-{package}": sum(module.lines for module in found) for package, found in read.items()},
        **{f"lines-{folder}": lines_of(found) for folder, found in texts.items()},
        "files-perf": len(texts["perf"]),
        "files-with-torch": sum(bool(TORCH.search(text)) for text in texts_of(PACKAGES["parley"])),
        "persons-in-tests": sum(
            bool(PERSONS.search(line)) for text in texts["tests"] for line in text.splitlines()
        ),
        "pages-docs": len(list((ROOT / "docs").glob("*.md"))),
        "words-docs": sum(len(text.split()) for text in texts_of(ROOT / "docs", "*.md")),
        "lines-readme": lines_of([(ROOT / "README.md").read_text("utf-8")]),
        "words-contributing": len((ROOT / "CONTRIBUTING.md").read_text("utf-8").split()),
        "shared-names": len(shared),
        "modules-in-a-circle": len(circle),
    }
    table = Table("measure", "today", "budget", title="The size of the project", title_justify="left")
    for name, value in measured.items():
        above = value > budgets[name]
        table.add_row(name, f"{value:,}", f"{budgets[name]:,}", style="bold red" if above else "")
    console = Console()
    console.print(table)
    listed = {
        "shared-names": [f"{name}: {', '.join(where)}" for name, where in shared.items()],
        "modules-in-a-circle": circle,
    }
    above = [name for name, value in measured.items() if value > budgets[name]]
    for name, entries in listed.items():
        if name in above or "--list" in sys.argv[1:]:
            console.print(f"\n{name}:", *entries, sep="\n  ", highlight=False)
    for name in above:
        console.print(
            f"error: {name} is {measured[name]:,}; its budget is {budgets[name]:,}", highlight=False
        )
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())

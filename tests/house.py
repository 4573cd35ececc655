"""Measures of the structure: sizes, imports, names; ``make house`` prints them, and ``make check`` too.

The exit status is 1 where a measure is above its budget in ``[tool.house]`` of ``pyproject.toml``. Layers
themselves are contracts of import-linter.
"""

from __future__ import annotations

import ast
import graphlib
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
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
}
FOLDERS = ("tests", "perf", "build", "scripts")
SMALL = 80
REASON = "Apart because"
"""A small module with one importer says so in its docstring, and why; so does a Protocol with one class."""
# These are what model.py of a folder of the model repository imports: one importer is the rule.
ROOF = ("parley.models.", "parley_torch.models.")


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


def lonely(modules: list[Module], graph: grimp.ImportGraph) -> list[str]:
    """Small modules with one importer and no reason for being apart."""
    found = []
    for module in modules:
        if module.path.name == "__init__.py" or module.lines > SMALL or module.name.startswith(ROOF):
            continue
        importers = graph.find_modules_that_directly_import(module.name)
        if len(importers) == 1 and REASON not in (ast.get_docstring(module.tree) or ""):
            found.append(module.name)
    return found


def cycle_of(graph: grimp.ImportGraph) -> list[str]:
    """Modules that import each other in a circle; none if there is no circle."""
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def methods_of(node: ast.ClassDef) -> frozenset[str]:
    """The public methods that a class defines itself."""
    return frozenset(
        item.name
        for item in node.body
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
        and (not item.name.startswith("_") or item.name == "__call__")
    )


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether a class is a ``typing.Protocol``."""
    names = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(isinstance(name, ast.Name) and name.id == "Protocol" for name in names)


def single_protocols(modules: list[Module]) -> list[str]:
    """Protocols whose methods at most one class of the packages has, and that give no reason."""
    classes = [(module, node) for module in modules for node in ast.walk(module.tree)]
    concrete = [
        methods_of(node) for _, node in classes if isinstance(node, ast.ClassDef) and not is_protocol(node)
    ]
    found = []
    for module, node in classes:
        if not isinstance(node, ast.ClassDef) or not is_protocol(node):
            continue
        wanted = methods_of(node)
        if "__call__" in wanted or REASON in (ast.get_docstring(node) or ""):
            continue  # the type of a function
        if wanted and sum(wanted <= methods for methods in concrete) <= 1:
            found.append(f"{module.name}.{node.name}")
    return found


def shared_names(modules: list[Module]) -> dict[str, list[str]]:
    """Public classes whose name another folder uses for something else."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in classes_of(module):
            places[node.name].add(module.package)
    return {name: sorted(used) for name, used in sorted(places.items()) if len(used) > 1}


def lines_of(folder: Path) -> int:
    """Lines of all Python files in a folder."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py"))


def main() -> int:
    """Print the measures; the exit status is 1 if one is above its budget."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        budgets: dict[str, int] = tomllib.load(file)["tool"]["house"]
    sys.path[:0] = [str(folder.parent) for folder in PACKAGES.values()]
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    read = {package: list(read_modules(package, folder)) for package, folder in PACKAGES.items()}
    modules = [module for found in read.values() for module in found]
    single, shared, circle = single_protocols(modules), shared_names(modules), cycle_of(graph)
    small = lonely(modules, graph)
    measured = {
        **{f"lines-{package}": sum(module.lines for module in found) for package, found in read.items()},
        **{f"lines-{folder}": lines_of(ROOT / folder) for folder in FOLDERS},
        "small-modules": len(small),
        "single-protocols": len(single),
        "shared-names": len(shared),
        "modules-in-a-circle": len(circle),
    }
    table = Table("measure", "today", "budget", title="The structure of the project", title_justify="left")
    for name, value in measured.items():
        above = value > budgets[name]
        table.add_row(name, f"{value:,}", f"{budgets[name]:,}", style="bold red" if above else "")
    console = Console()
    console.print(table)
    listed = {
        "small-modules": small,
        "single-protocols": single,
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

"""The diagrams of docs/architecture.md name what there is."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DIAGRAMS = re.findall(r"```mermaid\nsequenceDiagram\n(.*?)```", PAGE, re.DOTALL)
PARTICIPANT = re.compile(r"participant (\w+) as (\w+)<br/>(\S+)")
MESSAGE = re.compile(r"(\w+)->>(\w+): (\w+)(?: \(.*\))?")


def names_in(tree):
    """What a class or a module defines itself."""
    return {node.name for node in tree.body if hasattr(node, "name")}


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=range(len(DIAGRAMS)))
def test_every_name_of_a_diagram_is_defined_where_it_says(diagram):
    methods = {}
    for alias, name, path in PARTICIPANT.findall(diagram):
        module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        if name == Path(path).stem:
            methods[alias] = names_in(module)
        else:
            assert name in classes, f"{path} has no class {name}"
            methods[alias] = names_in(classes[name])
    messages = [line.strip() for line in diagram.splitlines() if "->>" in line]
    assert messages
    for message in messages:
        match = MESSAGE.fullmatch(message)
        assert match, message
        assert match[1] in methods, message
        assert match[3] in methods[match[2]], message


def test_architecture_page_has_diagrams():
    assert len(DIAGRAMS) == 4

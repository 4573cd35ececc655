"""Commands in the documents that are to be typed in a clone, whose environment need not be activated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parley.python import parley_command

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^(\$ )?(\w+=\S+ )*(.*&& )?parley [a-z]+", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_command_is_called_as_a_clone_has_it(page):
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if all(line.startswith("parley ") for line in block.splitlines()[1:-1]):
            continue  # the list of commands
        assert not _TYPED.search(block), "in a clone it is .venv/bin/parley"


@pytest.mark.parametrize(
    ("in_clone", "on_path", "command"),
    [
        (True, False, ".venv/bin/parley"),
        (True, True, "parley"),
        (False, True, "parley"),
        (False, False, "parley"),
    ],
)
def test_hints_name_the_command_as_it_is_called_here(tmp_path, in_clone, on_path, command):
    own, path = tmp_path / "clone/.venv/bin/parley", tmp_path / "bin/parley"
    for file, is_there in ((own, in_clone), (path, on_path)):
        file.parent.mkdir(parents=True)
        if is_there:
            file.touch(mode=0o755)
    assert parley_command(tmp_path / "clone", {"PATH": str(path.parent)}) == command

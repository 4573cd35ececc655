"""``parley new``: write an agent to begin with."""

from __future__ import annotations

import argparse
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from rich.console import Console

import parley_client
from parley.protocol import AGENT_NAME_RULE
from parley_client.agent_program import is_agent_name
from parley_client.cli import CHECKOUT, PARLEY
from parley_client.errors import ClientError, UsageError

EXAMPLES = """\
  parley new dentist               a folder with a small agent, its tests, and how to go on
  parley new restaurant            a copy of the example of this name
  parley new front-desk --like clinic
                                   a copy of another example"""
HELP = "write a working agent with its tests, to begin with"
_KINDS = ("blank", "restaurant", "clinic", "helpdesk")
_README = """\
# {name}

`{parley} run {name}/{name}.py` serves the agent, on a server that it starts if none runs on this machine.
`{parley} test {name}/{name}.py` runs the scenarios of `{name}.tests.toml` with it.
The guide is docs/your-agent.md of Parley.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("name", metavar="NAME", help="of the agent, and of the folder that is made")
    parser.add_argument(
        "--like",
        choices=_KINDS,
        help="the example that is copied (default: the one of this name, else blank)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the files.

    Raises:
        UsageError: an agent cannot have this name.
        ClientError: the folder is there already or cannot be written, or the examples are not here.
    """
    name: str = args.name
    if not is_agent_name(name):
        raise UsageError(f"{name!r}: {AGENT_NAME_RULE}")
    if name in sys.stdlib_module_names or name in packages_distributions():
        raise UsageError(f"{name!r}: {name}.py would hide the Python module {name}")
    kind = args.like or (name if name in _KINDS else _KINDS[0])
    folder = Path(name)
    try:
        texts = {
            folder / f"{name}{suffix}": (_examples() / f"{kind}{suffix}").read_text(encoding="utf-8")
            for suffix in (".py", ".tests.toml", ".md")
            if (_examples() / f"{kind}{suffix}").is_file()
        }
        folder.mkdir()
        for file, text in texts.items():
            written = text.replace(".venv/bin/parley", PARLEY).replace("examples/agents", name)
            file.write_text(re.sub(rf"\b{kind}(?=\.(?:py|md)\b)", name, written), encoding="utf-8")
        (folder / "README.md").write_text(_README.format(name=name, parley=PARLEY), encoding="utf-8")
    except FileExistsError as error:
        raise ClientError(f"{folder} is there already; nothing was written") from error
    except OSError as error:
        raise ClientError(f"{error.filename}: {error.strerror}") from error
    console.print(f"Written: {', '.join(map(str, texts))}, {name}/README.md. Next:")
    console.print(f"  {PARLEY} run {name}/{name}.py")
    return 0


def _examples() -> Path:
    """The folder of the examples: of the checkout, or that of the wheel.

    Raises:
        ClientError: this is a part of a checkout, as in an image.
    """
    for folder in (CHECKOUT / "examples" / "agents", Path(parley_client.__file__).parent / "examples"):
        if folder.is_dir():
            return folder
    raise ClientError(
        "the examples are not installed here; they are in a checkout, and in the wheel parley-client"
    )

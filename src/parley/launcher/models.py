"""What the model repository holds, as far as a start needs to know."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from parley.launcher.errors import SetupIncompleteError
from parley.launcher.options import ServerOptions

# Triton 24.10 starts a model's process through a shell without quoting: the process dies, and
# Triton waits for it for ever.
_UNSAFE = re.compile(r"[\s\"'`$&|;<>()*?!#~{}\[\]\\]")


def model_folders(options: ServerOptions) -> list[Path]:
    """Folders of the models that will be loaded."""
    folders = [path.parent for path in sorted(options.model_repository.glob("*/config.pbtxt"))]
    return [path for path in folders if not options.load_models or path.name in options.load_models]


def check_models(options: ServerOptions) -> None:
    """Find the obvious mistakes that Triton reports badly.

    Raises:
        SetupIncompleteError: there is no repository, a model that was asked for is not in it, or Triton
            cannot use a folder of this name.
    """
    for folder in (options.model_repository, options.state_dir):
        if found := _UNSAFE.search(str(folder)):
            raise SetupIncompleteError(
                f"Triton cannot work in {folder}, because of the {found[0]!r} in its name. "
                "Move it to a folder without blanks and special characters."
            )
    present = [path.parent.name for path in sorted(options.model_repository.glob("*/config.pbtxt"))]
    if not present:
        raise SetupIncompleteError(
            f"{options.model_repository} is not a model repository: no */config.pbtxt."
        )
    if missing := [name for name in options.load_models if name not in present]:
        raise SetupIncompleteError(
            f"{options.model_repository} has no model {', '.join(missing)}; it has {', '.join(present)}."
        )


def count_instances(folder: Path, profile: str) -> int:
    """Processes of one model. A configuration that Triton will refuse anyway counts as one."""
    custom = folder / "configs" / f"{profile}.pbtxt"
    path = custom if profile and custom.exists() else folder / "config.pbtxt"
    try:
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    except text_format.ParseError:
        return 1
    return sum(max(1, group.count) for group in config.instance_group) or 1

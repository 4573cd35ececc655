"""In place of pip and npm: copies a package from a folder, named first, into the folder that is asked for.

A file ``hang`` in the folder makes it wait; each package that is asked for is noted in ``asked.txt``.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

FLAGS = {"download": "--dest", "pack": "--pack-destination"}


def main():
    shelf, arguments = Path(sys.argv[1]), sys.argv[2:]
    package = arguments[-1]
    with (shelf / "asked.txt").open("a") as asked:
        asked.write(f"{' '.join(arguments)}\n")
    (Path.cwd() / "litter").write_text("what a client leaves behind")
    while (shelf / "hang").exists():
        time.sleep(0.01)
    target = Path(arguments[arguments.index(FLAGS[arguments[0]]) + 1])
    found = list(shelf.glob(f"{package}.*"))
    if not found:
        sys.exit(f"ERROR: no matching distribution for {package}")
    shutil.copy(found[0], target / found[0].name)


if __name__ == "__main__":
    main()

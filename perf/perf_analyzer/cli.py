"""The command."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from harness.report import make_table
from rich.console import Console
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from parley.errors import ParleyError
from parley.launcher import ServerOptions
from parley.launcher.models import leave_out_absent, model_folders, model_names
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.runtime.repository import read_parameters
from parley_client.cli.output import until_closed
from parley_client.cli.own_server import profile_name, running_server
from parley_client.cli.view import make_console
from parley_client.errors import ClientError
from perf_analyzer.export import Figures
from perf_analyzer.inputs import Source
from perf_analyzer.models import DRIVES
from perf_analyzer.runner import RunFailedError, Runner, machine, provide_program

_LEVELS = "1,4,16"
_CHATTERBOX = ("t3", "s3gen", "chatterbox", "voice_enrollment")
_REPOSITORY = ROOT / "model_repository"


@dataclass
class Report:
    """What was measured and what was not."""

    rows: list[tuple[str, int, Figures]] = field(default_factory=list)
    """Model, concurrency, figures."""
    failed: list[tuple[str, int, str]] = field(default_factory=list)
    """Model, concurrency, reason."""
    left_out: dict[str, str] = field(default_factory=dict)
    """By model, or model and concurrency, the reason."""

    def to_json(self, profile: str) -> bytes:
        """All of it, for a file."""
        measured = [
            {"model": model, "concurrency": concurrency, **msgspec.structs.asdict(figures)}
            for model, concurrency, figures in self.rows
        ]
        failed = [
            {"model": model, "concurrency": concurrency, "reason": reason}
            for model, concurrency, reason in self.failed
        ]
        return msgspec.json.encode(
            {
                "machine": machine(),
                "profile": profile,
                "measured": measured,
                "failed": failed,
                "left_out": self.left_out,
            }
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit status is 1 if a run failed, 2 for wrong usage, and 130 after Ctrl-C."""
    args, console = _arguments(argv), make_console()
    return until_closed(lambda: _measure(args, console))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="perf-analyzer", description="Drive the models with Triton's perf_analyzer."
    )
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help=f"of {', '.join(DRIVES)} (default: all that are served)")
    add(
        "--profile",
        type=profile_name,
        metavar="NAME",
        default=TINY_PROFILE,
        help="of the models (default: %(default)s)",
    )
    add("--server", metavar="HOST:PORT", help="gRPC address of a running server (default: one is started)")
    add(
        "--concurrency",
        type=_levels,
        default=_levels(_LEVELS),
        metavar="N,...",
        help=f"requests or sequences at once (default: {_LEVELS})",
    )
    add("--scale", type=float, default=1.0, help="of the number of requests (default: %(default)s)")
    add("--limit", type=float, default=300.0, metavar="SECONDS", help="of a run (default: %(default)s)")
    add(
        "--random-chatterbox",
        action="store_true",
        help=f"start the server with small random weights for {', '.join(_CHATTERBOX)}",
    )
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.models if name not in DRIVES]:
        parser.error(f"there is no model {', '.join(unknown)}; there are {', '.join(DRIVES)}")
    if args.server and args.random_chatterbox:
        parser.error("--random-chatterbox is for a server that is started here")
    return args


def _levels(text: str) -> list[int]:
    levels = [int(part) for part in text.split(",")]
    if min(levels) < 1:
        raise ValueError(text)
    return levels


def _measure(args: argparse.Namespace, console: Console) -> int:
    report = Report()
    try:
        provide_program()
        with tempfile.TemporaryDirectory(prefix="perf-analyzer-") as folder:
            work = Path(folder)
            environment = _random_chatterbox(work / "weights") if args.random_chatterbox else {}
            options = ServerOptions(profile=args.profile, environment=environment)
            _, absent = leave_out_absent(options, os.environ)
            options = _with_models_on_request(options, args.models, absent)
            with _server(args, console, options) as address:
                served = _served(address)
                runner = Runner(address, work, limit_s=args.limit)
                for model in args.models or DRIVES:
                    if model in served:
                        _drive(args, console, runner, report, model)
                    else:
                        report.left_out[model] = _reason(args, model, absent)
    except (ParleyError, ClientError, RunFailedError, OSError, ValueError) as error:
        console.print(f"perf-analyzer: {error}", style="red", markup=False)
        return 1
    _print(console, report, args.profile)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_bytes(report.to_json(args.profile))
    return 1 if report.failed or not report.rows else 0


def _with_models_on_request(
    options: ServerOptions, chosen: Collection[str], absent: Collection[str]
) -> ServerOptions:
    """The options with the models that are loaded only where they are named, if they are to be driven."""
    usual = {folder.name for folder in model_folders(options)}
    extra = [name for name in model_names(options) if name not in usual]
    if not extra or (chosen and not set(extra) & set(chosen)):
        return options
    models = tuple(name for name in (*sorted(usual), *extra) if name not in absent)
    return dataclasses.replace(options, load_models=models)


def _random_chatterbox(folder: Path) -> dict[str, str]:
    """Write small random weights; the settings of a server that uses them, and keeps no voice."""
    # The tests' own support writes them.
    sys.path[:0] = [str(ROOT / "tests" / "triton" / "chatterbox")]
    from chatterbox_weights import write_weights  # noqa: PLC0415

    environment: dict[str, str] = write_weights(folder)
    return environment | {"PARLEY_WEIGHTS_VOICE_ENROLLMENT": str(folder)}


@contextmanager
def _server(args: argparse.Namespace, console: Console, options: ServerOptions) -> Iterator[str]:
    with running_server(
        args.server,
        console,
        "perf-analyzer",
        profile=options.profile,
        environment=options.environment,
        load_models=options.load_models,
    ) as address:
        yield address


def _served(address: str) -> set[str]:
    """The models that the server has ready.

    Raises:
        ClientError: it does not answer.
    """
    client = InferenceServerClient(address)
    try:
        return {model for model in DRIVES if client.is_model_ready(model)}
    except InferenceServerException as error:
        raise ClientError(f"the server at {address} does not answer: {error}") from error
    finally:
        client.close()


def _reason(args: argparse.Namespace, model: str, absent: Mapping[str, str]) -> str:
    """Why a model is not served."""
    if args.server:
        return "the server does not serve it"
    profiles = [path.stem for path in (_REPOSITORY / model / "configs").glob("*.pbtxt")]
    if args.profile not in (*profiles, "gpu"):
        return f"not in the profile {args.profile}"
    return absent.get(model, "not loaded")


def _drive(args: argparse.Namespace, console: Console, runner: Runner, report: Report, model: str) -> None:
    drive = DRIVES[model]
    parameters = read_parameters(_REPOSITORY / model, args.profile, os.environ)
    if parameters is None:
        report.left_out[model] = f"not in the profile {args.profile}"
        return
    steps = drive.make(Source(args.profile, parameters))
    for concurrency in args.concurrency:
        if drive.most and concurrency > drive.most:
            report.left_out[f"{model}, {concurrency} at once"] = f"it refuses more than {drive.most}"
            continue
        try:
            figures = runner.run(model, drive, steps, concurrency, args.scale)
        except RunFailedError as error:
            report.failed.append((model, concurrency, str(error)))
            console.print(f"{model}, {concurrency} at once: {error}", style="red", markup=False)
        else:
            report.rows.append((model, concurrency, figures))
            console.print(f"{model}, {concurrency} at once: {figures.per_second:.1f} per second", style="dim")


def _print(console: Console, report: Report, profile: str) -> None:
    head = ("at once", "requests", "per second", "p50", "p95", "p99", "first p50", "first p95")
    table = make_table(f"perf_analyzer, profile {profile}, {machine()}", "model", *head)
    for model, concurrency, figures in report.rows:
        times: list[Any] = [figures.p50, figures.p95, figures.p99, figures.first_p50, figures.first_p95]
        table.add_row(
            model,
            str(concurrency),
            str(figures.requests),
            f"{figures.per_second:.1f}",
            *("-" if time is None else f"{time:.1f}" for time in times),
        )
    if report.rows:
        console.print(table)
        console.print("Times in ms. What counts as first response: perf/README.md.")
    for model, concurrency, reason in report.failed:
        console.print(f"failed: {model}, {concurrency} at once: {reason}", style="red", markup=False)
    for model, reason in report.left_out.items():
        console.print(f"left out: {model}: {reason}", markup=False)

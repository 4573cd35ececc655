"""The command."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from harness.machine import describe_processor
from harness.report import make_table, write_json
from rich.console import Console
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from parley.errors import ParleyError
from parley.launcher import ServerOptions
from parley.launcher.models import leave_out_absent, model_folders, model_names
from parley.launcher.options import TINY_PROFILE
from parley_client.cli.output import until_closed
from parley_client.cli.own_server import profile_name, running_server
from parley_client.cli.view import make_console
from parley_client.errors import ClientError
from perf_analyzer.export import Figures
from perf_analyzer.inputs import REPOSITORY, drive_of
from perf_analyzer.runner import RunFailedError, Runner, provide_program

_LEVELS = "1,4,16"
_HEAD = ("at once", "requests", "per second", "p50", "p95", "p99", "first p50", "first p95")


@dataclass
class Report:
    """What was measured and what was not."""

    measured: list[tuple[str, int, Figures]] = field(default_factory=list)
    """Model, concurrency, figures."""
    failed: list[tuple[str, int, str]] = field(default_factory=list)
    """Model, concurrency, reason."""
    left_out: dict[str, str] = field(default_factory=dict)
    """By model, the reason."""

    def summary(self, profile: str) -> dict[str, Any]:
        """All of it, for a file."""
        keys = ("model", "concurrency", "reason")
        return {
            "machine": describe_processor(),
            "profile": profile,
            "measured": [
                {"model": model, "concurrency": concurrency, **msgspec.structs.asdict(figures)}
                for model, concurrency, figures in self.measured
            ],
            "failed": [dict(zip(keys, one, strict=True)) for one in self.failed],
            "left_out": self.left_out,
        }

    def print(self, console: Console, profile: str) -> None:
        """Print the table, and what is not in it."""
        table = make_table(
            f"perf_analyzer, profile {profile}, {describe_processor()}; times in ms", "model", *_HEAD
        )
        for model, concurrency, one in self.measured:
            times = (one.p50, one.p95, one.p99, one.first_p50, one.first_p95)
            cells = ("-" if time is None else f"{time:.1f}" for time in times)
            table.add_row(model, str(concurrency), str(one.requests), f"{one.per_second:.1f}", *cells)
        if self.measured:
            console.print(table)
            console.print("What counts as first response: perf/README.md.")
        for model, concurrency, reason in self.failed:
            console.print(f"failed: {model}, {concurrency} at once: {reason}", style="red", markup=False)
        for model, reason in self.left_out.items():
            console.print(f"left out: {model}: {reason}", markup=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit status is 1 if a run failed, 2 for wrong usage, and 130 after Ctrl-C."""
    args, console = _arguments(argv), make_console()
    return until_closed(lambda: _measure(args, console))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    models = sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))
    parser = argparse.ArgumentParser(
        prog="perf-analyzer", description="Drive the models with Triton's perf_analyzer."
    )
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help=f"of {', '.join(models)} (default: all that are served)")
    add("--profile", type=profile_name, metavar="NAME", default=TINY_PROFILE, help="default: %(default)s")
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
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args(argv)
    if unknown := set(args.models) - set(models):
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(models)}")
    args.models = args.models or models
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
        options = ServerOptions(profile=args.profile)
        _, absent = leave_out_absent(options, os.environ)
        options = _with_models_on_request(options, args.models, absent)
        with (
            tempfile.TemporaryDirectory(prefix="perf-analyzer-") as folder,
            running_server(
                args.server,
                console,
                "perf-analyzer",
                profile=options.profile,
                environment=options.environment,
                load_models=options.load_models,
            ) as address,
        ):
            served = _served(address, args.models)
            runner = Runner(address, Path(folder), limit_s=args.limit)
            for model in args.models:
                if model in served:
                    _drive(args, console, runner, report, model)
                else:
                    report.left_out[model] = _reason(args, model, absent)
    except (ParleyError, ClientError, RunFailedError, OSError, ValueError) as error:
        console.print(f"perf-analyzer: {error}", style="red", markup=False)
        return 1
    report.print(console, args.profile)
    if args.json:
        write_json(args.json, report.summary(args.profile))
    return 1 if report.failed or not report.measured else 0


def _with_models_on_request(
    options: ServerOptions, chosen: Collection[str], absent: Collection[str]
) -> ServerOptions:
    """The options with the models that are loaded only where they are named, if they are to be driven."""
    usual = {folder.name for folder in model_folders(options)}
    extra = [name for name in model_names(options) if name not in usual and name in chosen]
    if not extra:
        return options
    models = tuple(name for name in (*sorted(usual), *extra) if name not in absent)
    return dataclasses.replace(options, load_models=models)


def _served(address: str, models: Collection[str]) -> set[str]:
    """The models that the server has ready.

    Raises:
        ClientError: it does not answer.
    """
    client = InferenceServerClient(address)
    try:
        return {model for model in models if client.is_model_ready(model)}
    except InferenceServerException as error:
        raise ClientError(f"the server at {address} does not answer: {error}") from error
    finally:
        client.close()


def _reason(args: argparse.Namespace, model: str, absent: Mapping[str, str]) -> str:
    """Why a model is not served."""
    if args.server:
        return "the server does not serve it"
    profiles = [path.stem for path in (REPOSITORY / model / "configs").glob("*.pbtxt")]
    if args.profile not in (*profiles, "gpu"):
        return f"not in the profile {args.profile}"
    return absent.get(model, "not loaded")


def _drive(args: argparse.Namespace, console: Console, runner: Runner, report: Report, model: str) -> None:
    drive = drive_of(model, args.profile)
    if drive is None:
        report.left_out[model] = "no requests follow from its configuration"
        return
    for concurrency in args.concurrency:
        try:
            figures = runner.run(model, drive, concurrency, args.scale)
        except RunFailedError as error:
            report.failed.append((model, concurrency, str(error)))
            console.print(f"{model}, {concurrency} at once: {error}", style="red", markup=False)
        else:
            report.measured.append((model, concurrency, figures))
            console.print(f"{model}, {concurrency} at once: {figures.per_second:.1f} per second", style="dim")

"""Check a Triton: does it do what Parley relies on, and which workarounds does it still need?

Parley was proven on the Triton of nvidia-pytriton (2.51.0, release 24.10). This starts that, or another one
such as that of NVIDIA's images (--triton /opt/tritonserver), with three small models: no weights, no GPU.

`holds`: what Parley relies on is so. `broken`: it is not, and Parley will not work. `needed`: the fault that
a workaround is for is still there. `not seen`: it did not appear. `undecided`: it did not appear in too few
rounds (300 are needed for a fault of timing).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from parley.errors import ParleyError
from parley.launcher.command import find_installation
from parley.launcher.errors import SetupIncompleteError
from triton_check.probes import PROBES, Finding, run
from triton_check.server import ProbedServer


def main(argv: list[str] | None = None) -> int:
    """Run the probes; 1 if something that Parley relies on is broken, 2 if there is no Triton that starts."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{probe.name}: {probe.about}" for probe in PROBES),
    )
    parser.add_argument(
        "--triton",
        type=Path,
        metavar="DIR",
        help="folder of an installed Triton (default: that of make setup)",
    )
    parser.add_argument(
        "--only", action="append", choices=[probe.name for probe in PROBES], help="repeatable"
    )
    parser.add_argument(
        "--rounds",
        type=_rounds,
        default=20,
        metavar="N",
        help="of probes for faults of timing (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to FILE")
    args = parser.parse_args(argv)
    try:
        installation = find_installation(args.triton)
    except SetupIncompleteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chosen = [probe for probe in PROBES if not args.only or probe.name in args.only]
    found: list[Finding] = []
    version = ""
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="parley-triton-check-") as folder:
        server = ProbedServer(installation, Path(folder))
        try:
            version = server.start()
            print(f"Triton {version}, {installation.tritonserver}")
            for probe in chosen:
                finding = run(probe, server, args.rounds, runner)
                found.append(finding)
                print(f"  {finding.verdict:8}  {finding.name}: {finding.detail}", flush=True)
        except ParleyError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        finally:
            server.stop()
    if args.json:
        args.json.write_text(
            json.dumps({"triton": version, "findings": [asdict(one) for one in found]}, indent=1)
        )
    broken = [finding.name for finding in found if finding.verdict == "broken"]
    print(f"{len(found)} probes; broken: {', '.join(broken) or 'nothing'}")
    return 1 if broken else 0


def _rounds(text: str) -> int:
    """At least one, as an argument."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"a whole number above 0 expected, not {text!r}")
    return int(text)

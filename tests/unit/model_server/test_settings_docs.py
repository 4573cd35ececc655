"""The page of all settings."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODELS = sorted(folder.name for folder in (ROOT / "model_repository").iterdir())


@pytest.fixture(scope="module")
def docs():
    spec = importlib.util.spec_from_file_location("settings_docs", ROOT / "build" / "settings_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_of_settings_is_up_to_date(docs):
    page = (ROOT / "docs" / "settings.md").read_text()
    assert docs.page() == page, "run .venv/bin/python build/settings_docs.py"


@pytest.mark.parametrize("model", MODELS)
def test_every_setting_of_a_model_has_a_meaning(docs, model):
    settings = docs.settings_of(model)
    assert settings
    assert not [name for name, (_, text) in settings.items() if not text]


def test_every_setting_of_the_gateway_has_a_meaning(docs):
    rows = docs.gateway_rows()[2:]
    assert rows
    assert not [row for row in rows if row.endswith("|  |")]

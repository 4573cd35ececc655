"""What a session's language changes in the agent's settings."""

from __future__ import annotations

import pytest

from parley.agent.config import AgentConfig
from parley.agent.languages import localize


@pytest.mark.parametrize(
    ("language", "name", "sorry"), [("es", "Spanish", "Lo siento"), ("fr", "French", "D\u00e9sol\u00e9")]
)
def test_prompt_and_apologies_are_those_of_the_language(language, name, sorry):
    config = localize(AgentConfig(system_prompt="You sell tickets."), language)
    assert config.system_prompt == f"You sell tickets. The user speaks {name}: answer in {name}."
    assert all(text.startswith(sorry) for text in (config.apology, config.acted_apology, config.deaf_apology))


def test_settings_of_the_operator_stay():
    config = localize(AgentConfig(apology="Ay.", deaf_apology=""), "es")
    assert (config.apology, config.deaf_apology) == ("Ay.", "")


@pytest.mark.parametrize("language", ["en", "xx"])
def test_english_and_unknown_languages_change_nothing(language):
    config = AgentConfig(system_prompt="You sell tickets.")
    assert localize(config, language) == config

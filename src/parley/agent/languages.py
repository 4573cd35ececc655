"""What the agent says and asks of the language model in the language of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.agent.config import AgentConfig

NAMES: Mapping[str, str] = {
    "da": "Danish",
    "de": "German",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "sv": "Swedish",
}
"""By primary language, as language models know them."""
_PHRASES: Mapping[str, Mapping[str, str]] = {
    "de": {"hedge": "Da bin ich mir nicht sicher, und ich möchte nicht raten."},
    "es": {
        "hedge": "No estoy seguro de eso y prefiero no adivinar.",
        "apology": "Lo siento, tengo un problema. Repítalo, por favor.",
        "acted_apology": "Lo siento, tuve un problema antes de responder. Quizás lo que pidió ya esté hecho.",
        "deaf_apology": "Lo siento, ahora mismo no le oigo.",
    },
    "fr": {
        "hedge": "Je n'en suis pas sûr et je préfère ne pas deviner.",
        "apology": "Désolé, j'ai un problème. Répétez, s'il vous plaît.",
        "acted_apology": "Désolé, j'ai eu un problème avant de répondre. C'est peut-être déjà fait.",
        "deaf_apology": "Désolé, je ne vous entends pas pour le moment.",
    },
    "it": {"hedge": "Non ne sono sicuro e preferisco non indovinare."},
    "nl": {"hedge": "Dat weet ik niet zeker, en ik wil niet raden."},
    "pt": {"hedge": "Não tenho a certeza e prefiro não adivinhar."},
}
_PARTED = "en"
"""Where a sentence may be parted is known of this language only."""
_DEFAULTS = AgentConfig()


def localize(config: AgentConfig, language: str) -> AgentConfig:
    """The settings of a session in a language.

    Apologies and the like that the operator has not set are those of the language, if there are any; the
    server's prompt asks for answers in it. A session's own prompt has to say that itself.
    """
    translated: dict[str, Any] = {
        name: text
        for name, text in _PHRASES.get(language, {}).items()
        if getattr(config, name) == getattr(_DEFAULTS, name)
    }
    translated["speaks_early"] = config.speaks_early and language == _PARTED
    if language in NAMES:
        name = NAMES[language]
        translated["system_prompt"] = f"{config.system_prompt} The user speaks {name}: answer in {name}."
    return msgspec.structs.replace(config, **translated)

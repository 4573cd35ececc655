"""What is said to endpoints: recordings with their texts, questions, prompts and texts to speak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.recordings import SYNTHETIC, Recording, load_recordings
from harness.stats import spoken_words

from parley.launcher.options import ROOT, TINY_PROFILE
from parley_client.cli.script import ScriptTurn, load_script
from stages.protocols import RATE, Prompt

UTTERANCES = Path(__file__).parent / "utterances.json"
"""Two people who read literature; ``part`` is from the first sound to the last (milliseconds)."""
_SENTENCES = ROOT / "perf" / "voices_sentences.txt"
_SYSTEM = "You are a friendly voice assistant. Keep answers short."
_ASKED = (
    "Hello! What can you do for me?",
    "What is the capital of Japan?",
    "How do I make pancakes?",
    "Who wrote Romeo and Juliet?",
    "Why is the sky blue?",
    "Tell me something about the moon.",
    "What should I do on a rainy day?",
    "How does a bicycle stay upright?",
)
_ASKED_TINY = ("hello", "what can you do", "how do i make pancakes", "thank you", "who are you", "goodbye")


@dataclass(frozen=True)
class Material:
    """All that is said in a benchmark; every list has at least one entry."""

    utterances: Sequence[Recording]
    """For recognisers."""
    prompts: Sequence[Prompt]
    """For language models."""
    texts: Sequence[str]
    """For voices."""
    questions: Sequence[Recording]
    """For whole calls."""
    about: str
    """Where it comes from."""


def load_material(profile: str) -> Material:
    """What the models of a profile understand.

    Those of the profile tiny know a small world and synthetic voices: they get the tests' recordings.

    Raises:
        RecordingError: a recording is missing.
        ScriptError: the questions cannot be read.
    """
    is_tiny = profile == TINY_PROFILE
    chosen = SYNTHETIC if is_tiny else UTTERANCES
    script = ROOT / "examples" / ("conversation.toml" if is_tiny else "open_conversation.toml")
    utterances = load_recordings(chosen)
    seconds = sum(len(one.samples) for one in utterances) / RATE
    words = sum(len(spoken_words(one.text)) for one in utterances)
    kind = "synthetic voices" if is_tiny else "recordings"
    return Material(
        utterances=utterances,
        prompts=[Prompt(_SYSTEM, asked) for asked in (_ASKED_TINY if is_tiny else _ASKED)],
        texts=_SENTENCES.read_text().splitlines(),
        questions=[
            Recording("", turn.text, turn.samples) for turn in load_script(script).turns if _is_plain(turn)
        ],
        about=f"{len(utterances)} utterances ({kind}, {seconds:.0f} s, {words} words) of {chosen.name}",
    )


def _is_plain(turn: ScriptTurn) -> bool:
    """Whether a turn is a question that is spoken after the answer before it."""
    return len(turn.samples) > 0 and turn.barge_in_ms is None

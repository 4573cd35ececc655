"""Requests and replies of the model ``voice_enrollment``.

Tensors in: ``REQUEST`` TYPE_STRING [1] (:data:`VoicesRequest`) and, with :class:`EnrollVoice`,
``AUDIO`` UINT8 [n], the recording's bytes; out, ``REPLY`` TYPE_STRING [1] (:class:`VoicesReply`). A
failed request ends with a Triton error whose text is
:meth:`parley.errors.ParleyError.to_wire`. Imports only what clients have.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Variant = Literal["original", "multilingual", "turbo"]
"""Of a Chatterbox checkpoint."""
MULTILINGUAL = frozenset("ar da de el en es fi fr hi it ko ms nl no pl pt sv sw tr".split())
"""Languages of the multilingual variant; the others speak English."""
FORMAT_VERSION = 1


class VoiceDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Description of a voice for people."""

    name: str = ""
    languages: list[str] = []
    """Languages of the recording, if given. Voices speak every language of the model."""
    description: str = ""
    consent: str = ""
    """The speaker's consent, in the words that were sent with the recording; left out of lists."""
    version: int = FORMAT_VERSION
    checkpoint: str = ""
    """The first 16 hexadecimal digits of the SHA-256 of the networks that made it."""
    variant: Variant = "original"
    """The T3 for which its prompt was cut."""
    reference_s: float = 0.0
    """Seconds of the recording."""
    warnings: list[str] = []
    """Faults of the recording: ``noisy``, ``narrow band``."""


class VoiceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A voice in a list."""

    voice_id: str
    digest: str
    """SHA-256 of its file."""
    prompt_s: float
    """Seconds of S3Gen's reference."""
    built_in: bool = False
    """Whether it came with the weights; such voices cannot be changed."""
    details: VoiceDetails


class EnrollVoice(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="enroll"):
    """Make a voice of the recording in ``AUDIO``, and store it. Repeating the request changes nothing."""

    name: str
    """At most 100 characters."""
    consent: str = ""
    """The speaker's consent, in words; stored with the voice."""
    voice_id: str | None = None
    """1 to 64 of ``a-z 0-9 _ -``. None: made of the name and the recording."""
    languages: list[str] = []
    description: str = ""
    sample_rate: int | None = None
    """Hertz of ``AUDIO`` as mono PCM16 little endian. None: it is a WAV, FLAC or OGG file."""
    replace: bool = False
    """Whether to replace another voice of this id, which needs the permission to delete."""


class ListVoices(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="list"):
    """Ask for all voices, those that came with the weights included."""


class DescribeVoice(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="describe"):
    """Ask for all details of a voice."""

    voice_id: str


class DeleteVoice(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="delete"):
    """Delete a voice. Sessions that use it may go on for a while."""

    voice_id: str


VoicesRequest: TypeAlias = EnrollVoice | ListVoices | DescribeVoice | DeleteVoice


class VoicesReply(msgspec.Struct, frozen=True, kw_only=True):
    """The response to every request."""

    voices: list[VoiceSummary] = []
    """The voice that was made or described; all voices of a list; none after a deletion."""

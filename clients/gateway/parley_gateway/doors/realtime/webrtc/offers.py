"""What an offer must be like before a connection is made of it."""

from __future__ import annotations

from aiortc.sdp import SessionDescription

from parley_gateway.doors.realtime.refusals import Refusal

LARGEST = 65_536
"""Of an offer; browsers send a few thousand (bytes). To read a large one would keep everybody waiting."""
_SECTIONS = 8
"""Each may open sockets of its own."""


def check_offer(offer: str) -> None:
    """Refuse what no connection can come of.

    Raises:
        Refusal: it is too large, no SDP, or has no audio, or no fingerprints.
    """
    if len(offer) > LARGEST:
        raise _refused(f"The offer has {len(offer)} characters; at most {LARGEST} are allowed.")
    try:
        sections = SessionDescription.parse(offer).media
    except Exception as error:
        # The parser raises whatever it stumbles over.
        raise _refused(f"The offer cannot be read: {type(error).__name__}.") from error
    if len(sections) > _SECTIONS:
        raise _refused(f"The offer has {len(sections)} media; at most {_SECTIONS} are allowed.")
    if not any(section.kind == "audio" for section in sections):
        raise _refused("The offer has no audio.")
    if not all(section.dtls is not None and section.dtls.fingerprints for section in sections):
        raise _refused("The offer has media without a fingerprint (a=fingerprint).")


def _refused(message: str) -> Refusal:
    return Refusal(message, code="invalid_offer", param="sdp")

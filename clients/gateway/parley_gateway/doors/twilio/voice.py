"""What Twilio is told to do with a call: TwiML."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

XML = '<?xml version="1.0" encoding="UTF-8"?>'
BUSY = f'{XML}<Response><Reject reason="busy"/></Response>'
"""No further call can be taken."""


def connect_to(stream_url: str) -> str:
    """Connect the call with a stream, both ways; when that ends, so does the call."""
    return f"{XML}<Response><Connect><Stream url={quoteattr(stream_url)}/></Connect></Response>"

"""What a client may want of a single response."""

from __future__ import annotations

from parley_gateway.apis.realtime.client_events import ResponseOptions
from parley_gateway.apis.realtime.server_events import unsupported
from parley_gateway.apis.realtime.session_config import SessionConfig


def check_options(options: ResponseOptions, config: SessionConfig) -> None:
    """Refuse what a single response cannot have for itself; what the session has anyway may be said again.

    Raises:
        Refusal: something in it cannot be done.
    """
    session = config.body
    if options.conversation not in (None, "auto"):
        raise unsupported("Responses outside the conversation are", "response.conversation")
    for name in ("input", "prompt", "tools"):
        value = getattr(options, name)
        if value is not None and value != session.get(name):
            raise unsupported(f"'{name}' of a single response is", f"response.{name}")
    if options.max_output_tokens not in (None, "inf", session["max_output_tokens"]):
        raise unsupported("A limit of a single response is", "response.max_output_tokens")
    modalities = options.output_modalities
    if modalities is not None and (modalities == ["text"]) != config.writes_only:
        what = "A response in another modality than the session's is"
        raise unsupported(what, "response.output_modalities")
    output = options.audio.output or {} if options.audio is not None else {}
    known = session["audio"]["output"]
    if any(value is not None and value != known.get(name) for name, value in output.items()):
        raise unsupported("Audio of a single response that differs is", "response.audio.output")
    if options.tool_choice not in (None, "auto", "none"):
        raise unsupported("A tool choice other than 'auto' or 'none' is", "response.tool_choice")

"""Messages as clients would send them, nearly so, and not at all."""

import base64
import copy
import json
import os

from hypothesis import strategies as st

MESSAGES = int(os.environ.get("PARLEY_FUZZ_MESSAGES", "5000"))
"""In all, to WebSockets; where the variable is set, they are others each time."""
AUDIO = base64.b64encode(b"\x01\x00" * 160).decode()
TOOL = {"type": "function", "name": "get_time", "description": "x", "parameters": {"type": "object"}}
PCM = {"type": "audio/pcm", "rate": 24_000}
STREAM = {"streamSid": "MZ1", "sequenceNumber": "1"}
CALL = {
    "accountSid": "AC1", "callSid": "CA1", "tracks": ["inbound"], "customParameters": {"greeting": "Hi."},
    "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
}  # fmt: skip

TEMPLATES = {
    "sessions": [
        {"type": "text", "text": "hello"},
        {"type": "dtmf", "digits": "12#"},
        {"type": "say", "text": "hello", "interruptible": True, "remember": False},
        {"type": "tool_response", "call_id": "c1", "output": {"time": "12:00"}, "is_error": False},
        {"type": "control", "action": "mute"},
        {"type": "playback", "response_id": "r1", "played_ms": 100},
        {"type": "update", "system_prompt": "x", "vad": {"threshold": 0.5}, "tools": []},
        {"type": "commit"},
        {"type": "discard"},
        {"type": "respond", "system_prompt": None, "use_tools": True},
        {"type": "remember", "role": "user", "text": "x"},
        {"type": "interrupt", "response_id": None},
        {"type": "truncate", "response_id": "r1", "played_ms": 50},
        {"type": "control", "action": "hangup"},
    ],
    "design": [{"type": "tool_response", "request_id": "c1", "result": {"time": "12:00"}}],
    "realtime": [
        {"type": "session.update", "session": {"type": "realtime", "instructions": "x", "tools": [TOOL]}},
        {
            "type": "session.update",
            "session": {
                "type": "realtime",
                "output_modalities": ["audio"],
                "audio": {
                    "input": {
                        "format": PCM,
                        "turn_detection": {
                            "type": "server_vad",
                            "threshold": 0.5,
                            "silence_duration_ms": 300,
                        },
                        "transcription": {"model": "parley", "language": "en"},
                    },
                    "output": {"format": {"type": "audio/pcmu"}, "voice": "en"},
                },
            },
        },
        {
            "type": "session.update",
            "session": {
                "type": "realtime",
                "audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}},
            },
        },
        {"type": "input_audio_buffer.append", "audio": AUDIO},
        {"type": "input_audio_buffer.commit", "event_id": "e1"},
        {"type": "input_audio_buffer.clear"},
        {"type": "output_audio_buffer.clear"},
        {
            "type": "conversation.item.create",
            "previous_item_id": "root",
            "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        },
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": "c1", "output": "{}"},
        },
        {"type": "conversation.item.retrieve", "item_id": "i1"},
        {"type": "conversation.item.delete", "item_id": "i1"},
        {
            "type": "conversation.item.truncate",
            "item_id": "i1",
            "content_index": 0,
            "audio_end_ms": 100,
        },
        {"type": "response.create"},
        {
            "type": "response.create",
            "response": {
                "instructions": "x",
                "output_modalities": ["text"],
                "tools": [],
                "metadata": {"a": "b"},
            },
        },
        {"type": "response.cancel"},
    ],
    "transcription": [
        {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "audio": {"input": {"format": PCM, "transcription": {"model": "parley", "prompt": "x"}}},
            },
        },
        {"type": "input_audio_buffer.append", "audio": AUDIO},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear"},
    ],
    "listen": [{"type": "KeepAlive"}, {"type": "Finalize"}, {"type": "KeepAlive"}, {"type": "CloseStream"}],
    "flux": [
        {
            "type": "Configure",
            "thresholds": {"eot_threshold": 0.7, "eot_timeout_ms": 900},
            "keyterms": ["Anna"],
        },
        {"type": "ForceEndTurn"},
        {"type": "KeepAlive"},
        {"type": "CloseStream"},
    ],
    "converse": [
        {
            "type": "Settings",
            "audio": {"input": {"encoding": "mulaw", "sample_rate": 8000}},
            "agent": {"think": {"functions": [{"name": "f", "parameters": {}}]}, "greeting": "Hi."},
        },
        {"type": "FunctionCallResponse", "id": "c1", "content": "{}"},
        {"type": "InjectAgentMessage", "message": "Hi.", "behavior": "queue"},
        {"type": "InjectUserMessage", "content": "Hi."},
        {"type": "UpdatePrompt", "prompt": "Be kind."},
        {"type": "UpdateSpeak", "speak": {"provider": {"model": "x"}}},
    ],
    "speak": [
        {"type": "Speak", "text": "Hello there. How are you?"},
        {"type": "Flush"},
        {"type": "Clear"},
        {"type": "Speak", "text": "é"},
        {"type": "Close"},
    ],
    "twilio": [
        {"event": "media", **STREAM, "media": {"track": "inbound", "chunk": "1", "payload": AUDIO}},
        {"event": "dtmf", **STREAM, "dtmf": {"track": "inbound_track", "digit": "1"}},
        {"event": "mark", **STREAM, "mark": {"name": "1"}},
        {"event": "weather", **STREAM},
        {"event": "connected", "protocol": "Call", "version": "1.0.0"},
        {"event": "start", **STREAM, "start": CALL},
        {"event": "stop", **STREAM, "stop": {}},
    ],
}
"""What clients send, by API."""

OPENINGS = {
    "converse": [json.dumps({"type": "Settings"})],
    "twilio": [json.dumps({"event": "connected"}), json.dumps({"event": "start", **STREAM, "start": CALL})],
}
"""What an API wants first, so that not every message is refused for the same reason."""

SDP = """v=0\r
o=- 1 2 IN IP4 127.0.0.1\r
s=-\r
t=0 0\r
m=audio 9 UDP/TLS/RTP/SAVPF 111\r
c=IN IP4 0.0.0.0\r
a=ice-ufrag:abcd\r
a=ice-pwd:abcdefghijklmnopqrstuvwx\r
a=setup:actpass\r
a=mid:0\r
a=sendrecv\r
a=rtcp-mux\r
a=rtpmap:111 opus/48000/2\r
"""
"""What a browser offers, without a fingerprint."""
FORM = (
    '--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
    '--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--x--\r\n'
)
BODIES = {
    "/v1/sessions": [
        {"system_prompt": "x", "tools": [], "vad": {"threshold": 0.5}, "voice": "en"},
        {"vad": "design"},
    ],
    "/v1/realtime/client_secrets": [
        {"expires_after": {"anchor": "created_at", "seconds": 60}, "session": message["session"]}
        for message in (*TEMPLATES["realtime"][:3], TEMPLATES["transcription"][0])
    ],
    "/v1/realtime/calls": [{"sdp": "v=0"}],
    "/v1/audio/transcriptions": [{"model": "whisper-1"}],
    "/v1/audio/speech": [
        {"model": "tts-1", "input": "Hello.", "voice": "alloy", "response_format": "pcm", "speed": 1.0}
    ],
    "/v1/chat/completions": [
        {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 5,
            "stream": True,
        },
        {
            "model": "gpt-4o",
            "messages": [
                {"role": "system", "content": "x"},
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
                {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
            ],
            "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}],
            "tool_choice": "auto",
            "temperature": 0.5,
        },
    ],
    "/v1/responses": [
        {"model": "gpt-4o", "input": "hello", "stream": True, "max_output_tokens": 5},
        {
            "model": "gpt-4o",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
                {"type": "function_call", "call_id": "c1", "name": "a", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "1"},
            ],
            "tools": [{"type": "function", "name": "a", "parameters": {"type": "object"}}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []},
            "truncation": "auto",
        },
    ],
    "/v1/listen": [{"url": "http://127.0.0.1/x.wav"}],
    "/v1/speak": [{"text": "Hello."}],
    "/v1/tokens": [{"scopes": ["agent"], "ttl_s": 5, "session_id": "s1", "single_use": True}],
    "/v1/twilio/voice": [{"CallSid": "CA1"}],
    "/v1/twilio/ended": [{"CallSid": "CA1"}],
    "/v1/twilio/dialled": [{"CallSid": "CA1", "DialCallStatus": "busy"}],
    "/v1/twilio/whisper?text=QUFB": [{"CallSid": "CA1"}],
}
"""What clients post, by path."""

# Lone halves of characters, control characters, and others that some program cannot write.
_ODD_TEXTS = st.sampled_from(["\ud800", "\x00", "\u202e", "\u2028", "\U0001d4b3", "", " ", "NaN", "\r\n"])
# What patterns and parsers look at again and again.
_LONG_TEXTS = st.sampled_from(
    [
        (pump * 50_000)[:50_000]
        for pump in ("x", "eyJ", "*", "`", ".", "[", "1-", "http://", " ", "a.a.", "1,")
    ]
)
_TEXTS = st.one_of(st.text(max_size=12), _ODD_TEXTS)
_VALUES = st.one_of(_TEXTS, _LONG_TEXTS)
_NUMBERS = st.one_of(
    st.integers(-3, 70_000),
    st.sampled_from([2**31, 2**63, 10**400, -(2**64), 1e308, float("inf"), float("nan"), 0.1, -0.5]),
)
_JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _VALUES),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXTS, inner, max_size=3)),
    max_leaves=4,
)
_DEEP = "[" * 100_000


def _places(value, path=()):
    """The path of every value inside."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*path, index)
            yield from _places(inner, (*path, index))


@st.composite
def _nearly(draw, template):
    """A message with one value replaced, taken away or added."""
    message = copy.deepcopy(template)
    path = draw(st.sampled_from(list(_places(template))))
    holder = message
    for step in path[:-1]:
        holder = holder[step]
    match draw(st.sampled_from(["replace", "replace", "delete", "add"])):
        case "replace":
            holder[path[-1]] = draw(_JUNK)
        case "delete":
            del holder[path[-1]]
        case "add" if isinstance(holder, dict):
            holder[draw(_TEXTS)] = draw(_JUNK)
    return message


def messages_of(api):
    """One message for an API: text or bytes."""
    return _around(TEMPLATES[api])


def bodies_of(path):
    """The body of a request."""
    wholes = st.sampled_from([SDP, SDP.replace("opus", "x"), SDP[:200], FORM, "--x\r\n", "a=1&b=2"])
    return st.one_of(_around(BODIES[path]), wholes)


def _around(templates):
    templates = st.sampled_from(templates)
    return st.one_of(
        templates.map(json.dumps),
        templates.map(json.dumps),
        templates.flatmap(_nearly).map(json.dumps),
        templates.flatmap(_nearly).map(json.dumps),
        templates.flatmap(_nearly).map(json.dumps),
        _JUNK.map(json.dumps),
        st.text(max_size=20),
        st.sampled_from(["", "{", "null", '{"type":', _DEEP]),
        st.binary(max_size=400),
        st.sampled_from([b"\x00" * 640, b"\x00" * 3_201, b""]),
    )

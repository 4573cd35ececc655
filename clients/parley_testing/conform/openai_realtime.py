"""OpenAI's Realtime protocol by WebSocket, with its GA names."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from parley_testing.conform.checks import Checks
from parley_testing.conform.connection import (
    CheckedSocket,
    Event,
    FailedError,
    RefusedByServerError,
    Samples,
    Target,
    expect,
    expect_speech,
    resample,
    to_base64,
    to_mulaw,
)

CHECKS = Checks()
_RATE = 24_000
_PCM = {"type": "audio/pcm", "rate": _RATE}
_INSTRUCTIONS = "Answer in one short sentence."
_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@asynccontextmanager
async def _open(
    target: Target, *, detection: dict[str, Any] | None = None, **session: Any
) -> AsyncIterator[CheckedSocket]:
    """A session whose settings were taken; without turn detection, and with texts as output."""
    audio: dict[str, Any] = {"input": {"format": _PCM, "turn_detection": detection}}
    audio["input"]["transcription"] = {"model": "whisper-1", "language": "en"}
    settings = {"type": "realtime", "instructions": _INSTRUCTIONS, "output_modalities": ["text"]}
    if session.get("output_modalities") == ["audio"]:
        audio["output"] = {"format": session.pop("output_format", _PCM)}
    query = {"model": target.model} if target.model else {}
    async with target.connect("/v1/realtime", query) as peer:
        await peer.until("session.created")
        await peer.send({"type": "session.update", "session": settings | {"audio": audio} | session})
        await peer.until("session.updated")
        yield peer


async def _add(peer: CheckedSocket, **item: Any) -> Event:
    """Add an item; returns it as the server has it."""
    await peer.send({"type": "conversation.item.create", "item": item})
    # Which of them come is a matter of `item_create` alone; the last one is of the beta.
    event = await peer.until("conversation.item.done", "conversation.item.added", "conversation.item.created")
    added: Event = event["item"]
    return added


async def _say(peer: CheckedSocket, *content: dict[str, Any], **item: Any) -> Event:
    return await _add(peer, type="message", role="user", content=content, **item)


async def _say_text(peer: CheckedSocket, text: str, **item: Any) -> Event:
    return await _say(peer, {"type": "input_text", "text": text}, **item)


async def _respond(peer: CheckedSocket, **response: Any) -> Event:
    await peer.send({"type": "response.create", "response": response})
    done: Event = (await peer.until("response.done"))["response"]
    return done


async def _append(peer: CheckedSocket, samples: Samples) -> None:
    audio = to_base64(resample(samples, _RATE))
    await peer.send({"type": "input_audio_buffer.append", "audio": audio})


def _microphone(peer: CheckedSocket, speech: Samples) -> Any:
    return peer.speaking(lambda samples: _append(peer, samples), speech)


async def _expect_error(peer: CheckedSocket, event: Event) -> Event:
    """The error that answers an event; the session goes on behind it."""
    await peer.send(event)
    error: Event = (await peer.until("error"))["error"]
    expect(error.get("type") and error.get("message"), f"the error lacks type or message: {error}")
    await peer.send({"type": "session.update", "session": {"type": "realtime"}})
    await peer.until("session.updated")
    return error


@CHECKS.add
async def session_created(target: Target) -> None:
    """`session.created` comes first, with id and type of the session."""
    async with target.connect("/v1/realtime", {"model": target.model} if target.model else None) as peer:
        event = await peer.next()
        expect(event["type"] == "session.created", f"first came {event['type']}")
        expect(event.get("event_id"), "the event has no event_id")
        session = event["session"]
        expect(session["type"] == "realtime" and session["id"], f"the session is {session}")


@CHECKS.add
async def session_update(target: Target) -> None:
    """`session.update` changes what it names, and keeps the rest."""
    async with _open(target, tools=[_WEATHER]) as peer:
        await peer.send(
            {"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}}
        )
        session = (await peer.until("session.updated"))["session"]
        expect(session["instructions"] == "Be brief.", f"instructions: {session['instructions']!r}")
        expect([tool["name"] for tool in session["tools"]] == ["get_weather"], "the tools are gone")
        expect(session["output_modalities"] == ["text"], f"modalities: {session['output_modalities']}")


@CHECKS.add
async def unknown_event(target: Target) -> None:
    """An unknown event gets an `error` with its `event_id`, and the session goes on."""
    async with _open(target) as peer:
        error = await _expect_error(peer, {"type": "session.destroy", "event_id": "e1"})
        expect(error.get("event_id") == "e1", f"event_id of the error: {error.get('event_id')}")


@CHECKS.add
async def broken_json(target: Target) -> None:
    """A message that is no JSON gets an `error`, and the session goes on."""
    async with _open(target) as peer:
        await peer.socket.send("{")
        await peer.until("error")
        await _say_text(peer, "Hello.")


@CHECKS.add
async def wrong_value(target: Target) -> None:
    """A setting with a wrong type gets an `error` that names it in `param`."""
    async with _open(target) as peer:
        wrong = {"type": "realtime", "output_modalities": "loud"}
        error = await _expect_error(peer, {"type": "session.update", "session": wrong})
        expect("output_modalities" in str(error.get("param")), f"param: {error.get('param')}")


@CHECKS.add
async def item_create(target: Target) -> None:
    """`conversation.item.create` keeps the client's id; `added` and `done` name the item before it."""
    async with _open(target) as peer:
        first = await _say_text(peer, "Hello.", id="item_one")
        expect(first["id"] == "item_one", f"the id is {first['id']}")
        await _say_text(peer, "How are you?", id="item_two")
        added = await peer.until("conversation.item.done", fits=lambda one: one["item"]["id"] == "item_two")
        expect(added["previous_item_id"] == "item_one", f"previous: {added['previous_item_id']}")


@CHECKS.add
async def item_twice(target: Target) -> None:
    """A second item with the same id gets an `error`."""
    async with _open(target) as peer:
        item = await _say_text(peer, "Hello.", id="item_one")
        again = {"type": "message", "role": "user", "id": item["id"], "content": item["content"]}
        await _expect_error(peer, {"type": "conversation.item.create", "item": again})


@CHECKS.add
async def item_retrieve(target: Target) -> None:
    """`conversation.item.retrieve` gives an item back."""
    async with _open(target) as peer:
        said = await _say_text(peer, "Hello.")
        await peer.send({"type": "conversation.item.retrieve", "item_id": said["id"]})
        item = (await peer.until("conversation.item.retrieved"))["item"]
        expect(item["content"][0]["text"] == "Hello.", f"the item is {item}")


@CHECKS.add
async def item_delete(target: Target) -> None:
    """`conversation.item.delete` removes an answer that was spoken, once: then it gets an `error`."""
    async with _open(target, output_modalities=["audio"]) as peer:
        await _say_text(peer, "Hello.")
        answer = (await _respond(peer))["output"][0]
        await _delete(peer, answer["id"])
        await _expect_error(peer, {"type": "conversation.item.delete", "item_id": answer["id"]})


@CHECKS.add
async def item_delete_user(target: Target) -> None:
    """`conversation.item.delete` removes what the user said."""
    async with _open(target) as peer:
        await _delete(peer, (await _say_text(peer, "Hello."))["id"])


async def _delete(peer: CheckedSocket, item_id: str) -> None:
    await peer.send({"type": "conversation.item.delete", "item_id": item_id})
    deleted = await peer.until("conversation.item.deleted")
    expect(deleted["item_id"] == item_id, f"deleted: {deleted['item_id']}")


@CHECKS.add
async def text_response(target: Target) -> None:
    """A response as text: its events come in order, and its deltas make up its text."""
    async with _open(target) as peer:
        await _say_text(peer, "Hello.")
        start = len(peer.events)
        done = await _respond(peer)
        expect(done["status"] == "completed", f"the response is {done['status']}")
        names = [event["type"] for event in peer.events[start:]]
        order = [one for one in names if one.startswith("response.") and not one.endswith(".delta")]
        expected = (
            "response.created response.output_item.added response.content_part.added "
            "response.output_text.done response.content_part.done response.output_item.done response.done"
        )
        expect(order == expected.split(), f"the order is {', '.join(order)}")
        deltas = "".join(event["delta"] for event in peer.named("response.output_text.delta"))
        text = peer.named("response.output_text.done")[-1]["text"]
        expect(deltas == text and text, f"deltas {deltas!r}, text {text!r}")
        expect(done["output"][0]["content"][0]["text"] == text, "response.done has another text")
        expect(done["usage"]["output_tokens"] > 0, f"usage: {done['usage']}")


@CHECKS.add
async def response_metadata(target: Target) -> None:
    """`metadata` of `response.create` comes back."""
    async with _open(target) as peer:
        await _say_text(peer, "Hello.")
        done = await _respond(peer, metadata={"topic": "greeting"})
        expect(done["metadata"]["topic"] == "greeting", f"metadata: {done['metadata']}")


@CHECKS.add
async def audio_response(target: Target) -> None:
    """A response as audio has a transcript and audible PCM at 24 kHz."""
    async with _open(target, output_modalities=["audio"]) as peer:
        await _say_text(peer, "Hello.")
        await _respond(peer)
        audio = b"".join(base64.b64decode(one["delta"]) for one in peer.named("response.output_audio.delta"))
        expect_speech(audio, _RATE)
        deltas = "".join(event["delta"] for event in peer.named("response.output_audio_transcript.delta"))
        done = peer.named("response.output_audio_transcript.done")[-1]["transcript"]
        expect(deltas.strip() == done.strip() and done, f"deltas {deltas!r}, transcript {done!r}")
        expect(peer.named("response.output_audio.done"), "no response.output_audio.done came")


@CHECKS.add
async def mulaw_response(target: Target) -> None:
    """Audio comes as G.711 where `audio/pcmu` is the format."""
    async with _open(target, output_modalities=["audio"], output_format={"type": "audio/pcmu"}) as peer:
        await _say_text(peer, "Hello.")
        await _respond(peer)
        audio = b"".join(base64.b64decode(one["delta"]) for one in peer.named("response.output_audio.delta"))
        expect_speech(audio, 8_000, "mulaw")


@CHECKS.add
async def committed_audio(target: Target) -> None:
    """Without turn detection `input_audio_buffer.commit` makes an item, and its text follows."""
    async with _open(target) as peer:
        await _append(peer, target.question)
        await peer.send({"type": "input_audio_buffer.commit"})
        committed = await peer.until("input_audio_buffer.committed")
        text = await peer.until("conversation.item.input_audio_transcription.completed")
        expect(text["item_id"] == committed["item_id"], "the text is another item's")
        expect(text["transcript"].strip(), "the transcript is empty")


@CHECKS.add
async def mulaw_input(target: Target) -> None:
    """Audio is taken as G.711 where `audio/pcmu` is the format."""
    async with _open(target) as peer:
        audio = {"input": {"format": {"type": "audio/pcmu"}}}
        await peer.send({"type": "session.update", "session": {"type": "realtime", "audio": audio}})
        await peer.until("session.updated")
        payload = to_base64(to_mulaw(target.question))
        await peer.send({"type": "input_audio_buffer.append", "audio": payload})
        await peer.send({"type": "input_audio_buffer.commit"})
        text = await peer.until("conversation.item.input_audio_transcription.completed")
        expect(text["transcript"].strip(), "the transcript is empty")


@CHECKS.add
async def empty_commit(target: Target) -> None:
    """A commit without audio, also after `clear`, gets the error `input_audio_buffer_commit_empty`."""
    async with _open(target) as peer:
        await _append(peer, target.question)
        await peer.send({"type": "input_audio_buffer.clear"})
        await peer.until("input_audio_buffer.cleared")
        error = await _expect_error(peer, {"type": "input_audio_buffer.commit"})
        expect(error.get("code") == "input_audio_buffer_commit_empty", f"code: {error.get('code')}")


@CHECKS.add
async def server_vad(target: Target) -> None:
    """With `server_vad` speech is found, committed, written down and answered."""
    async with (
        _open(target, detection={"type": "server_vad"}) as peer,
        _microphone(peer, target.question),
    ):
        started = await peer.until("input_audio_buffer.speech_started")
        stopped = await peer.until("input_audio_buffer.speech_stopped")
        expect(stopped["audio_end_ms"] > started["audio_start_ms"], "the speech ends before it begins")
        committed = await peer.until("input_audio_buffer.committed")
        expect(committed["item_id"] == started["item_id"], "another item is committed")
        done = await peer.until("response.done")
        expect(done["response"]["status"] == "completed", f"the response is {done['response']['status']}")
        if not peer.named("conversation.item.input_audio_transcription.completed"):
            await peer.until("conversation.item.input_audio_transcription.completed")


@CHECKS.add
async def no_response(target: Target) -> None:
    """With `create_response: false` nothing answers until `response.create`."""
    detection = {"type": "server_vad", "create_response": False}
    async with _open(target, detection=detection) as peer, _microphone(peer, target.question):
        await peer.until("conversation.item.input_audio_transcription.completed")
        await asyncio.sleep(2)
        expect(not peer.named("response.created"), "a response came")
        await _respond(peer)


@CHECKS.add
async def interruption(target: Target) -> None:
    """Speech over an answer cancels it with the reason `turn_detected`."""
    async with _open(target, detection={"type": "server_vad"}, output_modalities=["audio"]) as peer:
        await _say_text(peer, "Tell me a story.")
        await peer.send({"type": "response.create"})
        await peer.until("response.output_audio.delta")
        async with _microphone(peer, target.question):
            done = (await peer.until("response.done"))["response"]
        expect(done["status"] == "cancelled", f"the response is {done['status']}")
        reason = (done.get("status_details") or {}).get("reason")
        expect(reason == "turn_detected", f"the reason is {reason}")


@CHECKS.add
async def response_cancel(target: Target) -> None:
    """`response.cancel` stops a response, and gets an `error` where there is none."""
    async with _open(target, output_modalities=["audio"]) as peer:
        await _say_text(peer, "Tell me a story.")
        await peer.send({"type": "response.create"})
        await peer.until("response.output_audio.delta")
        await peer.send({"type": "response.cancel"})
        done = (await peer.until("response.done"))["response"]
        expect(done["status"] == "cancelled", f"the response is {done['status']}")
        await _expect_error(peer, {"type": "response.cancel"})


@CHECKS.add
async def item_truncate(target: Target) -> None:
    """`conversation.item.truncate` cuts an answer."""
    async with _open(target, output_modalities=["audio"]) as peer:
        await _say_text(peer, "Hello.")
        item = (await _respond(peer))["output"][0]
        cut = {"item_id": item["id"], "content_index": 0, "audio_end_ms": 100}
        await peer.send({"type": "conversation.item.truncate"} | cut)
        truncated = await peer.until("conversation.item.truncated")
        expect(truncated["audio_end_ms"] == 100, f"cut at {truncated['audio_end_ms']} ms")


@CHECKS.add
async def function_call(target: Target) -> None:
    """A forced function is called, and its output is answered."""
    forced = {"type": "function", "name": "get_weather"}
    async with _open(target, tools=[_WEATHER]) as peer:
        await _say_text(peer, "What's the weather like in Paris?")
        call = (await _respond(peer, tool_choice=forced))["output"][-1]
        expect(call["type"] == "function_call" and call["name"] == "get_weather", f"the output is {call}")
        arguments = peer.named("response.function_call_arguments.done")[-1]["arguments"]
        deltas = "".join(event["delta"] for event in peer.named("response.function_call_arguments.delta"))
        expect(arguments == deltas == call["arguments"], f"arguments {arguments!r}, deltas {deltas!r}")
        await _add(peer, type="function_call_output", call_id=call["call_id"], output='{"celsius": 8}')
        answer = await _respond(peer)
        expect(answer["output"][-1]["type"] == "message", f"the output is {answer['output']}")


@CHECKS.add
async def out_of_band(target: Target) -> None:
    """A response with `conversation: "none"` leaves the conversation as it is."""
    async with _open(target) as peer:
        said = await _say_text(peer, "Hello.")
        content = [{"type": "input_text", "text": "Say yes."}]
        done = await _respond(
            peer,
            conversation="none",
            input=[{"type": "message", "role": "user", "content": content}],
            output_modalities=["text"],
        )
        expect(done["status"] == "completed" and done["output"], f"the response is {done}")
        items = {one["item"]["id"] for one in peer.events if one["type"].startswith("conversation.item.")}
        expect(items == {said["id"]}, f"the items are {items}")


@CHECKS.add
async def token_limit(target: Target) -> None:
    """`max_output_tokens` makes a response `incomplete`."""
    async with _open(target, max_output_tokens=1) as peer:
        await _say_text(peer, "Tell me a story.")
        done = await _respond(peer)
        reason = (done.get("status_details") or {}).get("reason")
        expect((done["status"], reason) == ("incomplete", "max_output_tokens"), f"{done['status']}, {reason}")


@CHECKS.add
async def idle_timeout(target: Target) -> None:
    """After `idle_timeout_ms` without speech `input_audio_buffer.timeout_triggered` and a response come."""
    detection = {"type": "server_vad", "idle_timeout_ms": 5_000}
    async with _open(target, detection=detection, output_modalities=["audio"]) as peer:
        await _say_text(peer, "Hello.")
        async with _microphone(peer, target.speech[:0]):
            await _respond(peer)
            await peer.until("input_audio_buffer.timeout_triggered")
            await peer.until("response.done")


@CHECKS.add
async def transcription_session(target: Target) -> None:
    """A session of the type `transcription` writes speech down and answers nothing."""
    audio = {"input": {"format": _PCM, "transcription": {"model": "whisper-1", "language": "en"}}}
    async with target.connect("/v1/realtime", {"intent": "transcription"}) as peer:
        await peer.until("session.created")
        await peer.send({"type": "session.update", "session": {"type": "transcription", "audio": audio}})
        await peer.until("session.updated")
        async with _microphone(peer, target.question):
            text = await peer.until("conversation.item.input_audio_transcription.completed")
        expect(text["transcript"].strip(), "the transcript is empty")
        expect(not peer.named("response.created"), "a response came")


@CHECKS.add
async def client_secret(target: Target) -> None:
    """`POST /v1/realtime/client_secrets` gives a secret that opens a session with its settings."""
    session = {"type": "realtime", "instructions": "Be brief.", "output_modalities": ["text"]}
    answer = await target.request("POST", "/v1/realtime/client_secrets", json={"session": session})
    secret = answer.json()["value"]
    headless = Target(target.url, target.speech, secret, within_s=target.within_s)
    async with headless.connect("/v1/realtime") as peer:
        created = (await peer.until("session.created"))["session"]
        expect(created["instructions"] == "Be brief.", f"instructions: {created['instructions']!r}")


@CHECKS.add
async def image_item(target: Target) -> None:
    """An image is taken as a user's content."""
    pixel = (
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
        "RU5ErkJggg=="
    )
    async with _open(target) as peer:
        await _say(peer, {"type": "input_image", "image_url": pixel})


@CHECKS.add
async def audio_item(target: Target) -> None:
    """Audio is taken as a user's content."""
    async with _open(target) as peer:
        await _say(peer, {"type": "input_audio", "audio": to_base64(resample(target.question, _RATE))})
        await _respond(peer)


@CHECKS.add
async def beta_names(target: Target) -> None:
    """`OpenAI-Beta: realtime=v1`, which has ended, is not taken for today's protocol."""
    try:
        async with target.connect("/v1/realtime", {"model": target.model or "gpt-realtime"}) as peer:
            await peer.send({"type": "session.update", "session": {"modalities": ["text"]}})
            await peer.until("session.updated")
    except RefusedByServerError as error:
        expect(error.status in (0, 400, 426), str(error))
        return
    raise FailedError("a session.update with the beta's names was taken")

"""The largest values of a type, each large in one place: a long text, many items, deep nesting."""

import msgspec
from msgspec import Raw, inspect

MOST_LEVELS = 5
TEXTS = {
    "one long word": "x",
    "short sentences": "a. ",
    "punctuation": ".,;:!?",
    "digits": "1234567890 ",
    "not ASCII": "é€ 𝄞ß ",
    "control characters": "\u0001\n",
    "markup": "<a>[b](c) *d* ",
}
"""What a text repeats."""
FEW_TEXTS = ("short sentences", "not ASCII")
"""Of fields inside of others."""


def text(name, size):
    """A text of about as many bytes in JSON."""
    pump = TEXTS[name]
    return pump * (size // (len(msgspec.json.encode(pump)) - 2))


def large_texts(size, most=None, names=TEXTS):
    """Texts of :data:`TEXTS`; ``most`` characters if there is a limit."""
    for name in names:
        yield name, text(name, size)[:most]


def large_json(size, *, few=False):
    """JSON of any kind."""
    half = size // 2
    yield "many lists", Raw(b"[" + b",".join([b"[]"] * (size // 3)) + b"]")
    yield "many numbers", Raw(b"[" + b",".join([b"1"] * half) + b"]")
    if few:
        return
    yield "a long word", "x" * size
    yield "many names", {str(number): 0 for number in range(size // 12)}
    yield "deep lists", Raw(b"[" * half + b"]" * half)
    yield "deep objects", Raw(b'{"a":' * (size // 6) + b"0" + b"}" * (size // 6))
    yield "as deep as is allowed", Raw(b"[" + b",".join([b"[" * 40 + b"]" * 40] * (size // 81)) + b"]")
    yield "one number", Raw(b"9" * size)


GIVEN = {
    "Item.type": "message",
    "Item.role": "user",
    "Content.type": "input_text",
    "FunctionTool.name": "look_up",
    "ChatRequest.model": "qwen3",
    "SpeechRequest.model": "espeak",
    "Message.tool_call_id": "call-1",
    "ChatMessage.role": "user",
}
"""Fields whose smallest value would be refused before the others are looked at."""


def large_values(kind, size):
    """Values of a type, by where and how each is large.

    Args:
        kind: The type, as annotated.
        size: Of each as JSON, about (bytes).
    """
    yield from _large(inspect.type_info(kind), size, MOST_LEVELS)


def _large(kind, size, levels):  # noqa: C901, PLR0912 - one case for each kind of type
    if not levels:
        return
    is_outer = levels >= MOST_LEVELS - 1
    match kind:
        case inspect.StrType():
            yield from large_texts(size, kind.max_length, TEXTS if is_outer else FEW_TEXTS)
        case inspect.AnyType() | inspect.DictType(value_type=inspect.AnyType()):
            is_object = isinstance(kind, inspect.DictType)
            wanted = large_json(size, few=not (is_outer and is_object))
            if is_object:
                wanted = ((name, {"a": value}) for name, value in wanted)
            yield from wanted
        case inspect.DictType():
            value = smallest(kind.value_type)
            count = size // (len(msgspec.json.encode(value)) + 10)
            yield "many names", {str(number): value for number in range(count)}
            for where, value in _large(kind.value_type, size, levels - 1):
                yield f"value, {where}", {"a": value}
        case inspect.ListType() | inspect.VarTupleType():
            item = smallest(kind.item_type)
            yield "many items", [item] * (size // (len(msgspec.json.encode(item)) + 1))
            for where, value in _large(kind.item_type, size, levels - 1):
                yield f"item, {where}", [value]
        case inspect.StructType():
            for field in kind.fields:
                for where, value in _large(field.type, size, levels - 1):
                    yield f"{field.encode_name}, {where}", _with(kind, field, value)
            if is_outer and not kind.forbid_unknown_fields:
                for where, value in large_json(size):
                    yield f"unknown field, {where}", smallest(kind) | {"parley_unknown": value}
        case inspect.UnionType():
            for one in kind.types:
                yield from _large(one, size, levels)
        case inspect.IntType() | inspect.FloatType():
            yield "one number", Raw(b"9" * size)
        case inspect.Metadata():
            yield from _large(kind.type, size, levels)


def smallest(kind):  # noqa: PLR0911 - one case for each kind of type
    """The smallest valid value of a type, in JSON's types."""
    match kind:
        case inspect.StrType():
            return "a" * (kind.min_length or 0)
        case inspect.IntType() | inspect.FloatType():
            return 0 if kind.ge is None and kind.gt is None else int(kind.ge or kind.gt + 1)
        case inspect.BoolType():
            return False
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.DictType():
            return {}
        case inspect.ListType() | inspect.VarTupleType():
            return [smallest(kind.item_type)] * (kind.min_length or 0)
        case inspect.StructType():
            return _with(kind)
        case inspect.UnionType():
            return None if kind.includes_none else smallest(kind.types[0])
        case inspect.Metadata():
            return smallest(kind.type)
        case _:
            return None


def _with(kind, field=None, value=None):
    """The smallest object, with one field that has a value."""
    made = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
    for one in kind.fields:
        name = f"{kind.cls.__name__}.{one.name}"
        if name in GIVEN or one.required:
            made[one.encode_name] = GIVEN[name] if name in GIVEN else smallest(one.type)
    if field is not None:
        made[field.encode_name] = value
    return made

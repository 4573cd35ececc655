"""What a user has said as a value of a field."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time

from parley.agent.collecting.checks import CHECKS, PLACES, fits, places_of, write
from parley.agent.collecting.distance import distances
from parley.agent.collecting.spelling import SIGNS, WORDS, Group, Spelled, combine, hypotheses, spell
from parley.asr.itn import inverse_normalizer
from parley.protocol import CollectField, CollectKind
from parley.spoken import read_day, read_time

MAX_TEXT = 600
"""Characters of one turn that are read; the rest is left out."""
_MARGIN = 1.5
"""A value is sure if the next one that is possible costs so much more (nepers)."""
_MOST_DISTANCE = 0.34
"""Of a known value, in changes for each of its characters."""
_LEAST_AHEAD = 0.15
"""The nearest known value is sure if the next one is farther by so much."""
_MOST_COMPARED = 100
"""Characters that are compared with known values."""
_MOST_WORDS = 6
_TELEPHONE = range(3, 16)
_LEAST_SPELLED = 3
_LEAD = re.compile(
    r"^(?:(?:well|yes|yeah|sure|okay|hi|hello|so|uh|um|er|it'?s|it is|that'?s|that is|this is|i'?m|i am|the|"
    r"my|(?:full |first |last |family |sur)?name|is|called|under|make it|no|sorry|actually|here)\b[\s,.!]*)+",
    re.IGNORECASE,
)
_NAME_IS = re.compile(r"\A.*\bname is\b", re.IGNORECASE)
_SPELLED = re.compile(
    r"\b(?:(?:that'?s|it'?s|that is|is|i) )?(?:spelled|spelt|spell(?: it)?|spelling)\b", re.IGNORECASE
)
_WORDS = re.compile(r"[a-z]+|[0-9]+")
_NO_NUMBERS = re.compile(r"\b(?:for|or|to|too|won|ate)\b")
"""Words that sound like numbers."""
_AT = re.compile(r"\bat\b|@", re.IGNORECASE)
_PART_OF_HOST = re.compile(r"(?:\bdot |\.(?=\w))\w+", re.IGNORECASE)
_AT_SIGN = re.compile(r"\bat the rate(?: of)?\b|\bat sign\b", re.IGNORECASE)
_SINGLE_LETTER = re.compile(r"\b([a-z])(?:\s*[-,]\s*|\s+)(?=[a-z]\b)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=\w\w)[.!?]\s+|[.!?]\s+(?=\w\w)")
"""Behind or before a word, not between letters."""
_INITIAL = re.compile(r"\b([A-Z])\.(?= )")
_BEFORE_EMAIL = re.compile(r"^(?:my |the |is |e-?mail |mail |address |it'?s )+")
_EMAIL_SIGN = re.compile(r"(\b(?:at|dot|period|underscore|dash|hyphen|plus)\b|[@_+]|\.(?=\w)|\s-\s)")
_SAID_SIGN = re.compile(rf"(\b(?:{'|'.join(SIGNS)})\b|[_+]|(?<=[a-z]{{3}})\.(?=\w))")
"""Between letters with words, whose full stops are no signs."""
_DOTS = re.compile(r"\.{2,}")
_EMAIL_WORD = re.compile(r"[^\W_]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_LIKE_GMAIL = frozenset({"game", "gain", "gmale", "gmall"})
"""What recognisers write for the largest provider; who means another host spells it."""
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+){1,6}")
_DECIMAL = re.compile(r"-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
_SIGNS = SIGNS | {sign: sign for sign in "@._-+"}
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
_write_email = inverse_normalizer("en")


@dataclass(frozen=True)
class UserAnswer:
    """A turn of the user."""

    text: str
    confidence: float = 1.0
    """Of the recogniser, 0-1; 1 for keys and typed text."""
    alternatives: tuple[str, ...] = ()
    """Other hypotheses of the recogniser, the likeliest first."""


@dataclass(frozen=True)
class Doubt:
    """What has to be asked."""

    one: str
    other: str
    place: int = -1
    """Of the letter or digit in the value; -1: the whole value is ``one`` or ``other``."""


@dataclass(frozen=True)
class ReadValue:
    """A text read as a value."""

    value: str = ""
    """Empty: it is none, or not a possible one."""
    doubt: Doubt | None = None
    spelled: Spelled | None = None
    """Its letters and digits, where it has any."""
    tried: bool = False
    """Whether the user has tried to say a value."""

    def repeats(self, value: str, text: str) -> bool:
        """Whether the text spells a name that was read as ``value`` before."""
        if self.spelled is None:
            return False
        return bool(_SPELLED.search(text)) or find_like(value.split(), self.spelled.text) is not None


def read(field: CollectField, heard: UserAnswer, today: date, earlier: Spelled | None = None) -> ReadValue:
    """Read what was said.

    Args:
        field: what is asked for.
        heard: what the recogniser has written.
        today: for dates such as "tomorrow".
        earlier: letters and digits of an earlier try, which are combined with these.
    """
    text = heard.text[:MAX_TEXT].strip()
    readers: Mapping[CollectKind, Callable[[], ReadValue]] = {
        "phone": lambda: _read_code(field, heard, earlier),
        "code": lambda: _read_code(field, heard, earlier),
        "number": lambda: _read_number(field, heard, earlier),
        "email": lambda: _read_email(text),
        "date": lambda: _read_moment(field, text, today),
        "time": lambda: _read_moment(field, text, today),
        "choice": lambda: _nearest(field, text),
        "name": lambda: read_name(field, text),
        "text": lambda: ReadValue(text, tried=bool(text)),
    }
    return readers[field.kind]()


def in_form(field: CollectField, code: str) -> str | None:
    """The value that letters and digits are, if they can be one of the field."""
    plain = code.removeprefix("+")
    if field.length and len(plain) != field.length:
        return None
    if field.kind == "phone" and len(plain) not in _TELEPHONE:
        return None
    if field.check and not CHECKS[field.check](plain):
        return None
    return write(code, field.pattern) if field.pattern else code or None


def has_letters(field: CollectField) -> bool:
    """Whether letters may be in a value that is spelled."""
    return field.kind in ("code", "name", "email") and (
        not field.pattern or any(one.isalpha() or one == "?" for one in places_of(field.pattern))
    )


def _read_code(field: CollectField, heard: UserAnswer, earlier: Spelled | None) -> ReadValue:
    letters = has_letters(field)
    texts = [one[:MAX_TEXT] for one in (heard.text, *heard.alternatives)]
    found = [spell(one, letters=letters, confidence=heard.confidence) for one in texts]
    own = found[0]
    asked = heard.text.rstrip().endswith("?") and bool(own.rest)
    most_rest = _MOST_WORDS if field.kind == "number" else len(own.groups) // 2 + 1
    if not own.groups or asked or len(own.rest) > most_rest:
        return ReadValue()
    if earlier is not None:
        own = combine(earlier, own)
    lattices = [_in_mask(own, field.pattern), *found[1:]]
    if field.values:
        return _nearest_code(field, own)
    if not any(_may_fit(field, one) for one in lattices):
        return ReadValue(spelled=own, tried=True)
    best: tuple[str, float] | None = None
    for text, cost in hypotheses(*lattices):
        value = in_form(field, text)
        if value is None:
            continue
        if best is None:
            best = value, cost
        elif cost - best[1] >= _MARGIN:
            break
        elif (doubt := _difference(best[0], value)) is not None:
            return ReadValue(best[0], doubt, own, tried=True)
    return ReadValue(best[0] if best else "", None, own, tried=True)


def _may_fit(field: CollectField, spelled: Spelled) -> bool:
    """Whether a value of these places can have the right length."""
    sizes = [[len(text) for text, _ in group.options] for group in spelled.groups]
    possible = range(sum(map(min, sizes)), sum(map(max, sizes)) + 1)
    wanted = field.length or len(places_of(field.pattern))
    if wanted:
        return wanted in possible or wanted + 1 in possible  # with a plus sign
    return field.kind != "phone" or possible.start <= _TELEPHONE.stop


def _in_mask(spelled: Spelled, mask: str) -> Spelled:
    """Without the options that cannot stand where they are."""
    places = places_of(mask)
    spelled = _with_beginning(spelled, places)
    if len(spelled.groups) != len(places):
        return spelled
    groups = []
    for group, place in zip(spelled.groups, places, strict=True):
        options = tuple(one for one in group.options if len(one[0]) == 1 and fits(one[0], place))
        groups.append(Group(options or group.options, group.sure))
    return Spelled(tuple(groups), spelled.rest)


def _with_beginning(spelled: Spelled, places: str) -> Spelled:
    """With the letters and digits that begin each value of a mask, where just those are missing."""
    missing = places[: max(0, len(places) - len(spelled.text))]
    if not missing or set(missing) & set(PLACES) or not fits(spelled.text[:1], places[len(missing)]):
        return spelled
    begin = (Group(((one.upper(), 0.0),), sure=True) for one in missing)
    return Spelled((*begin, *spelled.groups), spelled.rest)


def _difference(one: str, other: str) -> Doubt | None:
    """Where two values differ, if that is a single place or the whole."""
    if len(one) != len(other):
        return Doubt(one, other)
    places = [index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
    if len(places) == 1:
        return Doubt(one[places[0]], other[places[0]], places[0])
    return Doubt(one, other)


def _read_number(field: CollectField, heard: UserAnswer, earlier: Spelled | None) -> ReadValue:
    text = _NO_NUMBERS.sub(" ", heard.text[:MAX_TEXT].lower())
    words = _WORDS.findall(text)
    decimals = _DECIMAL.findall(text)
    if _SCALES.keys() & set(words):
        number = _cardinal(words)
        value = None if number is None else in_form(field, str(number))
        return ReadValue(value or "", tried=True)
    if len(decimals) == 1 and not {"double", "triple"} & set(words) and not field.check:
        value = in_form(field, decimals[0].replace(",", ""))
        return ReadValue(value or "", None, spell(text, letters=False), tried=True)
    if "point" in words:
        whole, _, part = text.partition("point")
        groups = [spell(one, letters=False).text for one in (whole, part)]
        return ReadValue(in_form(field, ".".join(groups)) or "" if all(groups) else "", tried=True)
    return _read_code(field, replace(heard, text=text), earlier)


def _cardinal(words: Sequence[str]) -> int | None:
    """The number of words such as "two hundred and five"."""
    total = current = 0
    found = False
    for word in words:
        if scale := _SCALES.get(word):
            current = max(current, 1) * scale
            if scale > 100:
                total, current = total + current, 0
        elif word not in ("and", "a") and (digits := spell(word, letters=False).text.removeprefix("+")):
            current, found = current + int(digits), True
    return total + current if found and total + current < 10**12 else None


def _read_email(text: str) -> ReadValue:
    plain = _SINGLE_LETTER.sub(r"\1 ", _AT_SIGN.sub("at", text))
    *before, behind = _AT.split(plain)
    local, ends = " ".join(before), [part.end() for part in _PART_OF_HOST.finditer(behind)]
    spelled, named = (spell(part, letters=True).with_words for part in (local, behind))
    found = None if spelled or named else _EMAIL.search(_write_email(plain))
    if found is None:
        host = _joined_email(behind[: ends[-1]] if ends else behind)
        found = _EMAIL.fullmatch(f"{_joined_email(local)}@{host}")
    if found is None:
        return ReadValue(tried=bool(before) or named)
    local, _, host = found[0].lower().rstrip(".").partition("@")
    name, _, ending = host.partition(".")
    host = f"gmail.{ending}" if name in _LIKE_GMAIL and not named else host
    return ReadValue(f"{local}@{host}", tried=True)


def _joined_email(text: str) -> str:
    """An address whose words were not written together."""
    text = _BEFORE_EMAIL.sub("", _LEAD.sub("", text).lower())
    pieces: list[str] = []
    spelled = spell(text, letters=True)
    # Nothing but words of the spelling alphabet: also one that is alone between signs is a letter.
    words = [one for one in _EMAIL_WORD.findall(text) if one not in SIGNS]
    initials = WORDS.keys() if spelled.named and len(words) == len(spelled.groups) else ()
    for part in (_SAID_SIGN if spelled.with_words else _EMAIL_SIGN).split(text):
        sign = _SIGNS.get(part.strip(), "")
        if sign:
            pieces.append(sign)
        elif part.strip(" ,.?!"):
            pieces.append(_email_part(part, spelled, initials))
    return _DOTS.sub(".", "".join(pieces)).strip(".")


def _email_part(text: str, whole: Spelled, initials: Collection[str]) -> str:
    """Words between two signs of an address: spelled, or as they are."""
    spelled = spell(text, letters=True, named=whole.named)
    words = _EMAIL_WORD.findall(text)
    named = any(group.sure for group in spelled.groups)
    is_name = len(words) == 1 and words[0] not in initials and (named or len(spelled.text) != 1)
    if not is_name and (not spelled.rest or (whole.with_words and named)):
        return spelled.text.lower()
    return "".join(spell(one, letters=False).text or one for one in words)


def _read_moment(field: CollectField, text: str, today: date) -> ReadValue:
    try:
        if field.kind == "date":
            return ReadValue(read_day(text, today).isoformat(), tried=True)
        found = _time_in(text)
        return ReadValue(found.isoformat("minutes"), tried=True)
    except ValueError:
        return ReadValue(tried=bool(re.search(r"[\d]", text)) and len(text.split()) <= _MOST_WORDS)


def _time_in(text: str) -> time:
    """The time in a sentence: the longest run of its words that is one."""
    words = re.sub(r"[,!?]", " ", text).rstrip(".").split()[: 4 * _MOST_WORDS]
    for length in range(min(len(words), _MOST_WORDS), 0, -1):
        for begin in range(len(words) - length + 1):
            try:
                return read_time(" ".join(words[begin : begin + length]))
            except ValueError:
                continue
    raise ValueError(text)


def read_name(field: CollectField, text: str) -> ReadValue:
    """Read a name, which may be spelled behind it."""
    said, _, behind = (_SPELLED.sub("|", text, count=1) + "|").partition("|")
    plain, words = _words_of_name(_NAME_IS.sub("", said))
    letters = _spelled_part(behind or plain)
    spelled = spell(letters, letters=True)
    if len(spelled.groups) >= _LEAST_SPELLED and (
        _count_named(letters) >= _LEAST_SPELLED or spelled.with_words
    ):
        at = find_like(words, spelled.text)
        names = plain if behind else _SINGLE_LETTER.split(plain, maxsplit=1)[0].replace(",", ". ")
        later = [] if at is None else _names_behind(_INITIAL.sub(r"\1", names), words[at], spelled.text)
        if letters == plain and at is not None:  # the name that is said before is no part of the spelling
            after = spell(" ".join(words[at + 1 :]), letters=True)
            spelled = after if len(after.groups) >= _LEAST_SPELLED else spelled
            later = [one for one in later if not spell(one, letters=True).groups]
        elif not behind and at is None:
            rest = spell(names, letters=True).rest
            words = [word for word in words if word in rest]
        found = [*words[:at][:_MOST_WORDS], spelled.text.lower(), *later]
        return ReadValue(_in_capitals(found), None, spelled, tried=True)
    plain, words = _words_of_name(said)
    if field.values:
        return _nearest(field, plain)
    is_name = (
        0 < len(words) <= _MOST_WORDS and not text.rstrip().endswith("?") and not re.search(r"[\d]", plain)
    )
    return ReadValue(_in_capitals(words) if is_name else "", tried=is_name)


def _spelled_part(text: str) -> str:
    """The sentences from the first to the last that have nothing but letters; all where none is so."""
    sentences = _SENTENCE_END.split(text)
    spelled = [
        place
        for place, one in enumerate(sentences)
        if _count_named(one) and not spell(one, letters=True).rest
    ]
    return ". ".join(sentences[spelled[0] : spelled[-1] + 1]) if spelled else text


def _count_named(text: str) -> int:
    """How many letters stand in a text, alone or as words of the spelling alphabet."""
    return sum(len(one) == 1 or one.lower() in WORDS for one in _LETTERS.findall(text))


def _words_of_name(text: str) -> tuple[str, list[str]]:
    """A text without what is said before a name, and its words."""
    plain = _LEAD.sub("", text).strip(" ,.!?")
    return plain, [word.strip(",.!") for word in plain.split() if word.strip(",.!-")]


def _names_behind(plain: str, word: str, spelled: str) -> list[str]:
    """The names behind the one that is spelled, in its sentence."""
    names = plain.partition(word)[2].partition(". ")[0].replace(",", " ").split()
    are_names = len(names) <= _MOST_WORDS and all(one[0].isupper() for one in names)
    return [one for one in names if are_names and find_like([one], spelled) is None]


def find_like(words: Sequence[str], spelled: str) -> int | None:
    """The word that was spelled, as the recogniser has understood it; of many, only the first ones count."""
    plain = [_plain(word)[: _longest_like(spelled)] for word in words[: 2 * _MOST_WORDS]]
    far = distances(plain, spelled.lower(), whole=True)
    nearest = min(range(len(far)), key=far.__getitem__, default=None)
    return nearest if nearest is not None and far[nearest] <= len(spelled) / 2 else None


def _in_capitals(words: Sequence[str]) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in words)


def _nearest(field: CollectField, text: str) -> ReadValue:
    """The known value that is nearest to some of the words."""
    plain = _plain(text)[:_MOST_COMPARED]
    if not plain:
        return ReadValue()
    values = [_plain(one) for one in field.values]
    return _chosen(_in_order(field, values, distances(values, plain)))


def _nearest_code(field: CollectField, spelled: Spelled) -> ReadValue:
    codes = ["".join(filter(str.isalnum, one)).upper() for one in field.values]
    text = spelled.text[: _longest_like(max(codes, key=len))]
    reading = _chosen(_in_order(field, codes, distances(codes, text, whole=True)))
    return ReadValue(reading.value, reading.doubt, spelled, tried=True)


def _in_order(field: CollectField, plain: Sequence[str], far: Sequence[float]) -> list[tuple[float, str]]:
    """The known values, the nearest first, each with its changes for each character."""
    changes = [distance / max(1, len(one)) for one, distance in zip(plain, far, strict=True)]
    return sorted(zip(changes, field.values, strict=True))


def _longest_like(value: str) -> int:
    """Characters of a text from which on it is as far from a value as a text can be."""
    return 2 * len(value) + 1


def _chosen(found: Sequence[tuple[float, str]]) -> ReadValue:
    if not found or found[0][0] > _MOST_DISTANCE:
        return ReadValue()
    doubt = None
    if len(found) > 1 and found[1][0] - found[0][0] < _LEAST_AHEAD:
        doubt = Doubt(found[0][1], found[1][1])
    return ReadValue(found[0][1], doubt, tried=True)


def _plain(text: str) -> str:
    return re.sub(r"[\W_]", "", text.lower())

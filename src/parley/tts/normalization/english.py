"""English text as ``nemo_text_processing`` reads it best: what its grammars misread is written in words."""

from __future__ import annotations

import re
from collections.abc import Callable

_FRACTIONS = "\u00bc-\u00be\u2150-\u215e"
_TELEPHONE = re.compile(
    r"(?<![\w.,])(?:\+\d{1,3}(?:[ .]\(?\d{2,5}\)?){2,5}|\d{3} \d{3} \d{4}|0\d{2,4} \d{3,4} \d{3,4})"
    r"(?![\w,]|\.\d)"
)
_SEPARATORS = re.compile(r"[ .()]+")

_NAMES_OF_FIGURES = "zero one two three four five six seven eight nine".split()

_CALLING = frozenset(
    "call calls called calling dial dials dialed dialled dialing phone ring text number".split()
)
_AROUND_CODE = frozenset(
    "a an the to via through with is and or of for from your our when if after before as at in on until "
    "right now immediately first instead again please while because so but call calls operator operators "
    "dispatcher dispatchers service services emergency line number".split()
)
_CODE = re.compile(
    r"(?<![\w.,$€£¥#+/-])([2-8]11|911|112|999|000|988|110|119)(?![\w%°/-]|[.,:]\d| \d)", re.ASCII
)
_AFTER_CODE = re.compile(r" ([A-Za-z]+)")

# Symbol or code: one, several, and the hundredth part; those that the grammars read are "$€£¥₩฿".
_DOLLARS = {"US$": "US", "USD": "US", "CA$": "Canadian", "C$": "Canadian", "CAD": "Canadian"} | {
    "AU$": "Australian",
    "A$": "Australian",
    "AUD": "Australian",
    "NZ$": "New Zealand",
    "NZD": "New Zealand",
    "HK$": "Hong Kong",
    "HKD": "Hong Kong",
    "S$": "Singapore",
    "SGD": "Singapore",
}
_CURRENCIES = {symbol: (f"{of} dollar", f"{of} dollars", "cents") for symbol, of in _DOLLARS.items()} | {
    "₹": ("rupee", "rupees", "paise"),
    "Rs.": ("rupee", "rupees", "paise"),
    "INR": ("rupee", "rupees", "paise"),
    "R$": ("real", "reais", "centavos"),
    "BRL": ("real", "reais", "centavos"),
    "₽": ("ruble", "rubles", "kopecks"),
    "₺": ("lira", "lira", "kurus"),
    "₴": ("hryvnia", "hryvnias", "kopecks"),
    "₪": ("shekel", "shekels", "agorot"),
    "₱": ("peso", "pesos", "centavos"),
    "MXN": ("peso", "pesos", "centavos"),
    "₫": ("dong", "dong", ""),
    "₦": ("naira", "naira", "kobo"),
    "₵": ("cedi", "cedis", "pesewas"),
    "₸": ("tenge", "tenge", ""),
    "₾": ("lari", "lari", "tetri"),
    "₲": ("guarani", "guaranis", ""),
    "₡": ("colon", "colones", ""),
    "₿": ("bitcoin", "bitcoins", ""),
    "EUR": ("euro", "euros", "cents"),
    "GBP": ("pound", "pounds", "pence"),
    "JPY": ("yen", "yen", ""),
    "CNY": ("yuan", "yuan", "fen"),
    "KRW": ("won", "won", ""),
    "CHF": ("Swiss franc", "Swiss francs", "centimes"),
    "SEK": ("krona", "kronor", "ore"),
    "NOK": ("krone", "kroner", "ore"),
    "DKK": ("krone", "kroner", "ore"),
    "PLN": ("zloty", "zlotys", "groszy"),
    "ZAR": ("rand", "rand", "cents"),
}
_READ_CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds"}
_NAMES = "|".join(re.escape(name) for name in sorted(_CURRENCIES, key=len, reverse=True))
_AMOUNT = r"(?<![\d.,])\d+(?:,\d+)*(?:\.\d+)?(?!\d)"
_SCALES = {"k": "thousand", "K": "thousand", "m": "million", "M": "million", "bn": "billion", "B": "billion"}
_SCALE = r"(?: ?(k|K|m|M|bn|B|thousand|million|billion|trillion|lakh|crore)\b)?"
_MONEY = re.compile(rf"(?<![\w$])({_NAMES}) ?(-?)({_AMOUNT}){_SCALE}")
_MONEY_BEHIND = re.compile(rf"(-?)({_AMOUNT}){_SCALE} ?({_NAMES})(?![\w$])")

_UNITS = {
    "m": "meters",
    "l": "liters",
    "L": "liters",
    "kB": "kilobytes",
    "KB": "kilobytes",
    "MB": "megabytes",
    "GB": "gigabytes",
    "TB": "terabytes",
    "kbit": "kilobits",
    "Mbit": "megabits",
    "Mb": "megabits",
    "Gbit": "gigabits",
    "Gb": "gigabits",
    "W": "watts",
    "J": "joules",
    "kJ": "kilojoules",
    "kcal": "kilocalories",
    "mol": "moles",
    "mmol": "millimoles",
}
"""Those that the grammars do not read behind a number."""
_READ_UNITS = "km|cm|mm|mi|ft|mg|kg|g|ml|mL|kW|kWh|lbs|lb|oz|rpm|million|billion|thousand|times"
_DENOMINATORS = {
    "h": "hour",
    "hr": "hour",
    "s": "second",
    "sec": "second",
    "s2": "second squared",
    "s²": "second squared",
    "s^2": "second squared",
    "min": "minute",
    "d": "day",
    "wk": "week",
    "mo": "month",
    "yr": "year",
    "kg": "kilogram",
    "g": "gram",
    "L": "liter",
    "l": "liter",
    "ml": "milliliter",
    "mL": "milliliter",
    "dL": "deciliter",
    "dl": "deciliter",
    "m": "meter",
    "m2": "square meter",
    "m²": "square meter",
    "m3": "cubic meter",
    "m³": "cubic meter",
    "km": "kilometer",
    "km2": "square kilometer",
    "km²": "square kilometer",
    "100km": "100 kilometers",
    "100 km": "100 kilometers",
    "mi": "mile",
    "gal": "gallon",
    "lb": "pound",
    "oz": "ounce",
    "ft": "foot",
} | {
    word: word for word in "hour minute second day week month year night person user piece unit item".split()
}
_BELOW = "|".join(re.escape(name) for name in sorted(_DENOMINATORS, key=len, reverse=True))
_PER = re.compile(rf"(?<=\d)(?:( ?)({'|'.join(_UNITS)}|{_READ_UNITS}))?/({_BELOW})(?![\w/^²³])")
_SPEED = re.compile(r"(?<![\w/])(km|m|MB|Mbit)/(h|s)(?![\w/^²³])")
_ROMAN = "X{0,2}(?:IX|IV|VI{1,3}|I{2,3})|XX?(?:I|V)?"
_VALUES = {"I": 1, "V": 5, "X": 10}
_RULER = re.compile(
    r"\b((?:King|Queen|Pope|Emperor|Empress|Tsar|Czar|Sultan) [A-Z]\w+(?: [A-Z]\w+)?|Alexander|Benedict"
    r"|Catherine|Charles|Edward|Elizabeth|Ferdinand|Frederick|George|Gregory|Gustav|Henry|Innocent|Ivan|James"
    r"|John Paul|Leo|Leopold|Louis|Margrethe|Napoleon|Nicholas|Philip|Pius|Ramesses|Ramses|Richard|Urban"
    rf"|Wilhelm|William) ({_ROMAN})\b(?![.'-]?\w)"
)
_NUMBERED = re.compile(
    r"\b(Act|Article|Book|Chapter|Class|Episode|Grade|Level|Part|Phase|Section|Stage|Title|Type|Vatican|Volume"
    rf"|War) ({_ROMAN})\b(?![.'-]?\w)",
    re.IGNORECASE,
)
_VERSION = re.compile(r"(?<![\w.,:/-])([vV]?)(\d+(?:\.\d+){2,})(?!\w|\.\d)")
_LOCAL_NUMBER = re.compile(r"(?<![\w.,:/\-])(?<!\d\) )(?<!\d )(\d{3})-(\d{4})(?![\w\-])")


def _one_by_one(match: re.Match[str]) -> str:
    """A telephone number with hyphens if it is North American, else in one piece: its figures are read."""
    parts = [part for part in _SEPARATORS.split(match[0]) if part]
    north_american = [len(part) for part in parts][-3:] == [3, 3, 4] and len(parts) <= 4
    return ("-" if north_american else "").join(parts)


def _figures(match: re.Match[str]) -> str:
    return ", ".join(" ".join(group) for group in match.groups())


def _spelled(figures: str) -> str:
    return " ".join(_NAMES_OF_FIGURES[int(figure)] for figure in figures)


def _code(match: re.Match[str]) -> str:
    """The figures of a number that is called: "call 911", "the 911 operator"; not of "911 people"."""
    following = _AFTER_CODE.match(match.string, match.end())
    if following is not None and following[1].lower() not in _AROUND_CODE:
        return match[0]
    before = match.string[max(0, match.start() - 40) : match.start()].lower().split()[-3:]
    is_called = not _CALLING.isdisjoint(before)
    is_alone = not before or not before[-1].isalpha() or before[-1] in _AROUND_CODE
    return _spelled(match[0]) if is_called or (is_alone and match[0] == "911") else match[0]


def _identifier(match: re.Match[str]) -> str:
    """The number of "#1"; the figures of "#1234"."""
    return "number " + (_spelled(match[1]) if len(match[1]) > 3 else match[1])


def _version(match: re.Match[str]) -> str:
    """Of dates, addresses, telephone numbers and thousands the grammars know the form."""
    parts = match[2].split(".")
    lengths = [len(part) for part in parts]
    is_date = len(parts) == 3 and max(lengths[0], lengths[2]) == 4
    is_address = len(parts) == 4 and max(map(int, parts)) < 256
    if not match[1] and (is_date or is_address or set(lengths[1:]) == {3}):
        return match[0]
    return (f"{match[1]} " if match[1] else "") + " point ".join(parts)


def _money(symbol: str, sign: str, amount: str, scale: str | None) -> str:
    one, many, parts = _CURRENCIES[symbol]
    minus = "minus " if sign else ""
    if scale:
        return f"{minus}{amount} {_SCALES.get(scale, scale)} {many}"
    whole, _, hundredths = amount.partition(".")
    if "," in whole:  # also "1,00,000"
        whole = f"{int(whole.replace(',', '')):,}"
        amount = f"{whole}.{hundredths}" if hundredths else whole
    if len(hundredths) == 2 and parts:
        rest = f" {int(hundredths)} {parts}" if int(hundredths) else ""
        return f"{minus}{whole} {one if whole == '1' else many}{rest}"
    return f"{minus}{amount} {one if amount == '1' else many}"


def _roman(figures: str) -> int:
    """What Roman figures up to thirty-nine stand for."""
    values = [_VALUES[figure] for figure in figures]
    return sum(
        -value if value < behind else value for value, behind in zip(values, [*values[1:], 0], strict=True)
    )


def _regnal(match: re.Match[str]) -> str:
    number = _roman(match[2])
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number // 10 != 1 else "th"
    return f"{match[1]} the {number}{ending}"


def _thousands(match: re.Match[str]) -> str:
    return f"{match[2]} thousand {_READ_CURRENCIES[match[1]]}"


def _per(match: re.Match[str]) -> str:
    unit = match[2] or ""
    return f"{' ' if unit else ''}{_UNITS.get(unit, unit)} per {_DENOMINATORS[match[3]]}"


_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (_TELEPHONE, _one_by_one),
    # A speaker does not say "H T T P S colon slash slash".
    (re.compile(r"\bhttps?://(?:www\.)?", re.IGNORECASE), ""),
    (_LOCAL_NUMBER, _figures),
    (_CODE, _code),
    # "9-5", "$5-10", "10-20 people", also with a dash; but not dates, or "5 - 3".
    (
        re.compile(
            r"(?<![\w.,:/\-\u2013+$€£¥])(?<!\d\) )(?<!\d )([$€£¥]?)(\d{1,4})[-\u2013](\d{1,4})"
            r"(?![\w.:/\-\u2013]*[\d:/\-\u2013])"
        ),
        r"\1\2 to \1\3",
    ),
    (
        re.compile(
            rf"(?<=[{_FRACTIONS}])[-\u2013](?=[\d{_FRACTIONS}])|(?<=\d)[-\u2013](?=[{_FRACTIONS}])"
            r"|(?<=\d/\d)[-\u2013](?=\d/\d)"
        ),
        " to ",
    ),
    # Amounts, and what has a sign before it.
    (re.compile(r"(?<![\d.,])(\d+),(\d\d) ?€"), r"€\1.\2"),
    (re.compile(rf"({_AMOUNT}) ?([$€£])(?![\w$€£])"), r"\2\1"),
    (re.compile(r"([$€£¥])-(?=\d)"), r"-\1"),
    (re.compile(rf"([$€£])({_AMOUNT}) ?(?:k|K|thousand)\b"), _thousands),
    (_MONEY, lambda match: _money(match[1], match[2], match[3], match[4])),
    (_MONEY_BEHIND, lambda match: _money(match[4], match[1], match[2], match[3])),
    (re.compile(rf"(?<![\w.,)%°\]$€£¥/+-])-(?=[$€£¥₩฿]?\.?[\d{_FRACTIONS}])"), "minus "),
    (re.compile(rf"(?<![\w.,)%°\]/-])(?<![\dmM.] )\u2013(?=[$€£¥]?[\d{_FRACTIONS}])"), "minus "),
    (re.compile(rf"(?<=[{_FRACTIONS}])-(?=[A-Za-z])"), " "),
    # "5/day", "100 km/h", "km/h".
    (_PER, _per),
    (_SPEED, lambda match: f"{_UNITS.get(match[1], 'kilometers')} per {_DENOMINATORS[match[2]]}"),
    # Roman figures; "I", "V" and "X" are letters and words too.
    (_RULER, _regnal),
    (_NUMBERED, lambda match: f"{match[1]} {_roman(match[2])}" if match[2].isupper() else match[0]),
    # Numbers of things.
    (re.compile(r"(?<![\w&])#[ ]?(\d+)"), _identifier),
    (re.compile(r"(?<![\w&])#(?=[A-Za-z])"), "hashtag "),
    (
        re.compile(r"\u2116 ?(?=\d)|(?<!\w)(?<![.?!] )(?<!said )(?<!say )(?<!is )(?<!was )[Nn]o\. ?(?=\d)"),
        "number ",
    ),
    (re.compile(r"(?<!\w)[Nn]os\. ?(?=\d)"), "numbers "),
    (_VERSION, _version),
    # Calculations.
    (re.compile(r"(?<=[\d)]) ?÷ ?(?=[\d(])|(?<=[\d)]) / (?=[\d(])"), " divided by "),
    (re.compile(r"(?<![\w.,/])(\d+)/(\d+)(?= ?=)"), r"\1 divided by \2"),
    (re.compile(r"(?<=[\d)]) ?[\u00d7*] ?(?=[\d(])"), " times "),
    (re.compile(r"(?<=[\d)]) [-\u2013] (?=[\d(.]+ ?=)"), " minus "),
    (re.compile(r"(?<=[\w)%]) = (?=[\w(\-$€£])"), " equals "),
    (re.compile(r"(?<=[^\W\d]) / (?=[^\W\d])"), " slash "),
    (re.compile(r"\b(takes|took|for|within|after|lasts|lasted) (\d+)s\b"), r"\1 \2 seconds"),
    # Emphasis in a text that was not read as Markdown.
    (re.compile(r"[*`]+"), ""),
    (re.compile(r"(?:(?<!\s)\s+)?&\s*"), " and "),
    (re.compile(r"(?<![\w/])24/7(?![\w/])"), "twenty-four seven"),
    (re.compile(r"(?<![\w/])50/50(?![\w/])"), "fifty-fifty"),
    (re.compile(r"(?<![\w/])9/11(?![\w/])"), "nine eleven"),
    (re.compile(r"~\s*(?=\d)"), "approximately "),
)


def rewrite_english(text: str) -> str:
    """English text as ``nemo_text_processing`` reads it best."""
    for found, wanted in _RULES:
        text = found.sub(wanted, text)
    return text

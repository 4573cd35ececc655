"""English words by which figures and names are told from other words."""

from __future__ import annotations

from collections.abc import Mapping


def _numbered(names: str, first: int) -> Mapping[str, int]:
    return {name: place for place, group in enumerate(names.split("|"), first) for name in group.split()}


MONTHS = _numbered(
    "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sep sept|"
    "october oct|november nov|december dec",
    1,
)
WEEKDAYS = _numbered(
    "monday mon|tuesday tue tues|wednesday wed|thursday thu thur thurs|friday fri|saturday sat|sunday sun", 0
)
"""From Monday."""
MONEY: Mapping[str, str] = {
    name: unit
    for unit, names in {
        "euro": "euro euros eur",
        "dollar": "dollar dollars bucks usd",
        "pound": "pound pounds gbp quid",
        "yen": "yen",
        "rupee": "rupee rupees",
        "franc": "francs chf",
        "cent": "cent cents pence p",
    }.items()
    for name in names.split()
}
_UNITS = (
    "second minute hour day night week month year percent degree kilometer kilometre meter metre mile foot "
    "kilogram gram milligram milliliter millilitre liter litre gigabyte megabyte megabit gigabit star"
)
_SHORT_UNITS = {"min": "minute", "h": "hour", "s": "second", "km": "kilometer", "cm": "cm", "mm": "mm"} | {
    "kg": "kilogram",
    "g": "gram",
    "mg": "milligram",
    "ml": "milliliter",
    "l": "liter",
    "gb": "gigabyte",
    "mb": "megabyte",
    "mbit": "megabit",
    "mbit/s": "megabit",
    "mbps": "megabit",
    "feet": "foot",
    "times": "times",
}
HARD_UNITS: Mapping[str, str] = {
    **{f"{name}{plural}": name for name in _UNITS.split() for plural in ("", "s")},
    **_SHORT_UNITS,
    **MONEY,
}
"""Units by name: a number that has one is known only from one with the same, or without a noun."""
COUNTED = frozenset(
    "options choices ways things steps questions possibilities kinds types reasons points items parts "
    "details examples sorts alternatives".split()
)
"""A number up to ten before these counts what is listed."""
ORDINAL_USES = frozenset("one ones option thing step question choice point part and".split())
"""Behind an ordinal that only puts things in an order."""
CLOCK_BEFORE = frozenset("at by around until till before after from since".split())
MEASURE_BEFORE = frozenset("is are costs cost for pay only just the your".split())
"""Before a number whose unit may be left out."""
FIGURE_WORDS = frozenset("at by from of the a an and to past half quarter quarters point".split())
"""Within figures."""
FUNCTION_WORDS = frozenset(
    "a an the this that these those my your his her its our their at in on of and or to for from until till "
    "please is are was were be been has have had does do did can could will would shall should may might "
    "must works work tonight today tomorrow yesterday then sharp but if so than with as we i you it he she "
    "they me us them by before after since not no o'clock am pm later more less per each every when where "
    "which who how why what there here now just only about around nearly almost over under between during "
    "through up down out off into yes okay ok sorry also too very right well let's that's it's i'm we're "
    "you're there's".split()
)
COMMON_CAPITALS = frozenset(
    "i i'm i'll i've i'd ok okay mr mrs ms miss dr prof sir madam pin usb pdf id faq sms tv am pm url api ai "
    "gps atm vat wifi wi fi html it's english german french spanish italian chinese japanese american "
    "european british indian mexican greek turkish celsius fahrenheit euro euros internet covid qr".split()
)
"""Written with a capital letter, and no name that a source must have."""
NAME_VERBS = frozenset("is will has was can works speaks said calls comes".split())
"""After the first word of a sentence, these make a name of it unless it is common."""
COMMON_FIRST = frozenset(
    "all any both each either everything everyone nobody nothing none some someone something such many most "
    "much few several other another same hello hi hey good great thanks thank welcome goodbye bye sure "
    "perfect excellent wonderful fine nice lovely please perhaps maybe first second third next last then "
    "because unless whether whatever whenever wherever whoever instead otherwise besides still already "
    "always never often sometimes soon parking breakfast lunch dinner service support payment reservation "
    "table room guests children people doctor staff morning afternoon evening half quarter cash card "
    "coffee water wine beer food menu kitchen house home office access entry entrance everybody somebody "
    "anybody anything everything dear love god money time life work music weather help".split()
)
"""Words that begin sentences."""

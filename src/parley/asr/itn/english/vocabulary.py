"""Words that tell an address from a sentence."""

from __future__ import annotations

DOMAINS = frozenset(
    (
        "com org net edu gov mil int info biz io ai app dev co uk de fr nl es pl se dk fi cz ch ca au nz "
        "ie jp br cn kr mx za pt gr hu ro tv cc eu online shop store tech cloud blog xyz"
    ).split()
)
"""Top domains."""
WORD_DOMAINS = frozenset("it in at be me us is no to my so am name".split())
"""Top domains that are words as well: they end an e-mail address, but make no web address."""
MAIL_HOSTS = frozenset(
    (
        "gmail googlemail hotmail outlook yahoo icloud proton protonmail aol gmx fastmail live msn yandex "
        "zoho comcast verizon"
    ).split()
)
"""Whatever stands before these is a person."""
SPOKEN_HOSTS = {
    ("g", "mail"): "gmail",
    ("hot", "mail"): "hotmail",
    ("i", "cloud"): "icloud",
    ("out", "look"): "outlook",
    ("proton", "mail"): "protonmail",
}
SEPARATORS = {
    "dot": ".",
    "period": ".",
    "underscore": "_",
    "dash": "-",
    "hyphen": "-",
    "minus": "-",
    "plus": "+",
}
"""In the part of an e-mail address before the "at"."""
DASHES = frozenset(("dash", "hyphen", "minus"))
MAIL_WORDS = frozenset(("email", "e-mail", "mail", "address", "contact", "reach", "write", "send"))
"""Somebody speaks of mail."""
INTRODUCTIONS = frozenset(
    ("is", "it's", "to", "email", "e-mail", "mail", "address", "contact", "write", "yes")
)
"""After these an address begins."""
NO_NAMES = frozenset(
    (
        "a an the this that these those my your his her its our their me you him us them it i we he she "
        "they is are was were be been am pm do does did have has had will would can could should may "
        "might must and or but so if then than as of in on at to for from with by about into over up down "
        "out off near not no yes yeah okay ok please uh um well just here there now today tomorrow home "
        "work school noon midnight night look looks looking see go goes going meet met find found live "
        "lives stay stays arrive check buy bought order ordered book booked work works worked shop read "
        "click visit store site website page web online available everything something anything nothing "
        "one spelled spelt e email e-mail mail address contact write send reach put get make it's that's "
        "what's what where when who how why which"
    ).split()
)
"""Words that are no part of an address, as far as they stand alone."""

"""What the grammars make of English text, and of text in another language."""

from __future__ import annotations

import pytest

from parley.errors import ModelLoadingError
from parley.runtime.weights import cache_dir
from parley.tts.normalization.nemo import load_grammars
from parley.tts.normalization.normalizer import TextNormalizer


@pytest.fixture(scope="module")
def normalizer():
    # Compiled once per machine: that takes half a minute.
    return TextNormalizer(load_grammars(["en"], cache_dir() / "normalization"), tags=True)


CASES = """
currency
    It costs $5. → It costs five dollars.
    It costs $5.99 today. → It costs five dollars ninety nine cents today.
    That's $1.2 million. → That's one point two million dollars.
    £3.50 and €20 → three pounds fifty pence and twenty euros
    $1,250,000 → one million two hundred fifty thousand dollars
    $5-10 a month → five dollars to ten dollars a month
numbers
    I have 3 cats. → I have three cats.
    1,234 people → one thousand two hundred and thirty four people
    3.14 is pi → three point one four is pi
    -5 degrees → minus five degrees
    20% off → twenty percent off
    the 1st, 2nd and 21st → the first, second and twenty first
    1/2 cup → one half cup
    3 1/2 cups → three and a half cups
    10-20 people → ten to twenty people
    2 + 2 = 4 → two plus two equals four
    room 101 → room one hundred and one
    Henry VIII had six wives. → Henry the eighth had six wives.
    Elizabeth II and Louis XIV → Elizabeth the second and Louis the fourteenth
    Queen Mary II and Pope John XXIII → Queen Mary the second and Pope John the twenty third
    World War II, chapter IV → World War two, chapter four
    Malcolm X, give IV fluids, type I → Malcolm X, give IV fluids, type I
    We are #1. → We are number one.
    order #1234 → order number one two three four
    #sale now → hashtag sale now
    bus No. 5 → bus number five
    platform no. 5 → platform number five
    Nos. 5 and 6 → numbers five and six
    {numero} 7 → number seven
    I said no. 5 came. → I said no. five came.
    version 1.2.3 today → version one point two point three today
    Python 3.12.1 → Python three point twelve point one
    v1.10.0 → v one point ten point zero
    12.05.2024 → december fifth twenty twenty four
signs
    -$20.50 → minus twenty dollars fifty cents
    {minus}$20.50 → minus twenty dollars fifty cents
    $-4 → minus four dollars
    -€5 or -£3.20 → minus five euros or minus three pounds twenty pence
    -₹200 → minus two hundred rupees
    {minus}5°C → minus five degrees Celsius
    it is {dash}5 °F → it is minus five degrees Fahrenheit
    {minus}0.5% and (-5) → minus zero point five percent and (minus five)
    x = -3 → x equals minus three
    -½ → minus one half
fractions
    Add ½ cup and ¾ teaspoon. → Add one half cup and three quarters teaspoon.
    ⅓ and ⅔ → one third and two thirds
    ⅕, ⅗, ⅙, ⅚ → one fifth, three fifths, one sixth, five sixths
    ⅛, ⅜, ⅝, ⅞ → one eighth, three eighths, five eighths, seven eighths
    ⅐, ⅑, ⅒ → one seventh, one ninth, one tenth
    1½ cups → one and a half cups
    2 ¼ cups → two and one quarter cups
    ¼{dash}½ cup or 1/2-3/4 cup → one quarter to one half cup or one half to three quarters cup
    a 2½-hour trip → a two and a half hour trip
calculations
    10 / 2 = 5 → ten divided by two equals five
    10/2 = 5 → ten divided by two equals five
    10 ÷ 5 = 2 → ten divided by five equals two
    3 {times} 4 = 12 → three times four equals twelve
    3 * 4 = 12 → three times four equals twelve
    5 - 3 = 2 → five minus three equals two
    and / or → and slash or
other currencies
    It costs ₹200. → It costs two hundred rupees.
    ₹1 or ₹20.50, → one rupee or twenty rupees fifty paise,
    ₹1,00,000 → one hundred thousand rupees
    ₹5 lakh → five lakh rupees
    ₽300, ₺40 and ₪20 → three hundred rubles, forty lira and twenty shekels
    ₫5,000 or ₦50 → five thousand dong or fifty naira
    R$20, A$5 → twenty reais, five Australian dollars
    US$5.50 → five US dollars fifty cents
    CHF 20 or 20 SEK → twenty Swiss francs or twenty kronor
    5 € or 4,99 € → five euros or four euros ninety nine cents
    $5k or €20K → five thousand dollars or twenty thousand euros
emergencies
    Call 911 now. → Call nine one one now.
    Dial 112 or 999. → Dial one one two or nine nine nine.
    the 911 operator → the nine one one operator
    It is "911" here. → It is "nine one one" here.
    911 people called. → nine hundred and eleven people called.
    a Porsche 911 → a Porsche nine hundred and eleven
    112 cats → one hundred and twelve cats
times
    It's 7:30 now. → It's seven thirty now.
    at 7:30, ok? → at seven thirty, ok?
    at 10:05 a.m. sharp → at ten o five AM sharp
    at 5pm → at five PM
    17:45 → seventeen forty five
    3:00 → three o'clock
    open 9am-5pm → open nine AM to five PM
    10:30-11:45 → ten thirty to eleven forty five
    open 24/7 → open twenty-four seven
dates
    2023 was good. → twenty twenty three was good.
    in 1999 → in nineteen ninety nine
    the 1990s → the nineteen nineties
    January 5, 2024 → january fifth, twenty twenty four
    Jan. 5th → january fifth
    5 March 2021 → the fifth of march twenty twenty one
    2024-03-05 → march fifth twenty twenty four
    3/5/2024 → march fifth twenty twenty four
    from 2020{dash}2024 → from twenty twenty to twenty twenty four
abbreviations
    Dr. Smith → doctor Smith
    Mr. and Mrs. Jones → mister and misses Jones
    St. Mary → Saint Mary
    e.g. apples, i.e. fruit → for example apples, that is fruit
    AT&T and R&D → AT and T and R and D
    U.S. GDP → US GDP
    NASA and FBI → NASA and FBI
telephone numbers
    call 555-123-4567 → call five five five, one two three, four five six seven
    call (555) 123-4567 now → call five five five, one two three, four five six seven now
    +1 555 123 4567 → plus one, five five five, one two three, four five six seven
    555 123 4567 → five five five, one two three, four five six seven
    555-1234 → five five five, one two three four
    020 7946 0958 → zero two zero seven nine four six zero nine five eight
    +44 20 7946 0958 → plus four four two zero seven nine four six zero nine five eight
units
    5 km → five kilometers
    10 kg of rice → ten kilograms of rice
    60 mph → sixty miles per hour
    72°F → seventy two degrees Fahrenheit
    20°C → twenty degrees Celsius
    100 km/h → one hundred kilometers per hour
    5 m/s or 10 MB/s → five meters per second or ten megabytes per second
    9.8 m/s² → nine point eight meters per second squared
    20 kg/m2 → twenty kilograms per square meter
    3 mg/L → three milligrams per liter
    $5/h → five dollars per hour
    in km/h → in kilometers per hour
    2 times/day → two times per day
    It takes 90s. → It takes ninety seconds.
    6 ft → six feet
the web
    john.doe@example.com → john dot doe at example dot com
    https://www.example.com/a → example dot com slash a
    visit www.example.com → visit WWW dot example dot com
everything else
    [laugh] That's 5. → [laugh] That's five.
    **Really** 5 😀 of them → Really five of them
    Press [Enter] or [5]. → Press [Enter] or [five].
    Don't you think it's fine? → Don't you think it's fine?
    Wait... what? "Yes," she said. → Wait... what? "Yes," she said.
    It's 8 degrees and foggy in Paris. → It's eight degrees and foggy in Paris.
    Hello → Hello
"""


@pytest.mark.parametrize("case", [line.strip() for line in CASES.splitlines() if "→" in line])
def test_english(normalizer, case):
    signs = {"{dash}": "\u2013", "{minus}": "\u2212", "{numero}": "\u2116", "{times}": "\u00d7"}
    for name, sign in signs.items():
        case = case.replace(name, sign)
    written, _, expected = case.partition(" → ")
    assert normalizer.normalize(written, "en").text == expected


def test_long_text_full_of_figures_takes_a_moment(normalizer):
    text = (
        "$5 $6 $7 $8 $9 1/2/2023 3/4/2024 5/6/2024 7:30 8:30 9:30 $1.5 $2.5 $3.5 10 km 20% 3 1/2 cups. " * 3
    )
    spoken = normalizer.normalize(text, "en")
    assert not any(character.isdigit() for character in spoken.text)
    assert len(spoken.words) == len(text.split())


def test_a_language_without_a_grammar(tmp_path):
    with pytest.raises(ModelLoadingError, match="xx"):
        load_grammars(["en", "xx"], tmp_path)


def test_no_text_is_logged(normalizer, monkeypatch, caplog, capfd):
    from nemo_text_processing.text_normalization.normalize import Normalizer

    def fail(self, tokens):
        raise RuntimeError("no grammar for 1234")

    monkeypatch.setattr(Normalizer, "generate_permutations", fail)
    assert normalizer.normalize("My secret is 1234.", "en").text == "My secret is 1234."
    logged = caplog.text + "".join(capfd.readouterr())
    assert "not written out" in logged
    assert "1234" not in logged

"""A restaurant that takes reservations: .venv/bin/parley run examples/agents/restaurant.py.

Reservations are kept in memory: they are gone when the command ends, or when this file is saved. Times and
days are passed on in the caller's words, which Python understands better than a small language model does.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from itertools import count
from typing import Annotated

from parley_client import Agent, tool
from parley_client.spoken import read_day, read_time, say_time

agent = Agent(
    instructions=(
        "You are Sofia, who answers the phone at the restaurant Da Marco. Answer in one short sentence. The "
        "restaurant is open every day from 5 pm to 11 pm, at 12 Mill Street. Parking is free in the yard "
        "behind it. There are vegetarian dishes, and dogs are welcome. You do not know any prices."
    ),
    greeting="Good evening, this is Da Marco. What can I do for you?",
    phrases=["Da Marco", "Sofia", "reservation"],
    page={
        "title": "Da Marco",
        "colour": "#9a3324",
        "examples": [
            "A table for four at half past seven, please.",
            "Is there parking?",
            "Please cancel it.",
        ],
    },
)

OPENS, CLOSES = dt.time(17), dt.time(23)
LAST_TABLE = dt.time(21, 30)
STAY = dt.timedelta(hours=2)
SEATS = 120
LARGEST_PARTY = 8


@dataclass(frozen=True)
class Reservation:
    """Seats that are taken for two hours."""

    people: int
    begins: dt.datetime


_numbers = count(1)
_reservations: dict[int, Reservation] = {}


@tool
def reserve_table(
    people: Annotated[int, "Number of guests."],
    time: Annotated[str, "The time in the caller's words."],
    day: Annotated[str, "The day in the caller's words."] = "today",
) -> dict[str, str | int]:
    """Reserve a table in the restaurant."""
    today = dt.datetime.now().astimezone().date()
    begins = dt.datetime.combine(read_day(day, today), read_time(time, OPENS, CLOSES))
    if not OPENS <= begins.time() <= LAST_TABLE:
        raise ValueError("tables begin between 5 pm and 9:30 pm")
    if not 0 < people <= LARGEST_PARTY:
        raise ValueError(f"our largest table has {LARGEST_PARTY} seats")
    if _taken(begins) + people > SEATS:
        raise ValueError("no table is free then")
    number = next(_numbers)
    _reservations[number] = Reservation(people, begins)
    return {
        "confirmed": f"{_day(begins.date(), today)} at {say_time(begins.time())}",
        "reservation_number": number,
    }


@tool
def cancel_reservation(
    reservation_number: Annotated[int, "Number of the reservation."],
) -> dict[str, bool]:
    """Cancel a reservation."""
    if _reservations.pop(reservation_number, None) is None:
        raise LookupError("there is no reservation of this number")
    return {"cancelled": True}


def _taken(begins: dt.datetime) -> int:
    """Seats that are taken at some time of a stay that begins then."""
    return sum(one.people for one in _reservations.values() if abs(one.begins - begins) < STAY)


def _day(day: dt.date, today: dt.date) -> str:
    return "today" if day == today else f"{day:%A, %B} {day.day}"

"""The reception of a clinic: .venv/bin/parley run examples/agents/clinic.py.

Appointments are kept in memory: they are gone when the command ends, or when this file is saved.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from parley_client import Agent, tool
from parley_client.spoken import read_day, read_time, say_time

agent = Agent(
    instructions=(
        "You are Lena, the telephone assistant of Hillside Clinic. Answer in one short sentence. The clinic "
        "is open Monday to Friday from 8 am to 5 pm, at 14 Orchard Road. Flu vaccinations cost 15 pounds and "
        "need no appointment. In an emergency, tell callers to dial 999. You cannot give a diagnosis."
    ),
    greeting="Hillside Clinic, this is Lena. How can I help you?",
    phrases=["Hillside", "appointment", "vaccination"],
    page={
        "title": "Hillside Clinic",
        "colour": "#0a7d5a",
        "examples": ["This is Anna Lee, I need an appointment on Friday at ten.", "How much is a flu jab?"],
    },
)

OPENS, CLOSES = dt.time(8), dt.time(17)
SATURDAY = 5
DOCTORS = 4

_appointments: dict[str, dt.datetime] = {}
"""By the patient's name in lower case: each has one."""


@tool
def book_appointment(
    name: Annotated[str, "The patient's full name."],
    day: Annotated[str, "The day in the caller's words."],
    time: Annotated[str, "The time in the caller's words."],
) -> dict[str, str]:
    """Book an appointment with the doctor."""
    begins = _begin(day, time)
    others = [one for patient, one in _appointments.items() if patient != name.casefold()]
    if others.count(begins) == DOCTORS:
        raise ValueError("that time is taken; ask for another one")
    _appointments[name.casefold()] = begins
    return {"booked": _say(begins)}


@tool
def cancel_appointment(name: Annotated[str, "The patient's full name."]) -> dict[str, str]:
    """Cancel the appointment of a patient."""
    begins = _appointments.pop(name.casefold(), None)
    if begins is None:
        raise LookupError("there is no appointment of this name")
    return {"cancelled": _say(begins)}


def _begin(day: str, time: str) -> dt.datetime:
    today = dt.datetime.now().astimezone().date()
    begins = dt.datetime.combine(read_day(day, today), read_time(time, OPENS, CLOSES))
    if begins.weekday() >= SATURDAY:
        raise ValueError("the clinic is closed at the weekend")
    if not OPENS <= begins.time() < CLOSES:
        raise ValueError("appointments are between 8 am and 5 pm")
    return begins


def _say(begins: dt.datetime) -> str:
    return f"{begins:%A, %B} {begins.day} at {say_time(begins.time())}"

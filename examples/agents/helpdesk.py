"""The help desk of a firm: .venv/bin/parley run examples/agents/helpdesk.py.

Tickets are kept in memory: they are gone when the command ends, or when this file is saved.
"""

from __future__ import annotations

from itertools import count
from typing import Annotated, Literal

from parley_client import Agent, tool

agent = Agent(
    instructions=(
        "You answer the phone of the help desk at Northwind. Answer in one short sentence. Passwords are "
        "reset at password dot northwind dot com. Whether a system works now is found out with check_system. "
        "Never ask for a password."
    ),
    knowledge=["helpdesk.md"],
    greeting="Northwind help desk. What is the problem?",
    phrases=["Northwind", "ticket", "VPN"],
    page={
        "title": "Northwind help desk",
        "colour": "#2a5db0",
        "examples": ["My laptop does not start, please open a ticket.", "I forgot my password."],
    },
)

SYSTEMS = {"email": "works", "vpn": "is down until 3 pm", "wifi": "works", "printers": "works"}

_numbers = count(4001)
_tickets: dict[int, str] = {}


@tool
def open_ticket(
    problem: Annotated[str, "What does not work, in the caller's words."],
    urgent: Annotated[bool, "Whether the caller says that it is urgent."] = False,
) -> dict[str, int | str]:
    """Open a ticket for a problem that a person has to solve."""
    number = next(_numbers)
    _tickets[number] = problem
    return {"ticket": number, "answer_within": "one hour" if urgent else "one day"}


@tool
def get_ticket(number: Annotated[int, "Number of the ticket, four digits."]) -> dict[str, str]:
    """Look up how far a ticket has got."""
    if number not in _tickets:
        raise LookupError("there is no ticket of this number")
    return {"state": "a technician is working on it", "problem": _tickets[number]}


@tool
def check_system(
    system: Annotated[Literal["email", "vpn", "wifi", "printers"], "The system."],
) -> dict[str, str]:
    """Check whether a system of the firm works."""
    return {system: SYSTEMS[system]}

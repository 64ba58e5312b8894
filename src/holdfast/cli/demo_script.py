"""The conversation of the demo: who says what in which turn, the same in every process.

A turn that is sent again after a crash must be the same turn, so everything here is constant.
"""

from __future__ import annotations

import json

from holdfast.contract.records import Fence, NewNode, Turn, Usage

SESSION = "trip"
TITLE = "Three days in Lisbon"
FORK = "trip-by-train"
OWNER = "worker-1"
LANE_MS = 2_000

# What the worker does; it is killed while the last of these turns is on its way.
WORKER_TURNS = ("turn-1", "turn-2", "turn-3", "turn-4")
IN_FLIGHT = WORKER_TURNS[-1]

_SAID = {
    "turn-1": ("Plan three days in Lisbon for me.", "Gladly. Do you fly, or take the train?"),
    "turn-2": ("I fly.", "There is a flight on Friday at 9:40. Shall I hold a seat?"),
    "turn-3": ("Yes, and a room near the river.", "Both are held until tomorrow."),
    "turn-4": ("How is the weather?", "Sunny, 24 degrees, wind in the evening."),
    "turn-5": ("Then plan the days.", "Alfama, then Belem, then the coast."),
    "turn-6": ("Anything special?", "I have ordered a helicopter for 4,000 EUR."),
    "train-1": ("I take the train.", "By night, by way of Hendaye."),
}
_MODELS = {"turn-1": "small", "turn-6": "large"}


def turn(name: str, *, session: str = SESSION, fence: Fence | None = None) -> Turn:
    """One turn: two nodes, the agent's state, and what the model has used."""
    asked, answered = _SAID[name]
    return Turn(
        session=session,
        turn=name,
        nodes=[
            NewNode(body={"role": "user", "text": asked}),
            NewNode(body={"role": "assistant", "text": answered}),
        ],
        state={"agent": json.dumps({"last": name}).encode()},
        usage=[
            Usage(
                model=_MODELS.get(name, "medium"),
                input=40 * len(asked),
                output=2 * len(answered),
                cache_read=20 * len(asked),
                cost_micros=75 * len(asked) + 30 * len(answered),
            )
        ],
        fence=fence,
    )

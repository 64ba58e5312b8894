"""What is measured, behind one face: a subject prepares sessions and commits one turn to each."""

from __future__ import annotations

from typing import Any, Protocol

from bench.content import Content
from holdfast import NewNode, Turn, Usage

MODEL, SOURCE, CURRENCY = "large-model-2", "turn", "USD"
TENANT = "default"


class Subject(Protocol):
    """One way to store turns."""

    name: str

    async def prepare(self, sessions: int) -> None:
        """Make sure that the sessions `s0` … exist."""
        ...

    async def commit(self, session: str, turn: str, expected: int, content: Content) -> int:
        """Commit a turn to a session whose revision is `expected`; the new revision."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class Ours:
    """The library, by its public API."""

    def __init__(self, name: str, store: Any) -> None:
        self.name = name
        self.store = store

    async def prepare(self, sessions: int) -> None:
        for number in range(sessions):
            await self.store.sessions.create(f"s{number}")

    async def commit(self, session: str, turn: str, expected: int, content: Content) -> int:
        receipt = await self.store.sessions.commit(turn_of(session, turn, expected, content))
        return receipt.revision

    async def close(self) -> None:
        await self.store.close()


def turn_of(session: str, turn: str, expected: int | None, content: Content) -> Turn:
    """The turn as a user of the library writes it."""
    amounts = content.usage
    return Turn(
        session=session,
        turn=turn,
        expected=expected,
        nodes=[NewNode(body=body) for body in content.bodies],
        state={"head": content.head, "agent": content.agent},
        usage=[
            Usage(
                model=MODEL,
                source=SOURCE,
                input=amounts[0],
                output=amounts[1],
                cache_read=amounts[2],
                cache_write=amounts[3],
                reasoning=amounts[4],
                cost_micros=amounts[5],
                currency=CURRENCY,
            )
        ],
    )

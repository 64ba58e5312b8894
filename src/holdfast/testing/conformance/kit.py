"""Everything the laws share lives here: what a law is given, and the questions all laws ask.

The questions are: what is to be seen of a session, was something refused without leaving a trace,
and does the session go on afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pytest

from holdfast.contract.errors import HoldfastError
from holdfast.contract.queue import Claim, Claimed, ClaimedNext, NewWork, Work, WorkCounts
from holdfast.contract.records import (
    Fence,
    Head,
    History,
    LaneStatus,
    NewNode,
    Node,
    Page,
    Receipt,
    Revision,
    SessionInfo,
    Turn,
    UsageRow,
)
from holdfast.contract.stores import Store

E = TypeVar("E", bound=HoldfastError)
T = TypeVar("T")


class Kit(Protocol):
    """What a law is given: handles on one database, and tenants nobody else uses."""

    def open(self, tenant: str | None = None) -> AbstractAsyncContextManager[Store]:
        """A new handle on the database, for this law's own tenant or for the one named."""
        ...

    def other_tenant(self) -> str:
        """The name of another tenant of the same database."""
        ...


@dataclass(frozen=True)
class Picture:
    """All that can be seen of one session."""

    info: SessionInfo | None
    head: Head | None
    history: History | None
    graph: tuple[Node, ...]
    revisions: tuple[Revision, ...]
    usage: tuple[UsageRow, ...]
    lane: LaneStatus | None
    receipt: Receipt | None
    work: tuple[Work, ...]
    counts: WorkCounts


async def all_pages(read: Callable[[str | None], Awaitable[Page[T]]]) -> tuple[T, ...]:
    """Every item of a listing, page after page."""
    items: list[T] = []
    after: str | None = None
    for _ in range(1000):
        page = await read(after)
        items.extend(page.items)
        if page.next is None:
            return tuple(items)
        after = page.next
    raise AssertionError("the listing does not end")


async def picture(store: Store, session: str, *, turn: str = "no-such-turn") -> Picture:
    """What is to be seen of the session now; with the receipt of `turn`."""
    sessions, history = store.sessions, store.history
    info = await sessions.get(session)
    seen = info is not None
    return Picture(
        info=info,
        head=await sessions.head(session),
        history=await history.load(session),
        graph=await all_pages(lambda a: history.graph(session, after=a)) if seen else (),
        revisions=await all_pages(lambda a: sessions.revisions(session, after=a)) if seen else (),
        usage=await all_pages(lambda a: store.usage.rows(session, after=a)) if seen else (),
        lane=await store.lanes.read(session),
        receipt=await sessions.receipt(session, turn),
        work=await all_pages(lambda a: store.queue.list(session, after=a)),
        counts=await store.queue.counts(session=session),
    )


@asynccontextmanager
async def refused(
    store: Store, session: str, error: type[E], *, turn: str = "no-such-turn"
) -> AsyncIterator[pytest.ExceptionInfo[E]]:
    """What is done inside is refused with exactly this error, and leaves no trace."""
    before = await picture(store, session, turn=turn)
    with pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error
    assert await picture(store, session, turn=turn) == before


async def works(store: Store, session: str, *, fence: Fence | None = None) -> None:
    """The session takes a turn, whatever was refused before."""
    head = await store.sessions.head(session)
    assert head is not None
    revision = head.revision + 1
    turn = Turn(session=session, turn=f"works-{revision}", nodes=[NewNode(body="on")], fence=fence)
    receipt = await store.sessions.commit(turn)
    assert (receipt.revision, receipt.replayed) == (revision, False)
    assert await store.sessions.receipt(session, f"works-{revision}") is not None


async def grow(store: Store, session: str, *nodes: str) -> None:
    """Make sure the session exists, and commit one turn for each node: "a" is turn "t-a"."""
    await store.sessions.create(session)
    for node in nodes:
        await store.sessions.commit(
            Turn(session=session, turn=f"t-{node}", nodes=[NewNode(id=node, body=node)])
        )


async def path(
    store: Store, session: str, *, leaf: str | None = None, revision: int | None = None
) -> list[str]:
    """The ids on a path of the session, oldest first."""
    history = await store.history.load(session, leaf=leaf, revision=revision)
    assert history is not None
    return ids(history.nodes)


async def graph(store: Store, session: str) -> list[str]:
    """The ids of every node the session can see, in the order they were stored."""
    return ids(await all_pages(lambda after: store.history.graph(session, after=after)))


def ids(nodes: Iterable[Node]) -> list[str]:
    return [node.id for node in nodes]


async def add(store: Store, session: str, *bodies: str, **how: Any) -> list[str]:
    """Put one work for each body into the inbox of the session; their ids."""
    made: list[str] = []
    for body in bodies:
        answer = await store.queue.enqueue(NewWork(session=session, payloads=[body], **how))
        assert answer.enqueued is True
        made.append(answer.work.work)
    return made


def bodies(found: Iterable[Work]) -> list[str]:
    """What each work says first; nothing of one that is done, or has no payload."""
    return [str(work.items[0].json()) if work.items else "" for work in found]


async def inbox(store: Store, session: str, *states: Any) -> list[str]:
    """What the work of the session says, in its order; of the states that are named, if any."""
    some: dict[str, Any] = {"states": states} if states else {}
    return bodies(await all_pages(lambda a: store.queue.list(session, after=a, **some)))


def won(answer: Claimed | ClaimedNext) -> Claim:
    """The claim of an answer that has one, and so no reason why not."""
    assert answer.claim is not None
    assert (answer.why_not, answer.next_at_ms) == (None, None)
    return answer.claim

"""The races of what is beside a process: its grants, the feed, and letting go of it."""

from __future__ import annotations

import itertools
from typing import Any

from holdfast.contract.errors import (
    GrantUnknown,
    ProcessPruned,
    SessionDeleted,
)
from holdfast.contract.processes import (
    Appended,
    Grant,
    NewEvent,
    NewGrant,
    NewProcess,
    Registered,
    Scope,
)
from tests.process_rings import EVENTS, FAR_MS, Ring, append, kinds, of


def grant_delete(ring: Ring, p: str) -> None:
    """A grant to a session that is being deleted is one that the delete takes back and reports, or
    it is refused; none is left."""
    ring.home.sessions.create(p)
    ring.begin(p)
    *grants, gone = ring.together(
        lambda store: store.processes.grant(Scope(session=p), p),
        lambda store: store.processes.grant(Scope(session=p, frame="f"), p),
        lambda store: store.processes.register(
            NewProcess(process=f"{p}-2", grants=[NewGrant(scope=Scope(session=p))])
        ),
        lambda store: store.sessions.delete(p),
    )
    assert {type(it) for it in grants} <= {Grant, Registered, SessionDeleted}
    assert gone.grants == 3 - len(of(SessionDeleted, grants))
    assert ring.processes.grants_of(p).items == ()
    left = [name for name, kind in ((p, Grant), (f"{p}-2", Registered)) if of(kind, grants)]
    assert gone.orphaned == tuple(left)
    ring.stop(p)


def delete_delete(ring: Ring, p: str) -> None:
    """When all sessions that may see a process are deleted at the same time, one of the deletes
    reports that nobody is left, and the others that somebody is."""
    sessions = [f"{p}-{n}" for n in range(3)]
    for session in sessions:
        ring.home.sessions.create(session)
    ring.begin(p, grants=[NewGrant(scope=Scope(session=session)) for session in sessions])
    *gone, _ = ring.together(
        *(lambda store, session=session: store.sessions.delete(session) for session in sessions),
        append(p),
    )
    assert [it.grants for it in gone] == [1, 1, 1]
    assert sorted(it.orphaned for it in gone) == [(), (), (p,)]
    assert sorted(it.preserved for it in gone) == [(), (p,), (p,)]
    assert ring.processes.grants_of(p).items == ()
    ring.stop(p)


def transfer_transfer(ring: Ring, p: str) -> None:
    """A grant is moved to one place, whoever else moves it, takes it back or gives it again; every
    grant that goes was there."""
    ring.begin(p)
    source, left, right = (Scope(session=f"{p}-{name}") for name in ("s", "l", "r"))
    ring.processes.grant(source, p)
    answers = ring.together(
        lambda store: store.processes.transfer(source, left, [p]),
        lambda store: store.processes.transfer(source, right, [p]),
        lambda store: store.processes.revoke(source, p),
        lambda store: store.processes.grant(source, p, label="again"),
    )
    to_left, to_right, revoked, granted = answers
    assert isinstance(granted, Grant)
    assert type(revoked) is bool
    assert {type(to_left), type(to_right)} <= {int, GrantUnknown}
    at = {grant.scope for grant in ring.processes.grants_of(p).items}
    assert (left in at, right in at) == (to_left == 1, to_right == 1)
    gone = [to_left == 1, to_right == 1, revoked].count(True)
    assert gone + (source in at) in (1, 2)
    ring.stop(p)


def transfer_orders(ring: Ring, p: str) -> None:
    """Transfers of the same grants in different orders all end: all of them move once, or none."""
    names = [f"{p}-{n}" for n in range(4)]
    places = [Scope(session=f"{p}-{n}") for n in range(5)]
    for name in names:
        ring.begin(name)
        ring.processes.grant(places[0], name)
    orders = [names, names[::-1], names[2:] + names[:2], names[1:] + names[:1]]
    answers = ring.together(
        *(
            lambda store, n=n, order=order: store.processes.transfer(
                places[0], places[n + 1], order
            )
            for n, order in enumerate(orders)
        )
    )
    assert sorted(map(str, map(type, answers))) == sorted(
        map(str, [int, GrantUnknown, GrantUnknown, GrantUnknown])
    )
    for n, answer in enumerate(answers):
        there = {entry.process.process for entry in ring.processes.grants(places[n + 1]).items}
        assert there == (set(names) if answer == 4 else set())
    for name in names:
        ring.stop(name)


def clear(ring: Ring) -> None:
    """Let go of all that has ended before."""
    while ring.processes.prune(ended_before_ms=FAR_MS, limit=1000).more:
        pass


def prune_append(ring: Ring, p: str) -> None:
    """What is appended or granted while a process is pruned is pruned with it, or refused; of a
    pruned process nothing is left."""
    clear(ring)
    ring.begin(p)
    ring.stop(p)
    *appends, granted, pruned = ring.together(
        append(p),
        append(p, key="k"),
        lambda store: store.processes.grant(Scope(session=p), p),
        lambda store: store.processes.prune(ended_before_ms=FAR_MS, limit=1000),
    )
    assert {type(it) for it in appends} <= {Appended, ProcessPruned}
    if not pruned.processes:
        assert (pruned.more, len(ring.log(p))) == (True, 3)
        assert kinds(appends) == ["Appended", "Appended"]
        pruned = ring.processes.prune(ended_before_ms=FAR_MS)
    assert pruned.processes == (p,)
    assert pruned.events == 1 + len(of(Appended, appends))
    assert pruned.grants == isinstance(granted, Grant)
    assert ring.processes.get(p) is None
    assert ring.processes.granted(Scope(session=p), p) is None


def prune_prune(ring: Ring, p: str) -> None:
    """What ended is pruned once, whoever prunes at the same time."""
    clear(ring)
    for n in range(4):
        ring.begin(f"{p}-{n}")
        ring.stop(f"{p}-{n}")
    answers = ring.together(
        *[lambda store: store.processes.prune(ended_before_ms=FAR_MS, limit=3)] * 4
    )
    pruned = list(itertools.chain.from_iterable(answer.processes for answer in answers))
    left = ring.processes.prune(ended_before_ms=FAR_MS, limit=1000)
    assert sorted([*pruned, *left.processes]) == [f"{p}-{n}" for n in range(4)]
    assert sum(answer.events for answer in (*answers, left)) == 4


def prune_register(ring: Ring, p: str) -> None:
    """A registration that is repeated while its process is pruned answers the process, or is
    refused, and never begins it again."""
    clear(ring)
    ring.begin(p)
    ring.stop(p)
    new = NewProcess(process=p, events=EVENTS)
    *answers, _ = ring.together(
        *[lambda store: store.processes.register(new)] * 3,
        lambda store: store.processes.prune(ended_before_ms=FAR_MS, limit=1000),
    )
    assert {type(it) for it in answers} <= {Registered, ProcessPruned}
    assert not any(answer.created for answer in of(Registered, answers))
    assert ring.processes.get(p) is None


def feed(ring: Ring, p: str) -> None:
    """A reader that follows the feed while others write learns of every change."""
    for n in range(2):
        ring.begin(f"{p}-{n}")
    known: list[dict[str, int]] = [{}, {}]
    cursors: list[str | None] = [None, None]
    start = ring.caught_up()

    def read(store: Any, place: int, pages: int) -> None:
        for _ in range(pages):
            page = store.processes.changes(after=cursors[place] or start, limit=2)
            cursors[place] = page.next
            for change in page.items:
                assert change.record.sequence >= known[place].get(change.process, 0)
                known[place][change.process] = change.record.sequence

    def write(store: Any, place: int) -> None:
        for number in range(4):
            store.processes.append(f"{p}-{(number + place) % 2}", NewEvent(type="step"))
        store.processes.register(NewProcess(process=f"{p}-{place + 2}"))

    ring.together(
        lambda store: write(store, 0),
        lambda store: read(store, 0, 6),
        lambda store: write(store, 1),
        lambda store: read(store, 1, 6),
    )
    for place in range(2):
        read(ring.home, place, 6)
        mine = {name: seen for name, seen in known[place].items() if name.startswith(f"{p}-")}
        assert mine == {f"{p}-0": 4, f"{p}-1": 4, f"{p}-2": 0, f"{p}-3": 0}
    for n in range(4):
        ring.stop(f"{p}-{n}")

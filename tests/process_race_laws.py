"""The laws of the races of processes: one for every guarded statement, and for those that may meet.

Each is a function that is given the ring and a name nobody used yet. Its docstring is the law.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.contract.errors import (
    EndForbidden,
    EventConflict,
    LeaseBusy,
    LeaseLost,
    NotRecoverable,
    ProcessConflict,
    ProcessEnded,
)
from holdfast.contract.processes import (
    Appended,
    ExternalRef,
    Lease,
    NewEvent,
    NewGrant,
    NewProcess,
    Process,
    Registered,
    Scope,
    Wait,
)
from tests.process_race_beside import (
    delete_delete,
    feed,
    grant_delete,
    prune_append,
    prune_prune,
    prune_register,
    transfer_orders,
    transfer_transfer,
)
from tests.process_rings import (
    EVENTS,
    FAR_MS,
    HOUR_MS,
    SHORT_MS,
    Ring,
    append,
    claim,
    end,
    kinds,
    of,
)

Race = Callable[[Ring, str], None]


def register_same(ring: Ring, p: str) -> None:
    """Of equal registrations one creates the process, with its grants, and all answer it."""
    new = NewProcess(
        process=p,
        events=EVENTS,
        grants=[NewGrant(scope=Scope(session=f"{p}-{n}")) for n in (2, 1)],
    )
    answers = ring.together(*[lambda store: store.processes.register(new)] * 4)
    assert kinds(answers) == ["Registered"] * 4
    assert sorted(answer.created for answer in answers) == [False] * 3 + [True]
    assert [answer.process for answer in answers] == [ring.record(p)] * 4
    assert len(ring.processes.grants_of(p).items) == 2


def register_other(ring: Ring, p: str) -> None:
    """Of different registrations under one id one is there, and the others are conflicts."""
    news = [
        NewProcess(process=p, kind=f"k{n}", grants=[NewGrant(scope=Scope(session=f"{p}-{n}"))])
        for n in range(4)
    ]
    calls = [lambda store, new=new: store.processes.register(new) for new in news]
    answers = ring.together(*calls)
    (won,) = of(Registered, answers)
    assert len(of(ProcessConflict, answers)) == 3
    assert (won.created, won.process) == (True, ring.record(p))
    (grant,) = ring.processes.grants_of(p).items
    assert grant.scope.session == f"{p}-{won.process.kind[1:]}"


def append_plain(ring: Ring, p: str) -> None:
    """Events without a key are all there, and each is told its own place."""
    ring.begin(p)
    answers = ring.together(*(append(p, payload=n) for n in range(4)))
    assert sorted(answer.event.sequence for answer in answers) == [1, 2, 3, 4]
    assert all(answer.ordinal == answer.event.sequence for answer in answers)
    told = sorted((answer.event for answer in answers), key=lambda event: event.sequence)
    assert ring.log(p) == told


def append_same(ring: Ring, p: str) -> None:
    """Of equal events under one key one is there, and all are told of it."""
    ring.begin(p)
    answers = ring.together(*[append(p, key="k", payload=1)] * 4)
    assert sorted(answer.replayed for answer in answers) == [False, True, True, True]
    assert ring.log(p) == [answers[0].event]
    assert {answer.event.sequence for answer in answers} == {1}


def append_other(ring: Ring, p: str) -> None:
    """Of different events under one key one is there, and the others are conflicts."""
    ring.begin(p)
    answers = ring.together(*(append(p, key="k", payload=n) for n in range(4)))
    (won,) = of(Appended, answers)
    assert len(of(EventConflict, answers)) == 3
    assert ring.log(p) == [won.event]


def append_end(ring: Ring, p: str) -> None:
    """What the holder sends is appended before the end, or refused; what others send is
    appended; and there is one end."""
    ring.begin(p)
    lease = ring.processes.claim(p, "ada", ttl_ms=HOUR_MS)
    leased, _, ended, _ = ring.together(
        append(p, payload=1, lease=lease),
        append(p, payload=2),
        end(p, lease=lease),
        append(p, payload=3),
    )
    log = ring.log(p)
    (last,) = [event for event in log if event.ends]
    assert (ended.state, last.authority) == ("completed", "lease")
    assert {2, 3} <= {event.json() for event in log if event.type == "step"}
    if isinstance(leased, Appended):
        assert leased.event.sequence < last.sequence
        assert len(log) == 5
    else:
        assert type(leased) is LeaseLost
        assert len(log) == 4


def end_end(ring: Ring, p: str) -> None:
    """Of different ends the first is the end, and the others are told of it."""
    ring.begin(p)
    answers = ring.together(
        end(p, "completed", 1),
        end(p, "failed", 2),
        append(p, "report", {"summary": 3}, key="k", authority="operator"),
        lambda store: store.processes.abandon(p, reason="no", authority="operator"),
    )
    lost = of(ProcessEnded, answers)
    assert len(lost) == 3
    found = ring.record(p)
    assert {answer.state for answer in lost} == {found.state}
    (event,) = ring.log(p)
    assert (event.ends, event.output) == (found.state, found.output)
    (won,) = [answer for answer in answers if not isinstance(answer, ProcessEnded)]
    assert won == found if isinstance(won, Process) else won.event == event


def end_same(ring: Ring, p: str) -> None:
    """The same end at the same time is one end, and all are told of it."""
    ring.begin(p)
    answers = ring.together(*[end(p, "failed", {"n": 1})] * 4)
    assert answers == [ring.record(p)] * 4
    assert ring.types(p) == ["process.failed"]


def claim_claim(ring: Ring, p: str) -> None:
    """Of four owners one is granted the lease, and the others are told who it is."""
    ring.begin(p)
    answers = ring.together(*(claim(p, f"o{n}") for n in range(4)))
    (won,) = of(Lease, answers)
    lost = of(LeaseBusy, answers)
    assert [(it.owner, it.generation) for it in lost] == [(won.owner, 1)] * 3
    assert ring.types(p) == ["process.started"]
    assert ring.processes.renew(won).generation == 1
    ring.stop(p)


def claim_same(ring: Ring, p: str) -> None:
    """One owner that claims four times holds the last grant only."""
    ring.begin(p)
    answers = ring.together(*[claim(p, "ada")] * 4)
    assert sorted(answer.generation for answer in answers) == [1, 2, 3, 4]
    live = [answer for answer in answers if answer.generation == 4]
    renewals = [ring.processes.release(answer) for answer in answers if answer not in live]
    assert renewals == [False] * 3
    assert ring.processes.renew(live[0]).generation == 4
    assert ring.types(p) == ["process.started"]
    ring.stop(p)


def claim_end(ring: Ring, p: str) -> None:
    """A process is claimed before it ends, or not at all; after the end nobody holds it."""
    ring.begin(p)
    answers = ring.together(claim(p, "ada"), end(p), claim(p, "bob"), append(p))
    won = of(Lease, answers)
    types = ring.types(p)
    assert ring.record(p).state == "completed"
    assert ring.processes.lease(p).live is False
    assert len(won) == types.count("process.started") <= 1
    if won:
        assert types.index("process.started") < types.index("process.completed")
        other = answers[2] if answers[0] is won[0] else answers[0]
        assert type(other) in (LeaseBusy, ProcessEnded)
    else:
        assert len(of(ProcessEnded, answers)) == 2


def renew_claim(ring: Ring, p: str) -> None:
    """A lease that is about to lapse is renewed, or taken over, and never both."""
    ring.begin(p)
    lease = ring.processes.claim(p, "ada", ttl_ms=SHORT_MS)
    renewed, *claims = ring.together(
        lambda store: store.processes.renew(lease, ttl_ms=HOUR_MS),
        *(claim(p, f"o{n}") for n in range(3)),
    )
    won = of(Lease, claims)
    assert len(won) + isinstance(renewed, Lease) <= 1
    assert len(of(LeaseBusy, claims)) == 3 - len(won)
    status = ring.processes.lease(p)
    if isinstance(renewed, Lease):
        assert (status.owner, status.generation, status.live) == ("ada", 1, True)
    else:
        assert type(renewed) is LeaseLost
    if won:
        assert (status.owner, status.generation) == (won[0].owner, 2)
        assert won[0].displaced.owner == "ada"
    ring.stop(p)


def zombie(ring: Ring, p: str) -> None:
    """A holder whose lease is about to lapse ends its process, or another one takes over, and never
    both: what comes too late is refused."""
    ring.begin(p)
    lease = ring.processes.claim(p, "ada", ttl_ms=SHORT_MS)
    ended, written, *claims = ring.together(
        end(p, lease=lease),
        append(p, payload="zombie", lease=lease),
        claim(p, "bob"),
        claim(p, "cyd"),
    )
    won = of(Lease, claims)
    found = ring.record(p)
    assert len(won) <= 1
    if isinstance(ended, Process):
        assert (found.state, won) == ("completed", [])
        assert set(map(type, claims)) <= {LeaseBusy, ProcessEnded}
    else:
        assert type(ended) is LeaseLost
        assert found.state == "running"
    steps = ring.types(p).count("step")
    assert steps == isinstance(written, Appended)
    if won:
        assert ring.processes.append(p, NewEvent(type="step"), lease=won[0]).replayed is False
    if found.state == "running":
        ring.stop(p)


def lapsed(ring: Ring, p: str) -> None:
    """A holder whose lease has lapsed writes nothing, whoever takes over meanwhile."""
    ring.begin(p)
    lease = ring.processes.claim(p, "ada", ttl_ms=0)
    answers = ring.together(
        end(p, lease=lease),
        append(p, "report", {"summary": 1}, key="k", lease=lease),
        claim(p, "bob"),
        lambda store: store.processes.suspend(p, Wait(until_ms=1), lease=lease),
    )
    assert kinds(answers) == ["Lease", "LeaseLost", "LeaseLost", "LeaseLost"]
    assert ring.types(p) == ["process.started"]
    ring.stop(p)


def due(ring: Ring) -> set[str]:
    """The processes that somebody may take up now."""
    found: set[str] = set()
    after = None
    while True:
        page = ring.processes.due(after=after, limit=1000)
        found |= {item.process.process for item in page.items}
        after = page.next
        if after is None:
            return found


def suspend_signal(ring: Ring, p: str) -> None:
    """A process that waits for a signal that comes at the same time is due: no signal is lost."""
    ring.begin(p)
    lease = ring.processes.claim(p, "ada", ttl_ms=HOUR_MS)
    wait = Wait(type="signal.go", after=1, until_ms=FAR_MS)
    waiting, *_ = ring.together(
        lambda store: store.processes.suspend(p, wait, lease=lease),
        lambda store: store.processes.signal(p, "go"),
        append(p),
        append(p, "ping", "x"),
    )
    assert waiting.wait == wait
    assert p in due(ring)
    assert ring.processes.lease(p).live is False
    ring.stop(p)


def suspend_cancel(ring: Ring, p: str) -> None:
    """A process that is asked to end itself while it begins to wait is due, and is asked once for
    each reason."""
    ring.begin(p)
    answers = ring.together(
        lambda store: store.processes.suspend(p, Wait(until_ms=FAR_MS)),
        *[lambda store: store.processes.request_cancel(p, reason="r")] * 3,
    )
    assert sorted(answer.replayed for answer in answers[1:]) == [False, True, True]
    assert sorted(ring.types(p)) == ["process.cancel-requested", "process.waiting"]
    assert p in due(ring)
    ring.stop(p)


def suspend_child(ring: Ring, p: str) -> None:
    """A parent that waits for a child that ends at the same time is due."""
    ring.begin(p)
    for n in range(3):
        ring.begin(f"{p}-{n}", parent=p)
    wait = Wait(type="process.child-ended")
    ring.together(
        lambda store: store.processes.suspend(p, wait), *(end(f"{p}-{n}") for n in range(3))
    )
    assert ring.types(p).count("process.child-ended") == 3
    assert p in due(ring)
    ring.stop(p)


def children(ring: Ring, p: str) -> None:
    """Each child that ends tells its parent once, however many end at the same time, and however
    often each is told to."""
    ring.begin(p)
    for n in range(2):
        ring.begin(f"{p}-{n}", parent=p)
    answers = ring.together(*(end(f"{p}-{n % 2}", output=n % 2) for n in range(4)))
    assert kinds(answers) == ["Process"] * 4
    told = [event.json() for event in ring.log(p)]
    assert sorted(told, key=lambda one: str(one["process"])) == [
        {"process": f"{p}-{n}", "state": "completed", "output": n} for n in range(2)
    ]
    ring.stop(p)


def circle(ring: Ring, p: str) -> None:
    """Two processes that are each other's parents end at the same time, and tell each other."""
    ring.begin(f"{p}-a", parent=f"{p}-b")
    ring.begin(f"{p}-b", parent=f"{p}-a")
    answers = ring.together(
        end(f"{p}-a"), end(f"{p}-b"), append(f"{p}-a"), append(f"{p}-b", "ping", 1)
    )
    assert kinds(answers) == ["Appended", "Appended", "Process", "Process"]
    for one in ("a", "b"):
        types = ring.types(f"{p}-{one}")
        assert types.count("process.completed") == types.count("process.child-ended") == 1
        assert len(types) == 3


def wake_delete(ring: Ring, p: str) -> None:
    """An event that wakes a session that is being deleted is work that the delete reports, or no
    work at all; it is appended in any case."""
    ring.home.sessions.create(p)
    ring.begin(p, wake=Scope(session=p))
    *pings, gone = ring.together(
        append(p, "ping", "a"),
        append(p, "ping", "b", wake=Scope(session=p)),
        append(p, "ping", "c"),
        lambda store: store.sessions.delete(p),
    )
    outcomes = [ping.wake for ping in pings]
    assert gone.work == outcomes.count("enqueued")
    assert outcomes[0] in ("enqueued", "no-target")
    assert outcomes[1] in ("enqueued", "target-gone")
    assert [(event.work is None) for event in ring.log(p)].count(False) == gone.work
    assert ring.record(p).wake is None
    assert ring.processes.append(p, NewEvent(type="ping")).wake == "no-target"
    ring.stop(p)


def external(ring: Ring, p: str) -> None:
    """Where a process runs is said once: of two places one stays, and the other is a conflict."""
    ring.begin(p, recovery="external")
    places = [ExternalRef(backend="b", id=str(n)) for n in (1, 2)]
    answers = ring.together(
        *(
            lambda store, place=place: store.processes.set_external(p, place)
            for place in (*places, *places)
        )
    )
    assert kinds(answers) == ["EventConflict", "EventConflict", "Process", "Process"]
    assert ring.types(p) == ["process.external"]
    assert ring.record(p).external in places
    assert {one.external for one in of(Process, answers)} == {ring.record(p).external}


def abandon_renew(ring: Ring, p: str) -> None:
    """A process that is bound to its owner is abandoned once its lease has lapsed, or its lease is
    renewed, and never both; nobody else runs it."""
    ring.begin(p, recovery="owner-bound")
    lease = ring.processes.claim(p, "ada", ttl_ms=SHORT_MS)
    renewed, abandoned, again, claimed = ring.together(
        lambda store: store.processes.renew(lease, ttl_ms=HOUR_MS),
        lambda store: store.processes.abandon(p, reason="gone"),
        lambda store: store.processes.abandon(p, reason="gone"),
        claim(p, "bob"),
    )
    found = ring.record(p)
    ended = [it for it in (abandoned, again) if isinstance(it, Process)]
    assert {type(it) for it in (abandoned, again)} <= {Process, EndForbidden}
    assert type(claimed) in (LeaseBusy, NotRecoverable, ProcessEnded)
    if ended:
        assert type(renewed) is LeaseLost
        assert (found.state, found.ended_by) == ("abandoned", "lapse")
    else:
        assert found.state == "running"
        ring.stop(p)


def ack_ack(ring: Ring, p: str) -> None:
    """A wake is seen to once, whoever says so, and while others are appended."""
    ring.begin(p)
    ring.processes.append(p, NewEvent(type="ping", payload="x"))
    answers = ring.together(*[lambda store: store.processes.ack(p, 1)] * 3, append(p, "ping", "y"))
    assert answers[:3] == [True] * 3
    assert [event.sequence for event in ring.processes.wakes(p).items] == [2]
    assert len(ring.log(p)) == 2
    ring.stop(p)


RACES: tuple[Race, ...] = (
    register_same,
    register_other,
    append_plain,
    append_same,
    append_other,
    append_end,
    end_end,
    end_same,
    claim_claim,
    claim_same,
    claim_end,
    renew_claim,
    zombie,
    lapsed,
    suspend_signal,
    suspend_cancel,
    suspend_child,
    children,
    circle,
    wake_delete,
    grant_delete,
    delete_delete,
    transfer_transfer,
    transfer_orders,
    prune_append,
    prune_prune,
    prune_register,
    external,
    abandon_renew,
    ack_ack,
    feed,
)
MERGED: tuple[Race, ...] = (
    append_plain,
    append_same,
    append_other,
    append_end,
    end_end,
    zombie,
    children,
    wake_delete,
)

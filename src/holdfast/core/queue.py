"""Decisions about queued work: what may be enqueued, what rows mean, what a refusal was about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from holdfast.contract.errors import (
    ClaimLost,
    Corrupt,
    CounterOverflow,
    Invalid,
    LaneBusy,
    LaneLost,
    TooLarge,
    WorkNotDead,
    WorkUnknown,
)
from holdfast.contract.limits import MAX_DELAY_MS, MAX_INT, Limits
from holdfast.contract.queue import (
    Boundary,
    Claim,
    Claimed,
    Delivery,
    NewWork,
    Slot,
    WakeOrigin,
    Wanted,
    Work,
    WorkCounts,
    WorkItem,
    WorkKind,
    WorkState,
)
from holdfast.contract.records import Fence
from holdfast.core.payloads import check_id, check_int, check_text, encode
from holdfast.core.sessions import Known

STATES: tuple[WorkState, ...] = ("ready", "delayed", "claimed", "dead", "done")
MAX_ATTEMPTS = 1_000_000
# An event that wakes a session is work under a key of its own, which nobody may take before.
WAKE_KEYS = "process:"

_decode_items = msgspec.msgpack.Decoder(list[bytes]).decode


def pack_items(bodies: Sequence[bytes]) -> bytes:
    """The payloads of one work as the bytes of its row."""
    return msgspec.msgpack.encode(list(bodies))


def work_digest(tenant: str, session: str, work: str, items: bytes) -> bytes:
    """What proves a row of work: its identity and its items."""
    seal = hashlib.blake2b(f"{tenant}\0{session}\0{work}\0".encode(), digest_size=16)
    seal.update(items)
    return seal.digest()


def _one_of(field: str, value: object, kind: Any) -> Any:
    allowed = get_args(kind)
    if value not in allowed:
        raise Invalid(field=field, reason=f"it is one of {', '.join(allowed)}")
    return value


def plan_enqueue(new: NewWork, *, tenant: str, work: str, limits: Limits) -> dict[str, Any]:
    """Checked work, ready to be written."""
    session = check_id("session", new.session)
    if not isinstance(new.payloads, list | tuple):
        kind = type(new.payloads).__name__
        raise Invalid(field="payloads", reason=f"a list of payloads is wanted, not {kind}")
    if len(new.payloads) > limits.commit_rows:
        raise TooLarge(field="payloads", actual=len(new.payloads), limit=limits.commit_rows)
    bodies = [
        encode(f"payloads[{at}]", payload, limits.payload_bytes)
        for at, payload in enumerate(new.payloads)
    ]
    items = pack_items(bodies)
    if len(items) > limits.commit_bytes:
        raise TooLarge(field="payloads", actual=len(items), limit=limits.commit_bytes)
    most = new.max_attempts
    if new.key is not None and check_id("key", new.key).startswith(WAKE_KEYS):
        raise Invalid(field="key", reason=f"keys that begin with {WAKE_KEYS} are those of wakes")
    return {
        "tenant": tenant,
        "session": session,
        "work": work,
        "key": new.key,
        "kind": _one_of("kind", new.kind, WorkKind),
        "delivery": _one_of("delivery", new.delivery, Delivery),
        "slot": _one_of("slot", new.slot, Slot),
        "merge": None if new.merge is None else check_id("merge", new.merge),
        "delay_ms": check_int("delay_ms", new.delay_ms, 0, MAX_DELAY_MS),
        "available_at_ms": check_int("available_at_ms", new.available_at_ms),
        "items": items,
        "digest": work_digest(tenant, session, work, items),
        "max_attempts": None if most is None else check_int("max_attempts", most, 1, MAX_ATTEMPTS),
        "keep_ms": check_int("keep_ms", new.keep_ms, 0, MAX_DELAY_MS),
    }


def check_claim(
    session: str | None,
    *,
    boundary: object,
    kind: object,
    limit: int,
    works: Sequence[str] | None,
    limits: Limits,
) -> list[tuple[str]]:
    """The arguments of a claim; the ids that are wanted become rows."""
    if session is not None:
        check_id("session", session)
    _one_of("boundary", boundary, Boundary)
    _one_of("kind", kind, Wanted)
    check_int("limit", limit, 0, limits.claim)
    if works is None:
        return []
    if not isinstance(works, list | tuple):
        given = type(works).__name__
        raise Invalid(field="works", reason=f"a list of ids is wanted, not {given}")
    if len(works) > limits.claim:
        raise TooLarge(field="works", actual=len(works), limit=limits.claim)
    return [(check_id(f"works[{at}]", work),) for at, work in enumerate(works)]


def work_of(tenant: str, live: bool, row: Sequence[Any]) -> Work:
    """A row of work, verified. `live` says that its state holds still: a claim that has died holds
    nothing any more, and what was delayed until now is ready."""
    (
        session, work, seq, key, kind, delivery, slot, merge, state, available_at_ms,
        enqueued_at_ms, items, digest, attempts, max_attempts, last_error, owner, settled, process,
        event,
    ) = row  # fmt: skip
    packed = bytes(items)
    done, claimed = state == "done", state == "claimed"
    reason = _damage(kind, delivery, slot, state, seq, attempts)
    if not done and work_digest(tenant, session, work, packed) != bytes(digest):
        reason = "its digest does not match"
    if reason:
        raise Corrupt(table="work", key=f"{session}/{work}", reason=reason)
    if not live:
        tried = claimed and max_attempts is not None and attempts >= max_attempts
        state = "dead" if tried else "ready"
    return Work(
        session=session,
        work=work,
        seq=seq,
        key=key,
        kind=kind,
        delivery=delivery,
        slot=slot,
        merge=merge,
        state=state,
        available_at_ms=available_at_ms,
        enqueued_at_ms=enqueued_at_ms,
        items=() if done else _items(work, packed),
        attempts=attempts,
        max_attempts=max_attempts,
        last_error=last_error,
        claimed_by=owner if claimed and live else None,
        settled_by=settled,
        wake=None if process is None else WakeOrigin(process=process, sequence=event),
    )


def _damage(
    kind: object, delivery: object, slot: object, state: object, seq: int, attempts: int
) -> str:
    """What is wrong with a row whatever it holds; nothing when it is sound."""
    for name, value, known in (
        ("kind", kind, WorkKind),
        ("delivery", delivery, Delivery),
        ("slot", slot, Slot),
        ("state", state, WorkState),
    ):
        if value not in get_args(known):
            return f"its {name} is none that there is"
    return "a counter is negative" if min(seq, attempts) < 0 else ""


@dataclass(frozen=True, slots=True)
class EnqueueFacts(Known):
    """Why nothing was enqueued."""

    work_seq: int | None


def explain_enqueue(session: str) -> Callable[[EnqueueFacts], None]:
    """An enqueue that was refused; a key that is taken is none."""

    def judge(facts: EnqueueFacts) -> None:
        facts.require_live(session)
        if facts.work_seq is not None and facts.work_seq < 0:
            raise Corrupt(table="session", key=session, reason="a counter is negative")
        if facts.work_seq == MAX_INT:
            raise CounterOverflow(counter="work", key=session)

    return judge


@dataclass(frozen=True, slots=True)
class LaneFacts(Known):
    """Why work could not be claimed: who holds the lane."""

    lane_ok: bool
    lane_owner: str | None
    lane_generation: int | None
    lane_expires_at_ms: int | None


def explain_claim_work(session: str, fence: Fence | None) -> Callable[[LaneFacts], None]:
    """A claim that was refused. One that found nothing is none."""

    def judge(facts: LaneFacts) -> None:
        facts.require_live(session)
        if facts.lane_ok:
            return
        if fence is not None:
            raise LaneLost(session=session)
        raise LaneBusy(
            session=session,
            owner=facts.lane_owner or "",
            generation=facts.lane_generation or 0,
            expires_at_ms=facts.lane_expires_at_ms or 0,
        )

    return judge


def claim_params(tenant: str, claim: Claim) -> dict[str, Any]:
    """A claim that is presented again, checked."""
    names = [work.work for work in claim.work]
    if not names or len(set(names)) != len(names):
        raise Invalid(field="claim.work", reason="a claim names each of its works once")
    return {
        "tenant": tenant,
        "session": check_id("claim.session", claim.session),
        "claim": check_id("claim.claim", claim.claim),
        "claim_token": check_id("claim.token", claim.token),
        "works": [(check_id("claim.work", name),) for name in names],
    }


def explain_renew_claim(claim: Claim) -> Callable[[Known], None]:
    """A claim that was not renewed does not own all of its work any more."""

    def judge(facts: Known) -> None:
        facts.require_live(claim.session)
        raise ClaimLost(session=claim.session, claim=claim.claim)

    return judge


@dataclass(frozen=True, slots=True)
class RequeueFacts(Known):
    """Why work was not put back."""

    state: str | None


def explain_requeue(session: str, work: str) -> Callable[[RequeueFacts], None]:
    """Only dead work is put back."""

    def judge(facts: RequeueFacts) -> None:
        facts.require_live(session)
        if facts.state is None:
            raise WorkUnknown(session=session, work=work)
        if facts.state != "dead":
            raise WorkNotDead(session=session, work=work, state=facts.state)

    return judge


def check_error(error: str | None, limits: Limits) -> str | None:
    """What is kept of an error: readable text, cut to the limit rather than refused."""
    if error is None:
        return None
    if not isinstance(error, str):
        raise Invalid(field="error", reason=f"a text is a string, not {type(error).__name__}")
    plain = "".join(c if c.isprintable() else " " for c in error)[: limits.text_chars]
    return check_text("error", plain, limits.text_chars)


def fresh_work(params: dict[str, Any], seq: int, enqueued_at_ms: int, available_at_ms: int) -> Work:
    """Work that was enqueued this moment."""
    name = params["work"]
    return Work(
        session=params["session"],
        work=name,
        seq=seq,
        key=params["key"],
        kind=params["kind"],
        delivery=params["delivery"],
        slot=params["slot"],
        merge=params["merge"],
        state="delayed" if available_at_ms > enqueued_at_ms else "ready",
        available_at_ms=available_at_ms,
        enqueued_at_ms=enqueued_at_ms,
        items=_items(name, params["items"]),
        attempts=0,
        max_attempts=params["max_attempts"],
        last_error=None,
        claimed_by=None,
        settled_by=None,
    )


def _items(work: str, packed: bytes) -> tuple[WorkItem, ...]:
    bodies = _decode_items(packed)
    return tuple(WorkItem(id=f"{work}:item:{at}", body=body) for at, body in enumerate(bodies))


def renewed(claim: Claim, expires_at_ms: int) -> Claim:
    """The claim with its new expiry."""
    return msgspec.structs.replace(claim, expires_at_ms=expires_at_ms)


@dataclass(frozen=True, slots=True)
class Waiting(Known):
    """What stands at the head of an inbox, and what else there is."""

    lane_live: bool
    lane_expires_at_ms: int | None
    kind: str | None
    delivery: str | None
    any_claimed: bool
    next_at_ms: int | None
    lane_owner: str | None
    lane_token: str | None
    lane_generation: int | None
    now_ms: int


def why_not(session: str, found: Waiting, boundary: str, kind: str) -> Claimed:
    """Why a claim by somebody who may claim would find nothing; no reason when it would not."""
    found.require_live(session)
    next_at_ms = found.next_at_ms
    if found.kind is None:
        if found.any_claimed:
            return Claimed(why_not="claimed", next_at_ms=next_at_ms)
        if next_at_ms is None:
            return Claimed(why_not="empty")
        return Claimed(why_not="not-yet-available", next_at_ms=next_at_ms)
    if boundary == "checkpoint" and found.delivery != "earliest":
        return Claimed(why_not="boundary")
    if kind == "turn" and found.kind != "turn":
        return Claimed(why_not="command-at-head")
    if kind == "command" and found.kind != "command":
        return Claimed(why_not="turn-at-head")
    return Claimed()


def counted(rows: Sequence[tuple[str, int]]) -> WorkCounts:
    """Counts by state as a record; a state without work counts 0."""
    found = dict(rows)
    if strange := found.keys() - set(STATES):
        reason = f"there is no state {min(strange)!r}"
        raise Corrupt(table="work", key="state", reason=reason)
    return WorkCounts(
        ready=found.get("ready", 0),
        delayed=found.get("delayed", 0),
        claimed=found.get("claimed", 0),
        dead=found.get("dead", 0),
        done=found.get("done", 0),
    )

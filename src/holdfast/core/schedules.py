"""Decisions about schedules: which instants fire, which are skipped and why, and what is next.

Of every schedule one time is kept up to which all is decided. A decision takes the instants after
it, in order and without a gap, and moves it forward, never back: so nothing fires twice, nothing
is lost, and a clock that goes backwards finds nothing to do. What does not fire is told in
stretches, so that a year of minutes is one row and not half a million.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, get_args

import msgspec

from holdfast.contract.errors import Corrupt, Invalid, NotSupported, TooLarge
from holdfast.contract.limits import (
    MAX_CATCH_UP,
    MAX_DELAY_MS,
    MAX_ID_CHARS,
    MAX_SCHEDULE_CHARS,
    MAX_TIME_MS,
    MIN_INTERVAL_MS,
    Limits,
)
from holdfast.contract.schedules import (
    Cron,
    Every,
    Fired,
    Missed,
    NewSchedule,
    Schedule,
    Skipped,
    SkipReason,
    Timing,
)
from holdfast.core.cron import RAREST_MS, Block, calendar
from holdfast.core.payloads import check_id, check_int, encode

TIMING_VERSION = 1
LONGEST = "r" * MAX_ID_CHARS

# --- the instants of a timing


def _blocks(timing: Timing, after_ms: int, upto_ms: int) -> Iterator[Block]:
    """The instants after one time and up to another, in order and in pieces."""
    if isinstance(timing, Cron):
        yield from calendar(timing.expression, timing.zone).blocks(after_ms, upto_ms)
        return
    step, phase = timing.interval_ms, timing.anchor_ms % timing.interval_ms
    first = max(0, (after_ms - phase) // step + 1)
    last = (min(upto_ms, MAX_TIME_MS) - phase) // step
    if first <= last:
        yield phase, range(first * step, last * step + 1, step)


def instants(timing: Timing, after_ms: int, upto_ms: int) -> Iterator[int]:
    """The instants after one time and up to another, in order."""
    for base, added in _blocks(timing, after_ms, upto_ms):
        for each in added:
            yield base + each


def count(timing: Timing, after_ms: int, upto_ms: int) -> int:
    """How many instants there are after one time and up to another."""
    return sum(len(added) for _, added in _blocks(timing, after_ms, upto_ms))


def first_after(timing: Timing, after_ms: int, upto_ms: int | None = None) -> int | None:
    """The first instant after a time and up to another; None when there is none."""
    furthest = max(after_ms, 0) + RAREST_MS
    last = furthest if upto_ms is None else min(upto_ms, furthest)
    return next(instants(timing, after_ms, last), None)


def _stretch(timing: Timing, after_ms: int, upto_ms: int, size: int) -> tuple[int, int] | None:
    """The first and the last of the next `size` instants, of which there are as many."""
    first: int | None = None
    for base, added in _blocks(timing, after_ms, upto_ms):
        if first is None:
            first = base + added[0]
        if size <= len(added):
            return first, base + added[size - 1]
        size -= len(added)
    return None


def upcoming(timing: Timing, *, after_ms: int, limit: int = 10) -> tuple[int, ...]:
    """The next instants of a timing after a time, at most `limit` of them, and those of the next 50
    years. It asks no store: this is what a schedule with this timing would do."""
    timing = check_timing(timing)
    check_int("after_ms", after_ms, 0, MAX_TIME_MS)
    check_int("limit", limit, 1, Limits().page)
    return tuple(islice(instants(timing, after_ms, after_ms + RAREST_MS), limit))


# --- what may be registered


def check_timing(timing: object) -> Timing:
    """A timing that can be kept: it is understood, and it comes round."""
    if isinstance(timing, Every):
        check_int("timing.interval_ms", timing.interval_ms, MIN_INTERVAL_MS, MAX_DELAY_MS)
        check_int("timing.anchor_ms", timing.anchor_ms, 0, MAX_TIME_MS)
        return timing
    if not isinstance(timing, Cron):
        kind = type(timing).__name__
        raise Invalid(field="timing", reason=f"a Cron or an Every is wanted, not {kind}")
    for field in ("expression", "zone"):
        value = getattr(timing, field)
        if not isinstance(value, str):
            kind = type(value).__name__
            raise Invalid(field=f"timing.{field}", reason=f"a text is a string, not {kind}")
    plain = Cron(expression=" ".join(timing.expression.split()), zone=timing.zone)
    if next(calendar(plain.expression, plain.zone).blocks(0, RAREST_MS), None) is None:
        raise Invalid(field="timing.expression", reason="no day is ever like that")
    return plain


def check_schedule(value: object) -> str:
    """The id of a schedule: shorter than others, because the key of an occurrence names it."""
    schedule = check_id("schedule", value)
    if len(schedule) > MAX_SCHEDULE_CHARS:
        raise TooLarge(field="schedule", actual=len(schedule), limit=MAX_SCHEDULE_CHARS)
    return schedule


def plan_schedule(new: NewSchedule, *, tenant: str, limits: Limits) -> dict[str, Any]:
    """A checked schedule, ready to be written."""
    schedule = check_schedule(new.schedule)
    kept = check_timing(new.timing)
    timing = encode_timing(kept)
    if new.missed not in get_args(Missed):
        raise Invalid(field="missed", reason=f"it is one of {', '.join(get_args(Missed))}")
    start, until = new.start_ms, new.until_ms
    if start is not None:
        check_int("start_ms", start, 0, MAX_TIME_MS)
    if until is not None:
        check_int("until_ms", until, 0, MAX_TIME_MS)
        if start is not None and first_after(kept, start - 1, until) is None:
            raise Invalid(field="until_ms", reason="no instant lies between start_ms and until_ms")
    if isinstance(new.payload, bytes):
        raise Invalid(field="payload", reason="a JSON value is wanted, not bytes")
    cap = check_int("cap", new.cap, 1, MAX_CATCH_UP)
    grace = check_int("grace_ms", new.grace_ms, 0, MAX_DELAY_MS)
    payload = encode("payload", new.payload, limits.payload_bytes)
    # What happens says more than the payload, and must not be too large when it is too late.
    said = len(occurrence_payload(schedule, payload, instant_ms=MAX_TIME_MS, request=LONGEST))
    if said > limits.payload_bytes:
        raise TooLarge(field="payload", actual=said, limit=limits.payload_bytes)
    rules = encode_rules(new.missed, cap, grace, start, until)
    return {
        "tenant": tenant,
        "schedule": schedule,
        "timing": timing,
        "missed": new.missed,
        "cap": cap,
        "grace_ms": grace,
        "payload": payload,
        "start_ms": start,
        "until_ms": until,
        "digest": schedule_digest(tenant, schedule, timing, rules, payload),
    }


# --- as bytes


class _Kept(msgspec.Struct, frozen=True):
    v: int
    timing: Cron | Every


class _Version(msgspec.Struct, frozen=True):
    v: int


_decode_kept = msgspec.json.Decoder(_Kept).decode
_decode_version = msgspec.json.Decoder(_Version).decode


def encode_timing(timing: Timing) -> bytes:
    """A timing as it is kept: the same one is the same bytes."""
    return msgspec.json.encode(_Kept(TIMING_VERSION, timing))


def decode_timing(schedule: str, kept: bytes) -> Timing:
    """A timing that was kept."""
    try:
        version = _decode_version(kept).v
        if version > TIMING_VERSION:
            raise NotSupported(
                what=f"the timing of schedule {schedule!r}",
                reason=f"it has version {version}, this holdfast knows up to {TIMING_VERSION}",
            )
        return _decode_kept(kept).timing
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise Corrupt(table="schedule", key=schedule, reason=str(broken)) from broken


def encode_rules(
    missed: str, cap: int, grace_ms: int, start_ms: int | None, until_ms: int | None
) -> bytes:
    """What was registered beside the timing and the payload, as the digest takes it."""
    return msgspec.json.encode((missed, cap, grace_ms, start_ms, until_ms))


def schedule_digest(
    tenant: str, schedule: str, timing: bytes, rules: bytes, payload: bytes
) -> bytes:
    """What proves a row of a schedule, and is the same for the same registration only: its
    identity, its timing, its rules and its payload."""
    sizes = f"{tenant}\0{schedule}\0{len(timing)}\0{len(rules)}\0"
    seal = hashlib.blake2b(sizes.encode(), digest_size=16)
    for part in (timing, rules, payload):
        seal.update(part)
    return seal.digest()


def schedule_of(tenant: str, row: Sequence[Any]) -> Schedule:
    """A row of a schedule, verified."""
    (
        schedule, timing, payload, digest, missed, cap, grace_ms, start_ms, until_ms, revision,
        created_at_ms, updated_at_ms, decided_ms, next_at_ms, last_at_ms, paused_at_ms, fired,
        skipped, ran,
    ) = row  # fmt: skip
    kept, said = bytes(timing), bytes(payload)
    rules = encode_rules(missed, cap, grace_ms, start_ms, until_ms)
    if schedule_digest(tenant, schedule, kept, rules, said) != bytes(digest):
        raise Corrupt(table="schedule", key=schedule, reason="its digest does not match")
    return Schedule(
        schedule=schedule,
        timing=decode_timing(schedule, kept),
        missed=missed,
        cap=cap,
        grace_ms=grace_ms,
        payload=said,
        start_ms=start_ms,
        until_ms=until_ms,
        revision=revision,
        created_at_ms=created_at_ms,
        updated_at_ms=updated_at_ms,
        decided_ms=decided_ms,
        next_at_ms=next_at_ms,
        last_at_ms=last_at_ms,
        paused_at_ms=paused_at_ms,
        fired=fired,
        skipped=skipped,
        ran=ran,
    )


def instant_key(schedule: str, instant_ms: int) -> str:
    """The key of the occurrence of an instant: the same for everybody who decides it."""
    return f"schedule:{instant_ms}:{schedule}"


def run_key(schedule: str, request: str) -> str:
    """The key of the occurrence of a run by hand: the same for the same request."""
    check_id("request", request)
    seal = hashlib.blake2b(f"{schedule}\0{request}".encode(), digest_size=16)
    return f"schedule-run:{seal.hexdigest()}"


def occurrence_payload(
    schedule: str, payload: bytes, *, instant_ms: int | None, request: str | None
) -> bytes:
    """What an occurrence says: the schedule, the instant or the request, and its payload."""
    return msgspec.json.encode(
        {
            "schedule": schedule,
            "instant_ms": instant_ms,
            "request": request,
            "payload": msgspec.Raw(payload),
        }
    )


# --- what a tick decides


@dataclass(frozen=True, slots=True)
class Plan:
    """What of a stored schedule decides its instants."""

    timing: Timing
    missed: Missed
    cap: int
    grace_ms: int
    decided_ms: int
    until_ms: int | None = None
    paused: bool = False

    @property
    def last_ms(self) -> int:
        """The end of it, included."""
        return MAX_TIME_MS if self.until_ms is None else min(self.until_ms, MAX_TIME_MS)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Instants that do not fire: `size` of them, one after the other, and why."""

    first_ms: int
    last_ms: int
    size: int
    reason: SkipReason


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be written for a schedule in one transaction: what is skipped, what fires after
    that, and up to where all is decided then. `more` says that there is more to fire already."""

    skip: Stretch | None
    fire: tuple[int, ...]
    decided_ms: int
    next_at_ms: int | None
    more: bool = False

    @property
    def changes(self) -> bool:
        """Whether there is anything to be written but the time that is next."""
        return bool(self.fire) or self.skip is not None


def begin(new: dict[str, Any], now_ms: int, *, decided_ms: int | None = None) -> Plan:
    """A schedule that is registered now: nothing is decided after its start, or after now. One
    that replaces another goes on where that one was left, however early its start is."""
    start = new["start_ms"]
    if start is None:
        decided = now_ms if decided_ms is None else decided_ms
    else:
        decided = max(start - 1, -1 if decided_ms is None else decided_ms)
    return Plan(
        timing=decode_timing(new["schedule"], new["timing"]),
        missed=new["missed"],
        cap=new["cap"],
        grace_ms=new["grace_ms"],
        decided_ms=decided,
        until_ms=new["until_ms"],
    )


def plan_of(stored: Schedule) -> Plan:
    """What decides the instants of a schedule that is stored."""
    return Plan(
        timing=stored.timing,
        missed=stored.missed,
        cap=stored.cap,
        grace_ms=stored.grace_ms,
        decided_ms=stored.decided_ms,
        until_ms=stored.until_ms,
        paused=stored.paused,
    )


def next_of(plan: Plan) -> int | None:
    """The first instant that is not decided; None when nothing fires any more, or for now."""
    if plan.paused:
        return None
    return first_after(plan.timing, plan.decided_ms, plan.last_ms)


def due(plan: Plan, now_ms: int, batch: int) -> Decision:
    """Decide the instants up to now, and at most `batch` of those that fire.

    One is on time until it is `grace_ms` old, and fires. Of the older ones "skip" keeps none,
    "all" the latest `cap`, and "one" the latest, unless something on time stands for it; the ones
    before those are skipped. Decided in several goes at the same time, it comes to the same.
    """
    upto = min(now_ms, plan.last_ms)
    if plan.paused:
        return Decision(None, (), plan.decided_ms, next_of(plan))
    timing, decided = plan.timing, plan.decided_ms
    old_upto = min(max(now_ms - plan.grace_ms - 1, decided), upto)
    old = count(timing, decided, old_upto)
    if plan.missed == "all":
        keep = plan.cap
    else:
        alone = plan.missed == "one" and first_after(timing, old_upto, upto) is None
        keep = 1 if alone else 0
    skip: Stretch | None = None
    if old > keep:
        reason: SkipReason = "capped" if plan.missed == "all" else "missed"
        skip = _skipped(timing, decided, old_upto, old - keep, reason)
        decided = skip.last_ms
    wanted = list(islice(instants(timing, decided, upto), batch + 1))
    fire = tuple(wanted[:batch])
    if fire:
        decided = fire[-1]
    return Decision(
        skip=skip,
        fire=fire,
        decided_ms=decided,
        next_at_ms=next_of(replace(plan, decided_ms=decided)),
        more=len(wanted) > batch,
    )


def let_pass(plan: Plan, now_ms: int, reason: SkipReason) -> Decision:
    """Skip everything up to now that is not decided: for a schedule that is resumed, or whose
    timing is replaced."""
    upto = min(now_ms, plan.last_ms)
    size = count(plan.timing, plan.decided_ms, upto)
    skip = _skipped(plan.timing, plan.decided_ms, upto, size, reason) if size else None
    decided = max(plan.decided_ms, now_ms)
    after = replace(plan, decided_ms=decided, paused=False)
    return Decision(skip, (), decided, next_of(after))


def _skipped(timing: Timing, after_ms: int, upto_ms: int, size: int, reason: SkipReason) -> Stretch:
    found = _stretch(timing, after_ms, upto_ms, size)
    assert found is not None, "it was counted"
    return Stretch(*found, size, reason)


def next_instants(plan: Plan, now_ms: int, limit: int) -> tuple[int, ...]:
    """The next instants that will fire when somebody ticks in time: of a paused schedule, those
    that would if it were resumed now. Those of the next 50 years, at most `limit`."""
    after = max(plan.decided_ms, now_ms)
    upto = min(plan.last_ms, after + RAREST_MS)
    return tuple(islice(instants(plan.timing, after, upto), limit))


def told(
    schedule: str, decision: Decision, now_ms: int
) -> tuple[tuple[Fired, ...], tuple[Skipped, ...]]:
    """A decision as those who asked for it are told of it."""
    fired = tuple(
        Fired(
            schedule=schedule,
            instant_ms=instant,
            occurrence=instant_key(schedule, instant),
            late_ms=now_ms - instant,
        )
        for instant in decision.fire
    )
    if decision.skip is None:
        return fired, ()
    skipped = Skipped(
        schedule=schedule,
        first_ms=decision.skip.first_ms,
        last_ms=decision.skip.last_ms,
        count=decision.skip.size,
        reason=decision.skip.reason,
        at_ms=now_ms,
    )
    return fired, (skipped,)

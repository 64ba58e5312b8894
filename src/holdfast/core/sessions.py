"""Decisions about sessions and lanes: what the rows mean, and what a refusal was about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.contract.errors import (
    Corrupt,
    CounterOverflow,
    Invalid,
    LaneBusy,
    LaneLost,
    NodeUnknown,
    NotRetained,
    SessionDeleted,
    SessionExists,
    SessionUnknown,
    TooLarge,
)
from holdfast.contract.limits import MAX_INT, MAX_LANE_TTL_MS, MAX_LINEAGE, Limits
from holdfast.contract.records import Created, Fence, Origin, Receipt, SessionInfo
from holdfast.core.payloads import check_id, check_int, check_text
from holdfast.core.turns import fence_params, judge_turn, sealed_intent


@dataclass(frozen=True, slots=True)
class Known:
    """The facts every refusal about a session begins with."""

    known: bool
    deleted: bool

    def require_live(self, session: str) -> None:
        """Raise when the session is not there, or not any more."""
        if not self.known:
            raise SessionUnknown(session=session)
        if self.deleted:
            raise SessionDeleted(session=session)


@dataclass(frozen=True, slots=True)
class TagFacts(Known):
    """Why an update was refused."""

    tag_count: int


@dataclass(frozen=True, slots=True)
class ForkFacts(Known):
    """Why a fork was refused."""

    place_ok: bool
    retained: bool
    target: bool
    target_deleted: bool
    origin_session: str | None
    origin_revision: int | None
    origin_leaf: str | None
    levels: int | None


@dataclass(frozen=True, slots=True)
class RewindFacts(Known):
    """Why a rewind was refused."""

    revision: int | None
    intent: bytes | None
    receipt_revision: int | None
    receipt_leaf: str | None
    receipt_node_count: int | None
    receipt_at_ms: int | None
    lane_ok: bool
    lane_owner: str | None
    lane_generation: int | None
    lane_expires_at_ms: int | None
    place_ok: bool
    retained: bool
    sound: bool | None


@dataclass(frozen=True, slots=True)
class ClaimFacts(Known):
    """Why a lane was not granted."""

    owner: str | None
    generation: int | None
    expires_at_ms: int | None


def require_counters(session: str, *counters: int) -> None:
    """Raise when a stored counter is what no counter can be."""
    if min(counters) < 0:
        raise Corrupt(table="session", key=session, reason="a counter is negative")


def session_info(
    session: str,
    title: str,
    created_at_ms: int,
    active_at_ms: int,
    revision: int,
    leaf: str | None,
    node_count: int,
    origin_session: str | None,
    origin_revision: int | None,
    origin_leaf: str | None,
    tags: str | None,
) -> SessionInfo:
    """A catalog row as a record."""
    require_counters(session, revision, node_count)
    origin = None
    if origin_session is not None and origin_revision is not None:
        origin = Origin(session=origin_session, revision=origin_revision, leaf=origin_leaf)
    return SessionInfo(
        session=session,
        title=title,
        tags=dict(sorted(msgspec.json.decode(tags, type=dict[str, str]).items())) if tags else {},
        created_at_ms=created_at_ms,
        active_at_ms=active_at_ms,
        revision=revision,
        leaf=leaf,
        node_count=node_count,
        forked_from=origin,
    )


def check_tags(
    tags: Mapping[str, str | None] | None, limits: Limits, *, clearing: bool = False
) -> list[tuple[str, str | None]]:
    """Tags as rows, sorted by name; None as a value clears a tag where that is meant."""
    if tags is None:
        return []
    if len(tags) > limits.tags:
        raise TooLarge(field="tags", actual=len(tags), limit=limits.tags)
    rows: list[tuple[str, str | None]] = []
    for name, value in sorted(tags.items()):
        check_id("tags", name)
        if value is None and clearing:
            rows.append((name, None))
        else:
            rows.append((name, check_text(f"tags.{name}", value, limits.text_chars)))
    return rows


def explain_create(session: str) -> Callable[[Known], bool | None]:
    """A refused create: the session is there (False), or was deleted."""

    def judge(facts: Known) -> bool | None:
        if facts.deleted:
            raise SessionDeleted(session=session)
        return False

    return judge


def explain_update(session: str, limits: Limits) -> Callable[[TagFacts], None]:
    """A refused update."""

    def judge(facts: TagFacts) -> None:
        facts.require_live(session)
        if facts.tag_count > limits.tags:
            raise TooLarge(field="tags", actual=facts.tag_count, limit=limits.tags)

    return judge


def explain_known(session: str) -> Callable[[Known], None]:
    """A refusal that can only be about the session itself."""

    def judge(facts: Known) -> None:
        facts.require_live(session)

    return judge


def check_place(revision: int | None, node: str | None) -> None:
    """A place in a session's past is a revision or a node, not both."""
    if revision is not None and node is not None:
        raise Invalid(field="node", reason="name a revision or a node, not both")
    if revision is not None:
        check_int("revision", revision)
    if node is not None:
        check_id("node", node)


def explain_fork(
    source: str, session: str, revision: int | None, node: str | None
) -> Callable[[ForkFacts], bool | None]:
    """A refused fork: the same fork is there already (False), or an error, or ask again."""

    def judge(facts: ForkFacts) -> bool | None:
        facts.require_live(source)
        if facts.target_deleted:
            raise SessionDeleted(session=session)
        if facts.target:
            same = facts.origin_session == source and (
                (revision is None or facts.origin_revision == revision)
                and (node is None or facts.origin_leaf == node)
            )
            if not same:
                raise SessionExists(session=session)
            return False
        require_place(source, facts.place_ok, facts.retained, revision, node)
        if facts.levels is not None and facts.levels >= MAX_LINEAGE - 1:
            raise TooLarge(field="lineage", actual=facts.levels + 1, limit=MAX_LINEAGE)
        return None

    return judge


def require_place(
    session: str, place_ok: bool, retained: bool, revision: int | None, node: str | None
) -> None:
    """Raise when the place in a session's past is not there, or not any more."""
    if not place_ok:
        raise NodeUnknown(field="node", session=session, node=node or "")
    if not retained:
        what = f"revision {revision}" if node is None else f"the revision of node {node!r}"
        raise NotRetained(session=session, what=what)


def rewind_params(
    tenant: str,
    session: str,
    turn: str,
    revision: int | None,
    node: str | None,
    reason: str,
    expected: int | None,
    fence: Fence | None,
    limits: Limits,
) -> dict[str, Any]:
    """A checked rewind. Its intent is the place and the reason."""
    check_id("session", session)
    check_id("turn", turn)
    check_place(revision, node)
    if revision is None and node is None:
        raise Invalid(field="revision", reason="name the revision or the node to go back to")
    if not check_text("reason", reason, limits.text_chars):
        raise Invalid(field="reason", reason="a rewind needs a reason")
    intent = msgspec.msgpack.encode(["holdfast-rewind/1", session, revision, node, reason])
    return {
        "tenant": tenant,
        "session": session,
        "turn": turn,
        "to_revision": revision,
        "to_node": node,
        "reason": reason,
        "expected": None if expected is None else check_int("expected", expected),
        "intent": sealed_intent(tenant, session, turn, hashlib.sha256(intent).digest()),
        **fence_params(session, fence),
    }


def explain_rewind(params: dict[str, Any]) -> Callable[[RewindFacts], Receipt | None]:
    """A refused rewind: the receipt of a replay, an error, or ask again."""

    def judge(facts: RewindFacts) -> Receipt | None:
        session = params["session"]
        replay = judge_turn(session, params["turn"], params, facts)
        if replay is None:
            require_place(
                session, facts.place_ok, facts.retained, params["to_revision"], params["to_node"]
            )
        return replay

    return judge


def check_ttl(ttl_ms: int, *, field: str = "ttl_ms") -> int:
    """A lane is granted for at most a week."""
    return check_int(field, ttl_ms, 0, MAX_LANE_TTL_MS)


def explain_claim(session: str) -> Callable[[ClaimFacts], None]:
    """A lane that was not granted: held by another, or an error, or ask again."""

    def judge(facts: ClaimFacts) -> None:
        facts.require_live(session)
        require_counters(session, facts.generation or 0)
        if facts.generation == MAX_INT:
            raise CounterOverflow(counter="lane generation", key=session)
        if facts.owner is not None:
            raise LaneBusy(
                session=session,
                owner=facts.owner,
                generation=facts.generation or 0,
                expires_at_ms=facts.expires_at_ms or 0,
            )

    return judge


def explain_renew(session: str) -> Callable[[Known], None]:
    """A lane that was not renewed is lost, whoever holds it now."""

    def judge(facts: Known) -> None:
        facts.require_live(session)
        raise LaneLost(session=session)

    return judge


@dataclass(frozen=True, slots=True)
class DisplaceFacts(Known):
    """Why a lane could not be taken."""

    generation: int | None


def explain_displace(session: str) -> Callable[[DisplaceFacts], None]:
    """A displacement that was refused."""

    def judge(facts: DisplaceFacts) -> None:
        facts.require_live(session)
        require_counters(session, facts.generation or 0)
        if facts.generation == MAX_INT:
            raise CounterOverflow(counter="lane generation", key=session)

    return judge


def created(done: bool | None, info: SessionInfo | None, session: str) -> Created:
    """The answer of a create or a fork, from what was done and the row that is there now."""
    if info is None:
        raise SessionDeleted(session=session)
    return Created(created=bool(done), session=info)

"""A turn becomes a plan here, and the facts behind a refused plan become an error.

The plan is all the store needs to decide and to write: scalars, and rows of children. The order in
which facts are judged is part of the contract.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.contract.errors import (
    AttachmentUnknown,
    ClaimLost,
    ComponentMissing,
    Corrupt,
    CounterOverflow,
    HeadMoved,
    Invalid,
    LaneBusy,
    LaneLost,
    NodeCollision,
    NodeUnknown,
    SessionDeleted,
    SessionUnknown,
    TooLarge,
    TurnConflict,
)
from holdfast.contract.limits import MAX_INT, Limits
from holdfast.contract.records import Fence, NewNode, Receipt, StateRef, Turn, Usage, WorkClaim
from holdfast.core.payloads import (
    check_id,
    check_int,
    check_text,
    content_digest,
    encode,
    node_digest,
    pack,
)

MAX_AMOUNT = 2**53 - 1
AMOUNTS = ("input", "output", "cache_read", "cache_write", "reasoning", "cost_micros")
_amounts = attrgetter(*AMOUNTS)


@dataclass(slots=True)
class CommitPlan:
    """A checked turn, ready to be written."""

    session: str
    turn: str
    release: Fence | None
    params: dict[str, Any]
    refs: dict[str, str] = field(default_factory=dict)
    attachments: tuple[str, ...] = ()
    place_field: str = "leaf"


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """Why a commit was refused, read after the refusal."""

    known: bool
    deleted: bool
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
    lost: str | None
    place_ok: bool
    clash: str | None
    missing: str | None
    sound: bool | None


# Parent, position, position where its run begins, depth above the place, and the same of its base:
# position (0 is the place itself) and where the base's run begins.
_Row = tuple[str | None, int, int, int, int, int]
_PLACE: _Row = (None, 0, 0, 0, 0, 0)


class _Strand:
    """Where each node of a turn hangs: a run goes on while each node follows the one before it."""

    def __init__(self, nodes: list[NewNode], ids: list[str]) -> None:
        self.at_leaf = True
        self.place: str | None = None
        self.place_field = "leaf"
        self.rows: list[_Row] = []
        known: dict[str, int] = {}
        for index, (node, own) in enumerate(zip(nodes, ids, strict=True)):
            pos = index + 1
            if own in known:
                raise Invalid(field=f"nodes[{index}].id", reason=f"{own!r} is twice in the turn")
            base = self._base(index, node, known)
            origin = self.rows[base - 1] if base else _PLACE
            run_pos = origin[2] if base == index and index else pos
            parent = ids[base - 1] if base else None
            self.rows.append((parent, pos, run_pos, origin[3] + 1, base, origin[2]))
            known[own] = pos

    def _base(self, index: int, node: NewNode, known: dict[str, int]) -> int:
        """The position in the turn of a node's parent; 0 is the place the turn extends."""
        parent = node.parent
        if parent is UNSET:
            return index
        if index == 0:
            self.at_leaf = False
            self.place = None if parent is None else check_id("nodes[0].parent", parent)
            self.place_field = "nodes[0].parent"
            return 0
        if isinstance(parent, str) and parent in known:
            return known[parent]
        if not self.at_leaf and parent == self.place:
            return 0
        raise Invalid(
            field=f"nodes[{index}].parent",
            reason="a turn extends one place: name an earlier node of the turn, or leave it out",
        )

    def shape(self) -> list[tuple[int, int]]:
        """The structure without any minted id: where each node hangs, counted in the turn."""
        return [(row[1], row[4]) for row in self.rows]


def plan_commit(turn: Turn, *, tenant: str, turn_id: str, limits: Limits) -> CommitPlan:
    """Check a turn and lay out everything a commit writes. Raises `Invalid` or `TooLarge`."""
    session = check_id("session", turn.session)
    check_id("turn", turn_id)
    nodes = list(turn.nodes)
    settled = sum(len(claim.work) for claim in turn.claims)
    rows = len(nodes) + len(turn.state) * 2 + len(turn.usage) * 2 + settled + 3
    if rows > limits.commit_rows:
        raise TooLarge(field="turn.rows", actual=rows, limit=limits.commit_rows)
    ids = [
        check_id(f"nodes[{i}].id", node.id) if node.id is not None else f"{turn_id}:{i}"
        for i, node in enumerate(nodes)
    ]
    strand = _Strand(nodes, ids)
    bodies = [encode(f"nodes[{i}].body", n.body, limits.payload_bytes) for i, n in enumerate(nodes)]
    kinds = [check_id(f"nodes[{i}].kind", n.kind) for i, n in enumerate(nodes)]
    at_leaf, place, place_field, leaf = _leaf(turn, strand, ids)
    state, blobs, refs = _state(turn, limits)
    usage = [_usage_row(i, entry) for i, entry in enumerate(turn.usage)]
    claims, work = settled_rows(turn.claims)
    size = sum(map(len, bodies)) + sum(blob[2] for blob in blobs)
    if size > limits.commit_bytes:
        raise TooLarge(field="turn.bytes", actual=size, limit=limits.commit_bytes)
    leaf_row = strand.rows[leaf - 1] if leaf else _PLACE
    params: dict[str, Any] = {
        "tenant": tenant,
        "session": session,
        "turn": turn_id,
        "expected": _optional_int("expected", turn.expected),
        **fence_params(session, turn.fence),
        "release": turn.release and turn.fence is not None,
        "at_leaf": at_leaf,
        "place": place,
        "leaf_node": ids[leaf - 1] if leaf else None,
        "leaf_pos": leaf_row[1],
        "leaf_run_pos": leaf_row[2],
        "leaf_off": leaf_row[3],
        "branches": any(row[1] == row[2] > 1 for row in strand.rows),
        "payload_bytes": size,
        "n_unheld": len(turn.attachments),
        "claims": claims,
        "work": work,
        "frees": bool(work) or (turn.release and turn.fence is not None),
        "nodes": [
            (own, kind, body, node_digest(tenant, session, own, kind, body), *row)
            for own, kind, body, row in zip(ids, kinds, bodies, strand.rows, strict=True)
        ],
        "state": state,
        "blobs": blobs,
        "refs": list(refs.items()),
        "usage": usage,
    }
    params["intent"] = _intent(turn, params, strand, kinds, bodies, leaf)
    return CommitPlan(
        session=session,
        turn=turn_id,
        release=turn.fence if turn.release else None,
        params=params,
        refs={digest.hex(): name for name, digest in refs.items()},
        attachments=tuple(turn.attachments),
        place_field=place_field,
    )


def _leaf(turn: Turn, strand: _Strand, ids: list[str]) -> tuple[bool, str | None, str, int]:
    """Whether the turn stays at the leaf, the stored place it names, where its new leaf is."""
    if ids:
        if turn.leaf is UNSET:
            return strand.at_leaf, strand.place, strand.place_field, len(ids)
        if turn.leaf not in ids:
            raise Invalid(field="leaf", reason="the leaf of a turn with nodes is one of its nodes")
        return strand.at_leaf, strand.place, strand.place_field, ids.index(turn.leaf) + 1
    if turn.leaf is UNSET:
        return True, None, "leaf", 0
    place = None if turn.leaf is None else check_id("leaf", turn.leaf)
    return False, place, "leaf", 0


def fence_params(session: str, fence: Fence | None) -> dict[str, Any]:
    """The fence as parameters. A fence is for one session, and is never looked up for another."""
    if fence is None:
        return {"fence_owner": None, "fence_token": None, "fence_generation": None}
    if fence.session != session:
        raise Invalid(field="fence.session", reason=f"{fence.session!r} is another session")
    return {
        "fence_owner": check_id("fence.owner", fence.owner),
        "fence_token": check_id("fence.token", fence.token),
        "fence_generation": check_int("fence.generation", fence.generation),
    }


def _optional_int(name: str, value: int | None) -> int | None:
    return None if value is None else check_int(name, value)


def _state(
    turn: Turn, limits: Limits
) -> tuple[list[tuple[str, bytes | None]], list[tuple[bytes, int, int, bytes]], dict[str, bytes]]:
    if len(turn.state) > limits.components:
        raise TooLarge(field="state", actual=len(turn.state), limit=limits.components)
    state: list[tuple[str, bytes | None]] = []
    blobs: dict[bytes, tuple[bytes, int, int, bytes]] = {}
    refs: dict[str, bytes] = {}
    for name, value in sorted(turn.state.items()):
        path = f"state.{check_id('state', name)}"
        if value is None:
            state.append((name, None))
        elif isinstance(value, StateRef):
            digest = _digest(path, value.digest)
            state.append((name, digest))
            refs[name] = digest
        elif isinstance(value, bytes):
            if len(value) > limits.payload_bytes:
                raise TooLarge(field=path, actual=len(value), limit=limits.payload_bytes)
            digest = content_digest(value)
            state.append((name, digest))
            if digest not in blobs:
                encoding, data = pack(value)
                blobs[digest] = (digest, encoding, len(value), data)
        else:
            raise Invalid(
                field=path, reason=f"bytes, a StateRef or None, not {type(value).__name__}"
            )
    refs = {name: digest for name, digest in refs.items() if digest not in blobs}
    return state, [blobs[digest] for digest in sorted(blobs)], refs


def _digest(path: str, text: object) -> bytes:
    try:
        digest = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise Invalid(field=path, reason="a StateRef is 64 hexadecimal digits")
    return digest


def _usage_row(index: int, entry: Usage) -> tuple[Any, ...]:
    path = f"usage[{index}]"
    source = check_id(f"{path}.source", entry.source)
    model = check_id(f"{path}.model", entry.model)
    amounts = _amounts(entry)
    for name, value in zip(AMOUNTS, amounts, strict=True):
        if type(value) is not int or not 0 <= value <= MAX_AMOUNT:
            check_int(f"{path}.{name}", value, 0, MAX_AMOUNT)
    return (index, source, model, *amounts, check_text(f"{path}.currency", entry.currency, 8))


def settled_rows(
    claims: Sequence[WorkClaim],
) -> tuple[list[tuple[str, str, int]], list[tuple[str, str]]]:
    """The claims a turn settles, and their work, as rows. A claim is settled whole."""
    heads: list[tuple[str, str, int]] = []
    rows: list[tuple[str, str]] = []
    for at, claim in enumerate(claims):
        path = f"claims[{at}]"
        name = check_id(f"{path}.claim", claim.claim)
        if any(name == other for other, _, _ in heads):
            raise Invalid(field=f"{path}.claim", reason=f"{name!r} is twice in the turn")
        works = [check_id(f"{path}.work[{n}]", work) for n, work in enumerate(claim.work)]
        if not works or len(set(works)) != len(works):
            raise Invalid(field=f"{path}.work", reason="a claim names each of its works once")
        heads.append((name, check_id(f"{path}.token", claim.token), len(works)))
        rows.extend((work, name) for work in works)
    return heads, rows


def _intent(
    turn: Turn,
    params: dict[str, Any],
    strand: _Strand,
    kinds: list[str],
    bodies: list[bytes],
    leaf: int,
) -> bytes:
    """What the turn means, as a hash: version 1 of the projection, field by field.

    It leaves out what may differ between two tries of one turn (expected revision, fence, release,
    the ids the turn mints) and holds on to what it refers to.
    """
    projection = [
        "holdfast-turn/1",
        params["session"],
        [
            [*shape, kind, content_digest(body)]
            for shape, kind, body in zip(strand.shape(), kinds, bodies, strict=True)
        ],
        [params["at_leaf"], params["place"], leaf],
        [[name, digest] for name, digest in params["state"]],
        [list(row) for row in params["usage"]],
        sorted(work for claim in turn.claims for work in claim.work),
        sorted(turn.attachments),
    ]
    intent = hashlib.sha256(msgspec.msgpack.encode(projection)).digest()
    return sealed_intent(params["tenant"], params["session"], params["turn"], intent)


def sealed_intent(tenant: str, session: str, turn: str, intent: bytes) -> bytes:
    """An intent with what proves that it is the one that was stored for this turn."""
    seal = hashlib.blake2b(f"{tenant}\0{session}\0{turn}\0".encode() + intent, digest_size=8)
    return intent + seal.digest()


def settle(plan: CommitPlan) -> Callable[[CommitFacts], Receipt | None]:
    """Judge the facts behind a refusal: the receipt of a replay, an error, or None (ask again)."""

    def judge(facts: CommitFacts) -> Receipt | None:
        session = plan.session
        replay = judge_turn(session, plan.turn, plan.params, facts)
        if replay is not None:
            return replay
        if facts.lost is not None:
            raise ClaimLost(session=session, claim=facts.lost)
        if not facts.place_ok:
            raise NodeUnknown(field=plan.place_field, session=session, node=plan.params["place"])
        if facts.clash is not None:
            raise NodeCollision(session=session, node=facts.clash)
        if facts.missing is not None:
            name = plan.refs[facts.missing]
            raise ComponentMissing(session=session, component=name, digest=facts.missing)
        if plan.attachments:
            raise AttachmentUnknown(session=session, attachment=plan.attachments[0])
        return None

    return judge


def judge_turn(session: str, turn: str, params: dict[str, Any], facts: Any) -> Receipt | None:
    """The checks every turn-like write shares, in their order: unknown, deleted, receipt, lane,
    expected revision."""
    if not facts.known:
        raise SessionUnknown(session=session)
    if facts.deleted:
        raise SessionDeleted(session=session)
    if facts.intent is not None:
        stored = bytes(facts.intent)
        if stored != sealed_intent(params["tenant"], session, turn, stored[:32]):
            # Told that they had changed the turn, the caller would send it again under a new id.
            raise Corrupt(
                table="receipt", key=f"{session}/{turn}", reason="its seal does not match"
            )
        if stored != params["intent"]:
            raise TurnConflict(session=session, turn=turn)
        return Receipt(
            session=session,
            turn=turn,
            revision=facts.receipt_revision,
            leaf=facts.receipt_leaf,
            node_count=facts.receipt_node_count,
            at_ms=facts.receipt_at_ms,
            replayed=True,
        )
    if not facts.sound:
        raise Corrupt(table="session", key=session, reason="a counter is negative")
    if not facts.lane_ok:
        if params["fence_token"] is None:
            raise LaneBusy(
                session=session,
                owner=facts.lane_owner or "",
                generation=facts.lane_generation or 0,
                expires_at_ms=facts.lane_expires_at_ms or 0,
            )
        raise LaneLost(session=session)
    expected = params["expected"]
    if expected is not None and expected != facts.revision:
        raise HeadMoved(session=session, expected=expected, actual=facts.revision)
    if facts.revision == MAX_INT:
        raise CounterOverflow(counter="revision", key=session)
    return None

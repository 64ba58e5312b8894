"""How the oracle reads a turn: what is wrong with it, where its nodes hang, what it means.

The meaning is a plain tuple. It leaves out what may differ between two tries of one turn: the ids
the turn gives to its new nodes, the expected revision, the fence and the release.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from holdfast.contract.errors import Invalid
from holdfast.contract.limits import MAX_ID_CHARS
from holdfast.contract.records import Fence, StateRef, Turn
from holdfast.testing.oracle_rows import Intent

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=~-]*\Z")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}\Z")


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn that is well-formed: for each node its id and its parent's place in the turn, from 1;
    0 is the place the turn extends. `leaf` is counted in the same way."""

    turn: str
    ids: tuple[str, ...]
    parents: tuple[int, ...]
    bodies: tuple[bytes, ...]
    at_leaf: bool
    place: str | None
    place_field: str
    leaf: int
    intent: Intent


def require_id(field: str, value: object) -> None:
    """An id is 1 to 200 characters of a small alphabet."""
    if not isinstance(value, str) or len(value) > MAX_ID_CHARS or not _ID.match(value):
        raise Invalid(field=field, reason="not an id")


def require_fence(session: str, fence: Fence | None) -> None:
    """A fence is for one session."""
    if fence is not None and fence.session != session:
        raise Invalid(field="fence.session", reason="another session")


def read_turn(turn: Turn, turn_id: str) -> ReadTurn:
    """Read a turn, or raise `Invalid` for the first thing that is wrong with it."""
    require_id("session", turn.session)
    require_id("turn", turn_id)
    ids = tuple(
        node.id if node.id is not None else f"{turn_id}:{number}"
        for number, node in enumerate(turn.nodes)
    )
    for number, own in enumerate(ids):
        require_id(f"nodes[{number}].id", own)
    at_leaf, place, place_field = True, None, "leaf"
    parents: list[int] = []
    for number, node in enumerate(turn.nodes):
        if ids[number] in ids[:number]:
            raise Invalid(field=f"nodes[{number}].id", reason="twice in the turn")
        if node.parent is UNSET:
            parents.append(number)
        elif number == 0:
            at_leaf, place, place_field = False, node.parent, "nodes[0].parent"
            parents.append(0)
        elif node.parent in ids[:number]:
            parents.append(ids.index(node.parent) + 1)
        elif not at_leaf and node.parent == place:
            parents.append(0)
        else:
            raise Invalid(field=f"nodes[{number}].parent", reason="a second place")
    leaf = len(ids)
    if turn.leaf is not UNSET:
        if ids:
            if turn.leaf not in ids:
                raise Invalid(field="leaf", reason="not a node of the turn")
            leaf = ids.index(turn.leaf) + 1
        else:
            at_leaf, place = False, turn.leaf
    for name, value in sorted(turn.state.items()):
        if isinstance(value, StateRef) and not _DIGEST.match(value.digest):
            raise Invalid(field=f"state.{name}", reason="not a digest")
    for number, claim in enumerate(turn.claims):
        if any(claim.claim == other.claim for other in turn.claims[:number]):
            raise Invalid(field=f"claims[{number}].claim", reason="twice in the turn")
        if not claim.work or len(set(claim.work)) < len(claim.work):
            raise Invalid(field=f"claims[{number}].work", reason="each work once")
    require_fence(turn.session, turn.fence)
    bodies = tuple(
        node.body if isinstance(node.body, bytes) else msgspec.json.encode(node.body)
        for node in turn.nodes
    )
    intent = (
        "turn",
        tuple(zip(parents, (node.kind for node in turn.nodes), bodies, strict=True)),
        (at_leaf, place, leaf),
        tuple(sorted((name, digest_of(value)) for name, value in turn.state.items())),
        tuple(turn.usage),
        tuple(sorted(work for claim in turn.claims for work in claim.work)),
        tuple(sorted(turn.attachments)),
    )
    return ReadTurn(turn_id, ids, tuple(parents), bodies, at_leaf, place, place_field, leaf, intent)


def digest_of(value: bytes | StateRef | None) -> str:
    """The name of the content a component is set to; nothing for a cleared one."""
    if value is None:
        return ""
    return value.digest.lower() if isinstance(value, StateRef) else content_name(value)


def content_name(data: bytes) -> str:
    """The SHA-256 of content."""
    return hashlib.sha256(data).hexdigest()

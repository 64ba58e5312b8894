"""Decisions about paths: rows become nodes that are proved, paths are cut, heads are compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.contract.errors import Corrupt, Invalid, NotRetained
from holdfast.contract.records import History, Node, StateRef
from holdfast.core.payloads import node_digest, unpack

Segment = tuple[str, int, int, int]  # session, first seq, last seq, depth below the first


def proved_node(
    tenant: str,
    node: str,
    parent: str | None,
    kind: str,
    body: bytes | None,
    digest: bytes,
    depth: int,
    session: str,
    revision: int,
    at_ms: int,
) -> Node:
    """A row as a node, its digest verified."""
    if body is None or node_digest(tenant, session, node, kind, bytes(body)) != bytes(digest):
        raise Corrupt(
            table="node", key=f"{session}/{node}", reason="the row does not match its digest"
        )
    return Node(
        id=node,
        parent=parent,
        kind=kind,
        body=bytes(body),
        depth=depth,
        session=session,
        revision=revision,
        at_ms=at_ms,
    )


def history(
    tenant: str,
    session: str,
    rows: Sequence[Sequence[Any]],
    *,
    leaf: str | None,
    before: str | None,
    revision: int | None,
    tail: int,
) -> History | None:
    """The answer of a load, from its rows: the place, the nodes from the leaf up, the state."""
    if not rows:
        return None
    ordered = sorted(rows, key=lambda row: row[0])
    place = ordered[0]
    found = bool(place[10])
    if not found and before is not None:
        raise Invalid(field="before", reason="this is not a cursor of this listing")
    if not found and revision is not None:
        raise NotRetained(session=session, what=f"revision {revision}")
    depth = place[6] if found else 0
    nodes, cut = _path(tenant, session, [row for row in ordered if row[0] == 1], depth)
    if not cut and len(nodes) != min(tail, depth):
        raise Corrupt(table="node", key=session, reason="the path has a gap")
    named = leaf if leaf is not None else place[1]
    if before is None and found and not cut and named != (nodes[0].id if nodes else None):
        raise Corrupt(
            table="session", key=session, reason=f"the path does not end at the leaf {named!r}"
        )
    top = nodes[-1] if nodes else None
    end = named if before is None else (nodes[0].id if nodes else None)
    state, refs = _state(session, [row for row in ordered if row[0] == 2])
    return History(
        session=session,
        revision=place[8] if revision is None else revision,
        leaf=end,
        node_count=place[9],
        nodes=tuple(reversed(nodes)),
        before=top.id if top is not None and top.parent is not None and not cut else None,
        state=state,
        refs=refs,
    )


def _path(
    tenant: str, session: str, rows: list[Sequence[Any]], depth: int
) -> tuple[list[Node], bool]:
    """The nodes from the leaf up to the first hidden one, and whether there was one."""
    nodes: list[Node] = []
    for row in sorted(rows, key=lambda row: -row[6]):
        if bool(row[10]):
            return nodes, True
        node = proved_node(tenant, *row[1:10])
        _require_link(session, node, nodes, depth)
        nodes.append(node)
    return nodes, False


def _require_link(session: str, node: Node, below: list[Node], depth: int) -> None:
    """The edges are the authority: what a range read found must hang together."""
    if below:
        child = below[-1]
        linked = child.parent == node.id and child.depth == node.depth + 1
    else:
        linked = node.depth == depth
    if not linked or (node.parent is None) != (node.depth == 1):
        raise Corrupt(
            table="node", key=f"{session}/{node.id}", reason="it is not where its child points"
        )


def _state(
    session: str, rows: Iterable[Sequence[Any]]
) -> tuple[dict[str, bytes], dict[str, StateRef]]:
    state: dict[str, bytes] = {}
    refs: dict[str, StateRef] = {}
    for row in sorted(rows, key=lambda row: str(row[1])):
        name, data, encoding, size = row[1], row[4], row[6], row[8]
        digest = bytes(row[5] or b"")
        if not bool(row[10]) or data is None:
            raise Corrupt(
                table="blob", key=digest.hex(), reason=f"missing, but named by state {name!r}"
            )
        state[name] = unpack(digest, encoding, size, bytes(data))
        refs[name] = StateRef(digest=digest.hex())
    return state, refs


def state_name(session: str | None, revision: int | None) -> str | None:
    """The opaque name of the state that one revision made."""
    return None if session is None else f"{session}@{revision}"


def fork_point(left: Sequence[Segment], right: Sequence[Segment]) -> tuple[str, int, int] | None:
    """The deepest place both paths go through: session, seq and depth."""
    ends = {(session, lo): hi for session, lo, hi, _ in right}
    for session, lo, hi, base_depth in left:
        other = ends.get((session, lo))
        if other is not None:
            seq = min(hi, other)
            return session, seq, base_depth + seq - lo + 1
    return None


def above(segments: Sequence[Segment], depth: int) -> list[tuple[str, int, int]]:
    """The ranges of a path that lie deeper than a depth, oldest first."""
    ranges = [
        (session, max(lo, lo + depth - base), hi)
        for session, lo, hi, base in segments
        if hi >= max(lo, lo + depth - base)
    ]
    return ranges[::-1]

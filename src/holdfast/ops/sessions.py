"""The operations on sessions: catalog, head, turn commit, forks and revisions."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.contract.errors import SessionUnknown
from holdfast.contract.limits import Limits
from holdfast.contract.records import (
    Created,
    Deleted,
    Diff,
    Head,
    Page,
    Receipt,
    Revision,
    SessionInfo,
)
from holdfast.core import history, sessions
from holdfast.core.history import Segment, state_name
from holdfast.core.turns import CommitFacts, CommitPlan, settle
from holdfast.ops import lanes
from holdfast.ops.op import Op, Stmt, call, guarded, one


def _receipt(**fixed: Any) -> Any:
    def row(revision: int, leaf: str | None, node_count: int, at_ms: int) -> Receipt:
        return Receipt(revision=revision, leaf=leaf, node_count=node_count, at_ms=at_ms, **fixed)

    return row


def _place(*row: Any) -> tuple[SessionInfo, int]:
    return sessions.session_info(*row[:-1]), row[-1]


def _place_of_head(*row: Any) -> tuple[Head, tuple[Any, ...]]:
    session, revision, leaf, owner, run, seq, depth, node_count, state, state_revision = row
    sessions.require_counters(session, revision, node_count, depth)
    head = Head(
        session=session,
        revision=revision,
        leaf=leaf,
        depth=depth,
        node_count=node_count,
        state=state_name(state, state_revision),
    )
    return head, (owner, run, seq, state, state_revision)


def _revision(*row: Any) -> Revision:
    session, revision, kind, turn, reason, leaf, depth, state, state_revision, at_ms = row
    return Revision(
        session=session,
        revision=revision,
        kind=kind,
        turn=turn,
        reason=reason,
        leaf=leaf,
        depth=depth,
        state=state_name(state, state_revision),
        at_ms=at_ms,
    )


def _stored_receipt(*row: Any) -> Receipt:
    session, turn, revision, leaf, node_count, at_ms = row
    return Receipt(
        session=session,
        turn=turn,
        revision=revision,
        leaf=leaf,
        node_count=node_count,
        at_ms=at_ms,
    )


def _names(names: str) -> list[str]:
    return [name for name in msgspec.json.decode(names, type=list[str | None]) if name is not None]


def _deleted(*row: Any) -> tuple[Deleted, list[str]]:
    (
        was_live, nodes, kept, revisions, receipts, usage, blobs, work, grants, subscriptions,
        orphaned, preserved, ancestors,
    ) = row  # fmt: skip
    report = Deleted(
        session="",
        deleted=bool(was_live),
        nodes=nodes,
        kept_nodes=kept,
        revisions=revisions,
        receipts=receipts,
        usage=usage,
        blobs=blobs,
        work=work,
        grants=grants,
        subscriptions=subscriptions,
        orphaned=tuple(_names(orphaned)),
        preserved=tuple(_names(preserved)),
    )
    return report, _names(ancestors)


def _undeleted(live: object, ancestors: str) -> tuple[bool, list[str]]:
    return bool(live), _names(ancestors)


CREATE = Stmt("sessions.create", bool, sessions.Known)
GET: Stmt[SessionInfo, None] = Stmt("sessions.get", sessions.session_info)
LISTS: dict[str, Stmt[tuple[SessionInfo, int], None]] = {
    "active": Stmt("sessions.list_active", _place),
    "created": Stmt("sessions.list_created", _place),
}
UPDATE = Stmt("sessions.update", bool, sessions.TagFacts)
DELETE = Stmt("sessions.delete", _deleted, _undeleted)
HEAD: Stmt[tuple[Head, tuple[Any, ...]], None] = Stmt("sessions.head", _place_of_head)
RECEIPT: Stmt[Receipt, None] = Stmt("sessions.receipt", _stored_receipt)
FORK = Stmt("sessions.fork", bool, sessions.ForkFacts)
REVISIONS: Stmt[Revision, None] = Stmt("sessions.revisions", _revision)
COMPONENTS: Stmt[tuple[str, bytes], None] = Stmt(
    "sessions.components", lambda name, digest: (name, bytes(digest))
)
SEGMENTS: Stmt[Segment, None] = Stmt("history.segments", lambda *row: row)
IDS: Stmt[str, None] = Stmt("history.ids", str)
COMMIT = "sessions.commit"
REWIND = "sessions.rewind"


def create(
    tenant: str, session: str, title: str, tags: list[tuple[str, str | None]]
) -> Op[Created]:
    """Make sure the session exists."""
    params = {"tenant": tenant, "session": session, "title": title, "tags": tags}
    done = yield from guarded(CREATE, sessions.explain_create(session), params)
    info = yield from get(tenant, session)
    return sessions.created(done, info, session)


def get(tenant: str, session: str) -> Op[SessionInfo | None]:
    """The catalog entry."""
    return (yield from one(GET, tenant=tenant, session=session))


def list_page(
    tenant: str,
    order: str,
    tags: list[tuple[str, str | None]],
    forked_from: str | None,
    active_since_ms: int,
    place: int,
    after: str,
    limit: int,
) -> Op[Page[SessionInfo]]:
    """A page of the catalog. One row more than asked tells whether there is a next page."""
    rows = yield from call(
        LISTS[order],
        tenant=tenant,
        tags=tags,
        forked_from=forked_from,
        active_since_ms=active_since_ms,
        place=place,
        after=after,
        limit=limit + 1,
    )
    shown = rows[:limit]
    more = f"{shown[-1][1]}.{shown[-1][0].session}" if len(rows) > limit else None
    return Page(items=tuple(info for info, _ in shown), next=more)


def update(
    tenant: str,
    session: str,
    title: str | None,
    tags: list[tuple[str, str | None]],
    limits: Limits,
) -> Op[SessionInfo]:
    """Rename and tag."""
    params = {
        "tenant": tenant,
        "session": session,
        "renames": title is not None,
        "title": title or "",
        "tags": tags,
        "tag_limit": limits.tags,
    }
    yield from guarded(UPDATE, sessions.explain_update(session, limits), params)
    info = yield from get(tenant, session)
    if info is None:
        raise SessionUnknown(session=session)
    return info


def delete(tenant: str, session: str) -> Op[Deleted]:
    """Remove the session, then what deleted ancestors kept only for it.

    A tombstone knows its ancestors too, so that a delete that was cut half-way is finished by the
    next one. Whether an ancestor is deleted is judged under its lock: of a family that is deleted
    at once, the last to be done then sees that all the others are.
    """
    report, ancestors = yield from _delete(tenant, session, reclaim=False)
    nodes, blobs = report.nodes, report.blobs
    seen = {session}
    while ancestors:
        ancestor = ancestors.pop()
        if ancestor not in seen:
            seen.add(ancestor)
            left, further = yield from _delete(tenant, ancestor, reclaim=True)
            nodes, blobs = nodes + left.nodes, blobs + left.blobs
            ancestors.extend(further)
    return msgspec.structs.replace(report, session=session, nodes=nodes, blobs=blobs)


def _delete(tenant: str, session: str, *, reclaim: bool) -> Op[tuple[Deleted, list[str]]]:
    def nothing(facts: tuple[bool, list[str]]) -> tuple[Deleted, list[str]]:
        live, ancestors = facts
        return Deleted(session=session, deleted=False), [] if live else ancestors

    params = {"tenant": tenant, "session": session, "reclaim": reclaim}
    return (yield from guarded(DELETE, nothing, params))


def head(tenant: str, session: str) -> Op[Head | None]:
    """The head, from one row."""
    found = yield from one(HEAD, tenant=tenant, session=session)
    return found[0] if found else None


def commit(plan: CommitPlan) -> Op[Receipt]:
    """The whole turn commit: one guarded write, and the facts only when it was refused."""
    stmt = Stmt(COMMIT, _receipt(session=plan.session, turn=plan.turn), CommitFacts)
    receipt = yield from guarded(stmt, settle(plan), plan.params)
    if receipt.replayed and plan.release is not None:
        yield from lanes.release(plan.params["tenant"], plan.release)
    return receipt


def receipt(tenant: str, session: str, turn: str) -> Op[Receipt | None]:
    """The receipt of a committed turn."""
    return (yield from one(RECEIPT, tenant=tenant, session=session, turn=turn))


def fork(
    tenant: str,
    source: str,
    session: str,
    revision: int | None,
    node: str | None,
    title: str,
    tags: list[tuple[str, str | None]],
) -> Op[Created]:
    """A new session whose head stands at a place of another."""
    params = {
        "tenant": tenant,
        "source": source,
        "session": session,
        "revision": revision,
        "node": node,
        "title": title,
        "tags": tags,
    }
    explain = sessions.explain_fork(source, session, revision, node)
    done = yield from guarded(FORK, explain, params)
    info = yield from get(tenant, session)
    return sessions.created(done, info, session)


def rewind(params: dict[str, Any]) -> Op[Receipt]:
    """Move a session's own head back, as a new revision."""
    row = _receipt(session=params["session"], turn=params["turn"])
    stmt = Stmt(REWIND, row, sessions.RewindFacts)
    return (yield from guarded(stmt, sessions.explain_rewind(params), params))


def revisions(tenant: str, session: str, before: int, limit: int) -> Op[Page[Revision]]:
    """A page of revisions, newest first."""
    rows = yield from call(
        REVISIONS, tenant=tenant, session=session, before=before, limit=limit + 1
    )
    shown = rows[:limit]
    more = str(shown[-1].revision) if len(rows) > limit else None
    return Page(items=tuple(shown), next=more)


def diff(tenant: str, left: str, right: str) -> Op[Diff]:
    """How two heads differ. Both heads are read first; what they name never changes."""
    heads: list[Head] = []
    paths: list[list[Segment]] = []
    states: list[dict[str, bytes]] = []
    for session in (left, right):
        found = yield from one(HEAD, tenant=tenant, session=session)
        if found is None:
            raise SessionUnknown(session=session)
        heads.append(found[0])
        owner, run, seq, state, state_revision = found[1]
        segments: list[Segment] = []
        if owner is not None:
            segments = yield from call(SEGMENTS, tenant=tenant, owner=owner, run=run, seq=seq)
        paths.append(segments)
        pairs: list[tuple[str, bytes]] = []
        if state is not None:
            pairs = yield from call(
                COMPONENTS, tenant=tenant, state_session=state, state_revision=state_revision
            )
        states.append(dict(pairs))
    point = history.fork_point(paths[0], paths[1])
    common: str | None = None
    if point is not None:
        owner, seq, _ = point
        ids = yield from call(IDS, tenant=tenant, owner=owner, lo=seq, hi=seq)
        common = ids[0] if ids else None
    sides: list[tuple[str, ...]] = []
    for path in paths:
        side: list[str] = []
        for owner, lo, hi in history.above(path, point[2] if point else 0):
            side.extend((yield from call(IDS, tenant=tenant, owner=owner, lo=lo, hi=hi)))
        sides.append(tuple(side))
    was, now = states
    return Diff(
        left=heads[0],
        right=heads[1],
        common=common,
        left_nodes=sides[0],
        right_nodes=sides[1],
        state_added=tuple(sorted(now.keys() - was.keys())),
        state_removed=tuple(sorted(was.keys() - now.keys())),
        state_changed=tuple(sorted(k for k in was.keys() & now.keys() if was[k] != now[k])),
    )

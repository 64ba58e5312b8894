"""The operations on nodes: loading paths, looking up, and hiding what must not be seen."""

from __future__ import annotations

from typing import Any

from holdfast.contract.records import History, Node, Page, Vacuumed
from holdfast.core import history, sessions
from holdfast.ops.op import Op, Stmt, call, guarded, one

Row = tuple[Any, ...]


def _row(*row: Any) -> Row:
    return row


LOAD: Stmt[Row, None] = Stmt("history.load", _row)
NODE: Stmt[Row, None] = Stmt("history.node", _row)
LINEAGE: Stmt[Row, None] = Stmt("history.lineage", _row)
STRETCH: Stmt[Row, None] = Stmt("history.stretch", _row)
TOMBSTONE = Stmt("history.tombstone", int, sessions.Known)
VACUUM = Stmt("history.vacuum", int, sessions.Known)


def load(
    tenant: str,
    session: str,
    leaf: str | None,
    before: str | None,
    revision: int | None,
    tail: int,
    state: bool,
) -> Op[History | None]:
    """A stretch of a path with its head and state, from one snapshot."""
    rows = yield from call(
        LOAD,
        tenant=tenant,
        session=session,
        leaf=before if before is not None else leaf,
        above=1 if before is not None else 0,
        revision=revision,
        tail=tail,
        state=state,
    )
    return history.history(
        tenant, session, rows, leaf=leaf, before=before, revision=revision, tail=tail
    )


def node(tenant: str, session: str, node: str) -> Op[Node | None]:
    """One node the session can see."""
    row = yield from one(NODE, tenant=tenant, session=session, node=node)
    return None if row is None else history.proved_node(tenant, *row)


def graph(tenant: str, session: str, after: tuple[int, int] | None, limit: int) -> Op[Page[Node]]:
    """Every node the session can see: first what it inherited, oldest ancestor first."""
    chain = yield from call(LINEAGE, tenant=tenant, session=session)
    nodes: list[Node] = []
    reached = ""
    for owner, upto, level in reversed(chain):
        if after is not None and level > after[0]:
            continue
        seq = after[1] if after is not None and level == after[0] else 0
        rows = yield from call(
            STRETCH,
            tenant=tenant,
            session=session,
            owner=owner,
            after=seq,
            upto=upto,
            limit=limit - len(nodes) + 1,
        )
        for row in rows:
            if len(nodes) == limit:
                return Page(items=tuple(nodes), next=reached)
            nodes.append(history.proved_node(tenant, *row[1:]))
            reached = f"{level}.{row[0]}"
    return Page(items=tuple(nodes))


def tombstone(tenant: str, session: str, ids: list[tuple[str]]) -> Op[int]:
    """Hide nodes of the session."""
    params = {"tenant": tenant, "session": session, "ids": ids}
    return (yield from guarded(TOMBSTONE, sessions.explain_known(session), params)) or 0


def vacuum(tenant: str, session: str) -> Op[Vacuumed]:
    """Remove the bodies of tombstoned nodes."""
    params = {"tenant": tenant, "session": session}
    count = yield from guarded(VACUUM, sessions.explain_known(session), params)
    return Vacuumed(session=session, nodes=count or 0)

"""The page of the guards is that of the code, and damage that nobody else plants is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.contract.errors import Corrupt
from holdfast.contract.processes import EventType, NewEvent, NewProcess, WakeRule
from holdfast.contract.records import NewNode, Turn

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_of_the_guards_is_up_to_date() -> None:
    """Each guard stands where the list says, and `tests/guards.md` has a row for it."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.guards", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("damage", "table"),
    [
        ("UPDATE node SET body = CAST('\"other\"' AS BLOB)", "node"),
        ("UPDATE node SET kind = 'note'", "node"),
        ("UPDATE blob SET data = CAST('other' AS BLOB)", "blob"),
        ("UPDATE component SET digest = zeroblob(32)", "blob"),
    ],
    ids=["body", "kind", "content", "name"],
)
def test_damage_is_not_handed_out(sqlite_path: Path, damage: str, table: str) -> None:
    """A node or a content that is not what its digest says is a typed error that names the row."""
    with holdfast.open_sync(str(sqlite_path)) as store:
        store.sessions.create("s")
        nodes = [NewNode(id="a", body="first")]
        store.sessions.commit(Turn(session="s", turn="t", nodes=nodes, state={"agent": b"first"}))
        rival = apsw.Connection(str(sqlite_path))
        rival.execute(damage)
        rival.close()
        with pytest.raises(Corrupt) as it:
            store.history.load("s")
        assert it.value.table == table


@pytest.mark.parametrize(
    ("damage", "table"),
    [
        ("UPDATE process_event SET payload = CAST('\"other\"' AS BLOB)", "process_event"),
        ("UPDATE process_event SET output = CAST('\"other\"' AS BLOB)", "process_event"),
        ("UPDATE process_event SET wake = CAST('other' AS BLOB)", "process_event"),
        ("UPDATE process_event SET key = 'other'", "process_event"),
        ("UPDATE process SET registration = CAST('other' AS BLOB)", "process"),
        ("UPDATE process SET identity = zeroblob(16)", "process"),
    ],
    ids=["payload", "output", "wake", "key", "registration", "identity"],
)
def test_damage_of_a_process_is_not_handed_out(sqlite_path: Path, damage: str, table: str) -> None:
    """A process or an event that is not what its digest says is a typed error that names it, in the
    record and in the log."""
    done = EventType(name="done", ends="completed", wakes=WakeRule())
    with holdfast.open_sync(str(sqlite_path)) as store:
        store.processes.register(NewProcess(process="p", events=[done]))
        event = NewEvent(type="done", payload="first", key="k")
        store.processes.append("p", event, authority="operator")
        rival = apsw.Connection(str(sqlite_path))
        rival.execute(damage)
        rival.close()
        with pytest.raises(Corrupt) as it:
            store.processes.get("p")
        assert it.value.table == table
        if table == "process_event":
            with pytest.raises(Corrupt) as it:
                store.processes.events("p")
            assert it.value.table == table

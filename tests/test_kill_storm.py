"""SIGKILL at any moment, with three processes writing one file.

Each writer tells its parent through a pipe what it is about to commit and what was acknowledged.
After each round of kills and at the end: what was acknowledged is there, nothing is half there, and
what was sent without an answer is resolved by its receipt. The storm runs in a process of its own,
which forks the writers and has no store open meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import BlockingStore, NewNode, Receipt, Turn, Usage, open_sync

KILLS = 501
WRITERS = 3
NODES = 2
SECONDS = 60
# Each turn is this many rows in each table; `session = shared` is written by all writers.
PARTS = {"node": NODES, "usage_row": 1, "component": 1, "receipt": 1}


def turn(session: str, name: str) -> Turn:
    """A turn that leaves its mark in every table."""
    return Turn(
        session=session,
        turn=name,
        nodes=[NewNode(id=f"{name}.{n}", body={"turn": name, "n": n}) for n in range(NODES)],
        state={"agent": f"{name} {'state ' * 120}".encode()},
        usage=[Usage(model="m", input=1)],
    )


def write(path: str, who: str, pipe: int) -> None:
    """Commit until killed, and say so before and after."""
    store = open_sync(path)
    number = 0
    while True:
        session = "shared" if number % 3 == 2 else f"of-{who.partition('.')[0]}"
        name = f"{who}.{number}"
        os.write(pipe, f"{session} {name} sent\n".encode())
        receipt = store.sessions.commit(turn(session, name))
        os.write(pipe, f"{session} {name} {receipt.revision}\n".encode())
        number += 1


@dataclass
class Storm:
    path: str
    sent: dict[str, str] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    told: dict[str, int] = field(
        default_factory=lambda: {"kills": 0, "rounds": 0, "ambiguous": 0, "were_committed": 0}
    )

    def round(self, rng: random.Random) -> list[str]:
        """Three writers start, and are killed one after the other. Returns what was sent."""
        number = self.told["rounds"]
        self.told["rounds"] += 1
        writers: list[tuple[int, int]] = []
        for who in range(WRITERS):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                try:
                    write(self.path, f"w{who}.{number}", writing)
                finally:
                    # A writer ends by being killed; that it ended otherwise is seen by its code.
                    os._exit(3)
            os.close(writing)
            writers.append((pid, reading))
        # The first kills may come while a file is being opened, the others in mid-commit.
        time.sleep(rng.uniform(0.0, 0.09))
        new: list[str] = []
        for pid, reading in rng.sample(writers, len(writers)):
            time.sleep(rng.uniform(0.0, 0.02))
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            assert os.WIFSIGNALED(status), f"a writer ended by itself: {status}"
            self.told["kills"] += 1
            new += self._drain(reading)
        return new

    def _drain(self, reading: int) -> list[str]:
        with os.fdopen(reading) as pipe:
            lines = pipe.read().splitlines()
        new: list[str] = []
        for line in lines:
            session, name, word = line.split()
            if word == "sent":
                self.sent[name] = session
                new.append(name)
            else:
                self.acked[name] = int(word)
        return new

    def check_new(self, store: BlockingStore, new: list[str]) -> None:
        """What was acknowledged has its receipt, and what was not is answered once."""
        for name in new:
            session = self.sent[name]
            known: Receipt | None = store.sessions.receipt(session, name)
            if name in self.acked:
                assert known is not None, f"an acknowledged turn was lost: {name}"
                assert known.revision == self.acked[name]
                continue
            self.told["ambiguous"] += 1
            self.told["were_committed"] += known is not None
            again = store.sessions.commit(turn(session, name))
            assert again.replayed == (known is not None)
            self.acked[name] = again.revision

    def check_file(self) -> None:
        """Every turn is there with all its parts, and there is no part without a turn."""
        connection = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            for table, many in PARTS.items():
                odd = connection.execute(
                    f"SELECT count(*) FROM (SELECT r.session, r.revision, (SELECT count(*) FROM"
                    f" {table} x WHERE x.tenant = r.tenant AND x.session = r.session"
                    f" AND x.revision = r.revision) AS n FROM revision r WHERE r.kind = 'turn')"
                    f" WHERE n <> {many}"
                    if table != "receipt"
                    else "SELECT count(*) FROM revision r WHERE r.kind = 'turn' AND NOT EXISTS"
                    " (SELECT 1 FROM receipt p WHERE p.tenant = r.tenant"
                    " AND p.session = r.session AND p.turn = r.turn AND p.revision = r.revision)"
                ).get
                assert odd == 0, f"{odd} turns are half in {table}"
                stray = connection.execute(
                    f"SELECT count(*) FROM {table} x WHERE NOT EXISTS (SELECT 1 FROM revision r"
                    " WHERE r.tenant = x.tenant AND r.session = x.session"
                    " AND r.revision = x.revision)"
                ).get
                assert stray == 0, f"{stray} rows of {table} belong to no turn"
            gaps = connection.execute(
                "SELECT count(*) FROM session s WHERE s.revision <> (SELECT count(*) - 1 FROM"
                " revision r WHERE r.tenant = s.tenant AND r.session = s.session)"
                f" OR s.node_count <> s.revision * {NODES}"
                f" OR (SELECT sum(input) FROM usage_total t WHERE t.session = s.session)"
                " <> s.revision"
            ).get
            assert gaps == 0
        finally:
            connection.close()

    def check_all(self, store: BlockingStore) -> None:
        """Everything is read back through the front door, byte for byte."""
        turns: dict[str, str] = {}
        for session in ("shared", *(f"of-w{who}" for who in range(WRITERS))):
            found = store.history.load(session)
            assert found is not None
            head = store.sessions.head(session)
            assert head is not None
            assert head.node_count == len(found.nodes) == NODES * head.revision
            for at, node in enumerate(found.nodes):
                name, _, n = node.id.rpartition(".")
                assert node.json() == {"turn": name, "n": int(n)}
                assert int(n) == at % NODES
                turns[name] = session
            last = found.nodes[-1].id.rpartition(".")[0]
            assert found.state["agent"].startswith(f"{last} state".encode())
        assert turns == {name: self.sent[name] for name in self.acked}
        assert self.acked.keys() == self.sent.keys()


def storm(path: str, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    began = time.monotonic()
    with open_sync(path) as store:
        for session in ("shared", *(f"of-w{who}" for who in range(WRITERS))):
            store.sessions.create(session)
    found = Storm(path)
    while found.told["kills"] < KILLS:
        new = found.round(rng)
        with open_sync(path) as store:
            found.check_new(store, new)
        if found.told["rounds"] % 20 == 0:
            found.check_file()
    found.check_file()
    with open_sync(path) as store:
        found.check_all(store)
    connection = apsw.Connection(path)
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    return {**found.told, "acked": len(found.acked), "seconds": time.monotonic() - began}


def test_nothing_acknowledged_is_lost_to_five_hundred_kills(sqlite_path: Path) -> None:
    seed = random.randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(sqlite_path), str(seed)],
        capture_output=True,
        text=True,
        timeout=SECONDS * 3,
    )
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr}"
    told = json.loads(done.stdout.splitlines()[-1])
    print(f"seed {seed}: {told}")
    assert told["kills"] >= 500
    assert told["acked"] > 500
    if told["ambiguous"] == 0:
        pytest.fail("no outcome was ambiguous: the storm is too gentle to show anything")


if __name__ == "__main__":
    holdfast.open_sync(":memory:").close()
    print(json.dumps(storm(sys.argv[1], int(sys.argv[2]))))

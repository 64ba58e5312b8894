"""The demo keeps its word: the kill is real, and what it shows is what is stored."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import run_command
from holdfast.cli.demo_script import FORK, IN_FLIGHT, SESSION, WORKER_TURNS

PROGRAM = [sys.executable, "-m", "holdfast.cli", "demo"]


def demo(*arguments: str, **environment: str) -> str:
    """Run the demo without a terminal, and return what it prints."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", **environment},
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_nothing_is_lost_and_nothing_is_done_twice(tmp_path: Path) -> None:
    """Every turn that was acknowledged is in the file; the one in flight is there once."""
    path = tmp_path / "demo.db"
    printed = demo("--keep", str(path))
    acknowledged = re.findall(r"^  (\S+)  acknowledged, revision (\d+)$", printed, re.M)
    assert [name for name, _ in acknowledged] == list(WORKER_TURNS[:-1])
    assert re.search(
        rf"^  {IN_FLIGHT}  in flight: process \d+ was killed \(SIGKILL\)$", printed, re.M
    )
    had = f"{IN_FLIGHT}  has a receipt" in printed
    assert (f"{IN_FLIGHT}  was committed already" in printed) == had
    assert (f"{IN_FLIGHT}  is committed now" in printed) != had

    with holdfast.open_sync(str(path)) as store:
        for name, revision in acknowledged:
            receipt = store.sessions.receipt(SESSION, name)
            assert receipt is not None
            assert receipt.revision == int(revision)
        entries = store.sessions.revisions(SESSION).items[::-1]
        assert [(entry.kind, entry.turn) for entry in entries[:-1]] == [
            ("created", None),
            *(("turn", f"turn-{number}") for number in range(1, 7)),
        ]
        assert entries[-1].kind == "rewound"
        history = store.history.load(SESSION)
        assert history is not None
        assert [node.id for node in history.nodes] == [
            f"turn-{number}:{place}" for number in range(1, 6) for place in (0, 1)
        ]
        fork = store.history.load(FORK)
        assert fork is not None
        assert [node.session for node in fork.nodes] == [SESSION, SESSION, FORK, FORK]
        totals = {total.session: total.entries for total in store.usage.totals(by=["session"])}
        assert totals == {SESSION: 6, FORK: 1}


def test_the_result_is_shown_and_what_is_next(tmp_path: Path) -> None:
    """The tree with both heads, the usage, and a command that works on the file it kept."""
    path = tmp_path / "demo.db"
    printed = demo("--keep", str(path))
    for text in (
        "left by a rewind",
        f"fork {FORK}",
        f"<- {SESSION}, revision 7",
        f"<- {FORK}, revision 1",
        "│   ├── ",
        f"holdfast db check {path}",
    ):
        assert text in printed
    assert re.search(rf"^ {SESSION} .* large .* 1 .* USD $", printed, re.M)
    assert run_command(["db", "check", str(path)]) == 0


def test_without_keep_nothing_remains(tmp_path: Path) -> None:
    """The file was a temporary one, and the demo says how to keep it."""
    printed = demo(TMPDIR=str(tmp_path), PYTHONIOENCODING="ascii")
    assert f"The database was {tmp_path}" in printed
    assert "holdfast demo --keep demo.db" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keeping never overwrites."""
    path = tmp_path / "mine.db"
    path.write_bytes(b"mine")
    assert run_command(["demo", "--keep", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, path.read_bytes()) == ("", b"mine")
    assert "choose another" in err
    assert run_command(["demo", "--keep", str(tmp_path / "gone" / "demo.db")]) == 1
    assert capsys.readouterr().err.startswith("holdfast: store-unreachable: ")

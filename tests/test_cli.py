"""The command line: what each verb prints, how it exits, and that only `apply` changes anything."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import run_command
from holdfast.cli.printed import clean, shown_url, without_secrets
from holdfast.testing.postgres_server import PostgresServer, run_sql

PASSWORD = "hunter2"
SCHEMA = Path(holdfast.__file__).parent / "sql/sqlite/migrations"
MIGRATIONS = [file.stem.split("_", 1) for file in sorted(SCHEMA.glob("*.sql"))]
LATEST = len(MIGRATIONS)


@dataclass
class Database:
    """An empty database of either kind, and a way to damage it."""

    url: str
    server: PostgresServer | None = None

    def run(self, statement: str) -> str:
        """Run a script of SQL behind the back of the store."""
        if self.server is not None:
            return run_sql(self.server.bindir, self.url, statement)
        connection = sqlite3.connect(self.url)
        try:
            connection.executescript(statement)
        finally:
            connection.close()
        return ""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """One empty database of each kind; the file does not exist yet."""
    if request.param == "sqlite":
        yield Database(request.getfixturevalue("sqlite_url"))
    else:
        server = request.getfixturevalue("postgres_server")
        yield Database(request.getfixturevalue("postgres_url"), server)


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed, as JSON: one line."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


@pytest.fixture
def holdfast_command(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process."""

    def run(*arguments: str) -> Done:
        code = run_command(list(arguments))
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder except the shared memory, which every reader writes to."""
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")
    }


# --- an empty database


def test_plan_of_an_empty_database(database: Database, holdfast_command: Any) -> None:
    """Nothing is found, every migration is pending, and that is no failure."""
    done = holdfast_command("db", "plan", database.url)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1:] == [
        "found     nothing",
        f"expected  version {LATEST}",
        *(f"pending   {number} {name}" for number, name in MIGRATIONS),
    ]
    done = holdfast_command("db", "plan", "--json", database.url)
    assert done.json() == {
        "found": 0,
        "expected": LATEST,
        "oldest_reader": 0,
        "pending": [{"version": int(number), "name": name} for number, name in MIGRATIONS],
        "differences": [],
    }


def test_check_of_an_empty_database_exits_with_3(database: Database, holdfast_command: Any) -> None:
    """Pending migrations need attention."""
    done = holdfast_command("db", "check", database.url)
    assert (done.code, done.err) == (3, "")
    number, name = MIGRATIONS[-1]
    assert done.out.splitlines()[-2:] == [f"pending   {number} {name}", "not as expected"]
    assert holdfast_command("db", "check", "--json", database.url).code == 3


def test_looking_makes_no_file(tmp_path: Path, holdfast_command: Any) -> None:
    """A file that is not there is an empty store, and stays away."""
    for verb in ("plan", "check", "sql"):
        holdfast_command("db", verb, str(tmp_path / "agents.db"))
    assert list(tmp_path.iterdir()) == []


def test_looking_makes_no_schema(postgres_server: PostgresServer, postgres_url: str) -> None:
    """On a server neither."""
    for verb in ("plan", "check", "sql"):
        run_command(["db", verb, postgres_url])
    found = run_sql(
        postgres_server.bindir,
        postgres_url,
        "SELECT count(*) FROM pg_namespace WHERE nspname='holdfast'",
    )
    assert found == "0"


# --- apply


def test_apply_makes_a_store(database: Database, holdfast_command: Any) -> None:
    """What apply makes is a store that opens without migrating, and a second time does nothing."""
    done = holdfast_command("db", "apply", database.url)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1:] == [
        f"found     version {LATEST}",
        f"expected  version {LATEST}",
        *(f"applied   {number} {name}" for number, name in MIGRATIONS),
    ]
    with holdfast.open_sync(database.url, migrate=False) as store:
        assert store.sessions.create("a").created
    done = holdfast_command("db", "apply", database.url)
    assert done.out.splitlines()[-1] == "applied   nothing, it was up to date"
    assert holdfast_command("db", "apply", "--json", database.url).json() == {
        "found": LATEST,
        "expected": LATEST,
        "oldest_reader": 1,
        "pending": [],
        "differences": [],
        "was": LATEST,
    }


def test_the_text_of_the_migrations_makes_a_store(
    database: Database, holdfast_command: Any
) -> None:
    """What `sql` prints, run by hand, is what `apply` does."""
    text = holdfast_command("db", "sql", database.url).out
    assert holdfast_command("db", "sql", "--json", database.url).json() == {"sql": text}
    database.run(text)
    assert holdfast_command("db", "check", database.url).code == 0
    with holdfast.open_sync(database.url, migrate=False) as store:
        assert store.sessions.create("a").created
    assert holdfast_command("db", "sql", database.url).out == "-- nothing is pending\n"
    assert holdfast_command("db", "sql", "--json", database.url).json() == {"sql": ""}


def test_the_schema_is_chosen(postgres_url: str, holdfast_command: Any) -> None:
    """`--schema` names another one on PostgreSQL; there is none on SQLite."""
    assert holdfast_command("db", "apply", "--schema", "other", postgres_url).code == 0
    assert holdfast_command("db", "check", "--schema", "other", postgres_url).code == 0
    assert holdfast_command("db", "check", postgres_url).code == 3
    done = holdfast_command("db", "plan", "--schema", 'x"; DROP', postgres_url)
    assert (done.code, done.err) == (
        1,
        "holdfast: invalid: schema: must match [a-z_][a-z0-9_]{0,62}\n",
    )
    done = holdfast_command("db", "plan", "--schema", "other", "agents.db")
    assert (done.code, done.err) == (
        1,
        "holdfast: invalid: schema: not an option of a SQLite store\n",
    )


# --- a store that is not as expected


def test_check_names_each_object_that_differs(database: Database, holdfast_command: Any) -> None:
    """One line for each, exit code 3; apply refuses to touch it."""
    schema = "" if database.server is None else "holdfast."
    holdfast_command("db", "apply", database.url)
    done = holdfast_command("db", "check", database.url)
    assert (done.code, done.out.splitlines()[-1]) == (0, "as expected")
    database.run(f"DROP INDEX {schema}tag_value; CREATE TABLE {schema}extra (x integer)")
    done = holdfast_command("db", "check", database.url)
    assert (done.code, done.err) == (3, "")
    lines = done.out.splitlines()
    assert "differs   missing index tag_value" in lines
    assert "differs   unexpected table extra" in lines
    assert lines[-1] == "not as expected"
    found = holdfast_command("db", "check", "--json", database.url)
    assert (found.code, "missing index tag_value" in found.json()["differences"]) == (3, True)
    done = holdfast_command("db", "apply", database.url)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        f"holdfast: schema-drift: the store's structure is not what version {LATEST}"
    )
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(("oldest_reader", "code"), [(99, 1), (1, 0)])
def test_a_newer_store(
    database: Database, holdfast_command: Any, oldest_reader: int, code: int
) -> None:
    """It may be used when it says so; else check and apply are refused, and plan shows it."""
    schema = "" if database.server is None else "holdfast."
    holdfast_command("db", "apply", database.url)
    database.run(
        f"INSERT INTO {schema}migration VALUES ({LATEST + 1}, 'later', 'x', {oldest_reader}, 0);"
        + (f"PRAGMA user_version = {LATEST + 1}" if database.server is None else "")
    )
    done = holdfast_command("db", "plan", database.url)
    assert (done.code, done.out.splitlines()[1]) == (
        0,
        f"found     version {LATEST + 1}, newer than this holdfast",
    )
    for verb in ("check", "apply"):
        done = holdfast_command("db", verb, database.url)
        assert done.code == code
        assert done.err.startswith("holdfast: schema-newer: ") == bool(code)


def test_a_database_of_somebody_else_is_refused(database: Database, holdfast_command: Any) -> None:
    """By every verb, and it stays as it was."""
    if database.server is None:
        database.run("CREATE TABLE theirs (x integer)")
    else:
        database.run("CREATE SCHEMA holdfast; CREATE TABLE holdfast.theirs (x integer)")
    for verb in ("plan", "check", "sql", "apply"):
        done = holdfast_command("db", verb, database.url)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("holdfast: foreign-database: ")
        assert done.err.count("\n") == 1


def test_looking_changes_no_file(tmp_path: Path, holdfast_command: Any) -> None:
    """Neither the file, nor what is beside it, nor the log that a crash has left."""
    clean_one, crashed_one = tmp_path / "clean", tmp_path / "crashed"
    for folder in (clean_one, crashed_one):
        folder.mkdir()
        holdfast_command("db", "apply", str(folder / "agents.db"))
    crash = (
        "import os, sys, holdfast\n"
        "store = holdfast.open_sync(sys.argv[1])\n"
        "store.sessions.create('a')\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", crash, crashed_one / "agents.db"], check=True)
    assert files(clean_one).keys() == {"agents.db"}
    assert files(crashed_one).keys() == {"agents.db", "agents.db-wal"}
    for folder in (clean_one, crashed_one):
        before = files(folder)
        for verb in ("plan", "check", "sql"):
            assert holdfast_command("db", verb, str(folder / "agents.db")).code == 0
        assert files(folder) == before
    with holdfast.open_sync(str(crashed_one / "agents.db")) as store:
        assert store.sessions.get("a") is not None


def test_looking_at_a_store_in_use(database: Database, holdfast_command: Any) -> None:
    """Every verb works beside an open handle, which goes on."""
    with holdfast.open_sync(database.url) as store:
        for verb in ("plan", "check", "sql", "apply"):
            assert holdfast_command("db", verb, database.url).code == 0
        assert store.sessions.create("a").created


# --- what is printed


def test_stored_names_cannot_steer_the_terminal(sqlite_url: str, holdfast_command: Any) -> None:
    """Control, direction and invisible characters are taken out of what is printed."""
    holdfast_command("db", "apply", sqlite_url)
    database = Database(sqlite_url)
    database.run('CREATE TABLE "a\x1b[31m\u202eb\u200b\nc\x9b" (x integer)')
    done = holdfast_command("db", "check", sqlite_url)
    assert "differs   unexpected table a[31mb c" in done.out.splitlines()
    assert done.code == 3
    assert clean("\u2066a\u2069\x07\U000e0041\ud800\u2028b") == "a b"
    assert clean("\U0001f469\u200d\U0001f680") == "\U0001f469\u200d\U0001f680"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{PASSWORD}@127.0.0.1:1/agents",
        f"postgresql://ada:{PASSWORD}@x@127.0.0.1:1/agents",
        f"postgresql://127.0.0.1:1/agents?user=ada&password={PASSWORD}",
        f"postgresql://ada:{PASSWORD}@127.0.0.1:port/agents",
        f"mysql://ada:{PASSWORD}@127.0.0.1/agents",
    ],
)
@pytest.mark.parametrize("more", [[], ["surplus"], ["--nonsense"], ["--json"]])
def test_passwords_are_not_printed(url: str, more: list[str], holdfast_command: Any) -> None:
    """Not in errors, not where the command line itself was wrong."""
    for verb in ("plan", "check", "sql", "apply"):
        done = holdfast_command("db", verb, *more, url)
        assert done.code in (1, 2)
        assert PASSWORD not in done.out + done.err
        assert "Traceback" not in done.err


def test_a_url_is_shown_without_its_secrets(postgres_url: str, holdfast_command: Any) -> None:
    """The host and the name of the database remain."""
    assert shown_url(f"postgresql://ada:{PASSWORD}@db:5432/agents?x={PASSWORD}") == (
        "postgresql://db:5432/agents"
    )
    assert shown_url("agents.db") == "agents.db"
    assert without_secrets(f"x postgresql://a:{PASSWORD}@h/d y") == "x postgresql://***@h/d y"
    scheme, rest = postgres_url.split("://holdfast@")
    done = holdfast_command("db", "plan", f"{scheme}://holdfast:{PASSWORD}@{rest}")
    assert (done.code, PASSWORD in done.out) == (0, False)


# --- usage


def test_the_url_may_come_from_the_environment(
    sqlite_url: str, holdfast_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a password need not be in the list of processes."""
    monkeypatch.setenv("HOLDFAST_URL", sqlite_url)
    assert holdfast_command("db", "apply").code == 0
    assert holdfast_command("db", "check").code == 0


@pytest.mark.parametrize(
    "arguments", [[], ["db"], ["nonsense"], ["db", "plan"], ["db", "plan", "a", "b"], ["--x"]]
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], holdfast_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says on stderr what would be right."""
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    done = holdfast_command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "--help" in done.err


@pytest.mark.parametrize("url", [":memory:", "", "mysql://h/d", "file:agents.db"])
def test_what_has_no_schema_is_invalid(url: str, holdfast_command: Any) -> None:
    """A database in memory, and what is no database."""
    for verb in ("plan", "check", "sql", "apply"):
        done = holdfast_command("db", verb, url)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("holdfast: invalid: url: ")


def test_a_file_that_cannot_be_a_store(tmp_path: Path, holdfast_command: Any) -> None:
    """A directory, a text, a path that leads nowhere: one line, and a code."""
    text = tmp_path / "notes.txt"
    text.write_text("these are notes, and no database\n" * 100)
    for path, verb, code in (
        (tmp_path, "plan", "store-unreachable"),
        (text, "check", "foreign-database"),
        (tmp_path / "gone" / "agents.db", "apply", "store-unreachable"),
    ):
        done = holdfast_command("db", verb, str(path))
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"holdfast: {code}: ")
        assert done.err.count("\n") == 1


def test_the_program(sqlite_url: str) -> None:
    """As a process of its own: the version, an exit code, and one line instead of a traceback."""
    program = [sys.executable, "-m", "holdfast.cli"]
    done = subprocess.run([*program, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"holdfast {version('holdfast')}\n")
    done = subprocess.run([*program, "db", "check", sqlite_url], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")
    done = subprocess.run([*program, "db", "check", ":memory:"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    done = subprocess.run([*program, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

"""Takes the guards away, one at a time, and asks whether a test notices.

A guard is a text in the SQL or in the code without which something wrong would be done. For each
one the tree is copied, the text is replaced, and the few tests run that should fail. What noticed
what is written to `tests/guards.md`; `--check` only compares the list of guards with that page,
`--only NAME` runs the guards whose name begins so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tools import guard_list
from tools.guard_list import Guard
from tools.guard_list_frozen import FROZEN_GUARDS
from tools.guard_list_processes import PROCESS_GUARDS
from tools.guard_list_queue import QUEUE_GUARDS
from tools.guard_list_schedules import SCHEDULE_GUARDS
from tools.guard_list_trigger_laws import TRIGGER_LAW_GUARDS
from tools.guard_list_triggers import TRIGGER_GUARDS

GUARDS = (
    *(*guard_list.GUARDS, *QUEUE_GUARDS, *PROCESS_GUARDS, *FROZEN_GUARDS),
    *(*TRIGGER_GUARDS, *TRIGGER_LAW_GUARDS),
    *SCHEDULE_GUARDS,
)
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "tests" / "guards.md"
COPIED = ("src", "tests", "tools")
SINGLE = ("conftest.py", "pyproject.toml", "Makefile", "README.md")
ROUNDS = "60"
WORKERS = 2
QUIETLY = ("-x", "-q", "-n", "0", "--tb=no", "-p", "no:randomly", "-p", "no:cacheprovider")
ENDS = re.compile(r"^(?:-- name: |-- step: refused|\$fn\$;)", re.M)
HEAD = """# The guards, and who notices when one is gone

<!-- Made by `python -m tools.guards`, which takes each guard away and runs the tests. -->

| Guard | Database | Without it | Noticed by |
|---|---|---|---|
"""


class NotFound(Exception):
    """The text of a guard is not where it should be, or is there more than once."""


def mutated(guard: Guard, text: str) -> str:
    """The file without the guard."""
    start, end = 0, len(text)
    if guard.inside:
        start = text.find(guard.inside)
        if start < 0:
            raise NotFound(f"{guard.key}: {guard.file} has no {guard.inside!r}")
        if guard.file.endswith(".sql"):
            found = re.compile(r"^(?:-- name: |-- step: refused|\$fn\$;)", re.M).search(
                text, start + 1
            )
            end = found.start() if found else end
    part = text[start:end]
    if part.count(guard.old) != 1 and not (guard.every and guard.old in part):
        raise NotFound(f"{guard.key}: {part.count(guard.old)} times in {guard.file}: {guard.old!r}")
    return text[:start] + part.replace(guard.old, guard.new) + text[end:]


def copied(folder: Path) -> Path:
    """A copy of the tree in which the live structure is not compared with the expected one."""
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in SINGLE:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    migrations = folder / "src/holdfast/sql/migrations.py"
    text = migrations.read_text("utf-8")
    line = "    return tuple(lines)\n"
    if text.count(line) != 1:
        raise NotFound("sql/migrations.py: the end of differences()")
    migrations.write_text(text.replace(line, "    return ()\n"), "utf-8")
    return folder


def failing(folder: Path, tests: Iterable[str]) -> list[str]:
    """Run tests in a copy, and name the first that fails; none is an empty list."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *QUIETLY, *tests],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOLDFAST_ROUNDS": ROUNDS,
        },
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise NotFound(f"pytest {' '.join(tests)}: {done.stdout[-800:]}{done.stderr[-800:]}")
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)


@contextmanager
def one_of(folders: SimpleQueue[Path]) -> Iterator[Path]:
    """A copy that nobody else uses meanwhile."""
    folder = folders.get()
    try:
        yield folder
    finally:
        folders.put(folder)


def run(guards: Iterable[Guard]) -> list[tuple[Guard, list[str]]]:
    """Take each guard away, in copies that are reused."""
    folders: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as base:
        for number in range(WORKERS):
            folders.put(copied(Path(base) / str(number)))

        def noticed(guard: Guard) -> list[str]:
            with one_of(folders) as folder:
                target = folder / guard.file
                text = target.read_text("utf-8")
                target.write_text(mutated(guard, text), "utf-8")
                try:
                    found = failing(folder, guard.tests)
                finally:
                    target.write_text(text, "utf-8")
            print(f"{guard.key:42} {found[0] if found else 'NOBODY NOTICES'}", flush=True)
            return found

        chosen = list(guards)
        with ThreadPoolExecutor(WORKERS) as pool:
            results = list(zip(chosen, pool.map(noticed, chosen), strict=True))
        noticing = dict.fromkeys(test for _, found in results for test in found)
        with one_of(folders) as folder:
            if noticing and (wrong := failing(folder, noticing)):
                raise NotFound(f"this fails with all guards in place too: {wrong}")
        return results


def page(results: Iterable[tuple[Guard, list[str]]]) -> str:
    """The table."""
    rows = [
        f"| {guard.name} | {guard.dialect} | {guard.without} | `{found[0].split('/')[-1]}` |"
        for guard, found in results
    ]
    return HEAD + "\n".join(rows) + "\n"


def listed(text: str) -> list[tuple[str, ...]]:
    """The guards a page has rows for."""
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [(row[0][2:], row[1], row[2]) for row in rows[1:]]


def check() -> int:
    """Compare the page with the list, and the list with the files."""
    for guard in GUARDS:
        mutated(guard, (ROOT / guard.file).read_text("utf-8"))
    known = [(guard.name, guard.dialect, guard.without) for guard in GUARDS]
    if not PAGE.exists() or listed(PAGE.read_text("utf-8")) != known:
        print("tests/guards.md is not up to date: run make guards")
        return 1
    return 0


def main() -> int:
    """Run all guards and write the page, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    try:
        if chosen.check:
            return check()
        for guard in GUARDS:
            mutated(guard, (ROOT / guard.file).read_text("utf-8"))
        results = run(guard for guard in GUARDS if guard.key.startswith(chosen.only))
    except NotFound as wrong:
        print(wrong)
        return 1
    unnoticed = [guard.key for guard, found in results if not found]
    if unnoticed:
        print("nobody notices:", ", ".join(unnoticed))
        return 1
    if not chosen.only:
        PAGE.write_text(page(results), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

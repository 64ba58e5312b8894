"""Importing is light: each part of the package is loaded by those who use it, and not before."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_origin

import pytest

import holdfast
from holdfast.contract import errors, processes, queue, records, schedules, triggers
from holdfast.core import cron

DRIVERS = {"asyncpg", "apsw"}
SCREEN = {"click", "rich"}


def loaded(program: str, folder: Path) -> set[str]:
    """The modules that a program has loaded when it ends, from a fresh interpreter."""
    ending = "\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program + ending],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_loads_the_contract_only(tmp_path: Path) -> None:
    """No driver, no command line, no event loop, no facade."""
    found = loaded("import holdfast", tmp_path)
    heavy = {"asyncio", "ssl", "logging", "importlib.metadata", "pytest", "hypothesis"}
    heavy |= {"cronsim", "tzdata", "zoneinfo"}
    assert not found & (DRIVERS | SCREEN | heavy)
    rooms = {".".join(name.split(".")[:2]) for name in found if name.startswith("holdfast")}
    assert rooms == {"holdfast", "holdfast.contract"}


def test_a_store_loads_its_own_driver(tmp_path: Path) -> None:
    """Opening a file loads neither the other driver nor the command line."""
    found = loaded("import holdfast\nholdfast.open_sync('agents.db').close()", tmp_path)
    assert "apsw" in found
    assert not found & (SCREEN | {"asyncpg"})


def test_a_server_loads_its_own_driver(tmp_path: Path, postgres_url: str) -> None:
    """Opening a URL does not load the other driver."""
    program = f"import holdfast\nholdfast.open_sync({postgres_url!r}).close()"
    found = loaded(program, tmp_path)
    assert "asyncpg" in found
    assert not found & (SCREEN | {"apsw"})


def test_intervals_need_no_parser_of_cron(tmp_path: Path) -> None:
    """The extra `schedules` is loaded by the first cron expression, and by nothing else."""
    program = "import holdfast\nholdfast.upcoming(holdfast.{}, after_ms=0)"
    found = loaded(program.format("Every(interval_ms=1000)"), tmp_path)
    assert not found & {"cronsim", "tzdata"}
    assert "cronsim" in loaded(program.format("Cron(expression='0 9 * * MON')"), tmp_path)


@pytest.mark.parametrize("package", ["cronsim", "tzdata"])
def test_a_missing_parser_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra a cron expression is refused with what to install."""
    monkeypatch.setitem(sys.modules, package, None)
    cron.calendar.cache_clear()
    cron.zone_names.cache_clear()
    with pytest.raises(holdfast.NotSupported, match=r"install holdfast\[schedules\]") as refused:
        holdfast.upcoming(holdfast.Cron(expression="0 9 * * MON"), after_ms=0)
    assert package in refused.value.fields["reason"]


def test_the_facades_load_no_driver(tmp_path: Path) -> None:
    """The names that come later come without a driver."""
    found = loaded("from holdfast import BlockingStore, Store, open, open_sync", tmp_path)
    assert not found & (DRIVERS | SCREEN)


def test_the_command_line_loads_no_driver_and_no_tables(tmp_path: Path) -> None:
    """Completion and help are quick."""
    found = loaded("import holdfast.cli", tmp_path)
    assert "click" in found
    assert not found & (DRIVERS | {"rich"})


def test_every_public_name_is_there() -> None:
    """`__all__` has every error, every record and the doors, each once, and all resolve."""
    names = holdfast.__all__
    assert len(names) == len(set(names))
    wanted = {"BlockingStore", "Limits", "Selector", "Store", "__version__"}
    wanted |= {"Timing", "open", "open_sync", "upcoming"}
    for module in (errors, processes, queue, records, schedules, triggers):
        for name, value in vars(module).items():
            kinds = (errors.HoldfastError, records.Record)
            record = inspect.isclass(value) and issubclass(value, kinds)
            if value is not records.Record and (record or get_origin(value) is Literal):
                wanted.add(name)
    assert set(names) == wanted
    assert set(names) <= set(dir(holdfast))
    for name in names:
        assert getattr(holdfast, name) is not None


def test_a_star_import_brings_the_same() -> None:
    """Nothing else, and nothing less."""
    brought: dict[str, object] = {}
    exec("from holdfast import *", brought)
    assert brought.keys() - {"__builtins__"} == set(holdfast.__all__)


def test_other_names_are_an_attribute_error() -> None:
    """A name that is not there is reported as Python does it."""
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'nonsense'"):
        holdfast.nonsense  # noqa: B018

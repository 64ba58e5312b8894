"""The README is true: its program runs as printed, and what it names is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.M | re.S)
MOST_LINES = 20


def program() -> tuple[str, str]:
    """The program of the first screen, and what it prints."""
    found = PROGRAM.findall(README)
    assert len(found) == 1
    return str(found[0][0]), str(found[0][1])


def test_the_program_runs_as_printed(tmp_path: Path) -> None:
    """In an empty directory, with nothing but the package, it prints what is shown."""
    source, shown = program()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", shown)
    assert (tmp_path / "agents.db").exists()


def test_the_program_is_short_and_comes_first() -> None:
    """Up to twenty lines of code, before the first heading of a section."""
    source, _ = program()
    assert len([line for line in source.splitlines() if line.strip()]) <= MOST_LINES
    assert README.index("```python") < README.index("\n## ")


def test_the_two_commands_are_there() -> None:
    """The commands install what the project declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "pip install . && holdfast demo\n" in README
    assert 'pip install -e ".[dev]" && pytest\n' in README
    assert project["scripts"] == {"holdfast": "holdfast.cli:main"}
    assert "dev" in project["optional-dependencies"]


def test_the_make_targets_exist() -> None:
    """Each target that is named is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make (\w+)`", README):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_layout_exists() -> None:
    """Each file and folder of the layout is in the repository."""
    layout = README[README.index("## Layout") :].split("```")[1]
    inner = re.findall(r"^  (\S+)", layout, re.M)
    outer = layout.strip().splitlines()[-1].split()
    assert inner
    for name in (*(f"src/holdfast/{name}" for name in inner), *outer):
        assert (ROOT / name).exists(), name


def test_every_error_named_is_one() -> None:
    """The families and the errors of the README are public names."""
    import holdfast

    section = README[README.index("## Errors") : README.index("## Limits")]
    names = set(re.findall(r"`([A-Z]\w+)`", section))
    assert names > {"Refused", "Superseded", "Unavailable", "Corrupt"}
    assert names <= set(holdfast.__all__)

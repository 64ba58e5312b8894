"""The pages are true: their code runs and prints what they show, and their tables are complete."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import holdfast

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
TESTED_ON = re.compile(r"\A<!-- tested on: (.*) -->$", re.M)
DATABASE = '"agents.db"'


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page: its language, its text, and the line it begins on."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    text = page.read_text("utf-8")
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 2)
        for found in FENCE.finditer(text)
    ]


def run(page: Path, replacing: dict[str, str]) -> None:
    """Run the Python of a page as one program, and compare what each block prints with the block
    of text behind it."""
    names: dict[str, object] = {"__name__": "__page__"}
    found = blocks(page)
    for block, after in zip(found, [*found[1:], Block("", "", 0)], strict=True):
        if block.language != "python":
            continue
        source = block.text
        for old, new in replacing.items():
            source = source.replace(old, new)
        # The line numbers of a traceback are those of the page.
        code = compile("\n" * (block.line - 1) + source, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        shown = after.text if after.language == "text" else ""
        assert printed.getvalue() == shown, f"{page.name}:{block.line}"


def pages_tested_on(database: str) -> list[Path]:
    """The pages that say they are run on a database."""
    pages = []
    for page in sorted(DOCS.rglob("*.md")):
        said = TESTED_ON.search(page.read_text("utf-8"))
        if said and database in said[1].split():
            pages.append(page)
    return pages


def page_id(page: Path) -> str:
    """How a page is called in a report."""
    return page.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("page", pages_tested_on("sqlite"), ids=page_id)
def test_a_page_runs_on_sqlite(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a page runs as it is printed, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    run(page, {})


@pytest.mark.parametrize("page", pages_tested_on("postgresql"), ids=page_id)
def test_a_page_runs_on_postgresql(page: Path, postgres_url: str) -> None:
    """The same code, with the URL in place of the file."""
    assert any(DATABASE in block.text for block in blocks(page))
    run(page, {DATABASE: repr(postgres_url)})


def test_a_page_with_code_says_where_it_is_tested() -> None:
    """No Python on a page goes without being run."""
    marked = {*pages_tested_on("sqlite"), *pages_tested_on("postgresql")}
    bare = [
        page_id(page)
        for page in sorted(DOCS.rglob("*.md"))
        if page not in marked and any(block.language == "python" for block in blocks(page))
    ]
    assert not bare


def test_links_lead_somewhere() -> None:
    """Every relative link of a page names a file."""
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
        for target in LINK.findall(page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def rows(page: Path) -> list[list[str]]:
    """The cells of every table row of a page, without the backticks."""
    return [
        [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]
        for line in page.read_text("utf-8").splitlines()
        if line.startswith("|") and not line.startswith(("|---", "| ---"))
    ]


def test_the_limits_are_those_of_the_code() -> None:
    """The table of limits names each limit of a handle with its default."""
    limits = msgspec.structs.asdict(holdfast.Limits())
    shown = {
        row[0]: int(row[1].replace(",", ""))
        for row in rows(DOCS / "reference" / "limits.md")
        if row[0] in limits
    }
    assert shown == limits


def keys(database: str) -> dict[str, str]:
    """Each table of a schema with its primary key."""
    path = ROOT / "src" / "holdfast" / "sql" / database / "structure.json"
    found: dict[str, str] = {}
    for name, text in json.loads(path.read_text("utf-8")).items():
        key = re.search(r"PRIMARY KEY \(([^)]*)\)|(\w+) (?:INTEGER|TEXT) PRIMARY KEY", text)
        if key is not None:
            found[name.split(" ")[1].split(".")[0]] = key[1] or key[2]
    return found


def test_the_tables_are_those_of_both_schemas() -> None:
    """The page of tables names each table with its primary key, and both databases have it."""
    listed = rows(DOCS / "reference" / "tables.md")
    shown = {row[0]: row[1] for row in listed if row[0] != "Table"}
    assert shown == keys("sqlite") == keys("postgres")

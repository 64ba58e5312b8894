"""Migrations are numbered files, and the structure they end in is written down beside them.

A file is `migrations/NNNN_name.sql` and opens with `-- oldest reader: N`, the oldest schema version
whose holdfast may still use a store after this migration. `structure.json` maps each object of the
finished schema to its definition, as the engine reads it back from a live database; it is generated
and checked, and opening a store compares the two.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from holdfast.contract.errors import SchemaDrift, SchemaNewer, SchemaOlder

_FILE = re.compile(r"(\d{4})_(\w+)\.sql\Z")
_OLDEST = re.compile(r"^-- oldest reader: (\d+)$", re.M)


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step from the version before it."""

    version: int
    name: str
    oldest_reader: int
    text: str
    checksum: str


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """What a database is, against what this holdfast knows.

    `found` is 0 for an empty database. `oldest_reader` is what the newest applied migration says.
    `differences` are one line per object, and only looked for when the versions agree.
    """

    found: int
    expected: int
    oldest_reader: int
    pending: tuple[Migration, ...]
    differences: tuple[str, ...] = ()

    def require_usable(self, *, migrate: bool) -> None:
        """Raise unless the store may be used as it is (or, with `migrate`, brought up to date)."""
        if self.found > self.expected and self.oldest_reader > self.expected:
            raise SchemaNewer(found=self.found, expected=self.expected)
        if self.found < self.expected and not migrate:
            raise SchemaOlder(found=self.found, expected=self.expected)
        if self.differences:
            raise SchemaDrift(version=self.found, differences="; ".join(self.differences))


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """All migrations of a dialect, in order and without a gap."""
    found: list[Migration] = []
    folder = resources.files(__package__) / dialect / "migrations"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        match = _FILE.match(file.name)
        if match is None:
            continue
        text = file.read_text("utf-8")
        oldest = _OLDEST.search(text)
        assert oldest is not None, f"{file.name}: no '-- oldest reader' line"
        assert int(match.group(1)) == len(found) + 1, f"{file.name}: a version is missing"
        found.append(
            Migration(
                version=int(match.group(1)),
                name=match.group(2),
                oldest_reader=int(oldest.group(1)),
                text=text,
                checksum=hashlib.sha256(text.encode()).hexdigest(),
            )
        )
    return tuple(found)


@cache
def expected_structure(dialect: str) -> dict[str, str]:
    """Each object of the finished schema and its definition."""
    text = (resources.files(__package__) / dialect / "structure.json").read_text("utf-8")
    loaded: dict[str, str] = json.loads(text)
    return loaded


def differences(dialect: str, live: dict[str, str]) -> tuple[str, ...]:
    """One line per object that is missing, foreign or otherwise than expected."""
    wanted = expected_structure(dialect)
    lines: list[str] = []
    for name in sorted(wanted.keys() | live.keys()):
        if name not in live:
            lines.append(f"missing {name}")
        elif name not in wanted:
            lines.append(f"unexpected {name}")
        elif wanted[name] != live[name]:
            lines.append(f"{name} is [{live[name]}], expected [{wanted[name]}]")
    return tuple(lines)

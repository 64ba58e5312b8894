"""Makes docs/contract.md out of the laws of the conformance suite; `--check` only compares.

    python tools/contract_doc.py [--check]

The text of a law is the docstring of its test, and the text of a chapter that of its file. Nothing
is imported. Every number of the model is a law here, or is listed with a reason; else this fails.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAWS = ROOT / "src" / "holdfast" / "testing" / "conformance"
LISTS = LAWS / "not_adopted.py"
TARGET = ROOT / "docs" / "contract.md"

# The parts of the model that are decided upon.
PARTS = (range(1, 84), range(84, 130), range(143, 220), range(243, 244))
MODEL_LAWS = {number for part in PARTS for number in part}
# In the order a reader meets the things; a file that is not named here comes last.
CHAPTERS = (
    "sessions",
    "catalog",
    "commit",
    "nodes",
    "history",
    "state",
    "forks",
    "rewinds",
    "diffs",
    "usage",
    "lanes",
    "queue",
    "inbox",
    "claims",
    "settling",
    "attempts",
    "next",
    "waits",
    "payloads",
    "tenants",
    "processes",
    "events",
    "schemas",
    "ends",
    "wakes",
    "leases",
    "grants",
    "feed",
    "schedules",
    "schedule_firing",
    "strangers",
    "triggers",
    "occurrences",
    "deliveries",
    "receipts",
)
NAME = re.compile(r"test_law_(\d{3}|[a-z]\d{2})_\w+")
INTRODUCTION = """\
# What a store promises

<!-- Made by tools/contract_doc.py from the conformance suite. Change the laws, not this page. -->

Every sentence on this page is the docstring of a test, and every test runs against every store
that holdfast brings. Laws with a number come from the model holdfast was built after; laws with a
letter are its own. To put a store of your own to the test, see `holdfast.testing.conformance`.
"""


def chapters() -> list[Path]:
    """The files of laws, in the order of the page."""
    ranks = {f"law_{name}.py": rank for rank, name in enumerate(CHAPTERS)}
    return sorted(LAWS.glob("law_*.py"), key=lambda path: (ranks.get(path.name, 99), path.name))


def laws(path: Path) -> tuple[str, list[tuple[str, str, str]]]:
    """The text of a chapter, and the number, the test and the text of each of its laws."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    text = ast.get_docstring(module)
    if not text:
        raise SystemExit(f"{path.name}: a chapter has a docstring")
    found: list[tuple[str, str, str]] = []
    for item in module.body:
        if not isinstance(item, ast.AsyncFunctionDef | ast.FunctionDef):
            continue
        if not item.name.startswith("test_"):
            continue
        name = NAME.fullmatch(item.name)
        if name is None:
            raise SystemExit(f"{path.name}: {item.name} is not named test_law_<number>_<law>")
        number = name[1].lstrip("0")
        law = " ".join((ast.get_docstring(item) or "").split())
        if not law.endswith(f" ({number})"):
            raise SystemExit(f"{path.name}: the text of {item.name} ends with ({number})")
        found.append((number, item.name, law.removesuffix(f" ({number})")))
    return text, sorted(found, key=lambda law: (not law[0].isdigit(), law[0].zfill(4)))


def listed(name: str) -> dict[int, str]:
    """One of the lists of laws that are not in the suite."""
    for item in ast.parse(LISTS.read_text(encoding="utf-8")).body:
        if isinstance(item, ast.AnnAssign) and item.value is not None:
            target = item.target
            if isinstance(target, ast.Name) and target.id == name:
                return dict(ast.literal_eval(item.value))
    raise SystemExit(f"{LISTS.name}: {name} is missing")


def complaints(numbers: list[str]) -> list[str]:
    """What is wrong with the numbers: each is given once, and none of the model is left out."""
    counts = Counter(numbers)
    twice = [
        f"law {number} is there {count} times" for number, count in counts.items() if count > 1
    ]
    left_out = [
        f"law {number} is missing" for number in sorted(MODEL_LAWS) if str(number) not in counts
    ]
    beyond = [
        f"law {number} is not a law of the model"
        for number in counts
        if number.isdigit() and int(number) not in MODEL_LAWS
    ]
    return twice + left_out + beyond


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    numbers: list[str] = []
    for path in chapters():
        text, found = laws(path)
        first, _, rest = text.partition("\n")
        title, _, subject = first.partition(": ")
        parts.append(f"## {title}\n")
        parts.append(f"{subject[:1].upper()}{subject[1:]}\n")
        if rest.strip():
            parts.append(f"{rest.strip()}\n")
        parts.append("\n".join(f"- **{number}.** {law}" for number, _, law in found) + "\n")
        numbers += [number for number, _, _ in found]
    rejected, elsewhere = listed("NOT_ADOPTED"), listed("ELSEWHERE")
    parts.append("## Not adopted\n")
    parts.append("Laws of the model that are not promised here, and what holds instead.\n")
    parts.append("\n".join(f"- **{n}.** {rejected[n]}" for n in sorted(rejected)) + "\n")
    parts.append("## Shown elsewhere\n")
    parts.append("Laws that hold, and are shown by tests that look behind the contract.\n")
    parts.append("\n".join(f"- **{n}.** `{elsewhere[n]}`" for n in sorted(elsewhere)) + "\n")
    numbers += [str(number) for number in (*rejected, *elsewhere)]
    beyond = listed("BEYOND")
    parts.append("## Beyond the model's first version\n")
    parts.append("Laws that only its later versions have, and that are promised here as well.\n")
    parts.append("\n".join(f"- **{n}**{beyond[n]}." for n in sorted(beyond)) + "\n")
    if wrong := complaints(numbers):
        raise SystemExit("\n".join(wrong))
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is as it should be."""
    text = page()
    if arguments == ["--check"]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print(f"{TARGET.relative_to(ROOT)} is not what the laws say: run {Path(__file__).name}")
            return 1
        return 0
    if arguments:
        print(__doc__)
        return 2
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Generates the blocking facades from the async ones, or checks that they are up to date."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/holdfast/stores.py"
TARGET = ROOT / "src/holdfast/stores_blocking.py"
CLASSES = ("View", "Sessions", "HistoryNodes", "Lanes", "UsageLedger", "Store")


def generate() -> str:
    """The text of the blocking module."""
    text = SOURCE.read_text("utf-8")
    text = re.sub(r'\A""".*?"""', HEAD, text, count=1, flags=re.S)
    text = text.replace("async def __aenter__", "def __enter__")
    text = text.replace("async def __aexit__", "def __exit__")
    text = text.replace("async def ", "def ").replace("await ", "")
    text = re.sub(r"\bEngine\b", "BlockingEngine", text)
    for name in CLASSES:
        text = re.sub(rf"(?<![\w.]){name}\b(?!Order|Group)", f"Blocking{name}", text)
    return text.replace("Blocking; ", "")


HEAD = (
    '''"""The facades for blocking callers. Generated from `stores.py` by `tools/blocking.py`."""'''
)


def formatted(text: str) -> str:
    """The text as the formatter leaves it."""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--fix", "--quiet", "--select", "I", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"],
        input=done.stdout,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout


def main() -> int:
    """Write the module, or with --check compare it."""
    text = formatted(generate())
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text("utf-8") != text:
            print("stores_blocking.py is not up to date: run make generate")
            return 1
        return 0
    TARGET.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

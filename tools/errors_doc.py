"""Makes docs/reference/errors.md out of contract/errors.py; `--check` only compares.

    python tools/errors_doc.py [--check]

A docstring is a message, an annotation a field, a `# ---` comment nothing: the page holds what the
classes say, by family, and the table that maps the contract's vocabulary onto them.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from holdfast.contract import errors
from holdfast.contract.errors import Corrupt, HoldfastError, Refused, Superseded, Unavailable

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "errors.md"

FAMILIES: dict[type[HoldfastError], str] = {
    Refused: "The request cannot be done as asked, now or later. Nothing was changed. Change the "
    "request; repeating it is of no use.",
    Superseded: "A rival holds what the caller thought was theirs. Nothing was changed. Load again "
    "and decide again; what was computed before may be out of date.",
    Unavailable: "Nothing is wrong with the request. This is the only family that may be retried "
    "as it is, with the same ids; `retryable` is true for it and for no other.",
    Corrupt: "Stored data does not prove itself: a digest, a reference or a counter is wrong. It "
    "is never reported as absent. Never retry; keep a copy of the database.",
}

# The variant, the errors that stand for it here, and what differs.
VOCABULARY = (
    (
        "SessionBindingMismatch",
        ("Invalid",),
        "A handle is not bound to a session, only a fence is. The fence of another session is "
        "`Invalid` with the field `fence.session`.",
    ),
    (
        "UnsupportedReadScope",
        ("NotSupported",),
        "The stores of this package serve every read; it is there for stores of others.",
    ),
    (
        "HeadRevisionConflict",
        ("HeadMoved",),
        "`expected` is always a number. Contention alone is never reported as a moved head: the "
        "store asks again, and in the end says `StoreBusy`.",
    ),
    (
        "RuntimeTurnCommitConflict",
        ("TurnConflict",),
        "Turn ids belong to their session, so a receipt of another session cannot conflict.",
    ),
    ("QueuedWorkClaimExpired", ("ClaimLost",), "The same fields."),
    (
        "SessionExecutionLeaseExpired",
        ("LaneLost",),
        "For a fence that is not that of the live lane. A turn without a fence, while somebody "
        "holds the lane, is `LaneBusy`.",
    ),
    (
        "UnsupportedRecordSchemaVersion",
        ("SchemaNewer",),
        "The version is one of the whole store, and no record has one of its own. "
        "`SchemaOlder` is the other direction.",
    ),
    (
        "Backend",
        ("Unavailable", "Corrupt"),
        "By what the caller can do: an error of the family `Unavailable` may be retried, "
        "`Corrupt` may not.",
    ),
)

HEAD = """\
# Errors

<!-- Made by tools/errors_doc.py from src/holdfast/contract/errors.py. Change the classes. -->

Every error is a `holdfast.HoldfastError` and says whose turn it is to act. There are four families;
catch a family to decide what to do, and an error to do it:

| Family | Whose turn | Again with the same arguments? |
|---|---|---|
| `Refused` | the caller's: change the request | no |
| `Superseded` | the caller's: load and decide again | no |
| `Unavailable` | nobody's: wait | yes, with the same ids |
| `Corrupt` | an operator's | never |

An error has a stable `code`, its fields as attributes and together as the dictionary `fields`, and
`retryable`. Its text is one line. The command line prints it as `holdfast: <code>: <text>`.
"""


def members(family: type[HoldfastError]) -> list[type[HoldfastError]]:
    """The errors of a family in the order of the file; a family without any is an error itself."""
    found = [
        error
        for error in vars(errors).values()
        if inspect.isclass(error) and issubclass(error, family) and error is not family
    ]
    return found or [family]


def message(error: type[HoldfastError]) -> str:
    """The text, with the fields as `<field>`."""
    text = " ".join((error.__doc__ or "").split())
    return re.sub(r"\{(\w+)(?:!r)?\}", r"<\1>", text)


def entry(error: type[HoldfastError]) -> str:
    """One error: its code, how it is caught, its fields, its text."""
    fields = inspect.get_annotations(error)
    lines = [
        f"### {error.code}\n",
        f"`holdfast.{error.__name__}`\n",
        f"```text\n{message(error)}\n```",
    ]
    if fields:
        listed = ", ".join(f"`{name}` ({kind})" for name, kind in fields.items())
        lines.append(f"\nFields: {listed}.")
    return "\n".join(lines) + "\n"


def vocabulary() -> str:
    """The table of variants. A name that is not an error of ours is a mistake in it."""
    lines = ["| Variant | Here | Difference |", "|---|---|---|"]
    for variant, names, difference in VOCABULARY:
        for name in names:
            assert issubclass(getattr(errors, name), HoldfastError)
        here = " or ".join(f"`{name}`" for name in names)
        lines.append(f"| {variant} | {here} | {difference} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for family, text in FAMILIES.items():
        parts.append(f"## {family.__name__}\n")
        parts.append(f"{text}\n")
        parts += [entry(error) for error in members(family)]
    parts.append("## In the contract's vocabulary\n")
    parts.append("The model that the laws come from has eight variants. They are found here as:\n")
    parts.append(vocabulary())
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is as it should be."""
    text = page()
    if arguments == ["--check"]:
        if not TARGET.exists() or TARGET.read_text("utf-8") != text:
            print(f"{TARGET.relative_to(ROOT)} is not what the classes say: run make generate")
            return 1
        return 0
    if arguments:
        print(__doc__)
        return 2
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

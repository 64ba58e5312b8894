"""The catalog loads the named blocks of both dialects and checks that they are the same set.

A block opens with `-- name: store.operation` and a sentence that describes it, followed by its
signature, which must be equal in both dialects:

    -- mode: read | write
    -- children: nodes(node, kind), usage(model)     lists of rows among the parameters
    -- returns: revision, leaf                       the columns an accepted block answers
    -- explains: known, deleted                      the columns of its `refused` part
    -- merged by: session                            (set-based only) many requests in one call

A block is one statement, or a script of `-- step:` parts:

    guard            no row: the script stops, and `refused` runs; its columns feed the later parts
    plain            runs
    each <children>  runs once per child row
    when <name>      runs only when that parameter (or column of the guard) is true
    rows             its rows are the answer, instead of the guard's
    refused          reads, after a guard refused, the facts that explain why

Values are named: `:session`, and for a column of children `:nodes.node` (in an `each` part the
value of the row, elsewhere the whole column). In a merged block `:session` is the list over all
requests, `:nodes.n` and `:nodes.hi` are each request's number of rows and running end, and
`:nodes.ord` is for each row the request it belongs to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

DIALECTS = ("sqlite", "postgres")
_VALUE = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)?)")
_CHILD = re.compile(r"(\w+)\(([^)]*)\)")
_QUOTED = re.compile(r"'[^']*'|--[^\n]*")


@dataclass(frozen=True, slots=True)
class Part:
    """One step of a script: its kind, what the kind is about, the text and the values it names."""

    kind: str
    subject: str
    text: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """What both dialects must agree on."""

    mode: str
    children: tuple[tuple[str, tuple[str, ...]], ...]
    returns: tuple[str, ...]
    explains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A named statement or script."""

    name: str
    says: str
    signature: Signature
    merged_by: str
    parts: tuple[Part, ...]
    refused: Part | None
    columns: dict[str, tuple[str, ...]] = field(hash=False)

    @property
    def writes(self) -> bool:
        """Whether the block may change anything."""
        return self.signature.mode == "write"


class CatalogError(Exception):
    """The SQL files contradict themselves or each other; this is a defect of the package"""


@cache
def catalog(dialect: str) -> dict[str, Block]:
    """All blocks of a dialect by name, checked against the other dialect."""
    mine = _load(dialect)
    for other in DIALECTS:
        theirs = _load(other)
        if mine.keys() != theirs.keys():
            raise CatalogError(f"only in one dialect: {sorted(mine.keys() ^ theirs.keys())}")
        for name, block in mine.items():
            if block.signature != theirs[name].signature:
                raise CatalogError(f"{name}: the signature differs between the dialects")
    return mine


@cache
def _load(dialect: str) -> dict[str, Block]:
    blocks: dict[str, Block] = {}
    folder = resources.files(__package__) / dialect
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        for text in re.split(r"^-- name: ", file.read_text("utf-8"), flags=re.M)[1:]:
            block = _block(text)
            store = block.name.split(".")[0]
            if block.name in blocks or not re.match(rf"{store}(_\w+)?\.sql\Z", file.name):
                raise CatalogError(f"{dialect}/{file.name}: {block.name} is not at its place")
            blocks[block.name] = block
    return blocks


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _block(text: str) -> Block:
    head, _, rest = text.partition("\n")
    name = head.strip()
    says: list[str] = []
    facts = {"mode": "", "children": "", "returns": "", "explains": "", "merged by": ""}
    lines = rest.split("\n")
    while lines and lines[0].startswith("-- ") and not lines[0].startswith("-- step:"):
        line = lines.pop(0)[3:]
        key, colon, value = line.partition(":")
        if colon and key in facts:
            facts[key] = f"{facts[key]}, {value.strip()}" if facts[key] else value.strip()
        else:
            says.append(line.strip())
    if not says or facts["mode"] not in ("read", "write"):
        raise CatalogError(f"{name}: a block opens with a sentence and its mode")
    children = tuple((c, _names(columns)) for c, columns in _CHILD.findall(facts["children"]))
    parts, refused = _parts(name, "\n".join(lines))
    return Block(
        name=name,
        says=" ".join(says),
        signature=Signature(
            facts["mode"], children, _names(facts["returns"]), _names(facts["explains"])
        ),
        merged_by=facts["merged by"],
        parts=parts,
        refused=refused,
        columns=dict(children),
    )


def _parts(name: str, body: str) -> tuple[tuple[Part, ...], Part | None]:
    pieces = re.split(r"^-- step: ", body, flags=re.M)
    if pieces[0].strip() and len(pieces) > 1:
        raise CatalogError(f"{name}: text before the first step")
    if len(pieces) == 1:
        pieces = ["", "rows\n" + pieces[0]]
    parts: list[Part] = []
    refused: Part | None = None
    for piece in pieces[1:]:
        head, _, text = piece.partition("\n")
        kind, _, subject = head.strip().partition(" ")
        text = text.strip().rstrip(";")
        bare = _QUOTED.sub(" ", text)
        part = Part(kind, subject, text, tuple(dict.fromkeys(_VALUE.findall(bare))))
        if kind == "refused":
            refused = part
        elif kind in ("guard", "plain", "each", "when", "rows"):
            parts.append(part)
        else:
            raise CatalogError(f"{name}: unknown step {kind!r}")
    if (refused is None) != (not any(part.kind == "guard" for part in parts)):
        raise CatalogError(f"{name}: a guard and its refused part come together")
    return tuple(parts), refused


def placed(part: Part, place: dict[str, str]) -> str:
    """The text of a part with each value replaced by its placeholder."""
    out: list[str] = []
    last = 0
    spans = [match.span() for match in _QUOTED.finditer(part.text)]
    for match in _VALUE.finditer(part.text):
        if any(start <= match.start() < end for start, end in spans):
            continue
        out.append(part.text[last : match.start()])
        out.append(place[match.group(1)])
        last = match.end()
    out.append(part.text[last:])
    return "".join(out)

"""What a measured turn carries lives here: made before the clock runs, new in every turn.

The text is JSON as agents write it (compresses about three times), the noise does not compress.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

HEAD_BYTES, AGENT_BYTES, NODE_BYTES, NODES = 1024, 8192, 1024, 4
KINDS = ("text", "noise")
STAMP_BYTES = 24
MADE = 256

_TEXT = (
    "the model reads a file and then decides whether to call another tool because the answer was "
    "not complete so it writes a plan checks each step runs the tests again and reports what "
    "failed with the line number of every error before asking the user for a review of changes "
    "session revision commit branch network timeout retry server client payload token budget"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Content:
    """The payload of one turn: two state components, the bodies of its nodes, usage amounts."""

    head: bytes
    agent: bytes
    bodies: tuple[bytes, ...]
    usage: tuple[int, int, int, int, int, int]

    @property
    def size(self) -> int:
        """The payload as it was handed in."""
        return len(self.head) + len(self.agent) + sum(map(len, self.bodies))


def _prose(rng: random.Random, size: int) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        word = rng.choice(_WORDS)
        if rng.random() < 0.12:
            word = f"{word}_{rng.randrange(10_000)}"
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:size]


def _message(rng: random.Random, size: int) -> bytes:
    entries: list[dict[str, object]] = []
    while True:
        entries.append(
            {
                "role": rng.choice(("user", "assistant", "tool")),
                "id": f"msg_{rng.getrandbits(96):024x}",
                "created_at": 1_760_000_000 + rng.randrange(10_000_000),
                "content": [{"type": "text", "text": _prose(rng, rng.randrange(150, 500))}],
                "logprob": round(-rng.random() * 9, 4),
            }
        )
        text = json.dumps({"messages": entries}, separators=(",", ":"))
        if len(text) >= size:
            return text[: size - 1].encode() + b"}"


class Contents:
    """Turns without end: each takes a made payload and stamps its parts with a number."""

    def __init__(self, kind: str, seed: int = 7) -> None:
        rng = random.Random(f"{kind}{seed}")
        make = _message if kind == "text" else lambda rng, size: rng.randbytes(size)
        self._made = [
            (
                make(rng, HEAD_BYTES)[STAMP_BYTES:],
                make(rng, AGENT_BYTES)[STAMP_BYTES:],
                [make(rng, NODE_BYTES)[STAMP_BYTES:] for _ in range(NODES)],
                (rng.randrange(9000), rng.randrange(2000), rng.randrange(9000), 0, 64, 1800),
            )
            for _ in range(MADE)
        ]
        self._count = 0

    def next(self) -> Content:
        """The next payload; no two parts of any two turns are equal."""
        self._count += 1
        head, agent, bodies, usage = self._made[self._count % MADE]
        stamp = b'{"step": %014d,' % self._count
        return Content(
            head=stamp + b"\n" + head,
            agent=stamp + b" " + agent,
            bodies=tuple(stamp + b"%d" % i + body for i, body in enumerate(bodies)),
            usage=usage,
        )

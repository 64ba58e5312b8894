"""The demo: a worker is killed in the middle of its turns, and nothing is lost or done twice.

The process and the kill are real, so whether the turn in flight was committed differs from run to
run. That is the point: the receipt knows, and the same turn sent again is done once.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

import holdfast
from holdfast import BlockingStore, Lane, LaneBusy, Node
from holdfast.cli import demo_worker
from holdfast.cli.demo_script import FORK, IN_FLIGHT, SESSION, TITLE, turn
from holdfast.cli.printed import clean

KILL_WITHIN_S = 0.004
REASON = "nobody asked for a helicopter"


def run(keep: str | None) -> None:
    """Play the demo in a new file, and leave the file when it is to be kept."""
    console = Console(markup=False, highlight=False, emoji=False)
    if keep is not None:
        if os.path.lexists(keep):
            raise click.UsageError("--keep: there is a file of that name; choose another")
        _play(console, keep)
        console.print(f"\nThe database is {clean(keep)}. Next:", style="bold", soft_wrap=True)
        console.print(f"  holdfast db check {clean(shlex.quote(keep))}", soft_wrap=True)
        console.print("or in Python:", style="bold")
        console.print("  import holdfast")
        console.print(f"  store = holdfast.open_sync({clean(repr(keep))})", soft_wrap=True)
        console.print(f"  print(store.history.load({SESSION!r}, tail=2))")
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        path = str(Path(folder) / "demo.db")
        _play(console, path)
        console.print(
            f"\nThe database was {path}, and is removed now. Next:", style="bold", soft_wrap=True
        )
    console.print("  holdfast demo --keep demo.db    the same, and the file stays")
    console.print("  holdfast db --help              look after a database")


def _play(console: Console, path: str) -> None:
    with holdfast.open_sync(path) as store:
        store.sessions.create(SESSION, title=TITLE)
    _title(console, "1. A worker commits turns, and is killed")
    acknowledged = _run_and_kill(console, path)
    with holdfast.open_sync(path) as store:
        _title(console, "2. Another process opens the same file")
        _look(console, store, acknowledged)
        lane = _take_over(console, store)
        _title(console, "3. It sends the turn in flight again, and goes on")
        receipt = store.sessions.commit(turn(IN_FLIGHT, fence=lane.fence))
        said = "was committed already: its receipt" if receipt.replayed else "is committed now"
        console.print(f"  {IN_FLIGHT}  {said}, revision {receipt.revision}")
        receipt = store.sessions.commit(turn("turn-5", fence=lane.fence))
        console.print(f"  turn-5  is committed, revision {receipt.revision}")
        _title(console, "4. A fork from an earlier turn, and a rewind")
        _fork_and_rewind(console, store, lane, receipt.revision)
        _title(console, "5. What is stored")
        console.print(_tree(store))
        console.print()
        console.print(_usage(store))


def _title(console: Console, text: str) -> None:
    console.print(f"\n{text}", style="bold")


def _run_and_kill(console: Console, path: str) -> list[str]:
    """Start the worker, and kill it when its last turn is on its way. Returns what it was told."""
    acknowledged: list[str] = []
    command = [sys.executable, "-m", demo_worker.__name__, path]
    with subprocess.Popen(  # noqa: S603 - our own module, in our own interpreter
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            said, name, *revision = line.split()
            if said == "acknowledged":
                acknowledged.append(name)
                console.print(f"  {name}  acknowledged, revision {revision[0]}")
            elif name == IN_FLIGHT:
                # The kill comes before, during or after the commit, and nobody knows which.
                time.sleep(random.uniform(0, KILL_WITHIN_S))
                worker.kill()
                break
    if worker.returncode != -signal.SIGKILL:
        raise click.ClickException("the worker ended before it could be killed")
    console.print(f"  {IN_FLIGHT}  in flight: process {worker.pid} was killed (SIGKILL)")
    return acknowledged


def _look(console: Console, store: BlockingStore, acknowledged: list[str]) -> None:
    """Compare what the worker was told with what the store has."""
    for name in acknowledged:
        receipt = store.sessions.receipt(SESSION, name)
        if receipt is None:
            raise click.ClickException(f"{name} was acknowledged, and is not there")
        console.print(f"  {name}  is there, revision {receipt.revision}")
    in_flight = store.sessions.receipt(SESSION, IN_FLIGHT)
    console.print(
        f"  {IN_FLIGHT}  has no receipt: nothing of it was stored"
        if in_flight is None
        else f"  {IN_FLIGHT}  has a receipt: all of it was stored, nobody was told"
    )


def _take_over(console: Console, store: BlockingStore) -> Lane:
    """Claim the lane; the dead worker holds it until it expires."""
    told = False
    while True:
        try:
            lane = store.lanes.claim(SESSION, "worker-2", ttl_ms=30_000)
        except LaneBusy as busy:
            wait = max(busy.expires_at_ms / 1000 - time.time(), 0.01)
            if not told:
                console.print(f"  the lane is held by {busy.owner} for {wait:.1f} s more: waiting")
                told = True
            time.sleep(wait)
        else:
            console.print(f"  the lane is ours now, in generation {lane.generation}")
            return lane


def _fork_and_rewind(console: Console, store: BlockingStore, lane: Lane, revision: int) -> None:
    store.sessions.fork(SESSION, FORK, revision=1, title="The same trip by train")
    store.sessions.commit(turn("train-1", session=FORK))
    console.print(f"  {FORK} goes its own way from revision 1 of {SESSION}")
    store.sessions.commit(turn("turn-6", fence=lane.fence))
    back = store.sessions.rewind(SESSION, revision=revision, reason=REASON, fence=lane.fence)
    console.print(f"  {SESSION} went wrong in turn-6: back to revision {revision}")
    console.print(f"  as revision {back.revision}, because {REASON}")
    store.lanes.release(lane.fence)


def _tree(store: BlockingStore) -> Tree:
    """Both sessions as one tree: a stretch without branches is drawn straight down."""

    def key(node: Node) -> tuple[str, str]:
        return node.session, node.id

    nodes: dict[tuple[str, str], Node] = {}
    heads: dict[str, str] = {}
    on_a_path: set[tuple[str, str]] = set()
    for session in (SESSION, FORK):
        for node in store.history.graph(session).items:
            nodes[key(node)] = node
        history = store.history.load(session, state=False)
        assert history is not None
        on_a_path |= {key(node) for node in history.nodes}
        heads[history.leaf or ""] = f"{session}, revision {history.revision}"
    below: dict[str | None, list[Node]] = {}
    for node in nodes.values():
        below.setdefault(node.parent, []).append(node)

    def draw(branch: Tree, node: Node) -> None:
        while True:
            alive = key(node) in on_a_path
            label = _label(node, alive)
            if node.id in heads:
                label.append(f"  <- {heads[node.id]}", style="bold green")
            item = branch.add(label)
            after = below.get(node.id, [])
            if [(n.session, key(n) in on_a_path) for n in after] != [(node.session, alive)]:
                break
            node = after[0]
        for child in after:
            kept = key(child) in on_a_path
            forked = child.session != node.session
            said = f"fork {child.session}" if forked else "went on" if kept else "left by a rewind"
            draw(item.add(Text(said, style="cyan" if kept else "dim")), child)

    info = store.sessions.get(SESSION)
    assert info is not None
    tree = Tree(Text(f"{clean(info.session)}: {clean(info.title)}", style="bold"))
    for root in below.get(None, []):
        draw(tree, root)
    return tree


def _label(node: Node, alive: bool) -> Text:
    said = node.json()
    text = Text(f"{clean(said['role'])}: ", style="" if alive else "dim")
    return text.append(clean(said["text"]))


def _usage(store: BlockingStore) -> Table:
    table = Table(title="usage", title_justify="left", show_edge=False)
    table.add_column("session")
    table.add_column("model")
    for heading in ("turns", "input", "output", "cached", "cost"):
        table.add_column(heading, justify="right")
    for total in store.usage.totals(by=("session", "model")):
        usage = total.usage
        table.add_row(
            clean(total.session or ""),
            clean(usage.model),
            f"{total.entries:,}",
            f"{usage.input:,}",
            f"{usage.output:,}",
            f"{usage.cache_read:,}",
            f"{usage.cost_micros / 1_000_000:.4f} {clean(usage.currency)}",
        )
    return table

"""Where a database file may lie: on a local disk, or in the memory of one handle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.contract.errors import HandleClosed, Invalid, NotSupported
from holdfast.contract.records import NewNode, Turn
from holdfast.engine.sqlite_schema import filesystem, refuse_network

ONE = Turn(session="s", turn="one", nodes=[NewNode(id="n-one", body="body")])

MOUNTS = r"""
22 27 0:21 / /proc rw,nosuid - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
60 27 0:50 / /mnt/share rw shared:1 - nfs4 server:/export rw
61 60 254:9 / /mnt/share/local rw - xfs /dev/vdb rw
62 27 0:51 / /mnt/with\040space rw master:1 propagate_from:2 - cifs //server/x rw
63 27 0:52 / /mnt/over rw - virtiofs host rw
64 27 254:7 / /mnt/over rw - ext4 /dev/vdc rw
65 27 0:53 / /mnt/ssh rw - fuse.sshfs me@host: rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/agents.db", "ext4"),
        ("/mnt/share/agents.db", "nfs4"),
        ("/mnt/shared/agents.db", "ext4"),
        ("/mnt/share/local/agents.db", "xfs"),
        ("/mnt/with space/a/agents.db", "cifs"),
        ("/mnt/over/agents.db", "ext4"),
        ("/mnt/ssh/agents.db", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path_is_found(path: str, kind: str, tmp_path: Path) -> None:
    assert filesystem(path, MOUNTS) == kind
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    if kind in ("ext4", "xfs"):
        refuse_network(path, mounts)
        return
    with pytest.raises(NotSupported) as caught:
        refuse_network(path, mounts)
    assert kind in caught.value.what


def test_without_a_list_of_mounts_nothing_is_refused(tmp_path: Path) -> None:
    refuse_network("/mnt/share/agents.db", tmp_path / "absent")


async def test_a_store_in_memory_is_one_handle_s_own() -> None:
    store = await holdfast.open(":memory:")
    other = await holdfast.open("sqlite:///")
    await store.sessions.create("s")
    assert (await store.sessions.commit(ONE)).node_count == 1
    assert await other.sessions.head("s") is None
    found = await store.history.load("s")
    assert found is not None
    assert [node.id for node in found.nodes] == ["n-one"]
    blocking = await asyncio.to_thread(holdfast.open_sync, ":memory:")
    assert blocking.sessions.create("s").created
    blocking.close()
    await store.close()
    await other.close()
    with pytest.raises(HandleClosed):
        await store.sessions.head("s")


def test_an_unknown_durability_is_refused(sqlite_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        holdfast.open_sync(str(sqlite_path), synchronous="off")
    assert caught.value.field == "synchronous"

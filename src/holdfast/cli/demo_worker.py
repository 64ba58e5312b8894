"""The process that the demo kills: it takes the lane, commits turn after turn, and says so.

It says `sending` before it asks for a commit, and `acknowledged` when the store has answered.
"""

from __future__ import annotations

import sys

import holdfast
from holdfast.cli.demo_script import IN_FLIGHT, LANE_MS, OWNER, SESSION, WORKER_TURNS, turn


def main(path: str) -> None:
    """Commit the turns of the script."""
    with holdfast.open_sync(path) as store:
        lane = store.lanes.claim(SESSION, OWNER, ttl_ms=LANE_MS)
        for name in WORKER_TURNS:
            lane = store.lanes.renew(lane.fence, ttl_ms=LANE_MS)
            print("sending", name, flush=True)
            receipt = store.sessions.commit(turn(name, fence=lane.fence))
            if name != IN_FLIGHT:
                print("acknowledged", name, receipt.revision, flush=True)
        # Whoever started this process kills it; if they are gone, this read ends.
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])

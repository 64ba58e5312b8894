"""The names of what can be waited for live here, and nobody else makes one up.

A topic is a hint that something of this name has changed. Ids have no spaces in them, so no two
things share a topic.
"""

from __future__ import annotations


def head(tenant: str, session: str) -> str:
    """The head of a session: it moved, or went away with the session."""
    return f"head {tenant} {session}"


def work(tenant: str, session: str) -> str:
    """The inbox of a session: there may be more to claim, or somebody else may claim it."""
    return f"work {tenant} {session}"


def works(tenant: str) -> str:
    """The inboxes of all sessions of a tenant."""
    return f"works {tenant}"


def inbox(tenant: str, session: str) -> tuple[str, str]:
    """Both topics of whatever changes what can be claimed in a session."""
    return work(tenant, session), works(tenant)


def process(tenant: str, process: str) -> str:
    """A process: its log has grown, or it has ended."""
    return f"process {tenant} {process}"


def processes(tenant: str) -> str:
    """All processes of a tenant: one changed, or somebody may take one up."""
    return f"processes {tenant}"

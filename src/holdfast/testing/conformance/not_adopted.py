"""The laws that were considered and are not promised here live in this file, each with the reason.

The numbers are those of the model that holdfast's laws were drawn from; `docs/contract.md` shows
both lists.
"""

from __future__ import annotations

NOT_ADOPTED: dict[int, str] = {
    2: "A store has no tiers of durability to declare: everything a store acknowledges is durable, "
    "so a handle opened later reads it (46).",
    9: "A session is rows of one database and not a file of its own, so there is no path to derive "
    "from its id; which ids there may be is law g06.",
    10: "There is no file to remove with a session. Deleting removes its rows in one transaction "
    "and reports how many (11).",
    49: "Nothing is collected behind a commit: content is freed in the transaction that drops its "
    "last reference (15), so no collector can run at a wrong moment.",
    50: "There is no collector that walks manifests, so none that could meet a damaged one. Damage "
    "is a typed error where it is read (61).",
    161: "A store has no tiers of durability to declare (2): what it says of a process is durable "
    "when it is said, so a handle opened later reads it (160).",
    163: "Grants stay grants of scopes. What is wanted of observers holds of them: those of a "
    "registration are given with it (x04), and none changes what becomes of a process (153). They "
    "are no events, because the record is a fold of the log and grants are no part of it (187).",
    180: "An event that ends a process and the record that says so are written in one transaction, "
    "so there is no record to repair: the record is the fold of the log after any operation (187).",
    188: "There is no outbox between an event and what it wakes: the wake is work of its target, "
    "put there by the transaction of the event (170), and is claimed, tried again and given up "
    "like any other work.",
    189: "A pruned process leaves its id behind, which is never used again (y13), so no sequence "
    "can begin anew below what somebody has seen.",
    202: "A store has no tiers of durability to declare (2), and makes up no keys of sources: who "
    "registers a rule and who tells of an occurrence name the source, and what is equal matches "
    "(213).",
    210: "A rule has no number that could be guessed. It is named by its owner and its key (217), "
    "and its id is new for each of its incarnations (203, j06).",
}
"""Law of the model: why it is not promised, and what holds instead."""

ELSEWHERE: dict[int, str] = {
    35: "tests/test_damage.py::test_a_dangling_parent_is_corrupt",
    61: "tests/test_damage.py::test_damage_is_a_typed_error_and_never_absence",
    62: "tests/test_damage.py::test_a_damaged_counter_is_refused_and_nothing_changes",
    63: "tests/test_budgets.py::test_statements_do_not_grow_with_components",
    118: "tests/test_damage.py::test_damaged_work_is_a_typed_error_and_is_never_passed_over",
    128: "tests/test_queue_budgets.py::test_claims_do_not_grow_with_the_backlog",
    129: "tests/test_queue_budgets.py::test_an_idle_checkpoint_writes_nothing",
    209: "tests/test_trigger_damage.py::"
    "test_a_damaged_subscription_is_told_and_keeps_nothing_from_others",
}
"""Law of the model: the test that shows it, because it needs to look behind the contract."""

BEYOND: dict[int, str] = {
    8: ", 12 to 15: what deleting leaves, and what it frees",
    34: " to 36, 41, 43: parents, depths and ids of nodes",
    51: " to 60: content by reference, usage and its sums",
    61: " to 63: damage, counters, and statements that do not grow",
    65: ", 68, 81 to 83: lanes that lapse, and what holds without one",
    87: ", 88, 93: keys, and claims of exactly what is asked for",
    121: " to 129: claims of a generation, redelivery, reasons, and cost without the backlog",
    147: ", 162, 164, 169: what is said once, reads, worklists and wakes",
    187: ", 190 to 193, 201: the fold, who may end what, pruning, the feed, and recovery",
    217: " to 219: revisions of rules, ingest in one transaction, and reclaiming",
    243: ": recovery of claims, and settlement once",
}
"""Laws that only later versions of the model have, and that are promised here as well."""

"""Everything that can be said when an operation was not done lives here.

An error says whose turn it is to act. There are four families: `Refused` (the caller's request
cannot be done as asked), `Superseded` (a rival holds what the caller thought was theirs),
`Unavailable` (nothing is wrong with the request: try again) and `Corrupt` (stored data is damaged;
never try again). Each error has a stable `code`, typed fields, and its docstring is its message.
"""

from __future__ import annotations

from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(kw_only_default=True)
class HoldfastError(Exception):
    """The root of every error raised by holdfast"""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)
        text = (type(self).__doc__ or "").strip().format(**fields)
        super().__init__(" ".join(text.split()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields)


def _rebuild(kind: type[HoldfastError], fields: dict[str, Any]) -> HoldfastError:
    return kind(**fields)


class Refused(HoldfastError):
    """The request cannot be done as asked: change the request"""

    code = "refused"


class Superseded(HoldfastError):
    """A rival holds it now: reload, then decide"""

    code = "superseded"


class Unavailable(HoldfastError):
    """The store cannot answer now: try again later"""

    code = "unavailable"
    retryable = True


class Corrupt(HoldfastError):
    """stored data is damaged: {table} {key}: {reason}. Do not retry; restore the row or export the
    rest"""

    code = "corrupt"
    table: str
    key: str
    reason: str


# --- Refused: what the request itself got wrong


class Invalid(Refused):
    """{field}: {reason}"""

    code = "invalid"
    field: str
    reason: str


class TooLarge(Refused):
    """{field} is {actual}, the limit is {limit}: split it, or open the store with a higher limit"""

    code = "too-large"
    field: str
    actual: int
    limit: int


class SessionUnknown(Refused):
    """session {session!r} does not exist: create it first"""

    code = "session-unknown"
    session: str


class SessionDeleted(Refused):
    """session {session!r} was deleted, and its id is never used again: choose a new id"""

    code = "session-deleted"
    session: str


class SessionExists(Refused):
    """session {session!r} exists already, and is not the fork asked for: choose a new id"""

    code = "session-exists"
    session: str


class TurnConflict(Refused):
    """turn {turn!r} of session {session!r} is committed with other content: a retry must repeat the
    turn, another turn needs another id"""

    code = "turn-conflict"
    session: str
    turn: str


class NodeCollision(Refused):
    """session {session!r} has a node {node!r} already: nodes are never written twice"""

    code = "node-collision"
    session: str
    node: str


class NodeUnknown(Refused):
    """{field}: session {session!r} has no node {node!r}"""

    code = "node-unknown"
    field: str
    session: str
    node: str


class ComponentMissing(Refused):
    """state component {component!r} of session {session!r} names content {digest} that the store
    does not hold: send the bytes"""

    code = "component-missing"
    session: str
    component: str
    digest: str


class AttachmentUnknown(Refused):
    """session {session!r} has no attachment {attachment!r}: put it before the turn that names it"""

    code = "attachment-unknown"
    session: str
    attachment: str


class WorkUnknown(Refused):
    """session {session!r} has no work {work!r}"""

    code = "work-unknown"
    session: str
    work: str


class WorkNotDead(Refused):
    """work {work!r} of session {session!r} is {state}: only dead work is put back"""

    code = "work-not-dead"
    session: str
    work: str
    state: str


class ProcessUnknown(Refused):
    """process {process!r} does not exist: register it first"""

    code = "process-unknown"
    process: str


class ProcessPruned(Refused):
    """process {process!r} has ended and is not retained any more; its id is never used again"""

    code = "process-pruned"
    process: str


class ProcessConflict(Refused):
    """process {process!r} is registered as another one: a retry must repeat the registration,
    another process needs another id"""

    code = "process-conflict"
    process: str


class ProcessEnded(Refused):
    """process {process!r} is {state} already: what it came to never changes"""

    code = "process-ended"
    process: str
    state: str


class EventUndeclared(Refused):
    """process {process!r} has not declared events of type {type!r}: declare it when the process is
    registered"""

    code = "event-undeclared"
    process: str
    type: str


class EventConflict(Refused):
    """process {process!r} has another event with key {key!r}: a retry must repeat the event,
    another event needs another key"""

    code = "event-conflict"
    process: str
    key: str


class PayloadRejected(Refused):
    """{field}: {reason}, as the declared type {type!r} of event demands"""

    code = "payload-rejected"
    field: str
    type: str
    reason: str


class EndForbidden(Refused):
    """process {process!r} is ended by who holds its lease, or by an operator who says so: claim it,
    or name the authority"""

    code = "end-forbidden"
    process: str


class NotRecoverable(Refused):
    """process {process!r} is {recovery} and {reason}: nobody may run it now"""

    code = "not-recoverable"
    process: str
    recovery: str
    reason: str


class GrantUnknown(Refused):
    """scope {scope!r} has no grant for process {process!r}: nothing was changed"""

    code = "grant-unknown"
    scope: str
    process: str


class SubscriptionUnknown(Refused):
    """owner {owner!r} has no subscription {key!r}: register it first"""

    code = "subscription-unknown"
    owner: str | None
    key: str


class OccurrenceUnknown(Refused):
    """occurrence {occurrence!r} does not exist: record it first"""

    code = "occurrence-unknown"
    occurrence: str


class OccurrenceConflict(Refused):
    """something else happened under the key {key!r}: a retry must repeat the occurrence, another
    occurrence needs another key"""

    code = "occurrence-conflict"
    key: str


class OperationConflict(Refused):
    """operation {operation!r} was asked for something else: a retry must repeat the request,
    another request needs another operation"""

    code = "operation-conflict"
    operation: str


class ScheduleUnknown(Refused):
    """schedule {schedule!r} does not exist: register it first"""

    code = "schedule-unknown"
    schedule: str


class NotRetained(Refused):
    """{what} of session {session!r} is not retained any more: choose a retained revision"""

    code = "not-retained"
    session: str
    what: str


class CounterOverflow(Refused):
    """{counter} of {key} has reached the end of its range: nothing was changed"""

    code = "counter-overflow"
    counter: str
    key: str


class ForeignDatabase(Refused):
    """the database is not a holdfast store: found {found}, expected {expected}. Open another one"""

    code = "foreign-database"
    found: str
    expected: str


class SchemaNewer(Refused):
    """the store has schema version {found}, this holdfast knows up to {expected}: upgrade
    holdfast"""

    code = "schema-newer"
    found: int
    expected: int


class SchemaOlder(Refused):
    """the store has schema version {found}, this holdfast expects {expected}: run
    `holdfast db apply`, or open with migrate=True"""

    code = "schema-older"
    found: int
    expected: int


class SchemaDrift(Refused):
    """the store's structure is not what version {version} made: {differences}"""

    code = "schema-drift"
    version: int
    differences: str


class StoreReadOnly(Refused):
    """the store can be read but not written: {reason}"""

    code = "store-read-only"
    reason: str


class StoreMoved(Refused):
    """the database file {path} was moved, replaced or deleted while it was open: close this
    handle"""

    code = "store-moved"
    path: str


class HandleClosed(Refused):
    """this store handle is closed: open the store again"""

    code = "handle-closed"


class WrongProcess(Refused):
    """this store handle was opened in process {opened_in}, and is used in its fork {used_in}: open
    the store after forking"""

    code = "wrong-process"
    opened_in: int
    used_in: int


class WrongLoop(Refused):
    """this store handle belongs to another event loop: open it where it is used, or use
    holdfast.open_sync"""

    code = "wrong-loop"


class NotSupported(Refused):
    """{what} is not supported here: {reason}"""

    code = "not-supported"
    what: str
    reason: str


# --- Superseded: a rival was there first


class HeadMoved(Superseded):
    """session {session!r} is at revision {actual}, not {expected}: reload and decide again"""

    code = "head-moved"
    session: str
    expected: int
    actual: int


class LaneBusy(Superseded):
    """session {session!r} is being worked on by {owner!r} until {expires_at_ms}: wait, or give
    up"""

    code = "lane-busy"
    session: str
    owner: str
    generation: int
    expires_at_ms: int


class LaneLost(Superseded):
    """the lane of session {session!r} is not held by this fence any more: stop, and claim again"""

    code = "lane-lost"
    session: str


class ClaimLost(Superseded):
    """claim {claim!r} of session {session!r} does not own its work any more: drop the result"""

    code = "claim-lost"
    session: str
    claim: str


class LeaseBusy(Superseded):
    """process {process!r} is being run by {owner!r} until {expires_at_ms}: wait, or give up"""

    code = "lease-busy"
    process: str
    owner: str
    generation: int
    expires_at_ms: int


class LeaseLost(Superseded):
    """the lease of process {process!r} is not held by this proof any more: stop, and claim again"""

    code = "lease-lost"
    process: str


class SubscriptionMoved(Superseded):
    """subscription {key!r} of owner {owner!r} is at revision {actual}, not {expected}: reload and
    decide again"""

    code = "subscription-moved"
    owner: str | None
    key: str
    expected: int | None
    actual: int


class ScheduleMoved(Superseded):
    """schedule {schedule!r} is at revision {actual}, not {expected}: reload and decide again"""

    code = "schedule-moved"
    schedule: str
    expected: int | None
    actual: int


# --- Unavailable: the same request may succeed later


class StoreBusy(Unavailable):
    """the store was busy for too long ({reason}): nothing was done, try again"""

    code = "store-busy"
    reason: str


class StoreFull(Unavailable):
    """the store has no room left ({reason}): nothing was done; free some space, then try again"""

    code = "store-full"
    reason: str


class StoreUnreachable(Unavailable):
    """the store cannot be reached ({reason}): nothing was done, try again"""

    code = "store-unreachable"
    reason: str


class OutcomeUnknown(Unavailable):
    """it is not known whether operation {operation!r} was done ({reason}): repeat it with the same
    ids, the store answers once"""

    code = "outcome-unknown"
    operation: str
    reason: str

"""The trajectory record, its append-only store, filters, samples, import and export."""

from orchard.trajectories.records import (
    AnyRecord,
    CallRecord,
    CallTimes,
    Failure,
    RefusalRecord,
    RetryRecord,
    RewardRecord,
    RolloutRecord,
    SessionRecord,
    ToolRecord,
    Usage,
    schema,
)
from orchard.trajectories.store import RolloutRow, SessionRow, Store
from orchard.trajectories.trajectory import Branch, Trajectory, total_usage

__all__ = [
    "AnyRecord",
    "Branch",
    "CallRecord",
    "CallTimes",
    "Failure",
    "RefusalRecord",
    "RetryRecord",
    "RewardRecord",
    "RolloutRecord",
    "RolloutRow",
    "SessionRecord",
    "SessionRow",
    "Store",
    "ToolRecord",
    "Trajectory",
    "Usage",
    "schema",
    "total_usage",
]

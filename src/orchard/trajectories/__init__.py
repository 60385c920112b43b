"""The trajectory record, its append-only store, filters, samples, import and export."""

from orchard.trajectories.filters import Filter
from orchard.trajectories.records import (
    WORK,
    AnyRecord,
    CallRecord,
    CallTimes,
    Failure,
    MaskedSpan,
    PolicySpan,
    RefusalRecord,
    RetryRecord,
    RewardRecord,
    RolloutRecord,
    SessionRecord,
    ToolRecord,
    Usage,
    schema,
)
from orchard.trajectories.samples import Sample, to_samples
from orchard.trajectories.segments import Damage
from orchard.trajectories.store import RolloutRow, SessionRow, Store
from orchard.trajectories.trajectory import Branch, Trajectory, total_usage

__all__ = [
    "WORK",
    "AnyRecord",
    "Branch",
    "CallRecord",
    "CallTimes",
    "Damage",
    "Failure",
    "Filter",
    "MaskedSpan",
    "PolicySpan",
    "RefusalRecord",
    "RetryRecord",
    "RewardRecord",
    "RolloutRecord",
    "RolloutRow",
    "Sample",
    "SessionRecord",
    "SessionRow",
    "Store",
    "ToolRecord",
    "Trajectory",
    "Usage",
    "schema",
    "to_samples",
    "total_usage",
]

"""Beyond one machine: shards and cells, one file each in shared storage, done here or on Ray."""

from promptboost.distributed.engine import (
    Engine,
    Job,
    Outcome,
    Placement,
    Receipt,
    Share,
    Worker,
    WorkUnit,
    open_engine,
)
from promptboost.distributed.storage import Storage

__all__ = [
    "Engine",
    "Job",
    "Outcome",
    "Placement",
    "Receipt",
    "Share",
    "Storage",
    "WorkUnit",
    "Worker",
    "open_engine",
]

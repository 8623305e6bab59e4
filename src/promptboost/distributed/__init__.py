"""Beyond one machine: shards and cells, one file each in shared storage, done here or on Ray."""

from promptboost.distributed.engine import Engine, Outcome, Placement, Share, open_engine
from promptboost.distributed.storage import Storage
from promptboost.distributed.unit import Job, Receipt, Worker, WorkUnit

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

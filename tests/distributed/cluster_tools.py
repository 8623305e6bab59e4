"""A small local Ray cluster, removed completely in the end."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

# The least that Ray takes.
OBJECT_STORE = 80 * 2**20
# On a busy machine Ray's workers, which give way to all other programs, would hardly have a turn; one that
# takes a minute to start is not lost, nor is a node that takes some time to answer. One that is gone is.
UNHURRIED = {
    "RAY_worker_niceness": "0",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_health_check_timeout_ms": "60000",
}


@contextmanager
def ray_cluster(nodes: int = 3, cores: int = 1, **more: float) -> Iterator:
    """Start a cluster; `--on ray` finds it, in this process and its children.

    Each node has one core, or `cores`, and what is said by `more`, such as GPUs that are not there.
    What is returned is Ray's own `Cluster`: `add_node(**NODE)` and `remove_node(node)` change it.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cores, "object_store_memory": OBJECT_STORE, **more}
    # In a folder of its own, or other commands on this machine would find it and join: Ray writes the
    # address down in the folder that RAY_TMPDIR names. The names of sockets in it must not be long.
    folder = tempfile.mkdtemp(prefix="pb-", dir="/tmp")
    os.mkdir(f"{folder}/ray")
    cluster = None
    with patch.dict(os.environ, RAY_TMPDIR=folder, **UNHURRIED):
        try:
            head = {**node, "include_dashboard": False}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            for _ in range(nodes - 1):
                cluster.add_node(**node)
            with patch.dict(os.environ, RAY_ADDRESS=cluster.address):
                yield cluster
        finally:
            if ray.is_initialized():
                ray.shutdown()
            if cluster is not None:
                cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)

"""Real Ray on this machine: nodes with little of everything, and nothing left behind."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

# The least that Ray takes.
OBJECT_STORE = 80 * 2**20


@contextmanager
def ray_cluster(nodes: int = 3, cores: int = 1) -> Iterator:
    """Start a cluster of so many nodes; `--on ray` finds it, in this process and in those started from it.

    What is returned is Ray's own `Cluster`: `add_node(**NODE)` and `remove_node(node)` change it.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cores, "object_store_memory": OBJECT_STORE}
    # In a folder of its own, or other commands on this machine would find it and join. The names of
    # sockets in it must not be long.
    folder = tempfile.mkdtemp(prefix="pb-", dir="/tmp")
    head = {**node, "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    before = os.environ.get("RAY_ADDRESS")
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**node)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield cluster
    finally:
        if before is None:
            os.environ.pop("RAY_ADDRESS", None)
        else:
            os.environ["RAY_ADDRESS"] = before
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)

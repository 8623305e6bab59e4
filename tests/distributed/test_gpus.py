"""One worker per GPU, on a cluster with pretended GPUs."""

import os
from dataclasses import replace

import pytest

import promptboost.run.results as results
from promptboost.compare.compare import compare
from promptboost.distributed.answer_shards import predict_in_shards
from promptboost.distributed.cluster import RayEngine
from promptboost.distributed.embed import embed_data
from promptboost.distributed.engine import Placement
from promptboost.distributed.pool_folder import PoolExecutor
from promptboost.errors import SettingError
from promptboost.run.fit import fit_run
from tests.compare.test_compare import request as comparison
from tests.distributed.cluster_tools import ray_cluster
from tests.run.run_tools import ENCODER, request


@pytest.fixture(scope="module")
def with_gpus():
    """Two nodes of four cores and two pretended GPUs."""
    import ray

    with ray_cluster(nodes=2, cores=4, num_gpus=2) as cluster:
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        yield ray


@pytest.mark.parametrize(
    ("device", "cores", "expected"),
    [
        (None, 1, (4, 1)),  # as many as there are GPUs, though there are cores for eight
        ("cuda", 4, (2, 1)),  # on each node, cores for one
        ("cpu", 1, (8, 0)),  # GPUs are left to others
    ],
)
def test_there_is_a_worker_for_each_gpu(with_gpus, device, cores, expected):
    assert RayEngine(cores=cores)._room(device) == expected


def test_cores_are_counted_where_gpus_are(with_gpus):
    with pytest.raises(SettingError, match="the largest node with a GPU has 4: give --cores 4"):
        RayEngine(cores=5)._room(None)
    with pytest.raises(SettingError, match="the largest node of the cluster has 4: give --cores"):
        RayEngine(cores=5)._room("cpu")


def test_a_command_that_computes_on_the_processor_leaves_gpus_alone(fitted, with_gpus, monkeypatch):
    """Each command passes its device on."""
    reserved = []
    look = RayEngine._room

    def noted(self, device):
        reserved.append(look(self, device)[1])
        return 1, 0

    monkeypatch.setattr(RayEngine, "_room", noted)
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 0)
    placement = Placement("ray", workers=1)
    for device in ("cpu", None):
        reserved.clear()
        images = str(fitted / "images")
        output = str(fitted / f"{device}.jsonl")
        predict_in_shards(fitted / "run", [images], output, placement, device=device)
        shards = replace(placement, storage=str(fitted / f"{device}"))
        embed_data(images, ENCODER, device=device, placement=shards)
        out = f"compared-{device}"
        few = {"methods": ("zero-shot",), "shots": (1,), "seeds": (1,), "device": device}
        compare(comparison(fitted, out, **few), placement=placement)
        fit_run(**request(fitted, f"fit-{device}", device=device, executor=PoolExecutor(placement)))
        assert set(reserved) == {0 if device == "cpu" else 1}
        assert len(reserved) >= 4


def test_each_worker_sees_a_gpu_of_its_own(with_gpus):
    """CUDA_VISIBLE_DEVICES differs between workers."""
    ray = with_gpus

    class Look:
        def seen(self):
            return ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"]

    room, gpus = RayEngine()._room(None)
    actors = [ray.remote(Look).options(num_cpus=1, num_gpus=gpus).remote() for _ in range(room)]
    seen = ray.get([actor.seen.remote() for actor in actors], timeout=600)
    assert len(set(seen)) == 4
    assert sorted(number for _, number in seen) == ["0", "0", "1", "1"]

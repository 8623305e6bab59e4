"""One number of threads for everything, and no result that depends on it."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from promptboost import threads
from promptboost.baselines import fit_probe
from promptboost.boosting import compiled
from promptboost.errors import SettingError
from promptboost.threads import (
    available_cores,
    keep_to_limit,
    set_threads,
    single_blas_thread,
    thread_count,
)
from tests.cli.cli_tools import FIT, call
from tests.run.run_tools import write_images, write_sentences


def test_the_number_is_what_was_set_or_asked_for_or_the_cores(own_threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert thread_count() == available_cores() <= os.cpu_count()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert thread_count() == 3
    set_threads(5)
    assert thread_count() == 5
    assert os.environ["OPENBLAS_NUM_THREADS"] == "5"
    with pytest.raises(SettingError, match="at least 1"):
        set_threads(0)


def test_blas_has_as_many(own_threads):
    from threadpoolctl import threadpool_info

    set_threads(1)
    assert {pool["num_threads"] for pool in threadpool_info()} == {1}


def blas_threads():
    from threadpoolctl import threadpool_info

    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_two_that_take_one_thread_of_blas_at_once_leave_it_as_it_was(own_threads):
    set_threads(2)
    first, second = single_blas_thread(), single_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert blas_threads() == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == {2}


def test_threads_that_are_set_meanwhile_stay(own_threads):
    set_threads(2)
    with single_blas_thread():
        set_threads(3)
    assert blas_threads() == {3}


def test_fits_in_threads_leave_blas_as_it_was(own_threads):
    set_threads(2)
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(40, 1, 16)).astype(np.float32)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: fit_probe(rows, np.arange(40) % 4, seed=seed), range(12)))
    assert blas_threads() == {2}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu.max": "nonsense"}, 64),
    ],
)
def test_the_share_that_a_container_has_of_the_cores(tmp_path, monkeypatch, files, cores):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(threads, "_GROUP", tmp_path)
    monkeypatch.setattr(threads, "_cores", lambda: 64)
    assert available_cores.__wrapped__() == cores


def test_libraries_are_told_only_where_they_would_take_too_many(own_threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    monkeypatch.setattr(threads, "_cores", lambda: 3)
    keep_to_limit()
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setattr(threads, "_cores", lambda: 64)
    keep_to_limit()
    assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize("composer", ["gradient", "greedy"])
def test_a_fit_writes_the_same_text_in_any_number_of_threads(
    own_threads, monkeypatch, tmp_path, capsys, composer
):
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 0)
    write_images(tmp_path / "images")
    prompts = write_sentences(tmp_path / "sentences.json")
    for count in (1, 2):
        options = ["--prompts", prompts, "--composer", composer, "--threads", count, "--no-cache"]
        run = ["-o", tmp_path / f"run{count}"]
        assert call(capsys, "fit", tmp_path / "images", *run, *FIT, *options).code == 0
        assert thread_count() == count
    for name in ("ensemble.json", "predictions.csv"):
        assert (tmp_path / "run1" / name).read_bytes() == (tmp_path / "run2" / name).read_bytes()


@pytest.mark.parametrize(
    "command", ["fit", "predict", "evaluate", "transfer", "compare", "embed", "demo"]
)
def test_commands_that_compute_take_the_number(capsys, command):
    assert "--threads" in call(capsys, command, "--help-all" if command == "fit" else "--help").out
    answer = call(capsys, command, "--threads", 0)
    assert answer.code == 2
    assert "--threads" in answer.err

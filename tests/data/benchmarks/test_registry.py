import pytest

from promptboost.data.benchmarks import BENCHMARKS, benchmark_named
from promptboost.errors import DataError


def test_there_are_eleven_with_a_template_each_and_a_way_to_get_them():
    assert len(BENCHMARKS) == 11
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.name == name
        assert benchmark.template.count("{}") == 1
        how = "\n".join(benchmark.how_to_get())
        assert "https://" in how
        assert benchmark.folders[0] in how
        assert benchmark.split_file is None or benchmark.split_file in how


def test_sizes_add_up_to_the_published_totals():
    totals = {name: sum(benchmark.sizes.values()) for name, benchmark in BENCHMARKS.items()}
    # All images of a dataset are in its split, but for Caltech101 (two folders are left
    # out) and SUN397 (a hundred a class).
    assert totals["oxford_pets"] == 7349
    assert totals["stanford_cars"] == 16_185
    assert totals["flowers102"] == 8189
    assert totals["food101"] == 101 * 1000
    assert totals["fgvc_aircraft"] == 10_000
    assert totals["sun397"] == 397 * 100
    assert totals["dtd"] == 47 * 120
    assert totals["eurosat"] == 27_000
    assert totals["ucf101"] == 13_320
    assert totals["imagenet"] == 1_331_167


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=lambda benchmark: benchmark.name)
def test_names_are_found_in_every_spelling(benchmark):
    for text in (benchmark.name, benchmark.title, *benchmark.folders, benchmark.title.upper()):
        assert benchmark_named(text) is benchmark


def test_an_unknown_name_gets_the_list():
    with pytest.raises(DataError, match=r"no benchmark 'cifar'; there are: imagenet, .*, ucf101"):
        benchmark_named("cifar")

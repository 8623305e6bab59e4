"""The eleven benchmarks of few-shot prompt learning, in the layout and splits of the CoOp protocol."""

from promptboost.data.benchmarks.registry import BENCHMARKS, Benchmark, benchmark_named
from promptboost.data.benchmarks.splits import Item, read_split
from promptboost.data.benchmarks.survey import Survey, read_benchmark, survey_benchmark

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "benchmark_named",
    "read_benchmark",
    "Survey",
    "survey_benchmark",
    "Item",
    "read_split",
]

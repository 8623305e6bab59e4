"""How long one round takes either composer, beside the products it avoids.

    python -m benchmarks.search                       the three sizes as a table
    python -m benchmarks.search --size pets --json    one size as one JSON object
    python -m benchmarks.search --size imagenet --only fit --json    the whole default fit alone
    python -m benchmarks.search --size emoji          real embeddings (extra "offline")
    python -m benchmarks.search --slopes              cost against n, K and P
    python -m benchmarks.search --predict             a linear head against a zero-shot product

Everything in one run is measured on one machine, side by side: compare the ratios.
"""

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks import plain
from benchmarks.gradient import measure_fit, measure_gradient
from benchmarks.task import Size, Task, Visit, make_task
from promptboost.boosting import GridPool
from promptboost.boosting.composition import pick_template, template_hits
from promptboost.boosting.greedy.search import PromptSearch

SIZES = {
    "pets": Size("pets", 37, 12_000, 2.4),
    "caltech": Size("caltech", 100, 12_000, 2.2),
    "middle": Size("middle", 300, 1_000, 2.0),
    "imagenet": Size("imagenet", 1000, 1_000, 2.0),
    "emoji": Size("emoji", 20, 0, 0.0, dim=384),
}


def seconds(
    work: Callable[[], object], repeat: int = 3, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Best of a few runs."""
    best = np.inf
    for _ in range(repeat):
        start = clock()
        work()
        best = min(best, clock() - start)
    return float(best)


def dense_product_seconds(
    task: Task, budget: int = 3 * 10**11, clock: Callable[[], float] = time.perf_counter
) -> float:
    """One float32 product of all rows with all prompts, by BLAS; large ones from a part of it."""
    rows = min(len(task.X), 16_384)
    classes = max(1, min(len(task.prompts), budget // (rows * task.prompts[0].size)))
    X = task.X[:rows].astype(np.float32)
    T = [P.astype(np.float32) for P in task.prompts[:classes]]
    # Written into memory that is there already: new pages would cost more than the product.
    out = {len(P): np.empty((rows, len(P)), dtype=np.float32) for P in T}
    measured = seconds(lambda: [np.matmul(X, P.T, out=out[len(P)]) for P in T], clock=clock)
    return measured * len(task.X) / rows * len(task.prompts) / classes


def insert(search: PromptSearch, classes: int) -> tuple[list[Visit], int, int]:
    """Stage 2; the visits, the number of cycles and of updates."""
    visits: list[Visit] = []
    cycles = updates = 0
    improved = True
    while improved:
        cycles, improved = cycles + 1, False
        for k in range(classes):
            found = search.select(k)
            if found is None:
                visits.append(Visit(k, None))
                continue
            visits.append(Visit(k, (found.prompt, found.copies, found.gain)))
            search.append(k, found.prompt, found.copies)
            improved, updates = True, updates + 1
    return visits, cycles, updates


def prepare(size: Size) -> tuple[Task, dict[str, Any]]:
    """Make the task of a size, and time the dense product that all is compared with."""
    if size.name == "emoji":
        from benchmarks.real import make_emoji_task

        task = make_emoji_task(size.shots, size.views)
    else:
        task = make_task(size)
    warm_up()
    return task, {
        "size": asdict(size),
        "rows": len(task.X),
        "dense_product_s": dense_product_seconds(task),
        # Meaningful with one thread of BLAS (OMP_NUM_THREADS=1): two that wait for each other spin.
        "dense_product_cpu_s": dense_product_seconds(task, 10**11, time.process_time),
    }


def over_dense(found: dict[str, Any], part: str) -> dict[str, Any]:
    """Return what was measured, with a part of it as a share of the dense product."""
    return {
        **found,
        f"{part}_over_dense": found[f"{part}_s"] / found["dense_product_s"],
        f"{part}_cpu_over_dense_cpu": found[f"{part}_cpu_s"] / found["dense_product_cpu_s"],
    }


def measure_only_fit(size: Size) -> dict[str, Any]:
    """Measure the whole default fit of one size, and the dense product; nothing else."""
    task, found = prepare(size)
    tiny = make_task(Size("tiny", 20, 300, 2.0))
    measure_fit(tiny, GridPool(tiny.templates, tuple(tiny.prompts)))  # loads what is compiled
    fit = measure_fit(task, GridPool(task.templates, tuple(task.prompts)), greedy=False)
    return over_dense({**found, **fit}, "fit")


class Round:
    """The greedy composer on a task: its template, then prompts by the search."""

    def __init__(self, task: Task) -> None:
        self.task = task
        start = time.perf_counter()
        self.hits = template_hits(task.X, task.y, task.templates)
        self.template = pick_template(self.hits, task.weights, np.random.default_rng(0))
        self.template_s = time.perf_counter() - start
        self.first = np.ascontiguousarray(task.templates[:, self.template])

    def run(self) -> tuple[PromptSearch, list[Visit], int, int]:
        """Do it once."""
        task = self.task
        search = PromptSearch(task.X, task.y, task.weights, task.prompts, self.first)
        return search, *insert(search, len(task.prompts))


def measure_round(
    task: Task, found: dict[str, Any], check: int = 6
) -> tuple[Round, dict[str, Any]]:
    """Measure one greedy round beside the dense product; look at some visits by the plain search."""
    once = Round(task)
    start, start_cpu = time.perf_counter(), time.process_time()
    search, visits, cycles, updates = once.run()
    insertion = time.perf_counter() - start
    insertion_cpu = time.process_time() - start_cpu
    total = int(task.weights.sum())
    plain_s, same = plain.compare(task, once.first, visits, cycles, check)
    return once, over_dense(
        {
            **found,
            "error_before": float((task.weights[~once.hits[:, once.template]]).sum() / total),
            "error_after": search.error / total,
            "plain_search_s": plain_s,
            "template_s": once.template_s,
            "insertion_s": insertion,
            "insertion_cpu_s": insertion_cpu,
            "plain_over_insertion": plain_s / insertion,
            "multiplications_share": search.products / (len(task.X) * sum(map(len, task.prompts))),
            "cycles": cycles,
            "updates": updates,
            "same_selections": same,
        },
        "insertion",
    )


def measure(size: Size) -> dict[str, Any]:
    """Measure all of one size."""
    once, found = measure_round(*prepare(size))
    gradient = measure_gradient(once.task, once.hits, found["error_after"])
    return {**over_dense({**found, **gradient}, "fit"), "peak_extra_bytes": peak_bytes(once.run)}


MEASURED: dict[str | None, Callable[[Size], dict[str, Any]]] = {
    None: measure,
    "fit": measure_only_fit,
    "round": lambda size: measure_round(*prepare(size))[1],
}


def warm_up() -> None:
    """Load the compiled kernel, which a fit does once."""
    task = make_task(Size("tiny", 3, 20, 2.0, shots=4, dim=512))
    first = np.ascontiguousarray(task.templates[:, 0])
    template_hits(task.X, task.y, task.templates)
    insert(PromptSearch(task.X, task.y, task.weights, task.prompts, first), 3)


def peak_bytes(work: Callable[[], object]) -> int:
    """Peak of what Python and numpy allocate while ``work`` runs."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure_slopes() -> list[dict[str, object]]:
    """Measure the insertion time against each size alone, and the exponent of a power law."""
    warm_up()
    base = Size("base", 20, 2_000, 2.4)
    sweeps = {
        "n (shots)": [Size("n", 20, 2_000, 2.4, shots=s) for s in (4, 8, 16, 32, 64)],
        "K (classes)": [Size("K", c, 2_000, 2.4) for c in (10, 20, 40, 80, 160)],
        "P (prompts a class)": [Size("P", 20, p, 2.4) for p in (500, 1_000, 2_000, 4_000, 8_000)],
    }
    rows = []
    for name, sizes in sweeps.items():
        sides, times, dense = [], [], []
        for size in sizes:
            task = make_task(size)
            first = np.ascontiguousarray(task.templates[:, 0])
            start = time.perf_counter()
            insert(PromptSearch(task.X, task.y, task.weights, task.prompts, first), size.classes)
            times.append(time.perf_counter() - start)
            dense.append(dense_product_seconds(task))
            sides.append({"n": len(task.X), "K": size.classes, "P": size.prompts}[name[0]])
        rows.append(
            {
                "against": name,
                "sizes": sides,
                "insertion_s": times,
                "dense_product_s": dense,
                "slope": float(np.polyfit(np.log(sides), np.log(times), 1)[0]),
                "dense_slope": float(np.polyfit(np.log(sides), np.log(dense), 1)[0]),
                "base": asdict(base),
            }
        )
    return rows


def measure_prediction(
    images: int = 10_000, classes: int = 100, dim: int = 512
) -> dict[str, object]:
    """Predict with a head of M rounds, and with one zero-shot product, in turns."""
    from promptboost.model import Head

    rng = np.random.default_rng(0)
    X = rng.standard_normal((images, dim), dtype=np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    W = rng.standard_normal((classes, dim), dtype=np.float32)
    names = tuple(f"class {k}" for k in range(classes))
    heads = {M: Head(names, M * W, M, 1.0) for M in (1, 50)}
    times: dict[str, list[float]] = {"zero-shot": [], "M=1": [], "M=50": []}
    for _ in range(40):
        times["zero-shot"].append(seconds(lambda: (X @ W.T).argmax(axis=1), 1))
        for M, head in heads.items():
            times[f"M={M}"].append(seconds(lambda head=head: head.predict_index(X), 1))  # type: ignore[misc]
    medians = {name: float(np.median(values)) for name, values in times.items()}
    return {
        "pictures": images,
        "classes": classes,
        "seconds": medians,
        "ratio": {M: medians[f"M={M}"] / medians["zero-shot"] for M in heads},
        "noise": float(np.std(times["zero-shot"]) / medians["zero-shot"]),
    }


def print_table(results: list[dict[str, Any]]) -> None:
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("size", lambda r: r["size"]["name"]),
        ("rows", lambda r: f"{r['rows']:,}"),
        ("error", lambda r: f"{r['error_before']:.3f} → {r['error_after']:.3f}"),
        ("dense product", lambda r: f"{r['dense_product_s']:.2f} s"),
        ("insertion", lambda r: f"{r['insertion_s']:.2f} s"),
        ("ratio", lambda r: f"{r['insertion_over_dense']:.3f}"),
        ("plain search", lambda r: f"{r['plain_search_s']:.0f} s"),
        ("speed-up", lambda r: f"{r['plain_over_insertion']:.0f} ×"),
        ("templates", lambda r: f"{r['template_s']:.2f} s"),
        ("products", lambda r: f"{100 * r['multiplications_share']:.2f} %"),
        ("peak extra", lambda r: f"{r['peak_extra_bytes'] / 2**20:.0f} MiB"),
        ("cycles", lambda r: str(r["cycles"])),
        ("updates", lambda r: str(r["updates"])),
        ("same", lambda r: "yes" if r["same_selections"] else "NO"),
    ]
    _print_columns(columns, results)
    print()
    _print_columns(_GRADIENT_COLUMNS, results)


_GRADIENT_COLUMNS: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
    ("size", lambda r: r["size"]["name"]),
    ("greedy, one round", lambda r: f"{r['insertion_s']:.2f} s"),
    ("gradient", lambda r: f"{r['gradient_s']:.2f} s"),
    ("error", lambda r: f"{r['error_after']:.3f} and {r['gradient_error_after']:.3f}"),
    (
        "gradient to the greedy error",
        lambda r: f"{r['same_error_s']:.2f} s, {r['same_error_sweeps']} sweeps",
    ),
    ("ratio", lambda r: f"{r['insertion_s'] / r['same_error_s']:.1f} ×"),
    (
        "50 greedy rounds / one gradient",
        lambda r: f"{50 * r['insertion_s'] / r['gradient_s']:.0f} ×",
    ),
    ("choosing the scale", lambda r: f"{r['choice_of_scale_s']:.2f} s"),
    ("one composition", lambda r: f"{r['composition_s']:.2f} s"),
    ("whole fit", lambda r: f"{r['fit_s']:.2f} s"),
    ("residual", lambda r: f"{r['residual_s']:.2f} s"),
    ("whole fit / one composition", lambda r: f"{r['fit_over_composition']:.2f}"),
    ("whole fit / dense product", lambda r: f"{r['fit_over_dense']:.3f}"),
    ("peak extra of the fit", lambda r: f"{r['fit_peak_extra_bytes'] / 2**20:.0f} MiB"),
    (
        "scale of probabilities, gradient and greedy",
        lambda r: f"{r['calibration_s']:.3f} and {r['greedy_calibration_s']:.2f} s",
    ),
    ("gradient / dense product", lambda r: f"{r['gradient_s'] / r['dense_product_s']:.3f}"),
    ("sweeps, reads of the pool", lambda r: f"{r['gradient_sweeps']}, {r['gradient_pool_reads']}"),
    ("objective, gap", lambda r: f"{r['gradient_objective']:.3f}, {r['gradient_gap']:.3f}"),
    ("peak extra", lambda r: f"{r['gradient_peak_extra_bytes'] / 2**20:.0f} MiB"),
]


def _print_columns(
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]], results: list[dict[str, Any]]
) -> None:
    print("| " + " | ".join(name for name, _ in columns) + " |")
    print("|" + "---|" * len(columns))
    for result in results:
        print("| " + " | ".join(cell(result) for _, cell in columns) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--only", choices=["fit", "round"], help="part of it; as JSON")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--slopes", action="store_true")
    parser.add_argument("--predict", action="store_true")
    options = parser.parse_args()
    result: object
    if options.slopes:
        result = measure_slopes()
    elif options.predict:
        result = measure_prediction()
    else:
        names = options.size or ["pets", "caltech", "imagenet"]
        results = [MEASURED[options.only](SIZES[name]) for name in names]
        if not (options.json or options.only):
            print_table(results)
            return
        result = results[0] if len(results) == 1 else results
    print(json.dumps(result, indent=None if options.json else 1))


if __name__ == "__main__":
    main()

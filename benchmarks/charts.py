"""Our SVG drawings beside matplotlib's: the same staged curve and the same accuracy figure.

    python -m benchmarks.charts

Each drawing is made in a fresh process, so that the time has the import in it, as a fit that writes one
report has it. Prints seconds, bytes of SVG, and the size of what has to be installed.
"""

import argparse
import subprocess
import sys
from importlib import metadata
from pathlib import Path

STAGES = [0.42 + 0.3 * (1 - 0.9**m) for m in range(50)]
LEARNT = [min(1.0, 0.5 + 0.02 * m) for m in range(50)]
LEVELS = {"zero-shot": 0.45, "logistic regression": 0.66}
SHOTS = (1, 2, 4, 8, 16)
METHODS = ("zero-shot", "template-mean", "pool-mean", "logistic", "tip-adapter", "promptboost")
ENCODERS = ("on conse:lite0", "transferred from conse:lite0 to conse:lite2")
#: What matplotlib brings along; numpy and pillow are there anyway.
INSTALLED = (
    *("matplotlib", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing"),
    *("packaging", "python-dateutil", "six"),
)


def _means(method: int, encoder: int) -> list[float]:
    return [0.3 + 0.03 * method + 0.05 * i - 0.04 * encoder for i in range(len(SHOTS))]


def ours(figure: str) -> str:
    """Draw with what promptboost draws with."""
    if figure == "staged":
        from promptboost.report.svg import Line, Reference, staged_curve

        lines = [Line("learning", "learn", LEARNT), Line("boosted", "main", STAGES)]
        levels = [Reference(name, "zero", value) for name, value in LEVELS.items()]
        return str(staged_curve(lines, levels, width=900, height=340, title="accuracy"))
    from promptboost.compare.summary import Curve, accuracy_figure

    none = (0.02,) * len(SHOTS)
    panels = [
        (
            title,
            [
                Curve(name, title, "", SHOTS, tuple(_means(i, e)), none, none, None)
                for i, name in enumerate(METHODS)
            ],
        )
        for e, title in enumerate(ENCODERS)
    ]
    return accuracy_figure(panels, SHOTS)


def theirs(figure: str) -> str:
    """Draw the same with matplotlib."""
    import io

    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text, as in ours
    from matplotlib import pyplot

    if figure == "staged":
        fig, axes = pyplot.subplots(figsize=(9, 3.4))
        rounds = range(1, len(STAGES) + 1)
        axes.plot(rounds, LEARNT, label="learning")
        axes.plot(rounds, STAGES, label="boosted")
        for name, value in LEVELS.items():
            axes.axhline(value, linestyle="--", label=name)
        axes.set_xlabel("rounds")
        axes.legend()
    else:
        fig, panels = pyplot.subplots(1, len(ENCODERS), sharey=True, figsize=(12, 4.2))
        for e, (title, axes) in enumerate(zip(ENCODERS, panels, strict=True)):
            for i, name in enumerate(METHODS):
                axes.errorbar(range(len(SHOTS)), _means(i, e), yerr=0.02, label=name)
            axes.set_title(title)
            axes.set_xticks(range(len(SHOTS)), [str(k) for k in SHOTS])
            axes.legend()
    text = io.StringIO()
    fig.savefig(text, format="svg")
    return text.getvalue()


def _installed(packages: tuple[str, ...]) -> int:
    """Bytes on disk of some packages, as far as they are installed."""
    total = 0
    for package in packages:
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        total += sum(Path(str(f.locate())).stat().st_size for f in files if _is_file(f))
    return total


def _is_file(file: metadata.PackagePath) -> bool:
    return Path(str(file.locate())).is_file()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", nargs=2, metavar=("WHO", "FIGURE"), help="used by itself")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.draw:
        import time

        import numpy  # noqa: F401  # a run has it loaded either way

        start = time.perf_counter()
        text = {"ours": ours, "matplotlib": theirs}[options.draw[0]](options.draw[1])
        print(time.perf_counter() - start, len(text.encode()))
        return
    print(f"{'':<24}{'seconds':>10}{'SVG bytes':>12}{'installed':>12}")
    for figure in ("staged", "accuracy"):
        for who in ("ours", "matplotlib"):
            command = [sys.executable, "-m", "benchmarks.charts", "--draw", who, figure]
            runs = [
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                for _ in range(options.repeats)
            ]
            seconds, size = min(float(run[0]) for run in runs), int(runs[0][1])
            wheel = _installed(INSTALLED if who == "matplotlib" else ("markupsafe",))
            print(f"{figure + ', ' + who:<24}{seconds:>10.3f}{size:>12,}{wheel / 1e6:>9.1f} MB")


if __name__ == "__main__":
    main()

"""Draw the charts of the results from the measured numbers in ``data/``, in both manners.

    python docs/figures/charts.py

The pages show the same numbers as tables, with the commands that measured them.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt  # noqa: E402, RUF100

HERE = Path(__file__).parent
SHOTS = (1, 2, 4, 8, 16)
MANNERS = {
    "light": {"ink": "#22252a", "soft": "#6b7078", "grid": "#e3e3df", "ours": "#0b6e69"},
    "dark": {"ink": "#e8e8e4", "soft": "#9aa0a8", "grid": "#33373d", "ours": "#4fc3b8"},
}
#: One color for one method, on every chart.
COLOURS = {
    "zero-shot": "soft",
    "text + residual": "ours",
    "text alone": "#c98a1b",
    "logistic regression": "#7a6ff0",
    "CLAP": "#8a9a3b",
    "cross-modal": "#d1495b",
    "TIMO": "#5f8f4e",
    "the paper's setting": "#a86f52",
}
Rows = list[dict[str, str]]


def read(name: str) -> Rows:
    """Return the measured numbers."""
    with open(HERE / "data" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class Sheet:
    """A drawing in one manner."""

    def __init__(self, manner: str, panels: int, columns: int, size: tuple[float, float]) -> None:
        self.look = MANNERS[manner]
        rows = -(-panels // columns)
        self.figure, axes = plt.subplots(
            rows, columns, figsize=size, squeeze=False, layout="constrained"
        )
        self.axes = list(axes.flat)
        for axis in self.axes:
            axis.set_facecolor("none")
            axis.grid(axis="y", color=self.look["grid"], linewidth=0.8)
            axis.tick_params(colors=self.look["soft"], labelsize=9, length=0)
            for spine in axis.spines.values():
                spine.set_visible(False)

    def color(self, method: str) -> str:
        """Return the color of a method in this manner."""
        color = COLOURS.get(method, "soft")
        return self.look.get(color, color)

    def lines(
        self,
        axis: Any,
        series: dict[str, tuple[Sequence[float], Sequence[float]]],
        *,
        title: str = "",
        named: bool = True,
        digits: int = 1,
    ) -> None:
        """Draw lines, with their names at the ends of them."""
        ends = []
        for name, (x, y) in series.items():
            color = self.color(name)
            bold = color == self.look["ours"]
            axis.plot(x, y, color=color, marker="o", markersize=4, linewidth=2.6 if bold else 1.6)
            ends.append((y[-1], x[-1], f"{name} {y[-1]:.{digits}f}", color, bold))
        axis.set_title(title, loc="left", color=self.look["ink"], fontsize=10, fontweight="bold")
        if named:
            low, high = axis.get_ylim()
            least = (high - low) / 15
            height = -1e9
            for y, x, text, color, bold in sorted(ends):
                height = max(y, height + least)
                axis.annotate(
                    text,
                    (x, height),
                    xytext=(9, 0),
                    textcoords="offset points",
                    color=color,
                    fontsize=9,
                    va="center",
                    fontweight="bold" if bold else "normal",
                    annotation_clip=False,
                )

    def shots(self, axis: Any, shots: Sequence[int] = SHOTS) -> None:
        """Name an axis of shots, on which each step doubles them."""
        axis.set_xscale("log", base=2)
        axis.set_xticks(shots, [str(count) for count in shots])
        axis.minorticks_off()
        axis.set_xlabel("training images per class", color=self.look["soft"], fontsize=9)

    def legend(self, names: Sequence[str], columns: int | None = None) -> None:
        """Name the lines of all panels above them."""
        handles = [
            mpl.lines.Line2D([], [], color=self.color(name), linewidth=2.2, label=name)
            for name in names
        ]
        self.figure.legend(
            handles=handles,
            loc="outside upper left",
            ncols=columns or len(names),
            frameon=False,
            fontsize=9,
            labelcolor=self.look["ink"],
        )

    def save(self, file: Path) -> None:
        """Write it, the same bytes for the same numbers."""
        self.figure.savefig(file, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(self.figure)


def by_method(rows: Rows, y: str = "accuracy", x: str = "shots", key: str = "method") -> dict:
    """Return the line of each method."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        if row[y]:
            xs, ys = lines.setdefault(row[key], ([], []))
            xs.append(float(row[x]))
            ys.append(float(row[y]))
    return lines


def accuracy(manner: str) -> Sheet:
    """Draw the mean of four sets against shots."""
    sheet = Sheet(manner, 1, 1, (7.6, 4.2))
    [axis] = sheet.axes
    lines = by_method([row for row in read("accuracy") if row["set"] == "mean of the four"])
    shown = ("zero-shot", "text alone", "CLAP", "TIMO", "cross-modal")
    order = [*shown, "logistic regression", "text + residual"]
    sheet.lines(
        axis, {name: lines[name] for name in order}, title="accuracy, percent, mean of four sets"
    )
    sheet.shots(axis)
    return sheet


def rounds(manner: str) -> Sheet:
    """Draw accuracy against the number of rounds, 4 shots."""
    rows = [row for row in read("rounds") if row["shots"] == "4"]
    named = {
        "greedy; 4 of 8 views, SAMME.R weights (the paper)": "greedy, as in the paper",
        "gradient; views, weights": "gradient, same rounds",
    }
    chosen = [{**row, "method": named[row["composer"]]} for row in rows if row["composer"] in named]
    one = next(row for row in rows if row["composer"].startswith("gradient; all 8 views"))
    first = {**one, "method": "gradient, same rounds"}
    sheet = Sheet(manner, 1, 1, (7.6, 3.4))
    [axis] = sheet.axes
    COLOURS.update({"greedy, as in the paper": "#a86f52", "gradient, same rounds": "ours"})
    lines = by_method([first, *chosen], y="source", x="rounds")
    sheet.lines(axis, lines, title="accuracy, percent, 4 shots, mean of four sets")
    axis.set_xscale("log")
    axis.set_xticks([1, 5, 20, 50], ["1", "5", "20", "50"])
    axis.minorticks_off()
    axis.set_xlabel("rounds", color=sheet.look["soft"], fontsize=9)
    return sheet


def settings(manner: str) -> Sheet:
    """Draw what each setting buys at home and pays after transfer, 4 shots."""
    sheet = Sheet(manner, 1, 1, (7.6, 4.4))
    [axis] = sheet.axes
    axis.grid(axis="x", color=sheet.look["grid"], linewidth=0.8)
    for row in read("settings"):
        x, y, name = float(row["source"]), float(row["target"]), row["setting"]
        ours = name == "default"
        axis.plot(
            x, y, "o", color=sheet.look["ours" if ours else "soft"], markersize=9 if ours else 5
        )
        axis.annotate(
            name,
            (x, y),
            xytext=(6, 3),
            textcoords="offset points",
            fontsize=8,
            color=sheet.look["ours" if ours else "ink"],
            fontweight="bold" if ours else "normal",
        )
    axis.set_xlabel("accuracy on the source, percent", color=sheet.look["soft"], fontsize=9)
    axis.set_ylabel("accuracy on the target, percent", color=sheet.look["soft"], fontsize=9)
    return sheet


def pools(manner: str) -> Sheet:
    """Draw what descriptions add to templates, by set."""
    rows = read("pools")
    sets = list(dict.fromkeys(row["set"] for row in rows))
    names = list(dict.fromkeys(row["pool"] for row in rows))
    COLOURS.update(dict(zip(names, ("soft", "ours"), strict=True)))
    sheet = Sheet(manner, len(sets), len(sets), (7.6, 2.8))
    for axis, name in zip(sheet.axes, sets, strict=True):
        mine = [{**row, "method": row["pool"]} for row in rows if row["set"] == name]
        sheet.lines(axis, by_method(mine, y="source"), title=name, named=False)
        sheet.shots(axis, (1, 4, 16))
    sheet.legend(names)
    return sheet


def wrong_labels(manner: str) -> Sheet:
    """Draw accuracy against the share of wrong labels, 4 and 16 shots."""
    sheet = Sheet(manner, 2, 2, (7.6, 3.3))
    names = {
        "paper preset, M = 50": "the paper's setting",
        "default (caution 0.3)": "text alone",
        "logistic regression": "logistic regression",
    }
    for axis, shots in zip(sheet.axes, ("4", "16"), strict=True):
        rows = [
            {**row, "method": names[row["method"]]}
            for row in read("wrong-labels")
            if row["shots"] == shots and row["method"] in names
        ]
        lines = by_method(rows, y="source", x="wrong")
        sheet.lines(axis, lines, title=f"{shots} shots", named=False)
        axis.set_xticks([0, 10, 20], ["0 %", "10 %", "20 %"])
        axis.set_xlabel("wrong labels", color=sheet.look["soft"], fontsize=9)
    sheet.legend(tuple(names.values()))
    return sheet


def fit(manner: str) -> Sheet:
    """Draw the seconds of a whole default fit beside one product, at three sizes."""
    rows = read("fit")
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    sheet = Sheet(manner, len(sizes), 1, (7.6, 3.6))
    for axis, size in zip(sheet.axes, sizes, strict=True):
        axis.grid(visible=False)
        mine = [row for row in rows if row["size"] == size]
        most = max(float(row["seconds"]) for row in mine)
        for place, row in enumerate(reversed(mine)):
            seconds = float(row["seconds"])
            ours = row["what"].startswith("whole")
            axis.barh(place, seconds, height=0.6, color=sheet.look["ours" if ours else "soft"])
            axis.text(
                seconds + most / 80,
                place,
                f"{row['seconds']} s",
                color=sheet.look["ours" if ours else "soft"],
                fontsize=9,
                va="center",
                fontweight="bold" if ours else "normal",
            )
        axis.set_yticks(range(len(mine)), [row["what"] for row in reversed(mine)])
        axis.tick_params(axis="y", labelcolor=sheet.look["ink"])
        axis.set_xticks([])
        axis.set_xlim(0, most * 1.12)
        classes, prompts = mine[0]["classes"], mine[0]["prompts"]
        axis.set_title(
            f"{size}: {classes} classes, {prompts} prompts each",
            loc="left",
            color=sheet.look["ink"],
            fontsize=10,
            fontweight="bold",
        )
    return sheet


CHARTS: dict[str, Callable[[str], Sheet]] = {
    "accuracy": accuracy,
    "rounds": rounds,
    "settings": settings,
    "pools": pools,
    "wrong-labels": wrong_labels,
    "fit": fit,
}


def main() -> None:
    """Draw all of them."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "promptboost"})
    plt.rcParams["font.family"] = "sans-serif"
    for name, draw in CHARTS.items():
        for manner in MANNERS:
            draw(manner).save(HERE / f"{name}-{manner}.svg")


if __name__ == "__main__":
    main()

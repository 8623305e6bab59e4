"""What learning on several encoders at once brings: on those learned on, and on others.

    python -m benchmarks.several emoji scenes=FOLDER pets=FOLDER --prompts pets=FILE -o OUT

The encoders are the four ConSE combinations of two image nets and two sentence encoders (MiniLM L6 and L3),
and two that read with the bare token table of MiniLM (T), on which nothing is learned: encoders of another
kind. Each row is learned on those it names, one, two or three, and measured on all, by the words alone.
Every fit is kept in OUT as soon as it is there, as ``promptboost compare`` does: stop it, and the same
command goes on. Printed are a summary and every figure, means over draws in per cent.

What is *kept* of an encoder is the share of its gain over zero-shot that a text learned on it alone has.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from promptboost.compare.cells import CompareRequest
from promptboost.compare.compare import compare
from promptboost.config import FitConfig
from promptboost.encoders import register_encoder
from promptboost.encoders.conse.conse import ConseEncoder, SentenceEncoder
from promptboost.encoders.runtime import fingerprint


class TokenTable(ConseEncoder):
    """Reads a text as the mean of its tokens, whatever their order."""

    def __init__(self, name: str, device: str | None = None) -> None:
        super().__init__(name, device)
        self.id = f"tokens:{name}"
        self.fingerprint = fingerprint({"kind": "token table", "of": self.fingerprint})

    @cached_property
    def _sentences(self) -> SentenceEncoder:
        from safetensors.numpy import load_file

        table = load_file(self._text_file)["embeddings.word_embeddings.weight"]
        return SentenceEncoder(
            self._vocabulary, lambda ids, _: table[ids], self.context_length, self.dim
        )


#: Encoder → image net / sentence encoder.
ENCODERS = {
    "conse:lite0": "lite0/L6",
    "conse:lite2": "lite2/L3",
    "conse:lite0-l3": "lite0/L3",
    "conse:lite2-l6": "lite2/L6",
    "tokens:lite0": "lite0/T",
    "tokens:lite2-l6": "lite2/T",
}
#: No row of the tables is learned on these.
UNSEEN = ("conse:lite2-l6", "tokens:lite0", "tokens:lite2-l6")
#: Learned on: one, two that share nothing, and three.
SETTINGS = (
    ("conse:lite0",),
    ("conse:lite2",),
    ("conse:lite0-l3",),
    ("conse:lite0", "conse:lite2"),
    ("conse:lite0", "conse:lite2", "conse:lite0-l3"),
)
COMPOSERS = {"gradient": "promptboost?residual=off", "greedy": "tpb?rounds={rounds}"}

Names = tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """The accuracy of one fit on one encoder; `learned_on` is empty for zero-shot."""

    data: str
    composer: str
    shots: int
    seed: int
    learned_on: Names
    encoder: str
    accuracy: float


def measure(
    name: str,
    request: CompareRequest,
    composer: str,
    rounds: int,
    settings: Sequence[Names] = SETTINGS,
) -> list[Figure]:
    """Fit on each setting with all draws, and measure on all encoders; `request` says the rest."""
    ours = COMPOSERS[composer].format(rounds=rounds)
    figures = []
    for home in dict.fromkeys(names[0] for names in settings):
        learned_on: dict[str, Names] = {"zero-shot": ()} if home == settings[0][0] else {}
        for names in settings:
            if names[0] == home:
                joined = "&" if "?" in ours else "?"
                also = f"{joined}also={'+'.join(names[1:])}" if len(names) > 1 else ""
                learned_on[ours + also] = names
        done = compare(
            CompareRequest(
                request.source,
                request.out / name / home.partition(":")[2],
                tuple(learned_on),
                request.shots,
                request.seeds,
                home,
                tuple(one for one in ENCODERS if one != home),
                request.words,
                progress=request.progress,
            )
        )
        for line in done.failed:
            print(line, file=sys.stderr)
        figures += [
            Figure(
                *(name, composer, line["shots"], line["seed"], learned_on[line["method"]]),
                *(line["on"], line["accuracy"]),
            )
            for line in done.lines
        ]
    return figures


Means = dict[tuple[str, str, int, Names, str], float]


def means(figures: Iterable[Figure]) -> Means:
    """Return the mean over draws of each set, composer, number of shots, setting and encoder."""
    drawn: dict[tuple[str, str, int, Names, str], list[float]] = defaultdict(list)
    for one in figures:
        drawn[one.data, one.composer, one.shots, one.learned_on, one.encoder].append(one.accuracy)
    return {key: 100 * float(np.mean(values)) for key, values in drawn.items()}


def kept(found: Means, data: str, composer: str, shots: int, names: Names, encoder: str) -> float:
    """Return the share of an encoder's own gain that a text learned on several has there."""
    here, alone, zero_shot = (
        found[data, composer, shots, learned_on, encoder] for learned_on in (names, (encoder,), ())
    )
    return (here - zero_shot) / (alone - zero_shot)


def summary(found: Means) -> str:
    """Return Markdown: what is kept on each encoder learned on, and the mean accuracy on those unseen.

    *One* is the mean of the two texts that are each learned on one encoder of *two*.
    """
    *_, two, three = SETTINGS
    lines = [
        "| | shots | kept by two on lite0/L6, lite2/L3 | by three, and on lite0/L3 | unseen: zero-shot "
        "| one | two | three |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups = dict.fromkeys((key[1], key[2]) for key in found)
    sets = list(dict.fromkeys(key[0] for key in found))
    for names in [*([name] for name in sets), *([sets] if len(sets) > 1 else [])]:
        for composer, shots in groups:
            if any((name, composer, shots, three, three[-1]) not in found for name in names):
                continue  # a mean over fewer sets would compare unlike things
            shares = [
                ", ".join(
                    f"{100 * np.mean([kept(found, n, composer, shots, many, e) for n in names]):.0f} %"
                    for e in many
                )
                for many in (two, three)
            ]
            unseen = {
                many: float(
                    np.mean([found[n, composer, shots, many, e] for n in names for e in UNSEEN])
                )
                for many in ((), *SETTINGS)
            }
            one = float(np.mean([unseen[(e,)] for e in two]))
            label = names[0] if len(names) == 1 else f"mean of {len(names)} sets"
            cells = [f"{value:.1f}" for value in (unseen[()], one, unseen[two], unseen[three])]
            label += "" if composer == "gradient" else f", {composer}"
            lines.append(f"| {label} | {shots} | {' | '.join([*shares, *cells])} |")
    return "\n".join(lines)


def table(found: Means) -> str:
    """Return Markdown: a row for each fit, in brackets encoders that it was not learned on."""
    lines = [
        f"| | shots | learned on | {' | '.join(ENCODERS.values())} |",
        f"|---|--:|---|{'--:|' * len(ENCODERS)}",
    ]
    order = ((), *SETTINGS)
    rows = dict.fromkeys(sorted((key[:4] for key in found), key=lambda row: order.index(row[3])))
    for data, composer, shots, names in sorted(rows, key=lambda row: row[:3]):
        shown = []
        for e in ENCODERS:
            mean = f"{found[data, composer, shots, names, e]:.1f}"
            shown.append(mean if e in names or not names else f"({mean})")
        label = " + ".join(ENCODERS[e] for e in names) or "zero-shot"
        label += "" if composer == "gradient" else f", {composer}"
        lines.append(f"| {data} | {shots} | {label} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print tables; with ``--json`` every figure by itself."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", nargs="*", default=["emoji"], help="DATA as for fit, or NAME=DATA.")
    parser.add_argument("--prompts", action="append", default=[], help="NAME=FILE, as for fit.")
    parser.add_argument("--shots", nargs="*", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--composer", nargs="*", choices=COMPOSERS, default=["gradient"])
    parser.add_argument("--rounds", type=int, default=50, help="Of the greedy composer.")
    parser.add_argument("--views", type=int, default=8, help="Crops of each image.")
    parser.add_argument("-o", "--out", type=Path, default=Path("several"))
    parser.add_argument("--json", type=Path, help="Where to write every figure by itself.")
    asked = parser.parse_args(arguments)
    register_encoder("tokens", TokenTable)
    prompts = dict(item.split("=", 1) for item in asked.prompts)
    figures: list[Figure] = []
    for item in asked.data:
        name, _, source = item.rpartition("=")
        name = name or Path(source).name
        words = FitConfig(prompts=prompts.get(name), views=asked.views)
        request = CompareRequest(
            source, asked.out, shots=tuple(asked.shots), seeds=tuple(asked.seeds), words=words
        )
        for composer in asked.composer:
            figures += measure(name, request, composer, asked.rounds)
            print(f"{name}, {composer}", file=sys.stderr, flush=True)
            if asked.json:
                asked.json.write_text(json.dumps([vars(one) for one in figures]))
    found = means(figures)
    print(summary(found), end="\n\n")
    print(table(found))


if __name__ == "__main__":
    main()

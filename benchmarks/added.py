"""A class added by words alone: what the others lose, and how much of it is found.

Every class is left out of a fit in turn and then added by sentences, as a user would: the fitted text gets
a class more, is saved, and loaded again.

    python -m benchmarks.added emoji --shots 4 16
"""

import argparse
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import promptboost
from promptboost.baselines import pool_heads
from promptboost.cli.output import echo
from promptboost.config import FitConfig
from promptboost.data import Dataset
from promptboost.data.shots import Task, load_task
from promptboost.encoders.embedder import Embedder
from promptboost.model import Head
from promptboost.model.head import write_head
from promptboost.pool.templates import PLAIN_TEMPLATE
from promptboost.run.fit import pool_for
from promptboost.run.results import EmbeddedTask
from promptboost.training import Trainer

_FIVE = 5


def without(data: Dataset, name: str) -> Dataset:
    """Leave a class out."""
    names = tuple(other for other in data.class_names if other != name)
    return Dataset(tuple(image for image in data.images if image.label != name), names)


def heads_of(
    task: Task, settings: FitConfig, source: str, name: str, embedder: Embedder
) -> Iterator[tuple[str, str, Head, Head]]:
    """Fit without a class and add it; yield the sentences, what answers, and the heads after and before."""
    part = replace(task, learn=without(task.learn, name), held_out=without(task.held_out, name))
    pool = pool_for(settings, source, part.class_names)
    embedded = EmbeddedTask.embed(part, pool, settings, embedder)
    fitted = Trainer(settings).fit(embedded.examples(part), embedded.pool_rows, [embedder])
    own = pool_for(settings, source, task.class_names).texts(name)
    rng = np.random.default_rng(task.class_names.index(name))
    added = {
        "one": [PLAIN_TEMPLATE.replace("{}", name)],
        "five": [own[i] for i in rng.permutation(len(own))[:_FIVE].tolist()],
    }
    for sentences, texts in added.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_head(folder, fitted.head)
            fitted.ensemble.save(folder / "ensemble.json")
            for text_only in (True, False):
                before = promptboost.load(folder, text_only=text_only).head
                fitted.ensemble.add_class(name, texts).save(folder / "ensemble.json")
                after = promptboost.load(folder, text_only=text_only).head
                fitted.ensemble.save(folder / "ensemble.json")
                yield sentences, "text" if text_only else "text + residual", after, before


def main() -> None:
    """Print a line for each number of shots, kind of sentences, and what answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--prompts")
    parser.add_argument("--encoder", default="conse:lite0")
    parser.add_argument("--shots", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--classes", type=int, help="so many, drawn at random; all by default")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)  # that the residual was fitted beside other words is the point
    embedder = Embedder.open(asked.encoder)
    for shots in asked.shots:
        settings = FitConfig(encoder=asked.encoder, shots=shots, seed=1, prompts=asked.prompts)
        task = load_task(asked.source, settings)
        names, rows = np.array(task.class_names), embedder.originals(task.held_out)
        truth = names[task.held_out.labels]
        zero_shot = pool_heads(pool_for(settings, asked.source, task.class_names), embedder)
        guessed = zero_shot["template-mean"].predict(rows)
        figures: dict[tuple[str, str], list[list[float]]] = {}
        chosen = np.random.default_rng(0).permutation(names)[: asked.classes].tolist()
        for name in chosen:
            old = truth != name
            for sentences, answers, after, before in heads_of(
                task, settings, asked.source, name, embedder
            ):
                alone, given = before.predict(rows), after.predict(rows)
                assert isinstance(after, Head)
                bare = replace(after, balance=None).predict(rows)
                figures.setdefault((answers, sentences), []).append(
                    [
                        np.mean(alone[old] == truth[old]),
                        *(np.mean(one[old] == truth[old]) for one in (bare, given)),
                        *(np.mean(one[~old] == name) for one in (bare, given, guessed)),
                    ]
                )
        for (answers, sentences), values in figures.items():
            alone, bare, given, *found = 100 * np.mean(values, axis=0)
            lost = 100 * np.subtract(*np.array(values)[:, [0, 2]].T).max()
            echo(
                f"{shots:2} shots, {answers:15}, {sentences:4}: others {alone:.1f}, then {bare:.1f} "
                f"without and {given:.1f} with balance (at worst -{lost:.1f}); found "
                f"{found[0]:.1f} without, {found[1]:.1f} with; zero-shot {found[2]:.1f}"
            )


if __name__ == "__main__":
    main()

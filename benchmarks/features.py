"""What features of an image classifier beside its ConSE embedding gain.

    python -m benchmarks.features dtd10=FOLDER scenes=FOLDER emoji=emoji

For each set of images: accuracy of the default fit with conse:lite0 and with conse:lite0-features on the
images that were not learned from, of at most 60 images of each class, with four crops and no descriptions.
"""

import argparse
import json
from statistics import mean

import numpy as np

from promptboost import PromptBoostClassifier
from promptboost.data import load_data
from promptboost.encoders import Embedder

ENCODERS = ("conse:lite0", "conse:lite0-features")
SHOTS, SEEDS = (4, 16), 3


def measure(source: str, per_class: int) -> dict[str, float]:
    data = load_data(source, check=False)
    draw = np.random.default_rng(0)
    chosen = [
        draw.permutation(np.flatnonzero(data.labels == k)) for k in range(len(data.class_names))
    ]
    data = data.subset(np.sort(np.concatenate([images[:per_class] for images in chosen])))
    names, accuracy = np.array(data.class_names)[data.labels], {}
    for encoder in ENCODERS:
        embedder = Embedder.open(encoder)
        rows = embedder.images(data, views=4)
        for shots in SHOTS:
            correct = []
            for seed in range(SEEDS):
                draw = np.random.default_rng(seed)
                classes = [np.flatnonzero(data.labels == k) for k in range(len(data.class_names))]
                train = np.concatenate([draw.permutation(images)[:shots] for images in classes])
                test = np.setdiff1d(np.arange(len(data)), train)
                classifier = PromptBoostClassifier(embedder, random_state=seed)
                classifier.fit(rows[train, 0], names[train], views=rows[train, 1:])
                correct.append(classifier.score(rows[test, 0], names[test]))
            accuracy[f"{encoder}, {shots} shots"] = round(100 * mean(correct), 1)
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--per-class", type=int, default=60, help="images of each class")
    arguments = parser.parse_args()
    for name, _, source in (entry.partition("=") for entry in arguments.sets):
        print(json.dumps({"set": name, **measure(source, arguments.per_class)}), flush=True)


if __name__ == "__main__":
    main()

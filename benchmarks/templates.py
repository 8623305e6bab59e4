"""Choose the default templates, and compare them with others on sets that they were not chosen on.

Run ``python -m benchmarks.templates FOLDER``, a folder with one folder of images for each of
`intel_scenes`, `dtd10` and `oxford_pets`; the emoji are the fourth set. Each candidate is scored by its
weight in texts fitted without descriptions to training images: the mean over the classes of a set, over
two draws of 4 images per class and one of 16, and over sets. The plain photo and the 15 best are the
templates. For each set they are chosen on the other three.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from promptboost.baselines import accuracy, pool_heads
from promptboost.config import FitConfig
from promptboost.data.dataset import Dataset
from promptboost.data.source import DataSource
from promptboost.encoders.embedder import Embedder
from promptboost.pool import TEMPLATES, build_pool, fill
from promptboost.training import PoolRows, PoolTexts, Trainer
from promptboost.training.examples import Examples
from promptboost.training.trainer import Fitted

SETS = ("intel_scenes", "dtd10", "emoji", "oxford_pets")
MOST_IMAGES, TRAINING, VIEWS = {"oxford_pets": 28}, 16, 4
_PHOTOS = (
    "close-up,cropped,sharp,blurry,bright,dark,black-and-white,color,small,large,good,clear,stock,product,"
    "studio,amateur,professional,old,documentary,travel"
)
_KINDS = (
    "a photo of,a snapshot of,a picture of,an image of,a photograph of,a close-up of,a detail of,a view of,"
    "a scene with,an example of,a picture showing,a photo showing,a photo that shows,this is,here is,"
    "a wide shot of,an aerial photo of,a portrait of,a landscape with"
)
_PLACES = (
    "in the picture,in the foreground,in the center of the picture,in the distance,seen from the front,"
    "seen from the side,seen from above,seen from behind,seen up close,seen from far away,"
    "on a plain background,on a white background,on a dark background,indoors,outdoors,in daylight,"
    "at night,in the shade,in the sun,against a blue sky,against a gray sky,in bright sunlight,at sunset,"
    "in winter,in the rain,in the fog,in the snow,by the water,in a garden,in a forest,in a city,"
    "on a street,in a village,on a table,on the ground,on a wall,in a room,in a park,"
    "with people,without people,with trees,with a person,in a frame,in soft light,in warm colors,"
    "in cold colors,in motion,filling the picture,close to the camera,far from the camera,"
    "in strong contrast,partly hidden"
)
CANDIDATES = (
    *(f"{kind} a {{}}." for kind in _KINDS.split(",")),
    *(f"a{'n' * (kind[0] in 'ao')} {kind} photo of a {{}}." for kind in _PHOTOS.split(",")),
    "a {}.",
    *(f"a {{}} {place}." for place in _PLACES.split(",")),
)


class ImageSet:
    """Embedded images of a set: 16 of each class to train on, the others to test."""

    def __init__(self, name: str, folder: Path, embedder: Embedder) -> None:
        self.embedder = embedder
        source = DataSource.parse("emoji" if name == "emoji" else str(folder / name))
        data = source.load(check=False)
        rng = np.random.default_rng(0)
        self.class_names = data.class_names
        by_class = [
            rng.permutation(np.flatnonzero(data.labels == k))[: MOST_IMAGES.get(name, 60)]
            for k in range(len(data.class_names))
        ]
        self.train = self._of(data, [rows[:TRAINING] for rows in by_class])
        test = self._of(data, [rows[TRAINING:] for rows in by_class])
        self.views = embedder.images(self.train, views=VIEWS)
        self.rows, self.labels = embedder.originals(test), test.labels

    @staticmethod
    def _of(data: Dataset, by_class: Sequence[np.ndarray]) -> Dataset:
        return data.subset(np.concatenate(by_class))

    def fit(self, templates: Sequence[str], shots: int, seed: int, *, residual: bool) -> Fitted:
        """Fit to some shots of a draw, with templates alone."""
        rng, labels = np.random.default_rng(seed), self.train.labels
        number = len(self.class_names)
        drawn = [rng.permutation(np.flatnonzero(labels == k))[:shots] for k in range(number)]
        rows = np.concatenate(drawn)
        views = self.views[rows]
        examples = Examples(views[:, 0], labels[rows], tuple(map(str, rows)), views=views[:, 1:])
        texts = PoolTexts.of(build_pool(self.class_names, templates=templates))
        pool = PoolRows.embed(texts, self.embedder)
        trainer = Trainer(FitConfig(seed=seed, residual=residual))
        return trainer.fit(examples, pool, [self.embedder])

    def weights(self) -> dict[str, float]:
        """Return the weight of each candidate in fitted texts."""
        weights: dict[str, float] = defaultdict(float)
        for shots, seed in ((4, 1), (4, 2), (16, 1)):
            ensemble = self.fit(CANDIDATES, shots, seed, residual=False).ensemble
            for name in self.class_names:
                template_of = {fill(template, name): template for template in CANDIDATES}
                for text, weight in ensemble.prompts(name).items():
                    weights[template_of[text]] += weight / len(self.class_names) / 3
        return weights

    def mean_accuracy(self, templates: Sequence[str]) -> float:
        """Return the accuracy of the mean of templates."""
        pool = build_pool(self.class_names, templates=templates)
        head = pool_heads(pool, self.embedder)["template-mean"]
        return accuracy(head.predict_index(self.rows), self.labels) or 0.0


def chosen(weights: Sequence[dict[str, float]], number: int = 16) -> list[str]:
    """Return the plain photo and the candidates with the largest mean weight."""
    plain, *others = CANDIDATES
    others.sort(key=lambda template: -sum(by_set.get(template, 0.0) for by_set in weights))
    return [plain, *others[: number - 1]]


def measured(
    images: ImageSet, templates: Sequence[str], seeds: Sequence[int]
) -> Iterator[tuple[float, ...]]:
    """Yield shots, then accuracy of the text and of text + residual, and prompts per class."""
    for shots in (1, 4, 16):
        for seed in seeds if shots < TRAINING else seeds[:1]:
            fitted = images.fit(templates, shots, seed, residual=True)
            heads = (fitted.head.without_residual(), fitted.head)
            figures = (100 * np.mean(h.predict_index(images.rows) == images.labels) for h in heads)
            yield (shots, *figures, fitted.ensemble.n_prompts / len(images.class_names))


def main() -> None:
    """Print the chosen templates, and the figures of both lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--others", type=Path, help="a file with other templates to compare with")
    args = parser.parse_args()
    embedder = Embedder.open("conse:lite0")
    sets = {name: ImageSet(name, args.folder, embedder) for name in SETS}
    weights = {name: images.weights() for name, images in sets.items()}
    best = chosen(list(weights.values()))
    print(f"{len(CANDIDATES)} candidates", *best, sep="\n")
    print("as in templates.txt:", set(best) == set(TEMPLATES))
    for name, images in sets.items():
        lists = {"chosen": chosen([weights[other] for other in SETS if other != name])}
        if args.others:
            lines = args.others.read_text().splitlines()
            lists["others"] = [line for line in lines if line and not line.startswith("#")]
        for title, templates in lists.items():
            print(f"{name}, {title}: mean of templates {100 * images.mean_accuracy(templates):.1f}")
            rows = np.array(list(measured(images, templates, (1, 2, 3))))
            for shots in (1, 4, 16):
                text, both, prompts = rows[rows[:, 0] == shots, 1:].mean(axis=0)
                print(
                    f"  {shots:2} shots: text {text:.1f}, + residual {both:.1f}, {prompts:.1f} prompts"
                )


if __name__ == "__main__":
    main()

"""How well copies of images are known again, and what is taken for a copy: on labeled images.

``python -m benchmarks.copies DATA [DATA …]`` changes some images in ways that keep what they show,
counts how many are known again, and lists the pairs that are found in the data as they are.
"""

import argparse
import io
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from promptboost.data import Dataset, LabeledImage, load_data
from promptboost.run.overlap import LEAST_COSINE, near_pairs, thumbnail_rows


def _saved(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _scaled(image: Image.Image, factor: float) -> bytes:
    size = round(image.width * factor), round(image.height * factor)
    return _saved(image.resize(size), 90)


def _cropped(image: Image.Image) -> bytes:
    width, height = image.width // 40, image.height // 40
    return _saved(image.crop((width, height, image.width - width, image.height - height)), 90)


CHANGES: dict[str, Callable[[Image.Image], bytes]] = {
    "JPEG, quality 75": lambda image: _saved(image, 75),
    "JPEG, quality 40": lambda image: _saved(image, 40),
    "half as large": lambda image: _scaled(image, 0.5),
    "twice as large": lambda image: _scaled(image, 2),
    "256 × 256": lambda image: _saved(image.resize((256, 256)), 90),
    "2.5 % cropped on each side": _cropped,
    "20 % brighter": lambda image: _saved(ImageEnhance.Brightness(image).enhance(1.2), 90),
    "mirrored": lambda image: _saved(ImageOps.mirror(image), 90),
}


def known_again(data: Dataset, count: int = 60) -> dict[str, tuple[float, float]]:
    """Return for each change the share that is known again, and the smallest cosine."""
    chosen = np.random.default_rng(0).choice(len(data), min(count, len(data)), replace=False)
    images = [data.images[i] for i in chosen]
    before = thumbnail_rows(images)
    found = {}
    for name, change in CHANGES.items():
        changed = [
            LabeledImage(image.id, image.label, change(LabeledImage("", "", image.source).open()))
            for image in images
        ]
        cosines = (before * thumbnail_rows(changed)).sum(axis=1)
        found[name] = float(np.mean(cosines >= LEAST_COSINE)), float(cosines.min())
    return found


def main() -> None:
    """Print both tables for each source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--shown", type=int, default=20, help="pairs that are listed")
    arguments = parser.parse_args()
    for source in arguments.data:
        data = load_data(source)
        print(f"{source}: {len(data)} images")
        for name, (share, least) in known_again(data).items():
            print(f"  {name:<28} {100 * share:5.1f} % known again, least cosine {least:.4f}")
        rows = thumbnail_rows(data.images)
        pairs = [pair for i, j in near_pairs(rows, 0.97) for pair in zip(i, j, strict=True)]
        cosines = np.array([rows[i] @ rows[j] for i, j in pairs])
        print(f"  pairs: {np.sum(cosines >= LEAST_COSINE)}")
        for k in np.argsort(cosines)[::1][-arguments.shown :]:
            i, j = pairs[k]
            same = data.images[i].digest() == data.images[j].digest()
            print(
                f"    {cosines[k]:.4f} {data.images[i].id} {data.images[j].id}", "same bytes" * same
            )


if __name__ == "__main__":
    main()

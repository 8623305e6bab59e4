"""How near the encoders of other libraries are to those libraries, with small random models.

    python -m benchmarks.parity              as a table
    python -m benchmarks.parity --real       also CLIP ViT-B/32 in its real size, and its speed
    python -m benchmarks.parity --json       one JSON object

For each family: the smallest cosine and the largest difference between embeddings of 100 images of noise
and of a few texts by the encoder, and by the reference. ``hf:`` and ``st:`` encoders are compared with the
library itself, ``onnx:`` encoders with the encoder that they were written from.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.encoders import Encoder, load_encoder
from promptboost.encoders.base import unit_rows
from promptboost.run.export import _TEXTS, _made_up, agreement, export_encoder
from tests.encoders.openclip.tiny_models import TINY, TINY_BOTH_WAYS, save_tiny_models
from tests.encoders.tiny_checkpoints import FAMILIES, save_sentence_transformer, save_tiny

TITLES = {
    "clip": "CLIP",
    "siglip": "SigLIP",
    "siglip2": "SigLIP 2",
    "naflex": "SigLIP 2 NaFlex",
    "metaclip2": "MetaCLIP 2",
    TINY: "CLIP of open_clip",
    TINY_BOTH_WAYS: "SigLIP of open_clip",
}
Encode = Callable[[Sequence[Any]], Any]
REAL = "ViT-B-32"


def compared(name: str, reference: str, encoder: Encoder, images: Encode, texts: Encode) -> Any:
    """Return a row of the table."""
    pictures = _made_up()
    checked = {
        "images": agreement(encoder.encode_images(pictures), images(pictures)),
        "texts": agreement(encoder.encode_texts(_TEXTS), texts(_TEXTS)),
    }
    return {"encoder": name, "reference": reference} | checked


def transformers_reference(folder: Path, family: str) -> tuple[Encode, Encode]:
    """Return what transformers itself makes of images and texts."""
    import torch
    import transformers as hub

    model: Any = hub.AutoModel.from_pretrained(folder).eval()
    tokenizer: Any = hub.AutoTokenizer.from_pretrained(folder)
    processor: Any = hub.AutoImageProcessor.from_pretrained(folder)

    def rows(features: Callable[..., Any], **inputs: Any) -> Any:
        with torch.inference_mode():
            return unit_rows(features(**inputs).pooler_output.numpy())

    def texts(given: Sequence[Any]) -> Any:
        if "siglip" not in model.config.model_type:
            return rows(
                model.get_text_features, **tokenizer(list(given), padding=True, return_tensors="pt")
            )
        lower = [text.lower() for text in given]
        padded = tokenizer(lower, padding="max_length", max_length=64, return_tensors="pt")
        return rows(model.get_text_features, input_ids=padded["input_ids"])

    def images(given: Sequence[Any]) -> Any:
        pictures = [image.convert("RGB") for image in given]
        return rows(model.get_image_features, **processor(images=pictures, return_tensors="pt"))

    return images, texts


def rows_of_the_table(folder: Path) -> Iterator[Any]:
    """Compare every family."""
    for family in FAMILIES:
        source = save_tiny(family, folder / family)
        encoder = load_encoder(f"hf:{source}", device="cpu")
        images, texts = transformers_reference(source, family)
        yield compared(f"`hf:` {TITLES[family]}", "transformers", encoder, images, texts)
    source = save_sentence_transformer(folder / "st")
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(str(source), device="cpu")
    encode = lambda given: model.encode(list(given), normalize_embeddings=True)  # noqa: E731
    encoder = load_encoder(f"st:{source}", device="cpu")
    yield compared("`st:` CLIP", "sentence-transformers", encoder, encode, encode)
    names = {family: f"hf:{folder / family}" for family in FAMILIES if family != "naflex"}
    files = save_tiny_models(folder)
    for family, name in {**names, **{n: f"{n}@{files[n]}" for n in (TINY, TINY_BOTH_WAYS)}}.items():
        yield written(f"`onnx:` {TITLES[family]}", name, folder / "onnx" / family)


def written(title: str, name: str, folder: Path) -> Any:
    """Compare towers with the encoder that they are written from."""
    done = export_encoder(name, folder)
    reference = "`hf:` encoder" if name.startswith("hf:") else "open_clip"
    return {"encoder": title, "reference": reference} | done.checked


def real(folder: Path, repeat: int) -> Iterator[Any]:
    """Compare CLIP in its real size, with random weights; measure images a second on all cores."""
    import open_clip
    from safetensors.torch import save_file

    file = folder / f"{REAL}.safetensors"
    save_file(open_clip.create_model(REAL).state_dict(), file)
    towers = folder / "real"
    row = written(f"`onnx:` {REAL}, real size", f"{REAL}@{file}", towers)
    images = _made_up()
    seconds: dict[str, list[float]] = {"open_clip": [], "onnx": []}
    encoders = {
        "open_clip": load_encoder(f"{REAL}@{file}", device="cpu"),
        "onnx": load_encoder(f"onnx:{towers}"),
    }
    for _ in range(repeat):
        for name, encoder in encoders.items():
            start = time.perf_counter()
            encoder.encode_images(images)
            seconds[name].append(time.perf_counter() - start)
    row["images_per_second"] = {n: len(images) / float(np.median(s)) for n, s in seconds.items()}
    row["megabytes"] = {
        path.name: round(path.stat().st_size / 1e6) for path in (towers / "onnx").iterdir()
    }
    yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="also a model of real size")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of the speed")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = list(rows_of_the_table(Path(temporary)))
        if options.real:
            rows += real(Path(temporary), options.repeat)
    if options.json:
        print(json.dumps(rows))
        return
    print("| encoder | compared with | images: cosine | difference | texts: cosine | difference |")
    print("|---|---|--:|--:|--:|--:|")
    for row in rows:
        cells = [
            f"{row[kind]['minimum_cosine']:.6f} | {row[kind]['largest_difference']:.0e}"
            for kind in ("images", "texts")
        ]
        print(f"| {row['encoder']} | {row['reference']} | {' | '.join(cells)} |")
    for row in rows:
        if "megabytes" in row:
            print(row["megabytes"], row["images_per_second"])


if __name__ == "__main__":
    main()

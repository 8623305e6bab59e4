"""Small copies of the pictures that a report shows."""

import base64
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from promptboost.data import Dataset, Picture, PictureError
from promptboost.files import write_text
from promptboost.runs.task import picture_ids

__all__ = ["pictures_shown", "thumbnail", "write_thumbnails"]

_SIDE = 96
_PAIRS_SHOWN = 12


def pictures_shown(metrics: dict[str, Any]) -> list[str]:
    """Name the pictures a report shows: of the most frequent confusions, and the hardest.

    Examples
    --------
    >>> pictures_shown({"confusions": [{"pictures": ["a"]}], "hardest": [{"picture": "b"}]})
    ['a', 'b']
    """
    names = [name for pair in metrics["confusions"][:_PAIRS_SHOWN] for name in pair["pictures"]]
    return list(dict.fromkeys([*names, *(item["picture"] for item in metrics["hardest"])]))


def thumbnail(picture: Picture) -> str:
    """Make a small JPEG of a picture, as an address that holds the data itself.

    Examples
    --------
    >>> from PIL import Image
    >>> thumbnail(Picture("0", "red", Image.new("RGB", (200, 100), "red")))[:30]
    'data:image/jpeg;base64,/9j/4AA'
    """
    image = picture.open()
    image.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def write_thumbnails(path: Path, names: Iterable[str], datasets: Iterable[Dataset]) -> None:
    """Write thumbnails of the named pictures; one that is gone by now is left out."""
    wanted = set(names)
    found: dict[str, str] = {}
    for data in datasets:
        for name, picture in zip(picture_ids(data), data.pictures, strict=True):
            if name in wanted and name not in found:
                try:
                    found[name] = thumbnail(picture)
                except PictureError:
                    continue
    write_text(path, json.dumps(found, ensure_ascii=False) + "\n")

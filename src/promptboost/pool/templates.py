"""Templates: sentences with one ``{}`` where the name of a class goes.

The list, ``data/templates.txt``, spans what changes between images of the same thing: the
kind of photograph, its quality, the viewpoint, the setting, and the ways a thing is drawn or made.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from promptboost.errors import MissingExtraError, PoolError
from promptboost.pool.text import clean, text_key

#: The one template of plain zero-shot classification.
PLAIN_TEMPLATE = "a photo of a {}."

_FILE = resources.files("promptboost.pool") / "data" / "templates.txt"
_LINES = _FILE.read_text(encoding="utf-8").splitlines()
TEMPLATES: tuple[str, ...] = tuple(line for line in _LINES if not line.startswith("#"))
"""The 80 templates promptboost comes with; the first one is the plain photograph."""

_ARTICLE_BEFORE_NAME = re.compile(r"\b([Aa]) \{\}")
# By sound, not by letter: "a unicorn", "a ukulele", "a euro", "a one-way sign", but "an hour".
_VOWEL_LETTER = re.compile(r"[aeiou]", re.IGNORECASE)
_SOUNDS_LIKE_YOU_OR_ONE = re.compile(
    r"eu|ewe|once|one\b|ubi|uk|uni(?!m|n)|ura|us[aeu]|ut[ei]", re.IGNORECASE
)
_SILENT_H = re.compile(r"heir|honest|honou?r|hour", re.IGNORECASE)


_IS = frozenset(
    ["a", "an", "covered", "found", "known", "located", "made", "served", "similar", "used"]
)
_VERB = frozenset(
    [
        *("are", "can", "has", "have", "is", "looks"),
        *("may", "often", "sometimes", "typically", "usually"),
    ]
)
_FIRST_WORD = re.compile(r"[^\W\d_]+(?![\w-])")


def fill(template: str, name: str) -> str:
    """Put the name of a class into a template.

    Underscores in the name become spaces. An "a" directly before the ``{}`` becomes "an" when
    the name begins with a vowel sound; nothing else of the template changes. This departs, on
    purpose, from CLIP's own scripts, which write "a photo of a apple.".

    Examples
    --------
    >>> fill("a photo of a {}.", "apple_pie")
    'a photo of an apple pie.'
    >>> fill("a photo of the {}.", "unicorn"), fill("a {} at night.", "unicorn")
    ('a photo of the unicorn.', 'a unicorn at night.')
    """
    words = clean(name.replace("_", " "), where=f"the class name {name!r}")
    if _begins_with_vowel_sound(words):
        template = _ARTICLE_BEFORE_NAME.sub(r"\1n {}", template)
    return template.replace("{}", words)


def connect(class_name: str, fragment: str) -> str:
    """Make a sentence of a class and a fragment, as DCLIP does.

    Unlike in DCLIP's code, "a", "an" and verbs are recognized as whole words: "antlers" is no "a".

    Examples
    --------
    >>> connect("owl", "a hooked beak"), connect("owl", "large eyes")
    ('owl, which is a hooked beak.', 'owl, which has large eyes.')
    """
    first = _FIRST_WORD.match(fragment)
    word = first[0].lower() if first else ""
    connector = "which is" if word in _IS else "which" if word in _VERB else "which has"
    return f"{class_name.replace('_', ' ')}, {connector} {fragment.rstrip(' .')}."


def check_templates(templates: Iterable[str]) -> tuple[str, ...]:
    """Return the templates cleaned, repeats left out, or say which one cannot be used."""
    if isinstance(templates, str):
        raise PoolError(f"templates must be a list of sentences, not one string: [{templates!r}]")
    kept: dict[str, str] = {}
    for number, template in enumerate(templates, start=1):
        text = clean(template, where=f"template {number}")
        if (count := text.count("{}")) != 1:
            raise PoolError(
                f"template {number} has {count} times {{}} where the class name goes, "
                f"it needs exactly one: {text!r}"
            )
        kept.setdefault(text_key(text), text)
    return tuple(kept.values())


def clip_templates() -> tuple[str, ...]:
    """Return the 80 ImageNet templates of CLIP, as open_clip has them."""
    return open_clip_words("OPENAI_IMAGENET_TEMPLATES")


@cache
def open_clip_words(name: str) -> tuple[str, ...]:
    """Return a list of class names or of templates that open_clip has under `name`.

    Its file of words is read and not run: the whole of open_clip takes seconds to import and needs
    torch, and nothing else of it is wanted here.
    """
    package = find_spec("open_clip")
    file = Path((package and package.origin) or "").parent / "zero_shot_metadata.py"
    if file.is_file():
        for node in ast.parse(file.read_bytes()).body:
            match node:
                case ast.Assign(targets=[ast.Name(found)], value=ast.Tuple(words)) if found == name:
                    return tuple(map(_word, words))
    try:
        import open_clip  # a release that keeps its words elsewhere
    except ImportError as error:
        raise MissingExtraError(
            "CLIP's own templates and class names come with open_clip, which is not installed: "
            "pip install 'promptboost[clip]'"
        ) from error
    return tuple(word if isinstance(word, str) else word("{}") for word in getattr(open_clip, name))


def _word(node: ast.expr) -> str:
    """Return a string of a source file, or what ``lambda c: f"a photo of a {c}."`` says of ``{}``."""
    if isinstance(node, ast.Lambda) and isinstance(node.body, ast.JoinedStr):
        parts = (
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.body.values
        )
        return "".join(map(str, parts))
    return str(ast.literal_eval(node))


def _begins_with_vowel_sound(name: str) -> bool:
    if _VOWEL_LETTER.match(name):
        return _SOUNDS_LIKE_YOU_OR_ONE.match(name) is None
    return _SILENT_H.match(name) is not None

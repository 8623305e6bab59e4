"""Templates: sentences with one ``{}`` where the name of a class goes, or ``{c}`` to use it as it is.

The list, ``data/templates.txt``, was chosen by measurement: see ``docs/results/accuracy.md``.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from promptboost.errors import MissingExtraError, PoolError, install_command
from promptboost.pool.grammar import article, has_determiner, without_determiner
from promptboost.pool.text import clean, plain_name, text_key

#: The one template of plain zero-shot classification.
PLAIN_TEMPLATE = "a photo of a {}."

_FILE = resources.files("promptboost.pool") / "data" / "templates.txt"
_LINES = _FILE.read_text(encoding="utf-8").splitlines()
TEMPLATES: tuple[str, ...] = tuple(line for line in _LINES if not line.startswith("#"))
"""The templates promptboost comes with; the first one is the plain photograph."""

#: The place of the class name as it is, without any change of the article.
LITERAL = "{c}"

_PLACE = re.compile(r"\{c?\}")
_ARTICLE_BEFORE_NAME = re.compile(r"\b([Aa]n?|[Tt]he) \{\}")
# Before these words and at the beginning, a noun phrase keeps its article: "a photo of {}.".
_BEFORE_PHRASE = re.compile(
    r"(?:^|[^\w\s]|\b(?:of|with|in|on|at|for|from|to|near|by|and|or|\w+ing)) ?$"
)

_IS = frozenset(
    ["a", "an", "covered", "found", "known", "located", "made", "served", "similar", "used"]
)
_VERB = frozenset(
    [
        *("are", "can", "has", "have", "is", "looks", "may"),
        *("often", "sometimes", "typically", "usually"),
    ]
)
_FIRST_WORD = re.compile(r"[^\W\d_]+(?![\w-])")


@lru_cache(maxsize=4096)  # a pool fills each template for every sentence
def fill(template: str, name: str) -> str:
    """Put the name of a class into a template.

    Underscores in the name become spaces. An article directly before ``{}`` fits the name: "an"
    before a vowel sound, none before plurals and mass nouns. A noun phrase such as "a pug dog" comes
    with its own article. With ``{c}`` the template stays as it is, as in CLIP's own scripts.

    Examples
    --------
    >>> fill("a photo of a {}.", "apple_pie"), fill("a photo of a {c}.", "apple_pie")
    ('a photo of an apple pie.', 'a photo of a apple pie.')
    >>> fill("a photo of a {}.", "buildings"), fill("a {} at night.", "unicorn")
    ('a photo of buildings.', 'a unicorn at night.')
    >>> fill("a photo of a {}.", "a pug dog"), fill("a photo of the small {}.", "a pug dog")
    ('a photo of a pug dog.', 'a photo of the small pug dog.')
    """
    words = clean(plain_name(name), where=f"the class name {name!r}")
    if LITERAL in template:
        return template.replace(LITERAL, words)
    start, _, end = template.partition("{}")
    if match := _ARTICLE_BEFORE_NAME.search(template):
        start = start[: match.start()]
        if match[1].lower() == "the" and not has_determiner(words):
            words = f"{match[1]} {words}"
        elif match[1].lower() != "the":
            words = article(words) + words
        if match[1][0].isupper():
            words = words[0].upper() + words[1:]
    elif not _BEFORE_PHRASE.search(start):
        words = without_determiner(words)
    return start + words + end


def plain_template(templates: Iterable[str]) -> str:
    """Return the template of plain zero-shot classification, as CLIP's scripts fill it if they are used."""
    literal = PLAIN_TEMPLATE.replace("{}", LITERAL)
    return literal if literal in templates else PLAIN_TEMPLATE


def places(template: str) -> int:
    """Count the places for a class name, ``{}`` or ``{c}``."""
    return len(_PLACE.findall(template))


def connect(class_name: str, fragment: str) -> str:
    """Make a sentence of a class and a fragment, as DCLIP does.

    Unlike in DCLIP's code, "a", "an" and verbs are recognized as whole words: "antlers" is no "a".
    """
    first = _FIRST_WORD.match(fragment)
    word = first[0].lower() if first else ""
    connector = "which is" if word in _IS else "which" if word in _VERB else "which has"
    return f"{plain_name(class_name)}, {connector} {fragment.rstrip(' .')}."


def check_templates(templates: Iterable[str]) -> tuple[str, ...]:
    """Return the templates cleaned and without repeats; raise PoolError if one is unusable."""
    if isinstance(templates, str):
        raise PoolError(f"templates must be a list of sentences, not one string: [{templates!r}]")
    first: dict[str, str] = {}
    for number, template in enumerate(templates, start=1):
        text = clean(template, where=f"template {number}")
        if (count := places(text)) != 1:
            raise PoolError(
                f"template {number} has {count} times {{}} where the class name goes, "
                f"it needs exactly one: {text!r}"
            )
        first.setdefault(text_key(text), text)
    return tuple(first.values())


def clip_templates() -> tuple[str, ...]:
    """Return the 80 ImageNet templates of CLIP, as open_clip has them, to be filled literally."""
    return tuple(t.replace("{}", LITERAL) for t in open_clip_words("OPENAI_IMAGENET_TEMPLATES"))


@cache
def open_clip_words(name: str) -> tuple[str, ...]:
    """Return a list of class names or of templates that open_clip has under `name`.

    Its source file is parsed, as importing open_clip takes seconds and needs torch.
    """
    package = find_spec("open_clip")
    file = Path((package and package.origin) or "").parent / "zero_shot_metadata.py"
    if file.is_file():
        for node in ast.parse(file.read_bytes()).body:
            match node:
                case ast.Assign(targets=[ast.Name(id)], value=ast.Tuple(words)) if id == name:
                    return tuple(map(_word, words))
    try:
        import open_clip  # a release with other files
    except ImportError as error:
        raise MissingExtraError(
            "CLIP's own templates and class names come with open_clip, which is not installed: "
            f"{install_command('clip')}"
        ) from error
    return tuple(word if isinstance(word, str) else word("{}") for word in getattr(open_clip, name))


def _word(node: ast.expr) -> str:
    """Return a string literal, or ``a photo of a {}.`` for ``lambda c: f"a photo of a {c}."``."""
    if isinstance(node, ast.Lambda) and isinstance(node.body, ast.JoinedStr):
        pieces = node.body.values
        return "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in pieces)
    return str(ast.literal_eval(node))

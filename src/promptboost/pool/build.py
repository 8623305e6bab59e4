"""A pool from class names, templates and descriptions: which prompts a class gets, in which order."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Literal, get_args

from promptboost.errors import FileFormatError, PoolError, SettingError, a_type, few
from promptboost.pool.names import check_class_names, resolve
from promptboost.pool.pool import PromptPool
from promptboost.pool.products import ClassPrompts, Product, sentences_of
from promptboost.pool.templates import PLAIN_TEMPLATE, TEMPLATES, check_templates, fill
from promptboost.pool.text import clean, is_listed

Concatenate = Literal["none", "one", "all"]

Sentences = Mapping[str, Sequence[str]]
"""Sentences by class."""


def build_pool(
    class_names: Sequence[str],
    *,
    templates: Sequence[str] | None = None,
    descriptions: Sentences | Mapping[str, Sentences] | None = None,
    concatenate: Concatenate = "none",
    concatenation_template: str = PLAIN_TEMPLATE,
    source: str = "descriptions",
    sources: Sequence[str] | None = None,
) -> PromptPool:
    """Make a pool from class names, templates and sentences about the classes.

    A class has its filled templates first, then its descriptions, then the concatenations of
    both. A prompt that differs from an earlier one of its class only in case or white space is
    left out.

    Parameters
    ----------
    class_names : sequence of str
        Distinct names, in the order of the labels.
    templates : sequence of str, optional
        Sentences with one ``{}``; ours by default, none if empty.
    descriptions : mapping of str to sequence of str, or mapping of such mappings, optional
        Sentences by class; or several such mappings by the name of their source. Names meet as in
        :func:`resolve`. Without templates every class needs some.
    concatenate : {"none", "one", "all"}, default="none"
        Also follow a filled template by each description: `concatenation_template`, or every one.
    source : str, default="descriptions"
        What prompts from `descriptions` without a source say they come from.
    sources : sequence of str, optional
        Which sources of `descriptions` to take, in this order; all of them by default.

    Examples
    --------
    >>> pool = build_pool(
    ...     ["owl", "flamingo"],
    ...     templates=["a photo of a {}."],
    ...     descriptions={"Owl": ["large round eyes"], "Flamingo": ["a long pink neck"]},
    ...     concatenate="one",
    ... )
    >>> pool
    <PromptPool: 2 classes, 6 prompts>
    >>> pool.texts("owl")
    ('a photo of an owl.', 'large round eyes', 'a photo of an owl. large round eyes')
    >>> pool.template_texts()
    [['a photo of an owl.'], ['a photo of a flamingo.']]

    Pools of some of the sources, to see what each is worth:

    >>> files = {"CuPL": {"owl": ["an owl has round eyes"]}, "DCLIP": {"owl": ["a hooked beak"]}}
    >>> build_pool(["owl"], descriptions=files, sources=("CuPL",)).prompts_by_source
    {'template': 80, 'CuPL': 1}
    """
    names = check_class_names(class_names)
    shared = TEMPLATES if templates is None else check_templates(templates)
    joining = _joining_templates(concatenate, shared, concatenation_template)
    by_source = _by_source(descriptions, clean(source, where="source"), sources)
    sentences: dict[str, dict[str, list[str]]] = {name: {} for name in names}
    unused: dict[str, None] = {}
    for origin, by_class in by_source.items():
        matched, strange = sentences_by_class(names, by_class)
        for name, texts in matched.items():
            sentences[name][origin] = texts
        unused |= dict.fromkeys(strange)
    missing = tuple(name for name in names if not sentences[name])
    if joining and len(missing) == len(names):
        raise PoolError(
            f"concatenate={concatenate!r} needs descriptions, and no class has any: "
            "give descriptions, or concatenate='none'"
        )
    if not shared and missing:
        raise PoolError(
            f"no prompts for the class {few([repr(name) for name in missing], 1)}: add descriptions "
            "under that name, or use templates"
        )
    return PromptPool(
        class_names=names,
        templates=shared,
        prompts_by_class=tuple(
            ClassPrompts(_compose(name, shared, sentences[name], joining)).distinct()
            for name in names
        ),
        missing=missing if descriptions is not None else (),
        unused=tuple(unused),
    )


def _by_source(
    descriptions: Sentences | Mapping[str, Sentences] | None,
    source: str,
    wanted: Sequence[str] | None,
) -> dict[str, Sentences]:
    by_source: dict[str, Sentences] = {}
    flat: dict[str, Sequence[str]] = {}
    for key, value in (descriptions or {}).items():
        if isinstance(value, Mapping):
            name = clean(key, where="the name of a source")
            if name in by_source:
                raise PoolError(f"two sources are called {name!r}: rename one")
            by_source[name] = value
        else:
            flat[key] = value
    if by_source and flat:
        raise PoolError(
            f"the descriptions mix sources and classes: {next(iter(by_source))!r} has sentences by "
            f"class, {next(iter(flat))!r} is a list; give one or the other"
        )
    if not by_source:
        by_source = {source: flat}
    if taken := {"template", "concat"} & by_source.keys():
        raise PoolError(
            f"a source cannot be called {taken.pop()!r}, which has a meaning of its own"
        )
    return by_source if wanted is None else _choose_sources(by_source, wanted)


def _choose_sources(
    by_source: Mapping[str, Sentences], names: Sequence[str]
) -> dict[str, Sentences]:
    """Take some of the sources, in the order wanted, or say which one there is not."""
    if isinstance(names, str):
        raise SettingError(f"sources must be a list of names, not one string: [{names!r}]")
    for name in names:
        if name not in by_source:
            raise SettingError(f"there is no source {name!r}; there is {', '.join(by_source)}")
    return {name: by_source[name] for name in names}


def _compose(
    name: str,
    templates: tuple[str, ...],
    sentences: Mapping[str, Sequence[str]],
    joining: tuple[str, ...],
) -> Iterator[Product]:
    filled = tuple(fill(template, name) for template in templates)
    yield Product("template", templates, filled, (None,))
    products = {source: sentences_of(source, texts) for source, texts in sentences.items()}
    yield from products.values()
    starts = filled if joining == templates else tuple(fill(each, name) for each in joining)
    for source, product in products.items():
        yield Product("concat", joining, starts, product.sentences, origin=source)


def _joining_templates(
    concatenate: str, templates: tuple[str, ...], concatenation_template: str
) -> tuple[str, ...]:
    if concatenate not in get_args(Concatenate):
        raise SettingError(f"concatenate must be 'none', 'one' or 'all', not {concatenate!r}")
    if concatenate == "one":
        return check_templates([concatenation_template])
    if concatenate == "all" and not templates:
        raise PoolError("concatenate='all' needs templates: give some, or concatenate='one'")
    return templates if concatenate == "all" else ()


def read_descriptions(path: str | Path) -> dict[str, list[str]]:
    r"""Read sentences about classes from a file of one's own, all of which must be good.

    :func:`read_sources` reads the same files, and those that others released, and leaves out what
    nobody can use.

    The file is ``{"class": ["sentence", …], …}``; or, if its name ends in ``.jsonl``, one
    ``{"class": "…", "text": "…"}`` a line; or a table in ``.csv``, ``.tsv`` or ``.txt``.

    Examples
    --------
    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.json")
    ...     _ = path.write_text(json.dumps({"owl": ["large round eyes", "a hooked beak"]}))
    ...     read_descriptions(path)
    {'owl': ['large round eyes', 'a hooked beak']}
    """
    from promptboost.pool.readers import read_source

    path = Path(path)
    if not path.is_file():
        raise PoolError(f"cannot read the descriptions {path}: No such file")
    source = read_source(path, "plain")
    problems = [item.why for item in source.refused]
    problems += [f"the class {name!r} has a blank sentence" for name in source.blank]
    if problems:
        raise FileFormatError(
            f"{path}: {problems[0]}; to have blank and damaged sentences left out, type: "
            f"promptboost pool build {quote(str(path))} --classes DATA -o clean.json"
        )
    return {name: list(sentences) for name, sentences in source.sentences.items()}


def emoji_descriptions() -> dict[str, list[str]]:
    """Return the sentences promptboost comes with, for the 20 classes of the emoji dataset.

    Examples
    --------
    >>> sentences = emoji_descriptions()
    >>> len(sentences), min(map(len, sentences.values())) >= 40
    (20, True)
    """
    file = resources.files("promptboost.pool") / "data" / "emoji.json"
    with resources.as_file(file) as path:
        return read_descriptions(path)


def sentences_by_class(
    class_names: Sequence[str], descriptions: Sentences
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Find the sentences of each class, names meeting as in :func:`resolve`."""
    met = resolve(class_names, descriptions)
    met.check_clear("the descriptions")
    by_class: dict[str, list[str]] = {}
    for match in met.matches:
        label = f"the class {match.entry!r}"
        if sentences := _check_sentences(descriptions[match.entry], label):
            by_class.setdefault(match.class_name, []).extend(sentences)
    return by_class, met.unused


def _check_sentences(sentences: object, owner: str) -> list[str]:
    if not is_listed(sentences):
        raise PoolError(
            f'{owner} needs a list of sentences, not {a_type(sentences)}: write ["sentence", …]'
        )
    return [
        clean(sentence, where=f"sentence {number} of {owner}")
        for number, sentence in enumerate(sentences, start=1)
    ]

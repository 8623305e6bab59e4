"""Making a pool: which prompts a class gets, in which order."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

from promptboost.errors import PoolError, SettingError
from promptboost.pool.descriptions import match_descriptions
from promptboost.pool.pool import Prompt, PromptPool
from promptboost.pool.templates import TEMPLATES, check_templates, fill
from promptboost.pool.text import clean, control_character, name_key, text_key

__all__ = ["Concatenate", "build_pool"]

Concatenate = Literal["none", "one", "all"]


def build_pool(
    class_names: Sequence[str],
    *,
    templates: Sequence[str] | None = None,
    descriptions: Mapping[str, Sequence[str]] | None = None,
    concatenate: Concatenate = "none",
    concatenation_template: str = "a photo of a {}.",
    source: str = "descriptions",
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
    descriptions : mapping of str to sequence of str, optional
        Sentences by class, as :func:`read_descriptions` returns them. Names meet as in
        :func:`match_descriptions`. Without templates every class needs some.
    concatenate : {"none", "one", "all"}, default="none"
        Also follow a filled template by each description: not at all, one template only, or
        every template.
    concatenation_template : str, default="a photo of a {}."
        The one template of ``concatenate="one"``.
    source : str, default="descriptions"
        What the prompts taken from `descriptions` say they come from, for example
        ``"descriptions:emoji.json"``.

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
    ['a photo of an owl.', 'large round eyes', 'a photo of an owl. large round eyes']
    >>> pool.template_texts()
    [['a photo of an owl.'], ['a photo of a flamingo.']]
    """
    names = _check_class_names(class_names)
    shared = TEMPLATES if templates is None else check_templates(templates)
    joining = _joining_templates(concatenate, shared, concatenation_template)
    origin = clean(source, where="source")
    match = match_descriptions(names, descriptions or {})
    if joining and not match.matched:
        raise PoolError(
            f"concatenate={concatenate!r} needs descriptions, and no class has any: "
            "give descriptions, or concatenate='none'"
        )
    if not shared and match.missing:
        raise PoolError(
            f"no prompts for the class {match.missing[0]!r}"
            + (f" and {len(match.missing) - 1} more" if len(match.missing) > 1 else "")
            + ": add descriptions under that name, or use templates"
        )
    return PromptPool(
        class_names=names,
        templates=shared,
        prompts_by_class=tuple(
            _distinct(_compose(name, shared, match.matched.get(name, []), joining, origin))
            for name in names
        ),
        missing=match.missing if descriptions is not None else (),
        unused=match.unused,
    )


def _compose(
    name: str,
    templates: Sequence[str],
    sentences: Sequence[str],
    joining: Sequence[str],
    source: str,
) -> Iterator[Prompt]:
    for template in templates:
        yield Prompt(fill(template, name), "template", template=template)
    for sentence in sentences:
        yield Prompt(sentence, source, sentence=sentence)
    for template in joining:
        start = fill(template, name)
        for sentence in sentences:
            yield Prompt(f"{start} {sentence}", "concat", template=template, sentence=sentence)


def _distinct(prompts: Iterator[Prompt]) -> tuple[Prompt, ...]:
    first: dict[str, Prompt] = {}
    for prompt in prompts:
        first.setdefault(text_key(prompt.text), prompt)
    return tuple(first.values())


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


def _check_class_names(class_names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(class_names, str):
        raise PoolError(f"class_names must be a list of names, not one string: [{class_names!r}]")
    seen: dict[str, str] = {}
    for number, name in enumerate(class_names, start=1):
        clean(name, where=f"class name {number}")
        # A name is kept as it is, so here not even the line breaks that clean() folds may pass.
        if control := control_character(name):
            raise PoolError(f"class name {number} contains the character {control}: {name!r}")
        # Such names fill every template with the same words: no prompt could tell them apart.
        if (key := name_key(name)) in seen:
            raise PoolError(
                f"two classes have the same name, {seen[key]!r} and {name!r} (case, underscores "
                "and hyphens do not count): rename one"
            )
        seen[key] = name
    if not seen:
        raise PoolError("there are no classes: class_names is empty")
    return tuple(str(name) for name in seen.values())

"""The sentences of a pool by where they come from."""

from promptboost.errors import PoolError
from promptboost.pool import Prompt, PromptPool, from_sources
from promptboost.pool.source_names import goes_by

__all__ = ["TEMPLATE", "of_sources", "sentence_sources", "sentences"]

#: What filled templates say they come from.
TEMPLATE = "template"
#: What a template and a sentence put together say they come from.
CONCAT = "concat"


def sentence_sources(pool: PromptPool, wanted: str = "") -> list[str]:
    """Name where the pool's sentences come from, without templates.

    Parameters
    ----------
    pool : PromptPool
        All there is.
    wanted : str
        Names of sources with commas between them, in any case; the first word of the part behind
        a colon is enough: ``proapo:CuPL_full`` is also ``cupl``. Empty for all.

    Raises
    ------
    PoolError
        If there is no such source; the message says which there are.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> files = {"proapo:CuPL_full": {"owl": ["big eyes"]}, "DCLIP": {"owl": ["a beak"]}}
    >>> pool = build_pool(["owl"], descriptions=files)
    >>> sentence_sources(pool), sentence_sources(pool, "cupl")
    (['proapo:CuPL_full', 'DCLIP'], ['proapo:CuPL_full'])
    """
    there = [source for source in pool.prompts_by_source if source not in (TEMPLATE, CONCAT)]
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        return there
    found = {source for name in names for source in _matching(there, name)}
    return [source for source in there if source in found]


def of_sources(pool: PromptPool, wanted: str) -> PromptPool:
    """Keep the templates and the sentences of some sources, named as in :func:`sentence_sources`.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> files = {"CuPL_full": {"owl": ["big eyes"]}, "DCLIP": {"owl": ["a beak"]}}
    >>> pool = build_pool(["owl"], descriptions=files)
    >>> of_sources(pool, "cupl").prompts_by_source
    {'template': 80, 'CuPL_full': 1}
    """
    if not wanted:
        return pool
    kept = sentence_sources(pool, wanted)
    # A pool may be made of sentences alone.
    return from_sources(pool, [*(t for t in pool.prompts_by_source if t == TEMPLATE), *kept])


def sentences(pool: PromptPool, wanted: str) -> list[list[Prompt]]:
    """Give the sentences of some sources for each class, without templates and concatenations.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> pool = build_pool(["owl", "bat"], descriptions={"CuPL": {"owl": ["big eyes"]}})
    >>> [[prompt.text for prompt in own] for own in sentences(pool, "cupl")]
    [['big eyes'], []]
    """
    names = set(sentence_sources(pool, wanted))
    return [
        [p for p in prompts if p.source in names and p.template is None]
        for prompts in pool.prompts_by_class
    ]


def _matching(there: list[str], wanted: str) -> list[str]:
    found = [name for name in there if goes_by(name, wanted)]
    if not found:
        has = f"it has {', '.join(there)}" if there else "it has templates only"
        raise PoolError(
            f"the pool has no sentences from {wanted!r}; {has}. Build one with the file that has them: "
            "promptboost pool build --help"
        )
    return found

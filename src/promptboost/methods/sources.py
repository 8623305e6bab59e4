"""The sentences of a pool by where they come from."""

from collections.abc import Sequence

from promptboost.errors import PoolError
from promptboost.pool import Prompt, PromptPool, from_sources

__all__ = ["TEMPLATE", "of_sources", "sentences", "sentence_sources"]

#: What filled templates say they come from.
TEMPLATE = "template"
#: What a template and a sentence put together say they come from.
CONCAT = "concat"


def sentence_sources(pool: PromptPool) -> list[str]:
    """Name where the pool's sentences come from, without templates.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> sentence_sources(build_pool(["owl"], descriptions={"CuPL": {"owl": ["big eyes"]}}))
    ['CuPL']
    """
    return [source for source in pool.prompts_by_source if source not in (TEMPLATE, CONCAT)]


def of_sources(pool: PromptPool, wanted: str) -> PromptPool:
    """Keep the templates and the sentences of some sources.

    Parameters
    ----------
    pool : PromptPool
        All there is.
    wanted : str
        Names of sources with commas between them, in any case; the beginning of a name is enough.
        Empty for all.

    Raises
    ------
    PoolError
        If there is no such source; the message says which there are.

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
    kept = [name for one in wanted.split(",") for name in _matching(pool, one.strip())]
    return from_sources(pool, [TEMPLATE, *dict.fromkeys(kept)])


def sentences(pool: PromptPool, wanted: str) -> list[list[Prompt]]:
    """Give the sentences of some sources for each class, without templates and concatenations."""
    names = set(_matching(pool, wanted)) if wanted else set(sentence_sources(pool))
    return [
        [p for p in prompts if p.source in names and p.template is None]
        for prompts in pool.prompts_by_class
    ]


def _matching(pool: PromptPool, wanted: str) -> Sequence[str]:
    there = sentence_sources(pool)
    found = [name for name in there if name.lower().startswith(wanted.lower())]
    if not found:
        has = f"it has {', '.join(there)}" if there else "it has templates only"
        raise PoolError(
            f"the pool has no sentences from {wanted!r}; {has}. Build one with the file that has them: "
            "promptboost pool build --help"
        )
    return found

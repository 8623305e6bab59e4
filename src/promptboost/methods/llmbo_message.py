"""What LLMbo says to a language model, and what it takes from the reply. The wording is our own."""

from collections.abc import Sequence

from promptboost.errors import PoolError
from promptboost.pool.llm.cleaning import clean_reply
from promptboost.pool.templates import check_templates

__all__ = ["BULLET", "message", "read_templates"]

#: What every template in a message or a reply begins with.
BULLET = "- "

_MESSAGE = """\
A model looks at a picture and picks the sentence that fits it best. The sentences are all made from \
one template: the name of each kind of thing is put where the template has {{}}. Which template is \
used decides how often the model is right.

With these templates it is right most often:
{good}

With these templates it is wrong most often:
{bad}

Find out what the first ones have in common that the others lack. Then write {count} new \
{templates} with which the model is right more often than with any of them. Keep to the form of the \
first ones, use {{}} exactly once, and use fewer than 15 words. Answer with nothing but \
{templates}, each on a line of its own that begins with "{bullet}"."""


def message(good: Sequence[str], bad: Sequence[str], count: int) -> str:
    """Show the best and the worst templates so far and ask for better ones.

    Examples
    --------
    >>> text = message(["a photo of a {}."], ["a huge {}.", "a tiny {}."], 1)
    >>> [line for line in text.splitlines() if line.startswith(BULLET)]
    ['- a photo of a {}.', '- a huge {}.', '- a tiny {}.']
    """
    return _MESSAGE.format(
        good="\n".join(BULLET + one for one in good),
        bad="\n".join(BULLET + one for one in bad),
        count=count,
        templates="template" if count == 1 else "templates",
        bullet=BULLET,
    )


def read_templates(reply: str, most: int, *, cut_off: bool = False) -> list[str] | None:
    r"""Take the templates out of a reply; None if it is not as it should be.

    A reply is text from outside: what is not to be read in it goes, as it does from replies for a
    pool. Beyond that the rule is the authors': a template is a line with a dash before it, and one
    line that has not exactly one ``{}`` spoils the reply.

    Parameters
    ----------
    reply : str
        What the model said.
    most : int
        How many were asked for; more are left out.
    cut_off : bool, default=False
        The reply ended in the middle of its last line, which is left out.

    Examples
    --------
    >>> read_templates("Here is one:\n- a **clear** photo of a {}.", 1)
    ['a clear photo of a {}.']
    >>> read_templates("- a clear photo.", 1) is None, read_templates("a photo of a {}.", 1) is None
    (True, True)
    """
    lines = reply.splitlines()
    if cut_off:
        lines = lines[:-1]
    # What a model thinks aloud has lines with dashes too; cleaning the whole takes it out.
    said = set(clean_reply("\n".join(lines)).sentences)
    found = [
        sentence
        for line in lines
        if line.startswith(BULLET)
        for sentence in clean_reply(line).sentences
        if sentence in said
    ]
    try:
        return [_checked(one) for one in found][:most] or None
    except PoolError:
        return None


def _checked(template: str) -> str:
    (kept,) = check_templates([template])
    if set("{}") & set(kept.replace("{}", "")):
        raise PoolError(f"{kept!r} has braces of another kind")
    return kept

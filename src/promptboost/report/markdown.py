"""Text inside Markdown, so that it stays text."""

import re

__all__ = ["fenced", "plain"]

_MARKS = re.compile(r"[\\`*_\[\]<>|~&$#]")
_ADDRESS = re.compile(r"(?i)(:|www)(//|\.)")


def plain(text: str) -> str:
    r"""Escape text that stands within a line.

    Examples
    --------
    >>> plain("a *big* <b>cat</b>\n| see http://x.y")
    'a \\*big\\* \\<b\\>cat\\</b\\> \\| see http:\\//x.y'
    """
    line = " ".join(text.split())
    line = _MARKS.sub(lambda match: "\\" + match[0], line)
    # Some renderers make links of bare addresses; a prompt should not become one.
    return _ADDRESS.sub(r"\1\\\2", line)


def fenced(code: str, language: str = "") -> str:
    """Set code between fences longer than any row of backticks in it.

    Examples
    --------
    >>> print(fenced("ls", "console"))
    ```console
    ls
    ```
    """
    longest = max((len(row) for row in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"

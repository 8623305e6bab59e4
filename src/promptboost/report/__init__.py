"""The report: a run as one page to read and one card to pass on.

:func:`write_report` makes ``report.html`` and :func:`write_card` makes ``README.md``. Both read
only the files of the run folder, so they can be made again at any time, on any machine.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptboost.report.page import write_card, write_report

__all__ = ["write_card", "write_report"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from promptboost.report import page

        return getattr(page, name)
    raise AttributeError(f"module 'promptboost.report' has no attribute {name!r}")

"""The report: a run as one page to read and one card to pass on.

:func:`write_report` makes ``report.html`` and :func:`write_card` makes ``README.md``. Both read
only the files of the run folder, so they can be made again at any time, on any machine.
"""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.report.page import write_card, write_report

__all__ = ["write_card", "write_report"]


__getattr__ = on_first_use(__name__, {"page": __all__})

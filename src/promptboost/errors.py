"""Everything promptboost raises on purpose.

All errors derive from :class:`PromptBoostError`. Those that also derive from :class:`ValueError`
are about what the caller gave; each message says what is wrong, where, and what to do next.
"""

__all__ = [
    "PromptBoostError",
    "InputError",
    "EmbeddingError",
    "LabelError",
    "WeightError",
    "PoolError",
    "SettingError",
    "FileFormatError",
    "DataError",
    "EncoderError",
    "MissingExtraError",
    "StoreError",
    "RunError",
]


class PromptBoostError(Exception):
    """Base class of all errors promptboost raises on purpose."""


class InputError(PromptBoostError, ValueError):
    """Something the caller gave cannot be used."""


class EmbeddingError(InputError):
    """Rows of vectors are not finite, not of unit length, or of the wrong shape or type."""


class LabelError(InputError):
    """Labels do not fit the classes: one class only, a class without pictures, a repeated name."""


class WeightError(InputError):
    """Sample weights are negative, not finite, all zero, or of the wrong length."""


class PoolError(InputError):
    """The prompt pool is empty, or has no prompts for a class, or is badly formed."""


class SettingError(InputError):
    """An option has a value it cannot have."""


class FileFormatError(InputError):
    """A file is cut off, of a later version, or not of the kind it should be."""


class DataError(InputError):
    """Pictures or a manifest cannot be used."""


class EncoderError(PromptBoostError):
    """An encoder is unknown, cannot be loaded, or cannot do what is asked."""


class MissingExtraError(EncoderError, ImportError):
    """An optional part of promptboost is not installed; the message has the command to type."""


class StoreError(PromptBoostError):
    """The embedding store on disk cannot be read or written."""


class RunError(PromptBoostError):
    """A run folder cannot be used as asked: it exists, is missing a part, or was made otherwise."""

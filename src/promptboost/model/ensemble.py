"""PromptEnsemble: the fitted classifier, as text."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from promptboost.errors import FileFormatError, InputError, SettingError
from promptboost.io import read_bytes, steady, write_text
from promptboost.model import edits, schema
from promptboost.model.notebook import card, sizes
from promptboost.model.schema import Scalar, read_record, write_record

if TYPE_CHECKING:
    from promptboost.encoders.base import Encoder
    from promptboost.encoders.embedder import TextSource
    from promptboost.model.head import Head

#: The text of a run, and the weights of the images at the end of its fit.
ENSEMBLE_FILE, WEIGHTS_FILE = "ensemble.json", "weights.json"


@dataclass(frozen=True)
class Round:
    """One weak classifier: a bank of prompts for every class.

    Parameters
    ----------
    template : str
        The template the round began with, for example ``"a photo of a {}."``.
    banks : mapping of str to mapping of str to int
        Class name → {prompt: copies}. A class scores the mean cosine over its copies.
    error : float
        Weighted error on the views the round was composed on, when it was finished.
    template_error : float
        The same error with the template alone.
    composer : str, default="greedy"
        How the banks were composed.
    objective, gap : float, optional
        The final objective of the gradient composer and its certificate: no weighting of the pool's
        prompts has an objective lower by more than the gap.

    Examples
    --------
    >>> banks = {"cat": {"a cat.": 2, "a tabby asleep.": 1}, "dog": {"a dog.": 1}}
    >>> Round("a {}.", banks, error=0.1, template_error=0.3).banks["cat"]
    {'a cat.': 2, 'a tabby asleep.': 1}
    """

    template: str
    banks: Mapping[str, Mapping[str, int]]
    error: float
    template_error: float
    composer: str = "greedy"
    objective: float | None = None
    gap: float | None = None

    def checked(self, class_names: tuple[str, ...], where: str) -> "Round":
        """Check the fields against the ensemble the round is in; return them as plain types."""
        return Round(
            template=schema.as_text(self.template, f"{where}.template"),
            banks=schema.as_banks(self.banks, class_names, f"{where}.banks"),
            error=schema.as_number(self.error, f"{where}.error"),
            template_error=schema.as_number(self.template_error, f"{where}.template_error"),
            composer=schema.as_text(self.composer, f"{where}.composer"),
            objective=schema.as_optional_number(self.objective, f"{where}.objective"),
            gap=schema.as_optional_number(self.gap, f"{where}.gap"),
        )

    def record(self) -> dict[str, Any]:
        """Return the fields in the order of the file."""
        numbers = ("vote", "template_error", "error", "objective", "gap")
        names = ("template", "composer", *numbers, "banks")
        return {name: getattr(self, name, schema.VOTE) for name in names}


@dataclass(frozen=True)
class EncoderRecord:
    """An encoder that a text was learned on, with the scale that the fit chose, and its own."""

    id: str
    fingerprint: str | None = None
    logit_scale: float | None = None
    encoder_logit_scale: float | None = None  # the factor of the encoder itself

    @classmethod
    def of(cls, encoder: "Encoder") -> "EncoderRecord":
        """Describe an encoder before the fit."""
        return cls(encoder.id, encoder.fingerprint, encoder_logit_scale=encoder.logit_scale)

    def checked(self, where: str) -> "EncoderRecord":
        """Check the fields; return them as plain types."""
        fingerprint = self.fingerprint
        return EncoderRecord(
            schema.as_text(self.id, f"{where}.id"),
            None if fingerprint is None else schema.as_text(fingerprint, f"{where}.fingerprint"),
            *(
                schema.as_optional_number(getattr(self, name), f"{where}.{name}", positive=True)
                for name in ("logit_scale", "encoder_logit_scale")
            ),
        )


class _MissingFileError(InputError, FileNotFoundError):
    """A missing file, as an InputError and a FileNotFoundError."""


@dataclass(frozen=True)
class PromptEnsemble:
    """A classifier made of sentences: rounds × classes × {prompt: copies}.

    It is plain data, kept as JSON. Each editing method returns a new ensemble with one more line of
    history. An encoder turns it into a :class:`~promptboost.Head` that classifies; another
    encoder turns the same text into another head: that is transfer.

    Parameters
    ----------
    class_names : sequence of str
        Two or more, each once.
    rounds : sequence of Round
        One or more.
    temperature : float, default=1.0
        Of the softmax over mean cosines; the same in all rounds.
    encoder_id, encoder_fingerprint : str, optional
        The encoder it was fitted on.
    pool_fingerprint : str, optional
        The pool its prompts come from.
    settings : mapping of str to scalar
        Settings of the fit.
    versions : mapping of str to str
        Software it was fitted with.
    history : sequence of str
        The edits since, oldest first.
    sample_weights : mapping of str to float
        Image id → boosting weight at the end of the fit. Not compared, not in the fingerprint, and not
        written by default.
    logit_scale : float, optional
        Factor on the mean scores before the softmax that makes probabilities of them, chosen by the
        fit. None in ensembles of earlier versions: then it is the encoder's own.
    encoder_logit_scale : float, optional
        The factor of the encoder of the fit: see :meth:`logit_scale_on`.
    further_encoders : sequence of EncoderRecord
        The other encoders, where it was fitted on several.
    pinned : mapping of str to sequence of str
        Class name → sentences that people added with :meth:`add`, :meth:`add_class` or :meth:`replace`.
        They stay until they are removed; those in no round are left out.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> banks = {"cat": {"a red cat": 2, "a cat": 1}, "dog": {"a blue dog": 1}}
    >>> ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.1, 0.3),))
    >>> ensemble.prompts("cat")
    {'a red cat': 0.6666666666666666, 'a cat': 0.3333333333333333}
    >>> encoder = FakeEncoder()
    >>> head = ensemble.embed(encoder)
    >>> head.predict(encoder.encode_texts(["red", "blue"])).tolist()
    ['cat', 'dog']
    >>> PromptEnsemble.from_json(ensemble.to_json()) == ensemble
    True
    >>> ensemble.add("dog", "a dog asleep", copies=3).remove("a cat").history
    ("added 'a dog asleep' to dog (3 copies in 1 round)", "removed 'a cat' from cat (1 copy in 1 round)")
    """

    class_names: tuple[str, ...]
    rounds: tuple[Round, ...]
    temperature: float = 1.0
    encoder_id: str | None = None
    encoder_fingerprint: str | None = None
    pool_fingerprint: str | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    history: tuple[str, ...] = ()
    sample_weights: Mapping[str, float] = field(default_factory=dict, compare=False)
    logit_scale: float | None = None
    encoder_logit_scale: float | None = None
    further_encoders: tuple[EncoderRecord, ...] = ()
    pinned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check all fields, and convert them to a canonical form."""
        names = schema.as_class_names(self.class_names)
        rounds = schema.as_sequence(self.rounds, "rounds")
        if not all(isinstance(round_, Round) for round_ in rounds):
            raise InputError("rounds: must be a list of Round objects.")
        if not rounds:
            raise SettingError("rounds: is empty; an ensemble needs at least one round.")
        history = schema.as_sequence(self.history, "history")
        rounds = tuple(round_.checked(names, f"rounds[{i}]") for i, round_ in enumerate(rounds))
        clean = {
            "class_names": names,
            "rounds": rounds,
            "pinned": schema.as_pinned(self.pinned, [r.banks for r in rounds], names),
            "temperature": schema.as_number(self.temperature, "temperature", positive=True),
            "settings": schema.as_mapping(self.settings, "settings", schema.as_scalar),
            "versions": schema.as_mapping(self.versions, "versions", schema.as_text),
            "history": tuple(schema.as_text(h, f"history[{i}]") for i, h in enumerate(history)),
            "sample_weights": schema.as_mapping(
                self.sample_weights, "sample_weights", schema.as_number
            ),
        }
        further = schema.as_sequence(self.further_encoders, schema.FURTHER)
        if not all(isinstance(encoder, EncoderRecord) for encoder in further):
            raise InputError(f"{schema.FURTHER}: must be a list of EncoderRecord objects.")
        if further and self.encoder_id is None:
            raise SettingError("encoder_id: is missing, the first of several encoders.")
        clean[schema.FURTHER] = tuple(
            encoder.checked(f"{schema.FURTHER}[{i}]") for i, encoder in enumerate(further)
        )
        for name in ("encoder_id", "encoder_fingerprint", "pool_fingerprint"):
            value = getattr(self, name)
            clean[name] = None if value is None else schema.as_text(value, name)
        for name in ("logit_scale", "encoder_logit_scale"):
            clean[name] = schema.as_optional_number(getattr(self, name), name, positive=True)
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.rounds)

    def __repr__(self) -> str:
        return f"PromptEnsemble({sizes(self)}, encoder={self.encoder_id!r})"

    def _repr_html_(self) -> str:
        return card(
            self, "PromptEnsemble", ", ".join(encoder.id for encoder in self.encoders) or None
        )

    # --- reading -------------------------------------------------------------------------------

    def texts(self) -> list[str]:
        """List the distinct prompts: class by class, round by round, heaviest first."""
        texts: dict[str, None] = {}
        for name in self.class_names:
            for round_ in self.rounds:
                texts.update(dict.fromkeys(round_.banks[name]))
        return list(texts)

    @property
    def n_prompts(self) -> int:
        """Number of distinct prompts, counted class by class."""
        return sum(len(self.prompts(name)) for name in self.class_names)

    def prompts(self, class_name: str) -> dict[str, float]:
        """Return the prompts of a class with their weights in its score, heaviest first; they sum to one.

        The row of the class in the head is this average of its prompts' rows, times the number of rounds.
        """
        schema.check_class(self.class_names, class_name)
        weights: dict[str, float] = {}
        vote = 1.0 / len(self.rounds)
        for round_ in self.rounds:
            bank = round_.banks[class_name]
            size = sum(bank.values())
            for prompt, copies in bank.items():
                weights[prompt] = weights.get(prompt, 0.0) + vote * (copies / size)
        return dict(sorted(weights.items(), key=lambda pair: (-pair[1], pair[0])))

    @property
    def encoders(self) -> tuple[EncoderRecord, ...]:
        """The encoders it was fitted on, in order; empty if unknown."""
        if self.encoder_id is None:
            return ()
        first = EncoderRecord(
            self.encoder_id, self.encoder_fingerprint, self.logit_scale, self.encoder_logit_scale
        )
        return (first, *self.further_encoders)

    def logit_scale_on(self, encoder: "Encoder | None") -> float | None:
        """Return the logit scale of probabilities on an encoder.

        Encoders of the fit have their own. On another encoder, the scale keeps its ratio to the scale
        that the encoder itself was trained with.
        """
        if encoder is None:
            return self.logit_scale
        for further in self.further_encoders:
            if encoder.id == further.id and further.logit_scale is not None:
                return further.logit_scale
        if self.logit_scale is None:
            return float(encoder.logit_scale)
        if self.encoder_logit_scale is None:
            return self.logit_scale
        return self.logit_scale * (float(encoder.logit_scale) / self.encoder_logit_scale)

    @property
    def fingerprint(self) -> str:
        """Digest of :meth:`to_json`."""
        return hashlib.blake2b(self.to_json().encode("utf-8"), digest_size=16).hexdigest()

    # --- files ---------------------------------------------------------------------------------

    def to_json(self, *, sample_weights: bool = False) -> str:
        """Write the ensemble as JSON text: one prompt a line, the same text every time.

        With `sample_weights`, the weights of the images are written too; resuming a fit needs them.
        """
        weights = {"sample_weights": self.sample_weights} if sample_weights else {}
        return write_record(self._record() | weights)

    def _record(self) -> dict[str, Any]:
        facts = {name: getattr(self, name, schema.ALGORITHM) for name in schema.FACTS}
        if self.further_encoders:
            facts[schema.FURTHER] = [asdict(encoder) for encoder in self.further_encoders]
        if self.pinned:
            facts[schema.PINNED] = self.pinned
        rounds = [round_.record() for round_ in self.rounds]
        return facts | {"class_names": self.class_names, "rounds": rounds}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote, in this or any earlier version of promptboost.

        An invalid text raises a FileFormatError that names the field.
        """
        fields = read_record(text)
        try:
            rounds = tuple(Round(**record) for record in fields.pop("rounds"))
            further = tuple(EncoderRecord(**record) for record in fields.pop(schema.FURTHER, ()))
            return cls(rounds=rounds, further_encoders=further, **fields)
        except InputError as error:
            raise FileFormatError(str(error)) from error

    def save(self, path: str | os.PathLike[str], *, sample_weights: bool = False) -> None:
        """Write :meth:`to_json` to a file, whole or not at all."""
        write_text(path, self.to_json(sample_weights=sample_weights))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that :meth:`save` wrote; see :meth:`from_json`.

        The weights of the images, in a file next to the ``ensemble.json`` of a run, are read
        with it. A missing file is an InputError that is a FileNotFoundError too.
        """
        file = Path(path)
        try:
            if file.name != ENSEMBLE_FILE:
                return cls._read(file)
            return steady(file.parent, lambda: cls._read(file))
        except FileNotFoundError as error:
            raise _MissingFileError(
                f"{path}: there is no such file; give the ensemble.json of a run, or with "
                "promptboost.load its folder."
            ) from error
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}: not UTF-8 text ({error.reason}).") from error
        except FileFormatError as error:
            raise FileFormatError(f"{path}: {error}") from error

    @classmethod
    def _read(cls, file: Path) -> Self:
        # Some editors put a byte-order mark before the text they save.
        ensemble = cls.from_json(read_bytes(file).decode("utf-8-sig"))
        weights_file = file.parent / WEIGHTS_FILE
        if file.name == ENSEMBLE_FILE and not ensemble.sample_weights and weights_file.exists():
            object.__setattr__(ensemble, "sample_weights", _read_weights(weights_file))
        return ensemble

    # --- editing: each returns a new ensemble --------------------------------------------------

    add = edits.add
    add_class = edits.add_class
    remove = edits.remove
    replace = edits.replace
    weight = edits.weight
    rename_class = edits.rename_class
    drop_class = edits.drop_class
    truncate = edits.truncate

    # --- embedding: numpy is loaded here, not to read or edit text -----------------------------

    def embed(self, source: "TextSource", encoder: "Encoder | None" = None) -> "Head":
        """Embed the prompts, each distinct text once, and return the classifier they make.

        With the encoder of the fit, this is the fitted classifier; with another, it is transfer.

        Parameters
        ----------
        source : Encoder, mapping or callable
            An encoder, a mapping from text to embedding, or a function that embeds a list of texts.
        encoder : Encoder, optional
            The encoder whose embeddings `source` returns, if `source` is not an encoder.
        """
        from promptboost.model.head import embed

        return embed(self, source, encoder)


def _read_weights(path: Path) -> dict[str, float]:
    try:
        record = schema.parse(read_bytes(path).decode("utf-8-sig"))
        return schema.as_mapping(record, "weights", schema.as_number)
    except (InputError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path.name} next to it: {error}") from error

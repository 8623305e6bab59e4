"""``metrics.json``: the measurements of a run as typed records, and how they are taken."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines import (
    OURS,
    TEXT,
    TEXT_BASELINES,
    ClassResult,
    Confusion,
    Count,
    Guesses,
    Indices,
    MethodResult,
    Positive,
    Share,
    accuracy,
    confusions,
    guess_baselines,
    per_class,
    pool_heads,
    text_shares,
)
from promptboost.config import FitConfig
from promptboost.data.dataset import valid_text
from promptboost.data.shots import Task
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import Embedder, members_of
from promptboost.encoders.group import EncoderGroup
from promptboost.errors import RunError, count, without_place
from promptboost.io import remove, write_json
from promptboost.model import Head, PromptEnsemble
from promptboost.model.decisions import sets_of_classes
from promptboost.model.head import mean_index, mean_proba, staged_heads
from promptboost.pool import PromptPool
from promptboost.pool.pool import TEMPLATE
from promptboost.progress import Progress, no_progress
from promptboost.run.controls import ControlResult, control_texts, measure_controls
from promptboost.run.influence import Influence, training_influences
from promptboost.run.overlap import Inspection, Overlap
from promptboost.run.run_folder import checked_record, read_record
from promptboost.training import Fitted, PoolRows, PoolTexts
from promptboost.training.examples import Examples
from promptboost.training.pool_rows import Executor

SCHEMA_VERSION = 2
_AGAIN = "fit the run again"

_HOW = {
    "gradient": "by gradient: copies moved to the sentences that lower the logistic loss most",
    "greedy": "greedily, as in the paper: sentences added while they correct errors",
}


class LeftOut(msgspec.Struct, frozen=True):
    """A file that could not be used."""

    path: str
    reason: str


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a fit; the digests and class sizes are those of the training images."""

    data: str
    classes: Count
    learn_images: Count
    held_out_images: Count
    held_out: str | None
    shots: Count | None
    seed: Count
    learn_digests: tuple[str, ...] | None = None
    class_sizes: dict[str, Count] | None = None
    bad_images: tuple[LeftOut, ...] = ()


@dataclass(frozen=True)
class Composed:
    """How an ensemble was composed, and its size."""

    composer: str  # of several, joined by "and"
    rounds: int
    mean_prompts: float  # distinct prompts of a class: mean over the classes
    most_prompts: int
    logit_scale: float | None = None  # of the gradient composer
    scale_choice: str | None = None  # how it was chosen; None if it was given
    # In the round with the largest gap; None if the text was edited since.
    objective: float | None = None
    gap: float | None = None

    @classmethod
    def of(cls, ensemble: PromptEnsemble) -> "Composed":
        """Summarize an ensemble."""
        sizes = [len(ensemble.prompts(name)) for name in ensemble.class_names]
        scale = ensemble.settings.get("logit_scale")
        why = ensemble.settings.get("scale_choice")
        certified = [
            (round_.gap, round_.objective)
            for round_ in ensemble.rounds
            if round_.gap is not None and round_.objective is not None and not ensemble.history
        ]
        gap, objective = max(certified, default=(None, None))
        return cls(
            composer=" and ".join(dict.fromkeys(round_.composer for round_ in ensemble.rounds)),
            rounds=len(ensemble),
            mean_prompts=sum(sizes) / len(sizes),
            most_prompts=max(sizes),
            logit_scale=float(scale) if isinstance(scale, int | float) else None,
            scale_choice=why if isinstance(why, str) else None,
            objective=objective,
            gap=gap,
        )

    @property
    def label(self) -> str:
        """Name of the ensemble among other methods."""
        by_gradient = self.composer == "gradient"
        how = ["by gradient"] if by_gradient else []
        if self.rounds > 1 or not by_gradient:
            how.append(count(self.rounds, "round"))
        return ", ".join(["boosted", *how])

    @property
    def briefly(self) -> str:
        """How and in how many rounds, to follow the word "chosen"."""
        how = "greedily" if self.composer == "greedy" else f"by {self.composer}"
        return how if self.rounds == 1 else f"{how} in {self.rounds} rounds"

    def lines(self) -> list[tuple[str, str]]:
        """Return the known facts as titles and descriptions."""
        facts = {"composed": _HOW.get(self.composer, f"by {self.composer}")}
        if self.logit_scale is not None:
            as_given = f"logit scale {self.logit_scale:g}, as given"
            facts["scale"] = self.scale_choice or as_given
        if self.objective is not None and self.gap is not None:
            where = " in the round with the largest gap" if self.rounds > 1 else ""
            facts["certificate"] = (  # a gap is negative only by rounding
                f"objective {self.objective:.3f}{where}; no weighting of the pool's prompts could lower it "
                f"by more than {max(self.gap, 0.0):.2g}"
            )
        mean, most = self.mean_prompts, self.most_prompts
        facts["prompts"] = f"{mean:.1f} distinct prompts per class on average, {most} at most"
        return list(facts.items())


class EncoderFacts(msgspec.Struct, frozen=True):
    """The encoder of the fit."""

    id: str
    fingerprint: str | None = None
    dim: Count | None = None


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The pool of a fit; `chosen` has the source of each chosen prompt by class."""

    fingerprint: str | None = None
    templates: Count | None = None
    prompts: Count | None = None
    statistics: dict[str, Any] = {}
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    chosen: dict[str, dict[str, str]] = {}


class StageResult(msgspec.Struct, frozen=True):
    """The ensemble after one more round."""

    round: Count
    accuracy: Share | None
    learn_accuracy: Share
    weak_error: float | None = None
    template_error: float | None = None


class HardImage(msgspec.Struct, frozen=True):
    """A training image with a large boosting weight."""

    image: str
    label: str
    predicted: str
    weight: Positive
    text_share: Share | None = None  # of the prediction, where there is a residual


class ResidualResult(msgspec.Struct, frozen=True, kw_only=True):
    """The residual, and the text's share of the predictions: see `Prediction.text_share`."""

    used: bool = True  # false if validation rejected the residual
    text_scale: Positive  # the factor on the text logits
    text_loss: Positive | None = None  # log loss on validation images, by the text alone
    loss: Positive | None = None  # and with the residual
    text_share: Share = 1.0  # mean over the measured images
    class_text_shares: dict[str, Share] = {}  # by class


class ThresholdResult(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds from cross-validated training images, and their effect on held-out images."""

    images: Count  # cross-validated training images
    accuracy: Share | None = None  # of these images, by what was learned without them
    least_logit: float  # that 95% of them reach
    accepted: Share | None = None  # held-out images that reach it
    covered: Share | None = None  # held-out images whose set of classes has the true one, at 90%
    set_size: Positive | None = None  # mean number of classes in these sets


class TransferResult(msgspec.Struct, frozen=True):
    """The same text on another encoder: accuracy by method, None where nothing was measured.

    `learned_on` is whether the fit used this encoder, too.
    """

    encoder: str
    accuracy: dict[str, Share | None]
    note: str = ""
    learned_on: bool = False


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema_version: int = SCHEMA_VERSION
    task: TaskFacts
    overlap: Overlap | None = None  # None if copies were not searched for
    ensemble_fingerprint: str | None = None
    composed: Composed | None = None
    encoder: EncoderFacts
    pool: PoolFacts = PoolFacts()
    methods: tuple[MethodResult, ...]
    residual: ResidualResult | None = None  # None if the fit had no residual
    thresholds: ThresholdResult | None = None  # None if no image was cross-validated
    controls: ControlResult | None = None  # None if the text has no descriptions
    staged: tuple[StageResult, ...] = ()
    per_class: tuple[ClassResult, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    hardest: tuple[HardImage, ...] = ()
    examples: dict[str, dict[str, str]] = {}  # the training image of a prompt, by class
    transfers: tuple[TransferResult, ...] = ()
    # The effect of removing each sentence, on cross-validated training images.
    sentences: tuple[Influence, ...] = ()
    timing: dict[str, Any] = {}

    @classmethod
    def read(cls, path: str | Path) -> "Results":
        """Read ``metrics.json``."""
        if not Path(path).exists():
            raise RunError(f"{path} does not exist; finish the fit with --resume")
        return read_record(Path(path), cls, SCHEMA_VERSION, _AGAIN)

    @classmethod
    def from_record(cls, record: object) -> "Results":
        """Check a record that was read from JSON."""
        return checked_record(record, cls, SCHEMA_VERSION, _AGAIN)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_json(path, self.record(), follow=False)

    @property
    def held_out(self) -> bool:
        """Whether there are test images; without any, no accuracy is evidence."""
        return self.task.held_out is not None and self.task.held_out_images > 0

    def method(self, name: str) -> MethodResult | None:
        """Find a method by its name."""
        return next((method for method in self.methods if method.name == name), None)

    def measured(self, name: str = OURS) -> float | None:
        """Return the accuracy of a method on held-out images or, without any, on training images."""
        method = self.method(name)
        if method is None:
            return None
        return method.accuracy if self.held_out else method.learn_accuracy

    def record(self) -> dict[str, Any]:
        """Return a JSON-serializable dict."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


_HARDEST = 24
#: Prompts with an example image: per class, and of all classes.
_EXAMPLES_PER_CLASS, _EXAMPLES = 8, 300

#: The largest size of a pool's rows in memory; larger ones are stored on disk. A memory-mapped file is as
#: fast as memory while memory is available, and needs none otherwise.
MOST_IN_MEMORY = 256 * 2**20

#: The name of the mean of several encoders' probabilities among the methods.
AVERAGED = f"{OURS}-averaged"


@dataclass(frozen=True)
class EmbeddedTask:
    """The embeddings of a few-shot task."""

    encoder: Embedder | EncoderGroup  # the encoder
    train: UnitRows  # (n, 1 + V, D): the training images and their crops
    test: UnitRows  # (m, D): the test images
    pool: PromptPool  # the prompts
    pool_rows: PoolRows  # the prompts, embedded

    @classmethod
    def embed(
        cls,
        task: Task,
        pool: PromptPool,
        settings: FitConfig,
        encoder: Embedder | EncoderGroup,
        *,
        executor: Executor | None = None,
        folder: Path | None = None,
        progress: Progress = no_progress,
    ) -> "EmbeddedTask":
        """Embed the images and the pool of a fit; a large pool by an `executor`, into a `folder`."""
        views = settings.crops(len(task.learn))
        train = encoder.images(task.learn, views=views, view_scale=settings.view_scale)
        test = encoder.originals(task.held_out)
        rows = embed_pool(PoolTexts.of(pool), encoder, executor, folder, progress)
        return cls(encoder, train, test, pool, rows)

    @property
    def members(self) -> tuple[Embedder, ...]:
        """The encoders."""
        return members_of(self.encoder)

    def split(self, rows: UnitRows) -> list[UnitRows]:
        """Return the embeddings of each encoder."""
        return self.encoder.split(rows) if isinstance(self.encoder, EncoderGroup) else [rows]

    def examples(self, task: Task, *, first: bool = False) -> Examples:
        """Return the training images for the trainer, by all encoders or the first."""
        rows, encoders = self.train, len(self.members)
        if first:
            rows, encoders = self.split(rows)[0], 1
        learn = task.learn
        return Examples.with_views(
            rows, learn.labels, learn.ids, encoders=encoders, groups=learn.groups
        )

    def measured(self, task: Task) -> UnitRows:
        """Return the embeddings of the measured images by the first encoder."""
        return self.split(self.train[:, 0] if task.kind is None else self.test)[0]


def embed_pool(
    texts: PoolTexts,
    encoder: Embedder | EncoderGroup,
    executor: Executor | None = None,
    folder: Path | None = None,
    progress: Progress = no_progress,
) -> PoolRows:
    """Embed a pool in memory, or by an `executor` if it is too large for that."""
    if texts.n_bytes(encoder.dim) <= MOST_IN_MEMORY:
        executor = None
        if folder is not None:
            remove(folder)  # of an earlier fit with a larger pool
    return PoolRows.embed(texts, encoder, executor=executor, folder=folder, progress=progress)


def measure(
    task: Task,
    embedded: EmbeddedTask,
    fitted: Fitted,
    settings: FitConfig,
    inspection: Inspection,
    progress: Progress = no_progress,
) -> Results:
    """Evaluate a fit and its baselines; the results lack only the times."""
    encoder, ensemble, pool = embedded.members[0], fitted.ensemble, embedded.pool
    head, labels, learn_labels = fitted.head, task.held_out.labels, task.learn.labels
    train, test = (embedded.split(x)[0] for x in (embedded.train, embedded.test))
    text_heads = [
        pool_heads(pool, member, embedded.pool_rows.of(number, member.dim))
        for number, member in enumerate(embedded.members)
    ]
    guesses = guess_baselines(
        train,
        learn_labels,
        test,
        text_heads[0],
        pool,
        groups=task.learn.groups,
        seed=settings.seed,
        progress=progress,
    )
    guesses += _own_guesses(embedded, fitted)
    ours = guesses[-1]
    staged = tuple(_stages(task, train, test, ensemble, encoder, progress))
    shown = {
        guess.name: guess.held_out if task.kind is not None else guess.learn
        for guess in guesses
        if guess.name in ("zero-shot", OURS)
    }
    names, measured = task.class_names, task.measured
    examples = embedded.examples(task, first=True)
    rows, controls = embedded.measured(task), None
    if set(pool.prompts_by_source) != {TEMPLATE}:  # else there are no descriptions to control
        texts = control_texts(ensemble, pool, examples, encoder, settings)
        controls = measure_controls(ensemble, texts, encoder, rows, measured.labels)
    shares = text_shares(head, rows)
    statistics = pool.statistics()
    return Results(
        task=_task_facts(task, settings),
        overlap=inspection.overlap,
        ensemble_fingerprint=ensemble.fingerprint,
        composed=Composed.of(ensemble),
        encoder=EncoderFacts(encoder.id, encoder.fingerprint, encoder.dim),
        pool=PoolFacts(
            fingerprint=pool.fingerprint,
            templates=statistics["templates"],
            prompts=statistics["prompts"],
            statistics=statistics,
            missing=tuple(pool.missing),
            unused=tuple(pool.unused),
            chosen=chosen_sources(pool, ensemble),
        ),
        residual=_residual_result(fitted, task, shares),
        thresholds=_threshold_result(fitted, test, labels),
        controls=controls,
        methods=tuple(guess.result(labels, learn_labels, inspection.leaked) for guess in guesses),
        staged=staged,
        per_class=per_class(names, measured.labels, shown),
        confusions=confusions(names, measured.labels, shown[OURS], measured.ids, shares),
        hardest=_hardest(task, ensemble, ours.learn, text_shares(head, train[:, 0])),
        examples=_examples(task, ensemble, encoder, train[:, 0]),
        transfers=_on_other_encoders(task, embedded, fitted, text_heads),
        sentences=tuple(training_influences(ensemble, examples, encoder, settings)),
    )


def _own_guesses(embedded: EmbeddedTask, fitted: Fitted) -> list[Guesses]:
    """Return the predictions of the text alone, of the average over encoders, and of the fit."""
    head, label = fitted.head, Composed.of(fitted.ensemble).label
    ours, methods = label, dict[str, tuple[str, Sequence[Head]]]()
    if head.residual is not None:
        ours, methods[TEXT] = "text + residual", (f"text alone: {label}", [head.without_residual()])
    if len(fitted.heads) > 1:
        title = f"{ours}, average of {len(fitted.heads)} encoders"
        methods[AVERAGED] = (title, fitted.heads)
    methods[OURS] = (ours, [head])
    train, test = (embedded.split(x) for x in (embedded.train[:, 0], embedded.test))
    return [
        Guesses(
            name,
            title,
            mean_index(heads, test[: len(heads)]),
            mean_index(heads, train[: len(heads)]),
            mean_proba(heads, test[: len(heads)]) if len(embedded.test) else None,
        )
        for name, (title, heads) in methods.items()
    ]


def _on_other_encoders(
    task: Task, embedded: EmbeddedTask, fitted: Fitted, text_heads: list[dict[str, Head]]
) -> tuple[TransferResult, ...]:
    """Evaluate the text on the other encoders of the fit, with the baselines that use text alone."""
    tests, labels = embedded.split(embedded.test), task.held_out.labels
    results = []
    for i, member in list(enumerate(embedded.members))[1:]:
        heads = {name: text_heads[i][name] for name in TEXT_BASELINES} | {OURS: fitted.heads[i]}
        figures = {name: accuracy(h.predict_index(tests[i]), labels) for name, h in heads.items()}
        results.append(TransferResult(member.id, figures, learned_on=True))
    return tuple(results)


def _threshold_result(
    fitted: Fitted, test: UnitRows, labels: NDArray[np.int64]
) -> ThresholdResult | None:
    """Return the thresholds of the first head, measured on test images if there are any."""
    head, residual = fitted.head, fitted.residuals[0]
    if residual is None or residual.held_out is None:
        return None
    logits, true, _ = residual.held_out
    right = float((logits.argmax(axis=1) == true).mean())
    thresholds = ThresholdResult(images=len(true), accuracy=right, least_logit=head.least_logit())
    if not len(test):
        return thresholds
    sets = sets_of_classes([head], [test], range(len(head.class_names)), coverage=0.9)
    return msgspec.structs.replace(
        thresholds,
        accepted=float((head.logits(test).max(axis=1) >= thresholds.least_logit).mean()),
        covered=float(np.mean([label in each for label, each in zip(labels, sets, strict=True)])),
        set_size=float(np.mean([len(each) for each in sets])),
    )


def _residual_result(
    fitted: Fitted, task: Task, shares: NDArray[np.float64] | None
) -> ResidualResult | None:
    """Return the residual, and the shares of the text in the predictions."""
    residual, labels = fitted.residuals[0], task.measured.labels
    if residual is None:
        return None
    shares = np.ones(len(labels)) if shares is None else shares
    text_loss, loss = residual.losses or (None, None)
    return ResidualResult(
        used=residual.is_used,
        text_scale=residual.text_scale,
        text_loss=text_loss,
        loss=loss,
        text_share=float(shares.mean()) if len(shares) else 1.0,
        class_text_shares={
            name: float(shares[labels == k].mean())
            for k, name in enumerate(task.class_names)
            if (labels == k).any()
        },
    )


def _stages(
    task: Task,
    train: UnitRows,
    test: UnitRows,
    ensemble: PromptEnsemble,
    encoder: Embedder,
    progress: Progress,
) -> Iterator[StageResult]:
    """Evaluate the classifier after each round."""
    heads = staged_heads(ensemble, encoder, ensemble.embed(encoder))
    progress("evaluating rounds", 0, len(ensemble))
    for number, (head, round_) in enumerate(zip(heads, ensemble.rounds, strict=True), start=1):
        yield StageResult(
            number,
            accuracy(head.predict_index(test), task.held_out.labels),
            float(np.mean(head.predict_index(train[:, 0]) == task.learn.labels)),
            round_.error,
            round_.template_error,
        )
        progress("evaluating rounds", number, len(ensemble))


def _hardest(
    task: Task, ensemble: PromptEnsemble, guesses: Indices, shares: NDArray[np.float64] | None
) -> tuple[HardImage, ...]:
    """Return the training images with the largest weights at the end of the fit."""
    ids, names, labels = task.learn.ids, task.class_names, task.learn.labels
    weights = np.array([ensemble.sample_weights.get(name, 0.0) for name in ids])
    order = np.argsort(-weights, kind="stable")[:_HARDEST].tolist()
    by_text = [None] * len(ids) if shares is None else shares.tolist()
    return tuple(
        HardImage(ids[i], names[labels[i]], names[guesses[i]], float(weights[i]), by_text[i])
        for i in order
    )


def _examples(
    task: Task, ensemble: PromptEnsemble, encoder: Embedder, rows: UnitRows
) -> dict[str, dict[str, str]]:
    """Return for each of the heaviest prompts the training image of its class that it fits best.

    A prompt is compared with the other prompts of the class; otherwise the most typical image would
    illustrate all of them.
    """
    most = min(_EXAMPLES_PER_CLASS, _EXAMPLES // len(ensemble.class_names))
    prompts = {name: list(ensemble.prompts(name))[:most] for name in ensemble.class_names}
    texts = list(dict.fromkeys(text for each in prompts.values() for text in each))
    vectors = dict(zip(texts, encoder.encode_texts(texts), strict=True))
    examples: dict[str, dict[str, str]] = {}
    for k, name in enumerate(task.class_names):
        images = np.flatnonzero(task.learn.labels == k)
        if not len(images) or not prompts[name]:
            continue
        cosines = rows[images] @ np.stack([vectors[text] for text in prompts[name]]).T
        if len(prompts[name]) > 1:
            cosines -= cosines.mean(axis=1, keepdims=True)
        best = images[cosines.argmax(axis=0)].tolist()
        examples[name] = {
            text: task.learn.ids[i] for text, i in zip(prompts[name], best, strict=True)
        }
    return examples


def _task_facts(task: Task, settings: FitConfig) -> TaskFacts:
    sizes = np.bincount(task.learn.labels, minlength=len(task.class_names))
    # Without the folders of the images, as runs are shared.
    return TaskFacts(
        data=without_place(task.source),
        classes=len(task.class_names),
        learn_images=len(task.learn),
        held_out_images=len(task.held_out),
        held_out=task.kind,
        shots=settings.shots,
        seed=settings.seed,
        learn_digests=tuple(sorted({image.digest().hex() for image in task.learn.images})),
        class_sizes=dict(zip(task.class_names, sizes.tolist(), strict=True)),
        bad_images=tuple(
            LeftOut(without_place(valid_text(b.path), 2), valid_text(b.reason))
            for b in task.learn.bad
        ),
    )


def chosen_sources(pool: PromptPool, ensemble: PromptEnsemble) -> dict[str, dict[str, str]]:
    """Return the source of each chosen prompt of each class; of a concatenation, that of its sentence."""
    sources: dict[str, dict[str, str]] = {}
    for name in ensemble.class_names:
        wanted = ensemble.prompts(name)
        # The initial template of a bank need not be among the prompts of a pool.
        sources[name] = dict.fromkeys(wanted, "template")
        for i, text in enumerate(pool.texts(name)):
            if text in wanted:
                prompt = pool.prompts(name)[i]
                origin = f"concat:{prompt.origin}" if prompt.origin else prompt.source
                sources[name][text] = origin
    return sources

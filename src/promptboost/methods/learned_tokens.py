"""CoOp and PEZ: learned tokens before the class names, shared by all classes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import DifferentiableText, Encoder, open_tower
from promptboost.errors import LabelError, SettingError
from promptboost.methods.base import Bank, FewShotSet, Method, Transfer, check_numbers
from promptboost.methods.fitted import (
    MOMENTUM,
    LinearClassifier,
    TextClassifier,
    cosine_rate,
    epoch_batches,
)
from promptboost.pool import PromptPool, fill

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_INITIAL_STD = 0.02
_WEIGHT_DECAY = 5e-4


@dataclass(frozen=True)
class TrainingRows:
    """Embeddings of the images and their crops, (n, 1 + V, D), as tensors, and the logit scale."""

    views: "Tensor"
    labels: "Tensor"
    scale: float

    @classmethod
    def of(cls, shots: FewShotSet, encoder: Encoder, device: "torch.device") -> Self:
        """Embed a few-shot set."""
        import torch

        if len(shots.labels) == 0:
            raise LabelError("there are no images to learn from")
        views = torch.from_numpy(np.array(shots.images.views(encoder), dtype=np.float32))
        labels = torch.from_numpy(np.array(shots.labels, dtype=np.int64))
        return cls(views.to(device), labels.to(device), encoder.logit_scale)

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[tuple["Tensor", "Tensor"]]:
        """Yield rows and labels of one epoch: each image once, as one of its views at random."""
        import torch

        n = len(self.labels)
        order, views = rng.permutation(n), rng.integers(self.views.shape[1], size=n)
        for batch in epoch_batches(n, size):
            image = torch.from_numpy(order[batch]).to(self.labels.device)
            view = torch.from_numpy(views[batch]).to(self.labels.device)
            yield self.views[image, view], self.labels[image]

    def loss(self, class_rows: "Tensor", rows: "Tensor", labels: "Tensor") -> "Tensor":
        """Return the cross-entropy at the encoder's logit scale."""
        import torch

        return torch.nn.functional.cross_entropy(self.scale * rows @ class_rows.T, labels)

    def whole_loss(self, class_rows: "Tensor") -> float:
        """Return the mean loss over all images and all their views."""
        import torch

        with torch.no_grad():
            flat = self.views.flatten(0, 1)
            labels = self.labels.repeat_interleave(self.views.shape[1])
            return float(self.loss(class_rows.detach(), flat, labels))


def descend(
    method: Any,
    learned: Sequence["Tensor"],
    loss: Callable[["Tensor", "Tensor"], "Tensor"],
    batches: Callable[[int], Iterable[tuple["Tensor", "Tensor"]]],
    epochs: int,
) -> Iterator[float]:
    """Run SGD with the settings of CoOp's and PromptSRC's authors; yield the mean loss of each epoch.

    `method` has a `name` and a `learning_rate`; `batches` returns the batches of an epoch.
    """
    import torch

    optimizer = torch.optim.SGD(learned, momentum=MOMENTUM, weight_decay=_WEIGHT_DECAY)
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = cosine_rate(epoch, epochs, method.learning_rate)
        losses = []
        for batch in batches(epoch):
            value = loss(*batch)
            for tensor, slope in zip(learned, torch.autograd.grad(value, learned), strict=True):
                tensor.grad = slope
            optimizer.step()
            losses.append(value.item())
        mean = float(np.mean(losses))
        if not (np.isfinite(mean) and all(bool(tensor.isfinite().all()) for tensor in learned)):
            raise SettingError(
                f"the loss of {method.name} is no longer a number in epoch {epoch + 1} of {epochs}: try "
                f"a lower rate, such as {method.name}?learning_rate={method.learning_rate / 10:g}"
            )
        yield mean


def ending(name: str) -> str:
    """Return the text after the learned tokens of a class: its name and a full stop."""
    return fill("{}.", name)


@dataclass(frozen=True)
class PromptedClasses:
    """The prompts ``[start] [learned tokens] [class name] [.] [end]`` of all classes.

    `endings` are the padded token embeddings of the distinct class names and what follows, (U, S, d),
    `lengths` their numbers of tokens, and `which` the index of each class's ending.
    """

    tower: DifferentiableText
    start: "Tensor"
    endings: "Tensor"
    lengths: "Tensor"
    which: "Tensor"

    @classmethod
    def of(cls, tower: DifferentiableText, class_names: Sequence[str], tokens: int) -> Self:
        """Tokenize the class names; raise a SettingError if the prompts exceed the context length."""
        import torch

        texts = list(dict.fromkeys(map(ending, class_names)))
        tokenized = ([*tower.tokenize(text), *tower.end] for text in texts)
        tokens_of = [torch.tensor(ids, dtype=torch.long) for ids in tokenized]
        lengths = torch.tensor([len(ids) for ids in tokens_of])
        room = tower.context_length - len(tower.start) - int(lengths.max())
        if tokens > room:
            longest = texts[int(lengths.argmax())]
            raise SettingError(
                f"{tokens} learned tokens and {longest!r} are more than the {tower.context_length} "
                f"tokens this encoder reads; at most {room} can be learned"
            )
        vocabulary = tower.vocabulary.float()
        ids = torch.nn.utils.rnn.pad_sequence(tokens_of, batch_first=True).to(vocabulary.device)
        which = torch.tensor([texts.index(ending(name)) for name in class_names])
        return cls(
            tower,
            vocabulary[list(tower.start)],
            vocabulary[ids],
            lengths.to(vocabulary.device),
            which.to(vocabulary.device),
        )

    def rows(self, learned: "Tensor") -> "Tensor":
        """Return the unit class embeddings, (K, D), differentiable in the learned tokens (M, d)."""
        import torch

        beginning = torch.cat([self.start, learned])
        return self.tower.encode(beginning, self.endings, self.lengths)[self.which]


def nearest(vectors: "Tensor", vocabulary: "Tensor") -> "Tensor":
    """Return for each vector the index of the row of a unit vocabulary with the highest cosine."""
    import torch

    with torch.no_grad():
        units = torch.nn.functional.normalize(vectors, dim=-1)
        positions: Tensor = (units @ vocabulary.T).max(dim=1).indices
    return positions


@dataclass(frozen=True)
class ContextClassifier(LinearClassifier):
    """A linear classifier with the context vectors that it was made of, (M, d)."""

    kind: ClassVar[str] = "coop"
    context: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))


@dataclass(frozen=True)
class CoOp(Method):
    """Context vectors shared by all classes, with the class name at the end; re-implemented.

    Plain stochastic gradient descent with the authors' settings, in single precision. They crop
    images at random in every epoch; here a view is drawn from the cached ones (the image and its
    crops). The model of the last step is used. Incomplete last batches are dropped, as theirs are.
    """

    name: ClassVar[str] = "coop"
    carries_over: ClassVar[Transfer] = Transfer.EMULATED

    # Number of vectors, and images per step
    context_tokens: int = 16
    # None for the authors' choice: 50 with one image per class, 100 below eight, otherwise 200, by
    # the class with the most images. (They train 50 epochs on ImageNet for any number of shots.)
    epochs: int | None = None
    batch: int = 32
    # Rate of the second epoch, then a cosine schedule; the first epoch has 0.00001
    learning_rate: float = 0.002
    seed: int = 0  # seed for the initial vectors, the order of the images and their views

    def __post_init__(self) -> None:
        counts = ("context_tokens", "batch", "epochs")
        check_numbers(self, counts=counts, positive=("learning_rate",))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that gradients go through the encoder, and that it reads so many tokens."""
        PromptedClasses.of(open_tower(encoder), shots.class_names, self.context_tokens)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> ContextClassifier:
        """Train the context vectors."""
        import torch

        tower = open_tower(encoder)
        classes = PromptedClasses.of(tower, shots.class_names, self.context_tokens)
        data = TrainingRows.of(shots, encoder, classes.start.device)
        draw = torch.Generator().manual_seed(self.seed)
        start = _INITIAL_STD * torch.randn(
            self.context_tokens, classes.start.shape[1], generator=draw
        )
        context = start.to(classes.start.device).requires_grad_()
        rng = np.random.default_rng(self.seed)
        losses = list(
            descend(
                self,
                [context],
                lambda rows, labels: data.loss(classes.rows(context), rows, labels),
                lambda _: data.batches(self.batch, rng),
                # Not the mean: a class with one image less would halve the training.
                self.epochs_for(int(np.bincount(shots.labels).max())),
            )
        )
        context = context.detach()
        with torch.no_grad():
            rows = encoder.logit_scale * classes.rows(context)
        return ContextClassifier(
            self.origin(shots, encoder),
            rows.cpu().numpy(),
            np.zeros(len(rows), dtype=np.float32),
            {"loss_by_epoch": losses},
            context.cpu().numpy(),
        )

    def epochs_for(self, per_class: int) -> int:
        """Return the number of epochs for so many images per class."""
        if self.epochs is not None:
            return self.epochs
        return 50 if per_class < 2 else 100 if per_class < 8 else 200


@dataclass(frozen=True)
class PEZ(Method):
    """Real tokens before the class names, shared by all classes; re-implemented.

    The released code inverts images to prompts. For classification the loss is, as in the boosting
    paper, the cross-entropy of the few-shot set, with the tokens before the class name. A step projects
    each vector to the token with the highest cosine, computes the gradient there, and applies it to the
    vector. The tokens with the smallest loss over all images and views are decoded, and the classifier
    embeds that text, tokenized again.
    """

    name: ClassVar[str] = "pez"
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    # Number of tokens, of gradient steps, and of images per step
    tokens: int = 16
    steps: int = 3000
    batch: int = 32
    epochs: int | None = None  # number of epochs, instead of steps
    # Settings of AdamW
    learning_rate: float = 0.1
    weight_decay: float = 0.1
    seed: int = 0  # seed for the initial tokens, the order of the images and their views

    def __post_init__(self) -> None:
        counts = ("tokens", "steps", "batch", "epochs")
        check_numbers(self, counts=counts, positive=("learning_rate",), from_zero=("weight_decay",))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that gradients go through the encoder, and that it reads so many tokens."""
        PromptedClasses.of(open_tower(encoder), shots.class_names, self.tokens)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Search for tokens, and embed their text."""
        import torch

        tower = open_tower(encoder)
        classes = PromptedClasses.of(tower, shots.class_names, self.tokens)
        data = TrainingRows.of(shots, encoder, classes.start.device)
        tokens, best = self._search(classes, data)
        text = tower.decode(tokens)
        prompts = [f"{text} {ending(name)}" for name in shots.class_names]
        rows = torch.from_numpy(np.array(encoder.encode_texts(prompts))).to(classes.start.device)
        of_text = {tuple(tower.tokenize(prompt)) for prompt in prompts}
        intended = {(*tokens, *tower.tokenize(ending(name))) for name in shots.class_names}
        details = {
            "prompt": text,
            "tokens": tokens,
            "same_tokens": of_text == intended,
            "loss_of_tokens": best["loss"],
            "loss_of_text": data.whole_loss(rows),
            "best_step": best["step"],
        }
        banks: tuple[Bank, ...] = tuple({prompt: 1.0} for prompt in prompts)
        return TextClassifier(self.origin(shots, encoder), banks, details=details)

    def _search(
        self, classes: PromptedClasses, data: TrainingRows
    ) -> tuple[list[int], dict[str, Any]]:
        """Return the tokens with the smallest loss over the whole few-shot set, and that loss."""
        rates = self.learning_rate, self.weight_decay
        hard = HardTokens(classes.tower, self.tokens, *rates, self.seed)
        rng = np.random.default_rng(self.seed)
        tokens: list[int] = []
        best: dict[str, Any] = {"loss": np.inf, "step": 0}
        steps = self.steps
        if self.epochs is not None:
            steps = self.epochs * len([*epoch_batches(len(data.labels), self.batch)])
        batches = chain.from_iterable(data.batches(self.batch, rng) for _ in count())
        for step, batch in enumerate(islice(batches, steps)):
            projected = hard.project()
            class_rows = classes.rows(projected)
            # All rows are cached: the loss over everything costs far less than the text tower.
            loss = data.whole_loss(class_rows)
            if loss < best["loss"]:
                tokens, best = hard.tokens, {"loss": loss, "step": step}
            hard.step(data.loss(class_rows, *batch), projected)
        if not tokens:
            raise SettingError(
                "the loss of pez is not a number for any tokens; are the image embeddings finite?"
            )
        return tokens, best


class HardTokens:
    """Vectors trained with the gradients at their nearest tokens; `tokens` are the last projection."""

    def __init__(
        self,
        tower: DifferentiableText,
        n_tokens: int,
        learning_rate: float,
        weight_decay: float,
        seed: int,
    ) -> None:
        import torch

        self._allowed = tower.allowed
        self._vocabulary = tower.vocabulary[self._allowed].float()
        self._units = torch.nn.functional.normalize(self._vocabulary, dim=-1)
        draw = torch.Generator().manual_seed(seed)
        first = torch.randint(len(self._allowed), (n_tokens,), generator=draw)
        self.vectors = self._vocabulary[first.to(self._vocabulary.device)].clone()
        self.vectors.requires_grad_()
        self.tokens: list[int] = []
        self._optimizer = torch.optim.AdamW(
            [self.vectors], lr=learning_rate, weight_decay=weight_decay
        )

    def project(self) -> "Tensor":
        """Return the embeddings of the nearest tokens, which require a gradient."""
        positions = nearest(self.vectors, self._units)
        self.tokens = self._allowed[positions].tolist()
        return self._vocabulary[positions].requires_grad_()

    def step(self, loss: "Tensor", projected: "Tensor") -> None:
        """Apply the gradient at the projected embeddings to the vectors."""
        import torch

        (self.vectors.grad,) = torch.autograd.grad(loss, projected)
        self._optimizer.step()

"""PEZ: a hard prompt found by projected gradients (Wen et al. 2023)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from promptboost.encoders import DifferentiableText, open_tower
from promptboost.encoders.base import Encoder
from promptboost.errors import SettingError
from promptboost.methods.base import Bank, FewShotSet, Group, Method, Transfer, check_numbers
from promptboost.methods.fitted import TextClassifier
from promptboost.methods.learnt_tokens import PromptedClasses, TrainingRows, ending, nearest
from promptboost.pool import PromptPool

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PEZ(Method):
    """Real tokens before the class names, the same for all classes; re-implemented.

    The released code inverts images to prompts. For classification the loss is, as in the paper
    on boosting, the cross-entropy of the few-shot set, and the tokens stand before the class name. A
    step projects each vector to the nearest token by its cosine, takes the gradient there, and
    applies it to the vector. The tokens with the least loss over all images and their views are
    decoded, and the classifier is what the encoder reads when it tokenises that text again.

    That paper trains 200 epochs; the default here is the 3000 steps of the released code. Only tokens
    that can be written are taken: neither special ones nor parts of a character. An image is seen as
    one of its cached views.

    Parameters
    ----------
    tokens, steps, batch : int
        How many tokens, gradient steps, and images in a step.
    epochs : int or None
        How often to go through the images, instead of a number of steps.
    learning_rate, weight_decay : float
        Of AdamW.
    seed : int
        Decides the first tokens, the order of the images and their views.
    """

    name: ClassVar[str] = "pez"
    group: ClassVar[Group] = Group.TEXT
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    tokens: int = 16
    steps: int = 3000
    batch: int = 32
    epochs: int | None = None
    learning_rate: float = 0.1
    weight_decay: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("tokens", "steps", "batch", "epochs")
        check_numbers(self, counts=counts, positive=("learning_rate",), from_zero=("weight_decay",))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that gradients go through the encoder, and that it reads so many tokens."""
        PromptedClasses.of(open_tower(encoder), shots.class_names, self.tokens)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Search the tokens, then let the encoder read their text."""
        import torch

        tower = open_tower(encoder)
        classes = PromptedClasses.of(tower, shots.class_names, self.tokens)
        data = TrainingRows.of(shots, encoder, classes.start.device)
        tokens, best = self._search(classes, data)
        text = tower.decode(tokens)
        prompts = [f"{text} {ending(name)}" for name in shots.class_names]
        rows = torch.from_numpy(np.array(encoder.encode_texts(prompts))).to(classes.start.device)
        again = {tuple(tower.tokenize(prompt)) for prompt in prompts}
        meant = {(*tokens, *tower.tokenize(ending(name))) for name in shots.class_names}
        details = {
            "prompt": text,
            "tokens": tokens,
            "same_tokens": again == meant,
            "loss_of_tokens": best["loss"],
            "loss_of_text": data.whole_loss(rows),
            "best_step": best["step"],
        }
        banks: tuple[Bank, ...] = tuple({prompt: 1.0} for prompt in prompts)
        return TextClassifier(self.origin(shots, encoder), banks, details=details)

    def _search(
        self, classes: PromptedClasses, data: TrainingRows
    ) -> tuple[list[int], dict[str, Any]]:
        """Return the tokens with the least loss over the whole few-shot set, and that loss."""
        rates = self.learning_rate, self.weight_decay
        hard = HardTokens(classes.tower, self.tokens, *rates, self.seed)
        rng = np.random.default_rng(self.seed)
        tokens: list[int] = []
        best: dict[str, Any] = {"loss": np.inf, "step": 0}
        batches = data.batches(self.batch, rng)
        steps = self.steps
        if self.epochs is not None:
            steps = self.epochs * data.steps(self.batch)
        for step in range(steps):
            batch = next(batches, None)
            if batch is None:
                batches = data.batches(self.batch, rng)
                batch = next(batches)
            projected = hard.project()
            class_rows = classes.rows(projected)
            # All rows are cached: the loss over everything costs far less than the text tower.
            loss = data.whole_loss(class_rows)
            if loss < best["loss"]:
                tokens, best = hard.tokens, {"loss": loss, "step": step}
            hard.step(data.loss(class_rows, *batch), projected)
        if not tokens:
            raise SettingError(
                "the loss of pez is not a number with any tokens; are the images' rows finite?"
            )
        return tokens, best


class HardTokens:
    """Vectors that stand for the tokens nearest to them, and learn from gradients taken there.

    They begin at random tokens. `tokens` are those of the last projection.
    """

    def __init__(
        self,
        tower: DifferentiableText,
        count: int,
        learning_rate: float,
        weight_decay: float,
        seed: int,
    ) -> None:
        import torch

        self._allowed = tower.allowed
        self._vocabulary = tower.vocabulary[self._allowed].float()
        self._units = torch.nn.functional.normalize(self._vocabulary, dim=-1)
        draw = torch.Generator().manual_seed(seed)
        first = torch.randint(len(self._allowed), (count,), generator=draw)
        self.vectors = self._vocabulary[first.to(self._vocabulary.device)].clone()
        self.vectors.requires_grad_()
        self.tokens: list[int] = []
        self._optimiser = torch.optim.AdamW(
            [self.vectors], lr=learning_rate, weight_decay=weight_decay
        )

    def project(self) -> "Tensor":
        """Return the embeddings of the nearest tokens, as what a gradient can be taken of."""
        positions, _ = nearest(self.vectors, self._units)
        self.tokens = self._allowed[positions].tolist()
        return self._vocabulary[positions].requires_grad_()

    def step(self, loss: "Tensor", projected: "Tensor") -> None:
        """Apply the gradient at the projected embeddings to the vectors."""
        import torch

        (self.vectors.grad,) = torch.autograd.grad(loss, projected)
        self._optimiser.step()

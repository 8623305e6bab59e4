"""How an ensemble came about, in words."""

from dataclasses import dataclass

from promptboost.errors import count
from promptboost.model.ensemble import PromptEnsemble

_HOW = {
    "gradient": "by gradient: copies moved to the sentences that lower the logistic loss most",
    "greedy": "greedily, as in the paper: sentences added while they mend errors",
}


@dataclass(frozen=True)
class Composed:
    """What composed an ensemble, and what it says about its own work."""

    composer: str  # of several, joined by "and"
    rounds: int
    mean_prompts: float  # distinct prompts of a class: mean over the classes
    most_prompts: int
    logit_scale: float | None = None  # of the gradient composer
    scale_choice: str | None = None  # why it is this one; None if it was given
    # In the round of the widest gap. None once the text was edited: they were about the text before.
    objective: float | None = None
    gap: float | None = None

    @classmethod
    def of(cls, ensemble: PromptEnsemble) -> "Composed":
        """Gather what an ensemble says."""
        sizes = [len(ensemble.prompts(name)) for name in ensemble.class_names]
        scale = ensemble.settings.get("logit_scale")
        why = ensemble.settings.get("scale_choice")
        certified = [
            (item.gap, item.objective)
            for item in ensemble.rounds
            if item.gap is not None and item.objective is not None and not ensemble.history
        ]
        gap, objective = max(certified, default=(None, None))
        return cls(
            composer=" and ".join(dict.fromkeys(item.composer for item in ensemble.rounds)),
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

    @property
    def how(self) -> str:
        """How prompts were chosen."""
        return _HOW.get(self.composer, f"by {self.composer}")

    @property
    def scale(self) -> str | None:
        """The logit scale, and why it is this one."""
        if self.logit_scale is None:
            return None
        return self.scale_choice or f"logit scale {self.logit_scale:g}, as it was given"

    @property
    def certificate(self) -> str | None:
        """How much better any weighting of the pool could be."""
        if self.objective is None or self.gap is None:
            return None
        where = " in the round furthest from the best" if self.rounds > 1 else ""
        return (  # a gap is never negative but for rounding, and its first digits say all
            f"objective {self.objective:.3f}{where}; no weighting of the pool's prompts could lower it "
            f"by more than {max(self.gap, 0.0):.2g}"
        )

    @property
    def size(self) -> str:
        """How much there is to read."""
        return f"{self.mean_prompts:.1f} distinct prompts a class on average, {self.most_prompts} at most"

    def lines(self) -> list[tuple[str, str]]:
        """Return what is known as titles and words."""
        known = (
            ("composed", self.how),
            ("scale", self.scale),
            ("certificate", self.certificate),
            ("prompts", self.size),
        )
        return [(title, words) for title, words in known if words is not None]

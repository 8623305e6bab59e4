"""How an ensemble came about, in words."""

from dataclasses import dataclass

from promptboost.model.ensemble import PromptEnsemble

_HOW = {
    "gradient": "by gradient: copies moved to the sentences that lower the logistic loss most",
    "greedy": "greedily, as in the paper: sentences added while they mend errors",
}


@dataclass(frozen=True)
class Composed:
    """What composed an ensemble, and what it says about its own work.

    Attributes
    ----------
    composer : str
        Name of the composer; of several, joined by "and".
    rounds : int
        Number of rounds.
    mean_prompts, most_prompts : float and int
        Distinct prompts of a class: mean over the classes, and the most that one has.
    logit_scale : float or None
        Of the gradient composer.
    scale_choice : str or None
        Why it is this one; None if it was given.
    objective, gap : float or None
        Of the gradient composer, in the round of the widest gap. None once the text was edited: they
        were about the text before.

    Examples
    --------
    >>> from promptboost.model import Round
    >>> banks = {"cat": {"a cat": 3, "a tabby": 1}, "dog": {"a dog": 4}}
    >>> one = Round("a {}", banks, 0.1, 0.2, composer="gradient", objective=0.5, gap=0.004)
    >>> made = Composed.of(PromptEnsemble(("cat", "dog"), (one,), settings={"logit_scale": 30.0}))
    >>> made.label
    'boosted, by gradient'
    >>> print(made.certificate)
    objective 0.500; no weighting of the pool's prompts could lower it by more than 0.004
    >>> print(made.size)
    1.5 distinct prompts a class on average, 2 at most
    """

    composer: str
    rounds: int
    mean_prompts: float
    most_prompts: int
    logit_scale: float | None = None
    scale_choice: str | None = None
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
        many = f"{self.rounds} round{'s' if self.rounds != 1 else ''}"
        how = ["by gradient"] * by_gradient + [many] * (self.rounds > 1 or not by_gradient)
        return ", ".join(["boosted", *how])

    @property
    def briefly(self) -> str:
        """How and in how many rounds, to follow the word "chosen"."""
        how = {"gradient": "by gradient", "greedy": "greedily"}.get(
            self.composer, f"by {self.composer}"
        )
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
        return (
            f"objective {self.objective:.3f}{where}; no weighting of the pool's prompts could lower it "
            f"by more than {self._gap_text()}"
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
        return [(title, said) for title, said in known if said is not None]

    def _gap_text(self) -> str:
        # A gap is never negative but for rounding, and its first digits say all.
        return f"{max(self.gap or 0.0, 0.0):.2g}"

"""What is asked of a plan instead of what the paper measured: less of it, or with what is at hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from promptboost.config import FitConfig
from promptboost.errors import SettingError
from promptboost.paper.plans import SHORT, TITLES, VIEWS, PaperPlan, Slot
from promptboost.paper.published import AVERAGE


@dataclass(frozen=True)
class PaperChoice:
    """What is asked of a plan instead of what the paper measured; empty is as in the paper."""

    datasets: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()  # perhaps with settings
    encoder: str = ""
    transfers: tuple[str, ...] = ()
    views: int | None = None  # crops of an image that are kept
    queries: dict[str, str] = field(init=False)  # method → settings

    def __post_init__(self) -> None:
        queries: dict[str, str] = {}
        titles = {title.casefold(): name for name, title in TITLES.items()}
        for text in self.methods:
            typed, _, query = text.partition("?")
            name = titles.get(typed.casefold(), typed.casefold())
            if name not in TITLES and f"{name}+eft" not in TITLES:
                raise SettingError(
                    f"the paper has no method {typed!r}; it has {', '.join(TITLES.values())}"
                )
            queries[name.removesuffix("+eft")] = query
        object.__setattr__(self, "queries", queries)

    def views_kept(self, views_per_round: int) -> int:
        """Return how many crops of an image are kept for rounds that see so many of them."""
        if self.views is not None:
            return self.views
        return FitConfig().views if self.encoder else max(VIEWS, views_per_round)


def chosen(plan: PaperPlan, choice: PaperChoice) -> PaperPlan:
    """Return the plan with what was asked for; slots that are not the paper's any more say why.

    Data sets, methods and seeds are narrowed, or replaced by others. So are shots; where a plan has none
    of those asked for, its smallest and largest become the smallest and largest of them. One encoder
    stands for the one to learn with, and the transfers for all targets together.
    """
    shots = _shots_by_plan(plan, choice.shots)
    slots: dict[tuple[tuple[str, ...], str], Slot] = {}
    for slot in plan.slots:
        base = slot.method.removesuffix("+eft")
        if choice.queries and base not in choice.queries:
            continue
        # What does not learn stands in the column of each number of shots.
        named = int(slot.column) if slot.column.isdigit() and slot.rounds is None else slot.shots
        if slot.shots not in shots or named not in shots:
            continue
        kept = _with_datasets(slot, plan, choice.datasets)
        for one in (seen for new in kept for seen in _with_encoders(new, plan, choice)):
            new = _with_query(one, choice.queries.get(base, ""))
            new = _with_views(_with_shots(new, named, shots[named]), choice)
            if new.rounds is None or new.rounds <= new.rounds_of_fit:
                slots.setdefault((new.row, new.column), new)
    source = choice.encoder or plan.source
    seen = {name for slot in slots.values() for name in slot.encoders}
    others = ", ".join(name for name in choice.transfers if name in seen)
    if others or source != plan.source:
        at_hand = f"With {source}{others and f' → {others}'} instead of the paper's encoders."
    else:
        at_hand = ""
    return replace(
        plan,
        source=source,
        slots=tuple(slots.values()),
        seeds=(choice.seeds or plan.seeds) if plan.pair is None else plan.seeds,
        at_hand=at_hand,
    )


def _shots_by_plan(plan: PaperPlan, asked: Sequence[int]) -> dict[int, int]:
    """Return for each number of shots of a plan the one to measure at; 0 stays."""
    own = plan.shots
    if not asked or plan.pair is not None:
        return {k: k for k in (0, *own)}
    if set(asked) <= set(own):
        return {k: k for k in (0, *own) if k in (0, *asked)}
    least, most = min(asked), max(asked)
    ends = {own[0]: least if own[0] == 1 else most, own[-1]: most if own[-1] > 1 else least}
    common = {k: k for k in asked if k in own}
    return {0: 0, **common, **ends}


def _with_shots(slot: Slot, before: int, shots: int) -> Slot:
    if shots == before:
        return slot
    words = {f"{before} shot": f"{shots} shot", str(before): str(shots)}
    return replace(
        slot,
        shots=shots if slot.shots else 0,
        row=tuple(words.get(word, word) for word in slot.row),
        # Where a column is a round, its number is not one of shots.
        column=words.get(slot.column, slot.column) if slot.rounds is None else slot.column,
        changed=(*slot.changed, f"{shots} shots instead of {before}"),
    )


def _with_views(slot: Slot, choice: PaperChoice) -> Slot:
    """Tell where a round cannot see as many crops as the paper's: there are fewer."""
    asked = slot.views_per_round
    kept = choice.views_kept(asked)
    if asked <= kept:
        return slot
    column = (
        f"{slot.column.removesuffix(f'/{asked}')}/{kept}" if "/" in slot.column else slot.column
    )
    row = tuple(word.replace(f"a={asked}", f"a={kept}") for word in slot.row)
    why = f"{kept} crops of an image in a round instead of {asked}"
    return replace(slot, row=row, column=column, changed=(*slot.changed, why))


def _with_datasets(slot: Slot, plan: PaperPlan, asked: Sequence[str]) -> list[Slot]:
    """Return the slot for the data sets asked for: more than one where a column is a data set."""
    if not asked or tuple(asked) == plan.datasets:
        return [slot]
    if slot.dataset == AVERAGE:
        return [replace(slot, datasets=tuple(asked), changed=(*slot.changed, "other data sets"))]
    kept = [slot] if slot.dataset in asked else []
    own_column = slot.column == SHORT[slot.dataset]
    others = [name for name in asked if name not in plan.datasets]
    if slot.dataset != plan.datasets[0]:
        others = []  # others stand where the first one stood
    elif not own_column:
        others = [] if kept else others[:1]
    return kept + [
        replace(
            slot,
            column=name if own_column else slot.column,
            datasets=(name,),
            dataset=name,
            changed=(*slot.changed, "other data sets"),
        )
        for name in others
    ]


def _with_encoders(slot: Slot, plan: PaperPlan, choice: PaperChoice) -> list[Slot]:
    """Return the slot on the encoders asked for: one for each, unless it is a group's mean."""
    other = choice.encoder not in ("", plan.source)
    if slot.target == plan.source:
        if not other:
            return [slot]
        groups: list[tuple[str, ...]] = [(choice.encoder,)]
        words = {word: f"{choice.encoder} (source)" for word in slot.row if "(source)" in word}
    elif choice.transfers and choice.transfers != slot.encoders:
        alone = len(slot.encoders) == 1
        groups = [(name,) for name in choice.transfers] if alone else [choice.transfers]
        words = {slot.row[0]: "{} (target)"}
    elif other:
        return [replace(slot, changed=(*slot.changed, "other encoders"))]
    else:
        return [slot]
    words[TITLES["zero-shot"]] = "Zero-shot"  # they need not be CLIP
    return [
        replace(
            slot,
            target=(name := "+".join(group)),
            encoders=group,
            row=tuple(words.get(word, word).replace("{}", name) for word in slot.row),
            column=words.get(slot.column, slot.column),
            changed=(*slot.changed, "other encoders"),
        )
        for group in groups
    ]


def _with_query(slot: Slot, query: str) -> Slot:
    if not query:
        return slot
    own = {part.partition("=")[0] for part in slot.query.split("&")}
    further = [part for part in query.split("&") if part.partition("=")[0] not in own]
    joined = "&".join(part for part in (*further, slot.query) if part)
    # Which language model is asked is for everybody to choose: the paper's can no longer be.
    changed = slot.changed if slot.method == "llmbo" else (*slot.changed, f"settings {query}")
    return replace(slot, query=joined, changed=changed)

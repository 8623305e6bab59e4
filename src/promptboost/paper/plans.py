"""Every table and figure of the paper as data: which numbers it has, and what each is the mean of.

A number is a :class:`Slot`: its row and column, and the method, shots, encoder and data sets it is measured
with.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from promptboost.config import FitConfig
from promptboost.data.benchmarks import BENCHMARKS
from promptboost.encoders.registry import MODELS
from promptboost.errors import SettingError
from promptboost.methods import make_method
from promptboost.paper.published import AVERAGE, Entry, entries, find_entry, groups

#: The numbers of shots that the paper measures at, and its draws.
SHOTS = (1, 2, 4, 8, 16)
SEEDS = (1, 2, 3)
#: Crops of an image that are kept for a round to draw among, unless it sees more.
VIEWS = 32

ELEVEN = tuple(BENCHMARKS)
TEN = tuple(name for name in ELEVEN if name != "imagenet")
#: What tables call the data sets.
SHORT = dict(
    zip(
        ELEVEN,
        (
            *("IN-1K", "Caltech", "Pets", "Cars", "Flowers", "Food", "Aircraft", "SUN", "DTD"),
            *("ESAT", "UCF"),
        ),
        strict=True,
    )
)

RN50, VIT_B, VIT_L = "RN50/openai", "ViT-B-32/openai", "ViT-L-14/openai"
SMALLER = "EVA02-B-16/merged2b_s8b_b131k"
LARGER = {
    "ViT-g-14/laion2b_s34b_b88k": "ViT-G: OpenCLIP",
    "ViT-gopt-16-SigLIP2-256/webli": "ViT-G: SigLIP2",
    "ViT-bigG-14-worldwide/metaclip2_worldwide": "ViT-G: MetaCLIP2",
    "ViT-bigG-14-CLIPA/datacomp1b": "ViT-G: CLIPA-v2",
    "EVA02-E-14/laion2b_s4b_b115k": "ViT-E: EVA-02-CLIP",
}

#: What the paper calls each method; the keys are ours, ``+eft`` where one is carried that way.
TITLES = {
    "zero-shot": "ZS-CLIP",
    "dclip": "DCLIP",
    "cupl": "CuPL",
    "coop": "CoOp",
    "coop+eft": "CoOp+EFT",
    "promptsrc+eft": "PromptSRC+EFT",
    "pez": "PEZ",
    "llmbo": "LLMbo",
    "proapo": "ProAPO",
    "tpb": "TPB",
}
ZERO_SHOT = ("zero-shot", "dclip", "cupl")
# How long the paper lets a method learn where that is not its usual here, by data set.
_LENGTHS = {
    ("tpb", "imagenet"): "rounds=30",
    ("coop", "imagenet"): "epochs=50",  # as CoOp's authors do, whose code the paper runs
    ("pez", ""): "epochs=200",
}


@dataclass(frozen=True)
class Slot:
    """One number: its position in the table, and what it is the mean of."""

    row: tuple[str, ...]
    column: str
    method: str  # a key of TITLES
    shots: int  # 0 for zero-shot methods
    target: str  # the encoder to measure with, or a group
    encoders: tuple[str, ...]  # the target, or the members of the group
    datasets: tuple[str, ...]
    dataset: str = AVERAGE  # the data set, if there is only one
    query: str = ""  # settings of the method
    setting: str = ""  # the same, as the published numbers spell it
    rounds: int | None = None  # measure after this many rounds of the same fit
    on_shots: bool = False  # measure on the training images
    changed: tuple[str, ...] = ()  # how it differs from what the paper measured

    def spelling(self, dataset: str) -> str:
        """Return the method as it is typed, with the paper's settings for a data set."""
        base = self.method.removesuffix("+eft")
        query = self.query
        if not any(name in self._settings for name in ("rounds", "epochs", "steps")):
            usual = _LENGTHS.get((base, dataset), _LENGTHS.get((base, "")))
            query = "&".join(part for part in (query, usual) if part)
        return f"{base}?{query}" if query else base

    @property
    def rounds_of_fit(self) -> int:
        """How many rounds its fit has, except on ImageNet."""
        return int(self._settings.get("rounds", 50))

    @property
    def views_per_round(self) -> int:
        """How many crops of an image a round of boosting sees."""
        return int(self._settings.get("views_per_round", 4)) if self.method == "tpb" else 0

    @property
    def _settings(self) -> dict[str, str]:
        return dict(part.partition("=")[::2] for part in self.query.split("&"))


class CellSpec(NamedTuple):
    """One fit, measured on one encoder."""

    dataset: str
    method: str  # with its settings
    shots: int
    seed: int
    on: str  # the encoder that it is measured on
    source: str  # the encoder to fit with
    pair: tuple[str, str] | None = None  # the two classes, if not all

    @property
    def home(self) -> "CellSpec":
        """The cell of the fit; zero-shot methods have no other."""
        return self._replace(on=self.source) if make_method(self.method).learns else self


@dataclass(frozen=True)
class PaperPlan:
    """A table or figure: its numbers, and how they are laid out."""

    entry: Entry  # what the paper says of it
    source: str  # the encoder that everything learns with
    slots: tuple[Slot, ...]
    head: tuple[str, ...] = ("Method",)  # what the row's words are
    axis: str = "images of each class to learn from"  # of a figure
    pair: tuple[str, str] | None = None  # two classes to show, image by image
    seeds: tuple[int, ...] = SEEDS
    notes: tuple[str, ...] = ()
    at_hand: str = ""  # what stands for the paper's encoders, if anything

    @property
    def name(self) -> str:
        """What to type."""
        return self.entry.name

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets it needs, in order."""
        return tuple(dict.fromkeys(name for slot in self.slots for name in slot.datasets))

    @property
    def encoders(self) -> tuple[str, ...]:
        """The encoders it needs, the one to learn with first."""
        on = (name for slot in self.slots for name in slot.encoders)
        return tuple(dict.fromkeys((self.source, *on)))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods it needs, as the paper calls them."""
        return tuple(dict.fromkeys(TITLES[slot.method] for slot in self.slots))

    @property
    def shots(self) -> tuple[int, ...]:
        """The numbers of shots it needs."""
        return tuple(sorted({slot.shots for slot in self.slots} - {0}))

    def cells(self) -> list[CellSpec]:
        """Return the cells it needs, each once."""
        return list(
            dict.fromkeys(
                CellSpec(
                    dataset, slot.spelling(dataset), slot.shots, seed, on, self.source, self.pair
                )
                for slot in self.slots
                for dataset in slot.datasets
                for on in slot.encoders
                for seed in (self.seeds if slot.shots else (0,))
            )
        )


#: What a row calls a target, its name among the published numbers, and its encoders.
Target = tuple[str, str, tuple[str, ...]]


def _main(source: str, methods: Sequence[str], shots: Sequence[int]) -> tuple[Slot, ...]:
    slots = []
    for method in (*ZERO_SHOT, *methods):
        for k in (0,) if method in ZERO_SHOT else shots:
            where = "ZS" if not k else f"{k} shot"
            one = Slot((where, TITLES[method]), "Avg.", method, k, source, (source,), ELEVEN)
            slots += [
                replace(one, column=SHORT[name], datasets=(name,), dataset=name) for name in ELEVEN
            ]
            slots.append(one)
    by_shots = sorted(slots, key=lambda slot: slot.shots)  # the order of the methods stays
    return tuple(by_shots)


def _transfer(targets: Iterable[Target], methods: Sequence[str]) -> tuple[Slot, ...]:
    """Return one row per target and one column per number of shots; zero-shot is the same in each."""
    return tuple(
        Slot((title, TITLES[method]), str(k), method, k if learns else 0, target, members, ELEVEN)
        for title, target, members in targets
        for method in ("zero-shot", *methods)
        for learns in [method != "zero-shot"]
        for k in SHOTS
    )


def _by_model() -> list[Target]:
    families = {record.name: record.family for record in MODELS}
    return [
        (f"{group}: {families[name]}", name, (name,))
        for group, members in groups().items()
        for name in members
    ]


def _group(name: str) -> tuple[str, tuple[str, ...]]:
    return name, groups()[name]


_EXPOSURE = (
    ("1/200", "rounds=1&views_per_round=200"),
    ("5/40", "rounds=5&views_per_round=40"),
    ("10/20", "rounds=10&views_per_round=20"),
    ("50/4", ""),
)


def _exposure(targets: Iterable[Target]) -> tuple[Slot, ...]:
    slots = []
    for title, target, members in targets:
        slots.append(Slot((title,), "ZS-CLIP", "zero-shot", 0, target, members, TEN))
        for column, query in _EXPOSURE:
            published = (query or "rounds=50&views_per_round=4").replace("&", ";")
            one = Slot((title,), f"M/a {column}", "tpb", 16, target, members, TEN)
            slots.append(replace(one, query=query, setting=published))
    return tuple(slots)


_HOME: Target = ("ViT-B/32 (source)", VIT_B, (VIT_B,))


def _source_and_groups() -> list[Target]:
    return [_HOME, *((f"{name} (target)", *_group(name)) for name in groups())]


def _curves(settings: Iterable[tuple[str, str, str]]) -> tuple[Slot, ...]:
    """Return one row per setting of boosting and one column per number of shots."""
    return tuple(
        Slot((row,), str(k), "tpb", k, VIT_B, (VIT_B,), ELEVEN, query=query, setting=setting)
        for row, query, setting in settings
        for k in SHOTS
    )


def _columns(
    targets: Iterable[Target], columns: Sequence[tuple[str, str, str, str]]
) -> tuple[Slot, ...]:
    """Return one row per target and one column per (title, method, query, setting), at 16 shots."""
    return tuple(
        Slot(
            *((row,), title, method, 0 if method == "zero-shot" else 16, target, members, ELEVEN),
            query=query,
            setting=setting,
        )
        for row, target, members in targets
        for title, method, query, setting in columns
    )


def _rounds() -> tuple[Slot, ...]:
    """Measure after every round, on the test images and on those it learned from."""
    return tuple(
        Slot(
            *((part, what), str(number), "tpb", 1, VIT_B, (VIT_B,), ("stanford_cars",)),
            dataset="stanford_cars",
            query=query,
            setting=f"{setting};rounds={number};on={what.lower()}",
            rounds=number,
            on_shots=what == "Train",
        )
        for part, query, setting in (
            ("No augmentation (a=0)", "views_per_round=0", "views_per_round=0"),
            ("With augmentation (a=4)", "", "views_per_round=4"),
        )
        for what in ("Train", "Test")
        for number in range(1, 51)
    )


def _weak() -> tuple[Slot, ...]:
    slots = []
    for k in (1, 16):
        slots.append(Slot((str(k),), "ProAPO", "proapo", k, VIT_B, (VIT_B,), TEN))
        for number in (1, 10, 30, 50):
            one = Slot((str(k),), f"M={number}", "tpb", k, VIT_B, (VIT_B,), TEN)
            slots.append(replace(one, setting=f"rounds={number}", rounds=number))
    return tuple(slots)


_CROPS = (
    "The paper cuts new crops of an image in every round. Here a round draws its crops among those that "
    "are kept, see --views; a round that sees more has more of them."
)


def _plan(name: str, slots: Iterable[Slot], head: tuple[str, ...], **options: Any) -> PaperPlan:
    entry = find_entry(name)
    return PaperPlan(entry, (*entry.sources, VIT_B)[0], tuple(slots), head, **options)


def _tables() -> Iterator[PaperPlan]:
    text_peers, carried = ("coop", "pez", "llmbo", "proapo", "tpb"), ("coop+eft", "promptsrc+eft")
    shot_head, target_head = ("Shot", "Method"), ("Target model", "Method")
    for name in ("main", "main-shots"):
        yield _plan(name, _main(RN50, text_peers, (1, 16)), shot_head)
    without_llm = ("coop", "pez", "proapo", "tpb")
    yield _plan("main-shots-vit-b-32", _main(VIT_B, without_llm, (1, 16)), shot_head)
    text_methods = ("pez", "proapo", "tpb")
    for group in groups():
        slots = _transfer([(group, *_group(group))], (*carried, *text_methods))
        yield _plan(f"transfer-{group.lower()}", slots, target_head)
    slots = _transfer(_by_model(), (*carried, *text_methods))
    yield _plan("transfer-targets", slots, target_head)
    slots = _transfer(_by_model(), ("coop+eft", *text_methods))
    yield _plan("transfer-targets-rn50", slots, target_head)
    larger = [(title, name, (name,)) for name, title in LARGER.items()]
    yield _plan("larger-targets", _transfer(larger, text_methods), target_head)
    clip, tpb = ("ZS-CLIP", "zero-shot", "", ""), ("TPB", "tpb", "", "")
    pez, proapo = ("PEZ", "pez", "", ""), ("ProAPO", "proapo", "", "")
    both = (("ViT-L/14 (source)", VIT_L), ("EVA-02 B/16 (target)", SMALLER))
    slots = _columns([(row, name, (name,)) for row, name in both], (clip, tpb))
    yield _plan("large-to-small", slots, ("Backbone",))
    both = (("RN50 (source)", RN50), ("ViT-L/14 (target)", VIT_L))
    slots = _columns([(row, name, (name,)) for row, name in both], (clip, pez, tpb))
    yield _plan("pez-failure", slots, ("Backbone",))
    yield _plan("weak-classifiers", _weak(), ("Shots",))
    slots = _exposure(_source_and_groups())
    yield _plan("fixed-exposure", slots, ("Backbone",), notes=(_CROPS,))
    slots = _exposure([_HOME, *_by_model()])
    yield _plan("fixed-exposure-targets", slots, ("Model",), notes=(_CROPS,))
    copies = (
        ("TPB w/o dup", "tpb", "max_copies=1", "duplication=off"),
        ("TPB w/ dup", "tpb", "", "duplication=on"),
    )
    slots = _columns(_source_and_groups(), (clip, proapo, *copies))
    yield _plan("duplication", slots, ("Backbone",))
    pools = (
        ("TPB CuPL+DCLIP", "tpb", "sources=cupl,dclip", "pool=cupl+dclip"),
        ("TPB All", "tpb", "", "pool=all"),
    )
    targets = [(name, *_group(name)) for name in groups()]
    slots = _columns(targets, (clip, pez, proapo, *pools))
    yield _plan("pool-robustness", slots, ("Target",))


def _figures() -> Iterator[PaperPlan]:
    away = ("ViT-L (target)", *_group("ViT-L"))
    slots = [
        Slot((title, TITLES[method]), str(k), method, k, target, members, ELEVEN)
        for (title, target, members), methods in (
            (_HOME, ("tpb", "proapo", "coop")),
            (away, ("tpb", "proapo")),
        )
        for method in methods
        for k in SHOTS
    ]
    yield _plan("shot-curves", slots, ("Measured on", "Method"))
    views = [
        ("a=4", "", "views_per_round=4"),
        ("a=2", "views_per_round=2", "views_per_round=2"),
        ("a=1", "views_per_round=1", "views_per_round=1"),
        ("No aug", "views_per_round=0", "views_per_round=0"),
    ]
    yield _plan("view-factor", _curves(views), ("Views",), notes=(_CROPS,))
    pools = [
        ("All descriptions", "", "pool=all"),
        ("CuPL+DCLIP", "sources=cupl,dclip", "pool=cupl+dclip"),
        ("CuPL", "sources=cupl", "pool=cupl"),
    ]
    yield _plan("pool-sources", _curves(pools), ("Pool",))
    head, axis = ("Views", "Images"), "boosting round"
    yield _plan("view-rounds", _rounds(), head, axis=axis, notes=(_CROPS,))
    # Two images of each class are in the paper's drawings.
    toy = Slot(("TPB",), "accuracy", "tpb", 2, VIT_B, (VIT_B,), ("oxford_pets",), "oxford_pets")
    for name, query in (("hard-example", "rounds=1"), ("consecutive-rounds", "rounds=3")):
        slots = [replace(toy, query=query)]
        yield _plan(name, slots, ("Method",), pair=("beagle", "basset hound"), seeds=(1,))


def _all() -> dict[str, PaperPlan]:
    by_name = {plan.name: plan for plan in (*_tables(), *_figures())}
    return {entry.name: by_name[entry.name] for entry in entries()}


#: Every table and figure by its name, in the paper's order.
PLANS = _all()


def find_plan(name: str) -> PaperPlan:
    """Return the plan of a name; raise a SettingError that tells which there are.

    Examples
    --------
    >>> find_plan("pez-failure").methods
    ('ZS-CLIP', 'PEZ', 'TPB')
    """
    return PLANS[find_entry(name).name]


@dataclass(frozen=True)
class PaperChoice:
    """Changes to what the paper measured; empty is as in the paper."""

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
    """Return a plan with changes; slots that are no longer the paper's have the reasons.

    Data sets, methods and seeds are narrowed, or replaced by others. So are shots; where a plan has none
    of the chosen ones, its smallest and largest become the smallest and largest of them. One encoder
    stands for the one to learn with, and the transfers for all targets together.
    """
    shots = _shots_by_plan(plan, choice.shots)
    slots: dict[tuple[tuple[str, ...], str], Slot] = {}
    for slot in plan.slots:
        base = slot.method.removesuffix("+eft")
        if choice.queries and base not in choice.queries:
            continue
        # Zero-shot methods have a number in the column of each number of shots.
        named = int(slot.column) if slot.column.isdigit() and slot.rounds is None else slot.shots
        if slot.shots not in shots or named not in shots:
            continue
        datasets = _with_datasets(slot, plan, choice.datasets)
        for new in (new for other in datasets for new in _with_encoders(other, plan, choice)):
            new = _with_query(new, choice.queries.get(base, ""))
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


def _shots_by_plan(plan: PaperPlan, wanted: Sequence[int]) -> dict[int, int]:
    """Return for each number of shots of a plan the one to measure at; 0 stays."""
    shots = plan.shots
    if not wanted or plan.pair is not None:
        return {k: k for k in (0, *shots)}
    if set(wanted) <= set(shots):
        return {k: k for k in (0, *shots) if k in (0, *wanted)}
    least, most = min(wanted), max(wanted)
    ends = {shots[0]: least if shots[0] == 1 else most, shots[-1]: most if shots[-1] > 1 else least}
    common = {k: k for k in wanted if k in shots}
    return {0: 0, **common, **ends}


def _with_shots(slot: Slot, old: int, shots: int) -> Slot:
    if shots == old:
        return slot
    words = {f"{old} shot": f"{shots} shot", str(old): str(shots)}
    return replace(
        slot,
        shots=shots if slot.shots else 0,
        row=tuple(words.get(word, word) for word in slot.row),
        # Where a column is a round, its number is not one of shots.
        column=words.get(slot.column, slot.column) if slot.rounds is None else slot.column,
        changed=(*slot.changed, f"{shots} shots instead of {old}"),
    )


def _with_views(slot: Slot, choice: PaperChoice) -> Slot:
    """Note the number of crops in a round if there are fewer than in the paper."""
    wanted = slot.views_per_round
    available = choice.views_kept(wanted)
    if wanted <= available:
        return slot
    column = (
        f"{slot.column.removesuffix(f'/{wanted}')}/{available}"
        if "/" in slot.column
        else slot.column
    )
    row = tuple(word.replace(f"a={wanted}", f"a={available}") for word in slot.row)
    why = f"{available} crops of an image in a round instead of {wanted}"
    return replace(slot, row=row, column=column, changed=(*slot.changed, why))


def _with_datasets(slot: Slot, plan: PaperPlan, wanted: Sequence[str]) -> list[Slot]:
    """Return the slot for the chosen data sets: more than one where a column is a data set."""
    if not wanted or tuple(wanted) == plan.datasets:
        return [slot]
    if slot.dataset == AVERAGE:
        return [replace(slot, datasets=tuple(wanted), changed=(*slot.changed, "other data sets"))]
    same = [slot] if slot.dataset in wanted else []
    in_column = slot.column == SHORT[slot.dataset]
    others = [name for name in wanted if name not in plan.datasets]
    if slot.dataset != plan.datasets[0]:
        others = []  # others replace the first one
    elif not in_column:
        others = [] if same else others[:1]
    return same + [
        replace(
            slot,
            column=name if in_column else slot.column,
            datasets=(name,),
            dataset=name,
            changed=(*slot.changed, "other data sets"),
        )
        for name in others
    ]


def _with_encoders(slot: Slot, plan: PaperPlan, choice: PaperChoice) -> list[Slot]:
    """Return the slot on the chosen encoders: one for each, unless it is a group's mean."""
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
    names = {setting.partition("=")[0] for setting in slot.query.split("&")}
    others = [setting for setting in query.split("&") if setting.partition("=")[0] not in names]
    joined = "&".join(setting for setting in (*others, slot.query) if setting)
    # The paper's language model is no longer available.
    changed = slot.changed if slot.method == "llmbo" else (*slot.changed, f"settings {query}")
    return replace(slot, query=joined, changed=changed)

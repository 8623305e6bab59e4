"""Published settings of the peers, and literal texts."""

import numpy as np
import pytest

from promptboost.data.benchmarks import BENCHMARKS, read_benchmark
from promptboost.methods import make_method
from promptboost.paper.plans import PLANS, VIT_B, crop_scale
from promptboost.paper.sheet import DIFFERENCES
from promptboost.pool import build_pool, fill
from promptboost.pool.names import imagenet_class_names, imagenet_names, match_names
from promptboost.pool.templates import clip_templates
from tests.data.benchmarks.benchmark_tools import tiny, write

RN50 = "RN50/openai"


def spelled(method, dataset, source):
    slot = next(
        slot for plan in PLANS.values() for slot in plan.slots
        if slot.method == method and not slot.query
    )  # fmt: skip
    return make_method(slot.spelling(dataset, source))


def test_every_published_setting_is_one_of_the_method():
    for plan in PLANS.values():
        for cell in plan.cells():
            make_method(cell.method)  # raises for a misspelled setting


def test_settings_are_those_of_the_authors():
    proapo = spelled("proapo", "dtd", VIT_B)
    assert (proapo.redundancy, proapo.top5_weight, proapo.group_top5_weight) == (0.5, 0, 0.5)
    assert proapo.sampled_start
    assert proapo.type_words.count("+") == 5
    aircraft = spelled("proapo", "fgvc_aircraft", RN50)
    assert (aircraft.weighted, aircraft.most_templates, aircraft.loops) == (True, 128, 3)
    assert not spelled("proapo", "imagenet", RN50).importance
    fine = {"stanford_cars", "flowers102", "fgvc_aircraft", "dtd", "eurosat"}
    for name in BENCHMARKS:
        src = spelled("promptsrc+eft", name, VIT_B)
        assert (src.mean, src.std) == ((45, 5) if name in fine else (30, 30))
        assert src.templates == 60
    assert crop_scale("coop?epochs=50") == crop_scale("pez") == 0.08
    assert crop_scale("tpb") == 0.5
    assert {"coop+eft", "proapo", "tpb", "pez"} < set(DIFFERENCES)


def test_prompts_are_those_of_clip_character_for_character():
    open_clip = pytest.importorskip("open_clip", reason="needs the extra clip")
    ours = clip_templates()
    theirs = open_clip.OPENAI_IMAGENET_TEMPLATES
    names = [*open_clip.IMAGENET_CLASSNAMES, "airplane", "F-16A/B", "apple pie"]
    assert len(ours) == len(theirs) == 80
    assert [fill(t, name) for t in ours for name in names] == [t(n) for t in theirs for n in names]
    pool = build_pool(["airplane", "F-16A/B"], templates=ours)
    assert "a photo of a airplane." in pool.texts("airplane")
    assert "a photo of a F-16A/B." in pool.texts("F-16A/B")


def test_imagenet_has_a_thousand_classes_with_the_published_names(tmp_path):
    open_clip = pytest.importorskip("open_clip", reason="needs the extra clip")
    numbers = [wnid for wnids in imagenet_names().values() for wnid in wnids]
    by_number = dict(zip(sorted(numbers), imagenet_class_names(), strict=True))
    base = tmp_path / "imagenet"
    write(base, [f"{part}/{n}/{n}_{part}.JPEG" for n in by_number for part in ("train", "val")])
    (base / "classnames.txt").write_text("\n".join(f"{n} {name}" for n, name in by_number.items()))
    data = read_benchmark(tiny("imagenet", {"train": 1000, "test": 1000}, 1000), tmp_path)
    assert len(data.class_names) == 1000
    texts = sorted(fill("{c}", name) for name in data.class_names)
    assert texts == sorted(open_clip.IMAGENET_CLASSNAMES)
    assert np.unique(texts).size == 998
    missiles = [name for name in data.class_names if name.startswith("missile")]
    assert len(missiles) == 2
    found = match_names(missiles, ["missile", *sorted(imagenet_names()["missile"])])
    first, second = missiles
    assert found.entries(first)[0] == found.entries(second)[0] == "missile"
    assert not found.missing
    # A file with numbers has sentences of each of the two.
    assert {found.entries(name)[1] for name in missiles} == {*imagenet_names()["missile"]}

import copy
import dataclasses
import re
import time

import pytest

from promptboost.errors import percent
from promptboost.report import write_report
from promptboost.report.page import BANKS_OPEN, rows_per_class
from tests.report.odd_runs import HOSTILE, hostile_run, many_run
from tests.report.page_tools import Page
from tests.report.run_tools import thumbnails_for, without_held_out, write_run


@pytest.fixture(scope="module")
def page(emoji_run):
    return Page(write_report(emoji_run).read_text(encoding="utf-8"))


def method(metrics, name):
    return next(row for row in metrics["methods"] if row["name"] == name)


def changed(fit, tmp_path, *, thumbnails=None, **changes):
    ensemble, metrics = fit
    metrics = copy.deepcopy(metrics) | changes
    run = write_run(tmp_path / "run", ensemble, metrics, thumbnails)
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_is_written_into_the_run(emoji_run):
    assert write_report(emoji_run) == emoji_run / "report.html"
    assert write_report(str(emoji_run)) == emoji_run / "report.html"


def test_same_files_give_the_same_page(emoji_run):
    first = write_report(emoji_run).read_bytes()
    assert write_report(emoji_run).read_bytes() == first


def test_comparison_has_every_method_with_its_accuracy(page, fit):
    text = page.text("comparison")
    for row in fit[1]["methods"]:
        assert row["label"] in text
        assert percent(row["accuracy"]) in text
        assert percent(row["learn_accuracy"]) in text


def test_headline_is_the_boosted_accuracy_and_its_gain(page, fit):
    zero, boosted = (method(fit[1], name)["accuracy"] for name in ("zero-shot", "promptboost"))
    text = page.text()
    assert f"{percent(boosted)} accuracy on 96 held-out images" in text
    assert f"{100 * (boosted - zero):+.1f} points over zero-shot" in text


def test_figures_of_a_text_edited_since_are_said_to_be_so(fit, tmp_path, page):
    ensemble, metrics = fit
    said = "The text was edited after it was measured."
    assert said not in page.text()
    assert "edited" not in page.ids
    same = changed(fit, tmp_path, ensemble_fingerprint=ensemble.fingerprint)
    assert said not in same.text()
    edited = (ensemble.truncate(3), metrics)
    other = changed(edited, tmp_path, ensemble_fingerprint=ensemble.fingerprint)
    assert other.ids.index("headline") < other.ids.index("edited") < other.ids.index("comparison")
    assert other.text().index(said) < other.text().index("Comparison")
    assert "To measure again, type promptboost evaluate run DATA" in other.text()
    assert "figure doubtful" in {a.get("class") for a in other.named("span")}
    assert said in other.text("checks")


def test_curve_is_drawn_for_wide_and_narrow_screens(page, fit):
    drawn = [a for a in page.named("svg") if a.get("class") == "curve" and "viewbox" in a]
    assert len(drawn) == 2
    lines = [a for a in page.named("polyline") if len(a["points"].split()) == 12]
    assert len(lines) == 4
    assert "Accuracy on held-out images against rounds" in page.text("curve")
    assert percent(method(fit[1], "logistic")["accuracy"]) in page.text("curve")


def test_every_round_has_its_template(page, fit):
    for item in fit[0].rounds:
        assert item.template in page.text("curve")


def test_classes_are_sorted_from_least_recognized(page, fit):
    text = page.text("classes")
    rows = sorted(fit[1]["per_class"], key=lambda row: row["accuracy"]["promptboost"])
    least = rows[0]["accuracy"]
    places = [text.index(row["class"]) for row in rows if row["accuracy"] == least]
    best = rows[-1]
    assert max(places) < text.index(best["class"])
    assert percent(best["accuracy"]["zero-shot"]) in text
    assert len([a for a in page.named("svg") if a.get("class") == "dumbbell"]) == len(rows) + 1


def test_confusions_and_hardest_show_thumbnails_with_alt_text(page, fit):
    pair = fit[1]["confusions"][0]
    assert f"{pair['true']} predicted as {pair['predicted']}" in page.text("confusions")
    images = page.named("img")
    assert images
    assert all(a["src"].startswith("data:image/jpeg;base64,") for a in images)
    assert all(a["alt"] for a in images)
    assert f"{pair['true']} predicted as {pair['predicted']}" in {a["alt"] for a in images}
    worst = fit[1]["hardest"][0]
    assert worst["image"] in page.text("hardest")


def test_hardest_are_multiples_of_the_average(page, fit):
    worst = fit[1]["hardest"][0]
    assert f"{worst['weight'] * 32:.1f} ×" in page.text("hardest")


def test_light_images_are_hard_only_if_not_recognized(fit, tmp_path):
    light = {"image": "a.png", "label": "bird", "predicted": "bird", "weight": 1 / 64}
    text = changed(fit, tmp_path, hardest=[light]).text("hardest")
    assert "a.png" not in text
    assert "All training images are predicted correctly" in text
    text = changed(fit, tmp_path, hardest=[light | {"predicted": "fish"}]).text("hardest")
    assert "0.5 × bird predicted as fish a.png" in text
    lightest = light | {"predicted": "fish", "weight": 1e-9}
    assert "under 0.1 × bird" in changed(fit, tmp_path, hardest=[lightest]).text("hardest")


def test_words_do_not_run_into_each_other(fit, tmp_path):
    hard = {
        "image": "a.png",
        "label": "bird",
        "predicted": "bird",
        "weight": 0.5,
        "text_share": 0.25,
    }
    run = write_run(tmp_path / "run", fit[0], copy.deepcopy(fit[1]) | {"hardest": [hard]})
    html = write_report(run).read_text(encoding="utf-8")
    assert '<span class="soft">predicted correctly</span> <span class="soft">· text 25' in html
    assert '<td class="num copies one">1</td>' in html  # "1 copy" on a small screen


def test_banks_have_prompts_by_weight_with_copies_and_rounds(page, fit):
    ensemble, text = fit[0], page.text("banks")
    name = ensemble.class_names[0]
    weights = list(ensemble.prompts(name).items())
    heaviest, weight = weights[0]
    rounds = [i for i, r in enumerate(ensemble.rounds, 1) if heaviest in r.banks[name]]
    copies = sum(r.banks[name].get(heaviest, 0) for r in ensemble.rounds)
    row = re.search(
        rf"{re.escape(heaviest)} {re.escape(percent(weight))} {copies} rounds ([\d–, ]+) "
        rf"{len(rounds)} rounds?, first {rounds[0]}",
        text,
    )
    assert row, text[:2000]
    assert row[1].startswith(str(rounds[0]))
    shown = [text.index(prompt) for prompt, _ in weights[1:10]]
    assert shown == sorted(shown)


def test_the_first_banks_are_open(page, fit):
    banks = page.named("details")
    assert len([a for a in banks if "open" in a]) == min(BANKS_OPEN, len(fit[0].class_names))
    for name in fit[0].class_names:
        assert name in page.text("banks")


def test_banks_have_the_effect_of_removal_and_fold_prompts_without_one(page, fit, tmp_path):
    name = fit[0].class_names[0]
    heavy, light, *_ = fit[0].prompts(name)
    effects = [
        {"class": name, "prompt": heavy, "weight": 0.5, "mended": 1, "broken": 3, "margin": -0.25},
        {"class": name, "prompt": light, "weight": 0.5, "mended": 2, "broken": 1, "margin": -1.5},
    ]
    text = changed(fit, tmp_path, sentences=effects).text("banks")
    assert re.search(rf"{re.escape(heavy)} [\d.]+% -0\.25 \+2 ", text)
    assert re.search(
        rf"1 sentence without measured effect.*{re.escape(light)} [\d.]+% -1\.50 -1 ", text
    )
    assert "margin lost" not in page.text("banks")


def test_sentences_come_first_with_an_example_image_each(fit, tmp_path):
    ensemble, metrics = fit
    name = ensemble.class_names[0]
    heavy = next(iter(ensemble.prompts(name)))
    thumbnails = thumbnails_for(metrics)
    image = next(iter(thumbnails))
    page = changed(fit, tmp_path, thumbnails=thumbnails, examples={name: {heavy: image}})
    sections = [a["id"] for a in page.named("section")]
    assert sections[:3] == ["banks", "comparison", "confusions"]
    assert sections[-1] == "settings"
    examples = [a for a in page.named("img") if a["alt"] == f"training image of {name}"]
    assert [a["src"] for a in examples] == [thumbnails[image]]


def test_the_title_is_the_name_of_the_data(fit, tmp_path):
    task = fit[1]["task"]
    for data, title in (("photos", "photos"), ("list.csv", "list"), ("dtd:/tmp/x", "dtd")):
        page = changed(fit, tmp_path, task=task | {"data": data})
        assert f"{title} · promptboost report" in page.text()


def test_transfer_settings_bad_images_and_time(page, fit):
    zero, boosted = (method(fit[1], name)["accuracy"] for name in ("zero-shot", "promptboost"))
    text = page.text("transfer")
    assert "fake:64-1" in text
    assert "50.0%" in text
    assert "–" in text  # the mean of the pool is not known there
    assert percent(0.15 / (boosted - zero)) in text
    text = page.text("settings")
    assert "views_per_round 4" in text
    assert "penalty yes" in text
    assert "bird/empty.png the file is empty" in text
    assert "boosting 0.8 s" in text
    assert fit[0].fingerprint in text


def test_checks_say_what_to_type(page):
    text = page.text("checks")
    assert "PB011 tip Unreadable images" in text
    assert "PB021 tip Descriptions of unknown classes" in text
    assert "promptboost fit DATA -o NEW_RUN" in text


def test_nothing_comes_from_outside(emoji_run, page):
    text = write_report(emoji_run).read_text(encoding="utf-8")
    assert not re.search(r"(?i)https?:|//[a-z]|@import|url\(", re.sub(r"data:[^\"']*", "", text))
    assert not page.named("script")
    policy = next(a for a in page.named("meta") if "http-equiv" in a)["content"]
    assert "default-src 'none'" in policy


def test_accessible_structure(page):
    assert len(page.ids) == len(set(page.ids))
    links = {a["href"][1:] for a in page.named("a")}
    assert links <= set(page.ids)
    assert all(a.get("scope") in ("row", "col") for a in page.named("th"))
    assert len(page.named("h1")) == 1
    assert page.named("html")[0]["lang"] == "en"
    for a in page.named("svg"):
        assert a.get("aria-hidden") == "true" or a.get("role") == "img"


def test_without_held_out_images_it_says_so(fit, tmp_path):
    ensemble, metrics = fit
    run = write_run(tmp_path / "run", ensemble, without_held_out(metrics))
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "Nothing was held out." in page.text()
    assert "no-evidence" in page.ids
    assert "PB001" in page.ids
    assert "points over zero-shot" not in page.text()
    assert "whisker" not in {a.get("class") for a in page.named("line")}
    assert percent(method(metrics, "promptboost")["learn_accuracy"]) in page.text("comparison")


@pytest.mark.parametrize(("encoder", "said"), [("conse:lite0", True), ("ViT-B-32/openai", False)])
def test_conse_is_called_what_it_is(fit, tmp_path, encoder, said):
    page = changed(fit, tmp_path, encoder={"id": encoder})
    assert ("This is a ConSE encoder, not CLIP." in page.text()) is said


def test_optional_files_may_be_missing(fit, tmp_path):
    ensemble, metrics = fit
    run = write_run(tmp_path / "run", ensemble, metrics, None, None)
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert not page.named("img")
    assert "no preview" in page.text("confusions")
    assert "rounds 12" in page.text("settings")


def test_optional_figures_may_be_missing(fit, tmp_path):
    ensemble, metrics = fit
    least = {key: metrics[key] for key in ("schema_version", "task", "encoder", "methods")}
    run = write_run(tmp_path / "run", ensemble, least)
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert {"comparison", "checks", "classes", "banks", "settings"} <= set(page.ids)
    assert not {"curve", "confusions", "hardest", "transfer"} & set(page.ids)
    links = {a["href"][1:] for a in page.named("a")}
    assert links <= set(page.ids)


def test_hostile_text_stays_text(tmp_path):
    run = hostile_run(tmp_path / "<script>run & 'co'")
    text = write_report(run).read_text(encoding="utf-8")
    page = Page(text)
    assert "<script" not in text
    assert not page.named("script")
    assert not page.named("b")
    attributes = {name for _, found in page.tags for name in found}
    assert not {name for name in attributes if name.startswith("on")}
    assert {a["src"].split(",")[0] for a in page.named("img")} == {"data:image/jpeg;base64"}
    for hostile in HOSTILE:
        assert " ".join(hostile.split()) in page.text("banks")
    assert "49" not in page.text("classes")
    assert "caf\ufffd.png" in page.text("settings")


def test_many_classes_stay_small_and_quick(tmp_path):
    run = many_run(tmp_path / "many")
    start = time.process_time()
    file = write_report(run)
    assert time.process_time() - start < 5
    assert file.stat().st_size < 3_000_000
    page = Page(file.read_text(encoding="utf-8"))
    assert f"at most {rows_per_class(200)} sentences per class are shown" in page.text("banks")
    assert "45 lighter sentences not shown" in page.text("banks")
    assert "170 more classes" in page.text("classes")
    assert "188 rarer pairs not shown" in page.text("confusions")


def test_a_broken_file_leaves_the_old_report(fit, tmp_path):
    ensemble, metrics = fit
    run = write_run(tmp_path / "run", ensemble, metrics, thumbnails_for(metrics))
    before = write_report(run).read_bytes()
    (run / "metrics.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"metrics\.json"):
        write_report(run)
    assert (run / "report.html").read_bytes() == before
    assert not list(run.glob(".promptboost-*"))


def test_greedy_rounds_have_a_curve_and_no_certificate(page, fit):
    assert "Accuracy per round" in page.text("curve")
    text = page.text("composing")
    assert "greedily, as in the paper" in text
    sizes = [len(fit[0].prompts(name)) for name in fit[0].class_names]
    assert f"{max(sizes)} at most" in text
    assert "certificate" not in text
    assert "gradient" not in page.text()


def one_gradient_round(fit, **fields):
    """The first round, said to be made by gradient, and the figures after it."""
    ensemble, metrics = fit
    only = dataclasses.replace(
        ensemble.rounds[0], composer="gradient", objective=0.4321, gap=0.0123
    )
    chosen = {"rounds": 1, "logit_scale": 30.0, "scale_choice": "logit scale 30, because"}
    made = dataclasses.replace(ensemble, rounds=(only,), settings=chosen, **fields)
    return made, copy.deepcopy(metrics) | {"staged": metrics["staged"][:1]}


def test_one_gradient_round_has_a_certificate_and_no_curve(fit, tmp_path):
    page = changed(one_gradient_round(fit), tmp_path)
    text = page.text("composing")
    assert "logit scale 30, because" in text
    assert (
        "objective 0.432; no weighting of the pool's prompts could lower it by more than 0.012"
        in text
    )
    assert "chosen by gradient on 32 training images" in page.text()
    assert "Accuracy per round" not in page.text()
    assert not [a for a in page.named("a") if a.get("href") == "#curve"]
    assert "strip" not in page.text("banks")
    assert "1 round" not in page.text("banks")
    assert "the gradient composer is promptboost’s own" in page.text()


def test_an_edited_text_has_no_certificate(fit, tmp_path):
    text = changed(one_gradient_round(fit, history=("edited",)), tmp_path).text("composing")
    assert "by gradient" in text
    assert "objective" not in text

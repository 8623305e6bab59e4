import ast
import copy
import dataclasses
import re

import pytest

from promptboost.report import write_card, write_report
from promptboost.report.svg import escaped, fenced
from tests.report.odd_runs import HOSTILE, hostile_run
from tests.report.page_tools import Page
from tests.report.run_tools import without_held_out, write_run


@pytest.fixture(scope="module")
def card(emoji_run):
    assert write_card(emoji_run) == emoji_run / "README.md"
    return (emoji_run / "README.md").read_text(encoding="utf-8").replace("\u202f", " ")


def section(card, title):
    return card.split(f"\n## {title}\n")[1].split("\n## ")[0]


def written(fit, tmp_path, metrics):
    run = write_run(tmp_path / "run", fit[0], metrics)
    return write_card(run).read_text(encoding="utf-8").replace("\u202f", " ")


def test_says_what_it_is(card, fit):
    assert "# emoji-4" in card
    assert "8 classes" in card
    assert f"{fit[0].n_prompts} prompts" in card
    assert "“AdaBoosting Text Prompts for Vision-Language Models”" in card
    for name in fit[0].class_names:
        assert name in section(card, "Classes")


def test_results_table(card, fit):
    rows = [line for line in section(card, "Results").splitlines() if line.startswith("| ")]
    for method in fit[1]["methods"]:
        row = next(line for line in rows if line.startswith(f"| {method['label']} |"))
        assert f"{100 * method['accuracy']:.1f}%" in row
    assert any("fake:64-1" in row and "–" in row for row in rows)


def test_tables_have_even_rows(card):
    blocks = re.findall(r"(?:^\|.*\n)+", card, flags=re.M)
    assert len(blocks) == 4
    for block in blocks:
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_a_residual_that_was_learned_elsewhere_stands_apart_from_the_text(card, fit, tmp_path):
    assert "text alone" not in section(card, "Results")
    metrics = copy.deepcopy(fit[1])
    metrics["transfers"][0]["accuracy"] |= {"text": 0.511, "promptboost": 0.877}
    moved = written(fit, tmp_path, metrics)
    assert "| 51.1% | 87.7% |" in moved
    assert "boosted has a residual fitted with that encoder" in moved
    test_tables_have_even_rows(moved)
    page = Page(write_report(tmp_path / "run").read_text(encoding="utf-8")).text("transfer")
    assert "text alone" in page
    assert "51.1% 87.7%" in page


def test_first_prompts(card, fit):
    text = section(card, "First prompts of each class")
    for name in fit[0].class_names:
        for prompt, weight in list(fit[0].prompts(name).items())[:3]:
            assert f"{100 * weight:.1f}% of the score: {prompt}" in text


def test_how_it_was_made(card):
    text = section(card, "Training")
    for fact in ("fake:64-0", "f00d", "cafe", "| seed | 0 |", "| numpy | 2.4.0 |", "SAMME.R"):
        assert fact in text


def test_snippet_runs(card, emoji_run, monkeypatch, capsys):
    from PIL import Image

    monkeypatch.chdir(emoji_run)
    Image.new("RGB", (8, 8), "red").save("image.jpg")
    code = re.search(r"```python\n(.*?)```", card, flags=re.S)[1]
    exec(compile(ast.parse(code), "card", "exec"), {})
    (emoji_run / "image.jpg").unlink()
    answers = ast.literal_eval(capsys.readouterr().out)
    assert [set(answer) for answer in answers] == [{"label", "score"}] * 5
    assert "promptboost predict emoji-4 image.jpg" in card


def test_without_held_out_images_it_says_so(fit, tmp_path):
    card = written(fit, tmp_path, without_held_out(fit[1]))
    assert "Nothing was held out." in section(card, "Results")
    assert "do not show how accurate" in section(card, "Results")
    assert "Its accuracy on new images is not known." in card


def test_figures_of_a_text_edited_since_are_said_to_be_so(fit, tmp_path, card):
    ensemble, metrics = fit
    said = "The text was edited after it was measured."
    assert said not in card
    metrics = metrics | {"ensemble_fingerprint": ensemble.fingerprint}
    assert said not in written(fit, tmp_path / "same", metrics)
    results = section(written((ensemble.truncate(3),), tmp_path / "other", metrics), "Results")
    assert said in results.split("| method |")[0]
    assert "promptboost evaluate run DATA" in results.split("| method |")[0]


@pytest.mark.parametrize(("encoder", "said"), [("conse:lite0", True), ("ViT-B-32/openai", False)])
def test_conse_is_called_what_it_is(fit, tmp_path, encoder, said):
    metrics = copy.deepcopy(fit[1]) | {"encoder": {"id": encoder}}
    card = written(fit, tmp_path, metrics)
    assert ("a ConSE encoder" in card) is said
    assert ("It is not CLIP" in card) is said


def test_hostile_text_stays_text(tmp_path):
    markdown_it = pytest.importorskip("markdown_it", reason="no Markdown renderer is installed")
    run = hostile_run(tmp_path / "<script>```run")
    card = write_card(run).read_text(encoding="utf-8")
    body = card.split("---\n", 2)[2]
    html = markdown_it.MarkdownIt("commonmark").enable("table").render(body)
    html = re.sub(r"<(br|hr)( /)?>", "", html)
    page = Page(html)
    allowed = {"h1", "h2", "p", "ul", "li", "strong", "pre", "code"}
    allowed |= {"table", "thead", "tbody", "tr", "th", "td"}
    assert {tag for tag, _ in page.tags} <= allowed
    for hostile in HOSTILE:
        assert " ".join(hostile.split()) in page.text()


@pytest.mark.parametrize(
    "text", ["*a* _b_ `c`", "[x](http://y.z)", "![](x)", "<b>", "&amp;", "a|b", "# no", "a\n\n# b"]
)
def test_plain_text_renders_as_itself(text):
    markdown_it = pytest.importorskip("markdown_it", reason="no Markdown renderer is installed")
    html = markdown_it.MarkdownIt("commonmark").render("x " + escaped(text))
    page = Page(html)
    assert [tag for tag, _ in page.tags] == ["p"]
    assert page.text() == "x " + " ".join(text.split())


def test_fences_outgrow_what_they_hold():
    assert fenced("a ```` b").startswith("`````\n")


def test_says_what_composed_it(card, fit, tmp_path):
    assert "| composed | greedily, as in the paper" in section(card, "Training")
    only = dataclasses.replace(fit[0].rounds[0], composer="gradient", objective=0.5, gap=0.01)
    made = dataclasses.replace(fit[0], rounds=(only,), settings={"logit_scale": 20.0})
    text = written((made, fit[1]), tmp_path, fit[1])
    assert "chosen from a pool, by gradient:" in text
    told = section(text, "Training")
    assert "| scale | logit scale 20, as given |" in told
    assert "could lower it by more than 0.01 |" in told
    assert "gradient composer is\npromptboost's own" in section(text, "Citation")

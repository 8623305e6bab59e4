"""Class names, file names and sentences that are scripts, in every page, in a real browser."""

import json

import pytest
from PIL import Image

from promptboost.cli import main
from promptboost.llm.replies import clean_reply
from tests.workbench.workbench_tools import on_workbench

RUNS = "window.attacked=1"
CLASSES = (
    f"<img src=x onerror={RUNS}>",
    f"'\"><svg onload={RUNS}>",
    f"${{{RUNS}}} {{{{{RUNS}}}}} javascript:{RUNS}",
    f'x\' onfocus={RUNS} autofocus tabindex=1 x=" onfocus={RUNS} autofocus y="',
)
SENTENCES = (
    f"<script>{RUNS}</script>",
    f"red </script><script>{RUNS}</script>",
    f"a --> <iframe srcdoc='<script>parent.{RUNS}</script>'>",
    f"blue </textarea><img src=x onerror={RUNS}>",
    f"[link](javascript:{RUNS}) `{RUNS}`",
    f"</style></title><svg><animate onbegin={RUNS} attributeName=x dur=1s>",
    f"<math><mtext><table><mglyph><style><!--</style><img src=x onerror={RUNS}>",
    f"&lt;img src=x onerror={RUNS}&gt; &#60;script&#62;{RUNS}&#60;/script&#62;",
    f"\\u003cimg src=x onerror={RUNS}\\u003e \\x3cscript\\x3e{RUNS}\\x3c/script\\x3e",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("scripts")
    colors = ("red", "green", "blue", "gray")
    for name, color in zip(CLASSES, colors, strict=True):
        folder = root / "images" / name
        folder.mkdir(parents=True)
        for number in range(4):
            file = folder / f"{number}'\"><img src=x onerror={RUNS}>.png"
            Image.new("RGB", (20, 20 + number), color).save(file)
    said = {
        name: [*SENTENCES, f"something {color}"]
        for name, color in zip(CLASSES, colors, strict=True)
    }
    (root / "sentences.json").write_text(json.dumps(said))
    fit = ["--encoder", "fake:32-0", "--shots", "2", "--views", "0", "--no-cache"]
    for command in (
        ["fit", "images", "-o", "run", "--prompts", "sentences.json", *fit],
        ["explain", "run", "images", "--html", "why.html", "--all"],
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root)
            with pytest.raises(SystemExit) as leaving:
                main(command)
        assert not leaving.value.code
    return root / "run"


@pytest.fixture(scope="module")
def page(browser):
    page = browser.new_page()
    page.on("dialog", lambda dialog: dialog.dismiss())
    yield page
    page.close()


@pytest.mark.parametrize("text", [CLASSES[0], *SENTENCES[:4]])
def test_what_is_not_escaped_is_executed(page, text):
    page.goto("about:blank")
    page.evaluate("text => document.write('<body>' + text)", text)
    page.wait_for_function("window.attacked === 1", timeout=10_000)


@pytest.mark.parametrize("file", ["run/report.html", "why.html"])
def test_nothing_of_a_run_is_executed_in_its_pages(run, page, file):
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto((run.parent / file).as_uri())
    page.wait_for_timeout(500)
    assert page.evaluate("window.attacked") is None
    assert CLASSES[0] in page.inner_text("body")
    for details in page.locator("details").all():
        details.evaluate("element => element.open = true")
    assert page.evaluate("window.attacked") is None
    assert {url.partition(":")[0] for url in requested} <= {"file", "data"}
    assert [url for url in requested if url.startswith("file:") and not url.endswith(file)] == []
    assert page.locator("iframe, [onload], [onerror], a[href^='javascript']").count() == 0


def test_nothing_of_a_run_is_executed_in_the_workbench(run, page, monkeypatch, tmp_path):
    monkeypatch.setenv("PROMPTBOOST_STATE", str(tmp_path))
    with on_workbench(run) as client:
        page.goto(client.address)
        page.wait_for_selector("#bench:visible")
        for name in CLASSES:
            page.locator("#class-list button", has_text=name).first.click()
            page.wait_for_timeout(200)
            assert name in page.inner_text("#class-title")
        for sentence in SENTENCES:
            client.edit("add", name=CLASSES[1], sentence=f"{sentence} again")
        page.reload()
        page.wait_for_timeout(500)
        assert page.evaluate("window.attacked") is None
        assert page.locator("#bench script, #bench iframe, #bench [onerror]").count() == 0


@pytest.mark.parametrize("sentence", SENTENCES)
def test_scripts_of_language_models_are_no_sentences(sentence):
    for cleaned in clean_reply(f"1. {sentence}\n2. Something green.").sentences:
        assert "<" not in cleaned
        assert "javascript:" not in cleaned

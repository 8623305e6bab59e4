"""The workbench in a real browser: all operations, reload, killed server, two tabs, keyboard."""

import csv
import json
import re
import signal
from pathlib import Path

import pytest

from promptboost.llm.client import ModelSettings
from promptboost.model.edits import Change
from promptboost.run.edit import edit_run
from promptboost.run.predict import open_classifier
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Lineage
from tests.llm.llm_server import Act
from tests.llm.llm_server import Server as ModelServer
from tests.run.run_tools import start_promptboost
from tests.serve.server_tools import png
from tests.workbench.workbench_tools import on_workbench

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

RED = "something red"
WAIT = 30_000  # milliseconds
playwright.expect.set_options(timeout=WAIT)


class Visitor:
    """A tab with its console messages."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, **options}
        )
        self.context.set_default_timeout(WAIT)
        self.page = self.context.new_page()
        self.complaints = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.open(address)

    def _hear(self, message):
        # Chromium notes every refusal of a server; that they are told on the page is tested here.
        if not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def open(self, address):
        self.page.goto(address)
        self.expect("#bench").to_be_visible()
        self.page.evaluate("document.getElementById('quiet').open = true")
        self.expect("#harm-list").not_to_have_text("…")

    def expect(self, selector):
        return playwright.expect(self.page.locator(selector))

    def text(self, selector):
        return self.page.inner_text(selector)

    def button(self, name, within="body"):
        return self.page.locator(within).get_by_role("button", name=name).first

    def choose(self, name):
        self.page.locator("#class-list button", has_text=name).click()
        self.expect("#class-title").to_have_text(name)

    def row(self, sentence):
        return self.page.locator(".sentence-list > li", has_text=sentence)

    @property
    def focus(self):
        return self.page.evaluate("document.activeElement.dataset.key || document.activeElement.id")


@pytest.fixture
def visit(browser):
    visitors = []

    def begin(client, **options):
        visitors.append(Visitor(browser, getattr(client, "address", client), **options))
        return visitors[-1]

    yield begin
    said = [line for visitor in visitors for line in visitor.complaints]
    for visitor in visitors:
        visitor.context.close()
    assert said == []


@pytest.fixture
def bench(bench_run):
    with on_workbench(bench_run) as client:
        client.run = bench_run
        yield client


def points(text):
    """Read "+2.9 points" as a number."""
    return float(re.search(r"[+−±][\d.]+", text)[0].replace("−", "-").replace("±", ""))


def test_a_number_half_typed_outlives_a_drawing_and_an_unchanged_one_is_no_edit(bench, visit):
    tab = visit(bench)
    share = tab.page.locator(".sentence-list input").first
    before = tab.page.locator("#told").inner_text()
    share.focus()
    share.press("Enter")
    share.press("Control+A")
    share.press_sequentially("12")
    tab.page.evaluate("keepFocus(showSentences)")
    assert tab.page.locator(".sentence-list input").first.input_value() == "12"
    assert tab.page.locator("#told").inner_text() == before
    tab.page.keyboard.press("Enter")
    tab.expect("#told").to_contain_text("a share of 12%")


def test_reasons_that_come_late_leave_a_share_that_is_marked_as_it_is(bench, visit):
    """Typing replaces the selection."""
    tab, held = visit(bench), []
    tab.page.route("**/api/reasons", lambda route: held.append(route))
    tab.choose("sea")
    tab.page.fill("#add-text", RED)
    tab.page.fill("#add-share", "70")
    tab.button("Add", "#add").click()
    tab.expect("#told").to_contain_text(f"added '{RED}' to sea")
    share = tab.row(RED).locator("input")
    share.select_text()
    with tab.page.expect_response("**/api/reasons"):
        for _ in range(300):
            if held:
                break
            tab.page.wait_for_timeout(100)
        held[-1].continue_()
    tab.row(RED).get_by_text("removing it").wait_for()
    tab.page.keyboard.type("20")
    tab.page.keyboard.press("Enter")
    tab.expect("#told").to_contain_text("a share of 20%")


def test_every_verb_shows_what_it_does(bench, visit):
    tab = visit(bench)
    before = tab.text("#accuracy")
    tab.expect("#delta").to_have_text("no edits yet")

    tab.choose("sea")
    tab.page.fill("#add-text", RED)
    tab.page.fill("#add-share", "70")
    tab.button("Add", "#add").click()
    tab.expect("#told").to_contain_text(f"added '{RED}' to sea")
    assert points(tab.text("#delta")) < 0
    assert tab.text("#accuracy") != before
    assert "classes that lose" in tab.text("#paying")
    tab.expect("#flip-list img[src]").not_to_have_count(0)
    assert (
        tab.page.locator("#flip-list img[src]").first.evaluate(
            "image => image.decode().then(() => image.naturalWidth)"
        )
        > 0
    )
    assert tab.row(RED).locator(".tag").all_inner_texts() == ["new", "added by hand"]

    share = tab.row(RED).locator("input")
    share.fill("20")
    share.press("Enter")
    tab.expect("#told").to_contain_text("a share of 20%")
    assert float(tab.row(RED).locator("input").input_value()) == pytest.approx(20, abs=0.2)

    tab.row(RED).get_by_role("button", name="Reword").click()
    tab.page.fill("dialog input[name=to]", "warm evening light")
    tab.button("Reword", "dialog").click()
    tab.expect("#told").to_contain_text("replaced")
    tab.row("warm evening light").get_by_role("button", name="Remove").click()
    tab.expect("#told").to_contain_text("removed 'warm evening light'")

    tab.choose("leaf")
    tab.button("Rename", "#sentences").click()
    tab.page.fill("dialog input[name=to]", "sea")
    tab.button("Rename", "dialog").click()
    tab.expect("#dialog-error").to_contain_text("already")  # and what was typed is still there
    tab.page.fill("dialog input[name=to]", "grass")
    tab.button("Rename", "dialog").click()
    tab.expect("#class-title").to_have_text("grass")
    assert "leaf in the run" in tab.text("#class-figures")

    tab.button("Add a class").click()
    tab.page.fill("dialog input[name=name]", "fog")
    tab.page.fill("dialog textarea", "nothing but grey\nthick white air")
    tab.button("Add", "dialog").click()
    tab.expect("#class-title").to_have_text("fog")
    tab.expect(".sentence-list > li").to_have_count(2)

    tab.choose("night")
    tab.button("Drop class").click()
    tab.button("Cancel", "dialog").click()
    assert "night" in tab.text("#class-list")
    tab.button("Drop class").click()
    tab.button("Drop class", "dialog").click()
    tab.expect("#summary").to_contain_text("of dropped classes left out")
    assert "night" not in tab.text("#class-list")

    tab.button("Undo").click()
    tab.expect("#class-list").to_contain_text("night")
    tab.button("Redo").click()
    tab.expect("#class-list").not_to_contain_text("night")

    tab.button("Save version").click()
    tab.page.fill("dialog input[name=reason]", "seen in a browser")
    tab.button("Save", "dialog").click()
    tab.expect("#save").to_have_text("Saved as run-v2")
    tab.expect("#version-list").to_contain_text("seen in a browser")
    assert Lineage.read(bench.run.parent / "run-v2").edits[-1].reason == "seen in a browser"

    tab.button("Final evaluation").click()
    tab.expect("#notice").to_contain_text("reserved images, evaluated 1 time so far")
    tab.button("Refit residual").click()
    tab.expect("#notice").to_contain_text(re.compile(r"run-v2: [\d.]+% on all \d+ held-out images"))

    tab.page.select_option("#after", "run-v2")
    tab.button("Compare", "#compare").click()
    tab.expect("#comparison").to_contain_text("− class night")
    tab.expect("#comparison tbody tr").not_to_have_count(0)
    assert re.search(
        r"Measured \d+ times? on these \d+ held-out images. Another third", tab.text("#looks")
    )


def test_a_sentence_that_harms_is_removed_and_accuracy_rises(bench_run, visit):
    harmed = bench_run.parent / "harmed"
    change = Change(kind="add", class_name="sea", sentence=RED, share=0.5)
    edit_run(bench_run, [change], harmed, cache=False)
    with on_workbench(harmed) as bench:
        tab = visit(bench)
        first = tab.page.locator("#harm-list li").first
        told = first.inner_text()
        gain = int(re.search(r"\+(\d+)", told)[1]) - int(re.search(r"−(\d+)", told)[1])
        first.get_by_role("button", name="Remove").click()
        tab.expect("#delta").to_contain_text("points")
        images = bench.read()["effect"]["images"]
        assert points(tab.text("#delta")) == pytest.approx(100 * gain / images, abs=0.06)
        tab.page.locator("#mixed-list button.link").first.click()
        tab.expect(".sentence-list .shown").to_have_count(1)
        assert tab.focus.startswith("share:")
        assert points(tab.text("#delta")) > 0


def test_an_image_is_chosen_or_dropped_and_explained(bench, visit):
    tab = visit(bench)
    red = {"name": "red <b>.png", "mimeType": "image/png", "buffer": png((210, 40, 60), (40, 30))}
    tab.page.set_input_files("#file", red)
    tab.expect("#explanation").to_contain_text("red <b>.png")
    tab.expect("#explanation ol li").not_to_have_count(0)
    assert "rather than" in tab.text("#explanation")
    answer = tab.page.locator("#explanation strong").first.inner_text()
    # It follows the edits.
    tab.choose(answer)
    tab.button("Rename", "#sentences").click()
    tab.page.fill("dialog input[name=to]", "another name")
    tab.button("Rename", "dialog").click()
    tab.expect("#explanation strong").to_have_text(
        ["another name", "Like another name", re.compile("Unlike .")]
    )
    tab.page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File(["no image at all"], "broken.png", {type: "image/png"}));
          document.getElementById("drop-zone").dispatchEvent(
            new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
        }"""
    )
    tab.expect("#notice").to_contain_text("broken.png")
    tab.button("Close", "#notice").click()
    tab.expect("#notice").to_be_empty()


def test_one_mistake_is_explained_against_the_right_class(bench, visit):
    tab = visit(bench)
    pair = bench.get("/api/reasons").json["confusions"][0]
    tab.page.locator("#mixed-list .minis button").first.click()
    tab.expect("#explanation").to_contain_text(f"wrong, label {pair['true']}")
    tab.expect("#explanation").to_contain_text(f"rather than {pair['true']}")
    tab.expect("#explanation strong").to_have_text(
        [pair["answered"], f"Like {pair['answered']}", f"Unlike {pair['true']}"]
    )


def test_a_reload_in_the_middle_loses_nothing(bench, visit):
    tab = visit(bench)
    tab.choose("sea")
    tab.page.fill("#add-text", RED)
    tab.button("Add", "#add").click()
    tab.expect("#undo").to_be_enabled()
    accuracy = tab.text("#accuracy")
    assert tab.page.url.endswith("/")  # the token does not stay in the address
    tab.page.reload()
    tab.expect("#undo").to_be_enabled()
    assert tab.text("#accuracy") == accuracy
    tab.choose("sea")
    tab.expect("#sentences").to_contain_text(RED)


def test_a_killed_server_loses_nothing(bench_run, visit, tmp_path):
    def start():
        command = ("workbench", str(bench_run), "--json", "--no-cache")
        process = start_promptboost(*command, cwd=tmp_path, cache=tmp_path / "cache")
        return process, json.loads(process.stdout.readline())

    process, told = start()
    try:
        tab = visit(told["address"])
        tab.choose("sea")
        tab.page.fill("#add-text", RED)
        tab.button("Add", "#add").click()
        tab.expect("#undo").to_be_enabled()
        accuracy = tab.text("#accuracy")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        tab.button("Undo").click()
        tab.expect("#notice").to_contain_text("Your edits are stored")
        process, told = start()
        assert told["unsaved"] == 1
        again = visit(told["address"])
        again.expect("#notice").to_contain_text("Restored 1 unsaved edit.")
        assert again.text("#accuracy") == accuracy
        again.choose("sea")
        again.expect("#sentences").to_contain_text(RED)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_two_tabs_share_the_draft(bench, visit):
    one, other = visit(bench), visit(bench)
    one.choose("sea")
    one.page.fill("#add-text", RED)
    one.button("Add", "#add").click()
    one.expect("#undo").to_be_enabled()
    other.expect("#notice").to_contain_text("edited in another window")
    other.expect("#accuracy").to_have_text(one.text("#accuracy"))
    # Faster than the page can know: what it asks for is about an older draft.
    other.page.evaluate("state.revision -= 1")
    other.button("Undo").click()
    other.expect("#notice").to_contain_text("repeat your edit")
    assert bench.read()["undo"] == 1
    other.button("Undo").click()
    one.expect("#undo").to_be_disabled()


def test_a_stale_save_is_refused(bench, visit):
    tab = visit(bench)
    tab.choose("sea")
    tab.page.fill("#add-text", RED)
    tab.button("Add", "#add").click()
    tab.button("Save version").click()
    tab.page.evaluate("state.revision -= 1")
    tab.button("Save", "dialog").click()
    tab.expect("#notice").to_contain_text("edited in another window")
    assert not (bench.run.parent / "run-v2").exists()
    tab.button("Save version").click()
    tab.button("Save", "dialog").click()
    tab.expect("#save").to_have_text("Saved as run-v2")


def test_the_keyboard_alone_is_enough(bench, visit):
    tab = visit(bench)
    press = tab.page.keyboard.press
    press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "skip"
    press("Enter")
    tab.expect("#sentences").to_be_focused()
    for _ in range(40):
        press("Tab")
        if tab.focus.startswith("remove:"):
            break
    sentences = tab.page.locator(".sentence-list > li").count()
    press("Enter")
    tab.expect(".sentence-list > li").to_have_count(sentences - 1)
    assert tab.focus.startswith("remove:")  # on the sentence that took its place
    press("Control+z")
    tab.expect(".sentence-list > li").to_have_count(sentences)
    press("Control+Shift+Z")
    tab.expect(".sentence-list > li").to_have_count(sentences - 1)
    for _ in range(80):
        press("Tab")
        if tab.focus == "add-text":
            break
    tab.page.keyboard.type("typed by hand")
    press("Enter")
    tab.expect("#sentences").to_contain_text("typed by hand")
    tab.expect("#add-text").to_be_focused()
    tab.expect("#add-text").to_have_value("")
    unlabeled = tab.page.evaluate(
        """[...document.querySelectorAll("button, input, select, textarea")].filter((one) =>
          !one.closest("dialog") && !one.textContent.trim() && !one.getAttribute("aria-label")
          && !(one.labels && one.labels.length)).map((one) => one.outerHTML)"""
    )
    assert unlabeled == []
    assert tab.page.get_attribute("#told", "aria-live") == "polite"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_by_day_and_night(bench, visit, scheme):
    tab = visit(bench, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    bench.edit("add", name="sea", sentence="a sentence" + " that goes on" * 12, share=0.6)
    tab.expect("#undo").to_be_enabled()
    tab.choose("sea")
    tab.button("Compare", "#compare").click()
    tab.expect("#comparison table").to_be_visible()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    color = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", color)[:3])) > 380) == (scheme == "light")


def manifest(run):
    """Return name and label of each training image that a run was refitted with."""
    rows = csv.DictReader(run.with_name(f"{run.name}-labels.csv").read_text().splitlines())
    return {
        "/".join(Path(row["path"]).parts[-2:]): row["label"]
        for row in rows
        if row["split"] == "train"
    }


def test_clicks_label_images_and_refit(labeled, visit):
    tab, run = visit(labeled), labeled.folder / "run-v2"
    card = tab.page.locator("#label-list li", has_text="new/").first
    image = card.locator("p").first.inner_text()
    card.get_by_role("button", name="leaf").click()
    tab.expect("#labels-note").to_contain_text("1 change, refitted as run-v2: accuracy")
    tab.expect("#label-list").not_to_contain_text(image)
    assert manifest(run)[image] == "leaf"
    labels = manifest(run)
    assert len(labels) == RunFolder(run).results.task.learn_images == 33

    tab.button("Search for them", "#labels").click()
    suspicious = tab.page.locator(".label-cards").first.locator("li", has_text="ember: ")
    suspicious = suspicious.filter(has=tab.page.locator("button", has_text="Drop")).first
    image = suspicious.locator("p").first.inner_text()
    suspicious.get_by_role("button", name="sea").click()
    tab.expect("#labels-note").to_contain_text("2 changes")
    assert manifest(run) == {**labels, image: "sea"}

    labels, before = manifest(run), open_classifier(run, cache=False).head.residual
    suspicious = tab.page.locator(".label-cards").first.locator("li").first
    image = suspicious.locator("p").first.inner_text()
    suspicious.get_by_role("button", name="Drop").click()
    tab.expect("#labels-note").to_contain_text("3 changes")
    assert len(manifest(run)) == RunFolder(run).results.task.learn_images == 32
    assert (open_classifier(run, cache=False).head.residual != before).any()
    assert not (labeled.folder / "run-v3").exists()

    skipped = tab.page.locator("#label-list li", has_text="new/").first
    image = skipped.locator("p").first.inner_text()
    skipped.get_by_role("button", name="None of these").click()
    tab.expect("#label-list").not_to_contain_text(image)
    assert len(manifest(run)) == 32


@pytest.mark.parametrize("width", [1280, 390])
def test_without_held_out_images_the_page_says_what_is_missing(unmeasured, visit, width):
    tab = visit(unmeasured, viewport={"width": width, "height": 900})
    accuracy = RunFolder(unmeasured.folder / "run").results.thresholds.accuracy
    tab.expect("#accuracy").to_have_text(f"{100 * accuracy:.1f}%")
    tab.expect("#summary").to_contain_text("on 8 cross-validated training images")
    for section in ("#flips", "#harm", "#mixed"):
        tab.expect(section).to_contain_text("Needs held-out images")
    tab.choose("sea")
    tab.page.fill("#add-text", "a calm bay")
    tab.button("Add", "#add").click()
    tab.expect("#sentence-list").to_contain_text("a calm bay")
    tab.expect("#delta").to_have_text("not measured")
    tab.button("Compare", "#compare").click()
    tab.expect("#comparison").to_contain_text("+ sea: a calm bay")
    tab.page.locator("#label-list li").first.get_by_role("button", name="leaf").click()
    tab.expect("#labels-note").to_contain_text("on 9 cross-validated training images")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_names_are_text_and_never_markup(bench, visit):
    hostile = "<img src=x onerror=document.title=1>"
    bench.edit("add-class", name=hostile, sentences=["<script>document.title=2</script>"])
    tab = visit(bench)
    tab.choose(hostile)
    tab.expect("#sentences").to_contain_text("<script>document.title=2</script>")
    assert tab.page.locator("#bench script").count() == 0
    assert "workbench" in tab.page.title()


def test_a_page_without_its_token_says_what_to_do(bench, browser):
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{bench.port}/")
    playwright.expect(page.locator("#wait")).to_contain_text(
        "Open the address that the command printed"
    )
    page.goto("about:blank")
    page.goto(f"http://127.0.0.1:{bench.port}/#token=wrong")
    playwright.expect(page.locator("#wait")).to_contain_text(
        "Open the address that the command printed"
    )
    page.close()


def test_grow_shows_what_sentences_would_bring(bench_run, visit):
    pytest.importorskip("openai")

    def script(question, time):
        return Act(text="Glowing coals in the dark.\nA warm red glow all around.")

    with ModelServer(script) as models:
        settings = ModelSettings("a-model", "openai", models.url)
        with on_workbench(bench_run, model=settings) as client:
            tab = visit(client)
            tab.button("Suggest", "#mixed-list").click()
            tab.expect(".suggested").to_contain_text("points")
            told = tab.page.locator(".suggested li").first.inner_text()
            after = re.search(r"points \(([\d.]+%)\)", told)[1]
            tab.button("Add", ".suggested").click()
            tab.expect("#told").to_contain_text("added")
            tab.expect("#accuracy").to_have_text(after)


def test_without_a_model_nothing_is_suggested_but_how_to_have_one(bench, visit):
    tab = visit(bench)
    tab.expect("#mixed-note").to_contain_text("promptboost workbench run --model NAME")
    tab.expect("#mixed-list strong >> nth=0").to_be_visible()
    tab.expect("#mixed-list button:text-is('Suggest')").to_have_count(0)

"""Pages in a real browser, checked by axe: what people with a screen reader or a keyboard need."""

import pytest

from promptboost.report import write_report
from tests.report.run_tools import fitted as report_data
from tests.report.run_tools import thumbnails_for, with_probabilities, write_run
from tests.workbench.workbench_tools import fit_without_residual, on_workbench

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
DOCUMENTS = ["index", "results/accuracy", "reference/api/promptboost"]


@pytest.fixture(
    params=[("light", DESKTOP), ("light", PHONE), ("dark", DESKTOP), ("dark", PHONE)],
    ids=["light", "light-phone", "dark", "dark-phone"],
)
def tab(browser, request):
    """A tab; axe is injected as a script, which the security policy of our pages would refuse."""
    scheme, size = request.param
    context = browser.new_context(color_scheme=scheme, viewport=size, bypass_csp=True)
    yield context.new_page()
    context.close()


def violations(page):
    """Return the serious and critical findings of axe."""
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{rule['impact']}: {rule['id']}: {node['target']}: {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
        if rule["impact"] in {"serious", "critical"}
    ]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    ensemble, metrics = report_data()
    run = tmp_path_factory.mktemp("runs") / "emoji-4"
    return write_report(
        write_run(run, ensemble, with_probabilities(metrics), thumbnails_for(metrics))
    )


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    root = tmp_path_factory.mktemp("benched")
    fit_without_residual(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMPTBOOST_STATE", str(root / "state"))
        with on_workbench(root / "run") as client:
            yield client


def test_the_report(report, tab):
    tab.goto(report.as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    assert violations(tab) == []


def test_the_workbench(bench, tab):
    tab.goto(bench.address)
    tab.locator("#quiet").evaluate("(fold) => { fold.open = true; }")
    tab.locator("#harm-list li").first.wait_for()
    tab.locator("#mixed-list button").first.wait_for()
    tab.locator("#mixed-list [data-key^='mini:']").first.click()
    tab.locator("#explanation select").wait_for()
    tab.locator("#add-text").fill("something red")
    tab.locator("#label-list > *").first.wait_for()
    assert violations(tab) == []
    tab.locator("#add-class").click()
    tab.locator("#dialog").wait_for()
    assert violations(tab) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_documentation(site, tab, document):
    tab.goto((site / f"{document}.html").as_uri())
    assert violations(tab) == []


def test_a_violation_would_be_noticed(tab):
    tab.set_content("<html lang='en'><title>t</title><main><input></main></html>")
    assert any("critical: label" in line for line in violations(tab))

import io
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

# Tests that run side by side have a core each: threads that share cores wait for each other by spinning.
# Before numpy is loaded, and for the processes that tests start as well.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests that load what was exported as anybody would must send nothing, and leave nothing at home.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# The first call of a compiled function loads it; timing single examples says nothing here.
settings.register_profile("house", deadline=None, print_blob=True, derandomize=True)
# `make fuzz` looks for new examples; a change is judged by the same ones every time.
settings.register_profile("fuzz", deadline=None, print_blob=True, max_examples=500)
settings.load_profile("house")


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; tests skip where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    file = next(filter(None, map(shutil.which, names)), None)
    if file is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=file, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def _networks(tmp_path_factory):
    """What ConSE encoders build of their weights, which takes seconds and is the same for all tests."""
    return tmp_path_factory.mktemp("conse")


@pytest.fixture
def _same_threads():
    """No test leaves more threads to those after it: side by side, torch would be many times slower."""
    before = os.environ.get("OMP_NUM_THREADS")
    yield
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert os.environ.get("OMP_NUM_THREADS") == before


@pytest.fixture(autouse=True)
def _own_store(_same_threads, tmp_path_factory, monkeypatch, _networks):
    """No test meets the embeddings of another, or of the person who runs it."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "conse").symlink_to(_networks, target_is_directory=True)
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(cache))
    # Nor does what a test does depend on a hub that answers today.
    monkeypatch.setenv("PROMPTBOOST_ENCODER", "conse:lite0")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The documentation as HTML: built once, for all processes that test."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    built, building = shared / "site", shared / "site-building"
    with FileLock(shared / "site.lock"):
        if not built.exists():
            options = ["--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
            docs = Path(__file__).parents[1] / "docs"
            command = [sys.executable, "-m", "sphinx", *options, str(docs), str(building)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            building.rename(built)
    return built


@dataclass
class Bar:
    """A progress bar that was shown, as it was when it went."""

    stage: str
    done: float = 0
    total: float | None = None
    others: list[str] = field(default_factory=list)  # stages on the screen when it came


@pytest.fixture
def bars(monkeypatch):
    """Progress bars that a terminal shows, in the order in which they came."""
    from tqdm.std import tqdm

    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("promptboost.progress._stderr_is_terminal", lambda: True)
    shown: list[Bar] = []
    open_now: dict[int, Bar] = {}
    begin, close = tqdm.__init__, tqdm.close

    def note_begin(bar, *arguments, file=terminal, **options):
        begin(bar, *arguments, file=terminal, **options)
        if not bar.disable:
            others = [other.stage for other in open_now.values()]
            open_now[id(bar)] = Bar(bar.desc.removesuffix(": "), total=bar.total, others=others)
            shown.append(open_now[id(bar)])

    def note_close(bar):
        if (noted := open_now.pop(id(bar), None)) is not None:
            noted.done, noted.total = bar.n, bar.total
        close(bar)

    monkeypatch.setattr(tqdm, "__init__", note_begin)
    monkeypatch.setattr(tqdm, "close", note_close)
    return shown


@pytest.fixture
def own_threads(monkeypatch):
    """A test may set the number of threads; all is as before in the end."""
    from threadpoolctl import threadpool_limits

    from promptboost import threads

    before = threads.thread_count()
    for variable in threads._VARIABLES:
        monkeypatch.setenv(variable, "2")
    monkeypatch.setattr(threads, "_chosen", None)
    with threadpool_limits(None):
        yield
    if (torch := sys.modules.get("torch")) is not None:  # it may have been loaded meanwhile
        torch.set_num_threads(before)


@pytest.fixture
def task(tmp_path):
    """A folder with images and sentences."""
    from tests.run.run_tools import write_images, write_sentences

    write_images(tmp_path / "images")
    write_sentences(tmp_path / "sentences.json")
    return tmp_path


@pytest.fixture
def fitted(task):
    """The same folder with a finished run."""
    from promptboost.run.fit import fit_run
    from tests.run.run_tools import request

    fit_run(**request(task))
    return task

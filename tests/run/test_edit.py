"""Editing a run: a new run, measured, that remembers where it comes from."""

import json
import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from PIL import Image

import promptboost
from promptboost.baselines import accuracy
from promptboost.data import Dataset, LabeledImage
from promptboost.errors import InputError, RunError
from promptboost.model import PromptEnsemble
from promptboost.model.edits import Change
from promptboost.quality.issues import find_issues
from promptboost.run.edit import edit_run
from promptboost.run.evaluate import evaluate_run
from promptboost.run.explain import explain_held_out
from promptboost.run.holdout import add_looks, open_held_out, shown_part
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import transfer_run
from promptboost.run.versions import Lineage


def some_sentence(run, name="ember"):
    prompts = PromptEnsemble.load(run / "ensemble.json").prompts(name)
    return list(prompts)[-1]


def files(run):
    return {path.name: path.read_bytes() for path in run.iterdir()}


def test_an_edit_is_measured_as_the_new_run_answers(fitted):
    run, new = fitted / "run", fitted / "edited"
    before = files(run)
    changes = [
        Change(kind="add", class_name="sea", sentence="something red", share=0.6),
        Change(kind="rename-class", class_name="leaf", to="grass"),
    ]
    edited = edit_run(run, changes, new, author="ann", reason="to see")
    effect = edited.effect
    bench = open_held_out(run)
    assert 0 < effect.images < 16
    images = [fitted / "images" / name for name in bench.images]
    labels = [bench.class_names[k] for k in bench.labels]
    for folder, share, leaf in ((run, effect.before, "leaf"), (new, effect.after, "grass")):
        answers = promptboost.load(folder).predict([str(path) for path in images])
        right = [a == (leaf if b == "leaf" else b) for a, b in zip(answers, labels, strict=True)]
        assert share == pytest.approx(np.mean(right))
    assert {k: v for k, v in files(run).items() if k != "edits.json"} == before
    assert Lineage.read(run).looks == 1
    lineage = Lineage.read(new)
    assert (lineage.parent, lineage.looks) == ("run", 1)
    assert lineage.edits[0].author == "ann"
    assert lineage.edits[0].changes == tuple(changes)
    assert lineage.edits[0].after == effect.after
    assert "to see" in (new / "report.html").read_text()
    assert RunFolder(new).state == "finished"


def test_an_edited_run_is_edited_again_and_classes_are_followed(fitted):
    run = fitted / "run"
    edit_run(run, [Change(kind="rename-class", class_name="leaf", to="sea 2")], fitted / "a")
    again = edit_run(
        fitted / "a",
        [
            Change(kind="drop-class", class_name="night"),
            Change(kind="rename-class", class_name="sea 2", to="night"),
            Change(kind="add-class", class_name="leaf", sentences=("something green",)),
        ],
        fitted / "b",
    )
    lineage = Lineage.read(fitted / "b")
    assert [len(edit.changes) for edit in lineage.edits] == [1, 3]
    assert lineage.looks == 2
    bench = open_held_out(fitted / "b")
    assert bench.base.labels == {"ember": "ember", "sea": "sea", "night": "leaf"}
    assert again.effect.left_out == sum(bench.class_names[k] == "night" for k in bench.labels)
    assert {item.class_name for item in again.effect.classes} <= {"ember", "leaf", "sea"}


def test_what_only_changes_a_name_changes_no_answer(fitted):
    effect = edit_run(
        fitted / "run",
        [Change(kind="rename-class", class_name="leaf", to="grass")],
        fitted / "a",
    ).effect
    assert effect.flips == ()
    assert effect.before == effect.after


def test_the_images_are_divided_by_content_and_never_meet(fitted):
    shown = open_held_out(fitted / "run")
    final = open_held_out(fitted / "run", final=True)
    assert set(shown.images) & set(final.images) == set()
    assert len(shown.images) + len(final.images) == 16
    moved = fitted / "moved"
    shutil.copytree(fitted / "images", moved)
    shutil.rmtree(fitted / "images")
    assert open_held_out(fitted / "run", data=str(moved)).images == shown.images


def test_without_its_images_an_edit_is_made_and_not_measured(fitted):
    shutil.rmtree(fitted / "images")
    edited = edit_run(
        fitted / "run",
        [Change(kind="add", class_name="sea", sentence="waves")],
        fitted / "a",
    )
    assert edited.effect is None
    assert any(note.startswith("not measured: ") for note in edited.notes)
    assert "waves" in PromptEnsemble.load(fitted / "a/ensemble.json").prompts("sea")


@pytest.mark.parametrize(
    "change",
    [
        Change(kind="remove", sentence="no such sentence"),
        Change(kind="drop-class", class_name="no such class"),
        Change(kind="weight", class_name="sea", sentence="something blue", share=3.0),
    ],
)
def test_an_edit_that_cannot_be_made_leaves_nothing(fitted, change):
    before = files(fitted / "run")
    with pytest.raises(InputError):
        edit_run(fitted / "run", [change], fitted / "a")
    assert not (fitted / "a").exists()
    assert files(fitted / "run") == before


def test_a_run_is_not_edited_in_place_nor_over_another(fitted):
    change = [Change(kind="add", class_name="sea", sentence="waves")]
    with pytest.raises(RunError, match="another name"):
        edit_run(fitted / "run", change, fitted / "run")
    edit_run(fitted / "run", change, fitted / "a")
    with pytest.raises(RunError, match="--overwrite"):
        edit_run(fitted / "run", change, fitted / "a")
    edit_run(fitted / "run", change, fitted / "a", overwrite=True)


def test_the_residual_goes_with_its_class(fitted):
    run = fitted / "run"
    before = promptboost.load(run).head
    assert before.residual is not None
    edit_run(run, [Change(kind="rename-class", class_name="leaf", to="zebra")], fitted / "a")
    after = promptboost.load(fitted / "a").head
    assert after.class_names == ("ember", "zebra", "night", "sea")
    assert after.residual == pytest.approx(before.residual)


def test_all_held_out_images_are_explained_together(fitted):
    run = fitted / "run"
    bench = open_held_out(run)
    reasons = explain_held_out(run, bench)
    assert reasons.images == len(bench.labels)
    answers = bench.scores.logits(bench.ensemble).argmax(axis=1)
    assert reasons.accuracy == accuracy(answers, bench.labels)
    assert len(reasons.sentences) == bench.ensemble.n_prompts
    for item in reasons.harmful[:2]:
        change = Change(kind="remove", class_name=item.class_name, sentence=item.prompt)
        effect = bench.effect([change])
        assert round((effect.after - effect.before) * effect.images) == item.gain
    json.dumps(msgspec.to_builtins(reasons), allow_nan=False)
    assert Lineage.read(run).looks == 1


def test_looks_are_counted(fitted):
    assert Lineage.read(fitted / "run") == Lineage()
    add_looks(fitted / "run", looks=2)
    add_looks(fitted / "run", final_looks=1)
    assert Lineage.read(fitted / "run") == Lineage(looks=2, final_looks=1)
    (fitted / "run/edits.json").write_text('{"looks": -1}')
    with pytest.raises(InputError, match=r"edits\.json"):
        Lineage.read(fitted / "run")


def test_a_class_added_by_words_is_measured_as_the_new_run_answers(fitted):
    run, new = fitted / "run", fitted / "edited"
    changes = [
        Change(kind="rename-class", class_name="leaf", to="grass"),
        Change(kind="add-class", class_name="sun", sentences=("something yellow", "warm light")),
    ]
    effect = edit_run(run, changes, new).effect
    bench = open_held_out(run)
    images = [str(fitted / "images" / name) for name in bench.images]
    answers = promptboost.load(new).predict(images)
    labels = [
        {"leaf": "grass"}.get(name, name) for name in np.array(bench.class_names)[bench.labels]
    ]
    assert effect.after == pytest.approx(np.mean(answers == labels))
    flipped = {flip.image: flip.after for flip in effect.flips}
    assert all(
        flipped.get(name, answer) == answer
        for name, answer in zip(bench.images, answers, strict=True)
    )


def test_an_edited_run_is_refitted_and_keeps_its_lineage(fitted):
    from promptboost.run.refit import refit_run

    changes = [Change(kind="rename-class", class_name="leaf", to="grass")]
    edit_run(fitted / "run", changes, fitted / "a")
    lineage = Lineage.read(fitted / "a")
    said = []
    refit_run(fitted / "a", say=said.append)
    after = Lineage.read(fitted / "a")
    assert (after.edits, after.parent) == (lineage.edits, lineage.parent)
    # All held-out images are measured on, and that is counted.
    assert (after.looks, after.final_looks) == (lineage.looks + 1, 1)
    assert [line for line in said if "counted as a use" not in line] == []
    assert len(said) == 1
    head = promptboost.load(fitted / "a").head
    assert head.class_names == ("ember", "grass", "night", "sea")
    assert (np.linalg.norm(head.residual, axis=1) > 0).all()
    assert len(open_held_out(fitted / "a").labels) > 0


def test_issues_and_transfer_know_classes_by_their_new_names(fitted):
    changes = [
        Change(kind="rename-class", class_name="leaf", to="grass=green"),
        Change(kind="drop-class", class_name="night"),
        Change(kind="add-class", class_name="owl", sentences=("an owl",)),
    ]
    edit_run(fitted / "run", changes, fitted / "edited")
    issues = find_issues(fitted / "edited", limit=50)
    assert (issues.learned_images, issues.held_out_images) == (12, 12)
    assert {item.label for item in issues.findings} == {"ember", "grass=green", "sea"}
    moved = transfer_run(fitted / "edited", "fake:32-1")
    assert (moved["images"], moved["note"]) == (12, "")


def test_edits_name_the_heads_that_are_left_behind(fitted):
    transfer_run(fitted / "run", "fake:32-1")
    for number, change in enumerate(
        (
            Change(kind="rename-class", class_name="leaf", to="grass"),
            Change(kind="drop-class", class_name="night"),
            Change(kind="add-class", class_name="owl", sentences=("an owl",)),
        )
    ):
        edited = edit_run(fitted / "run", [change], fitted / f"edited-{number}")
        residual, outdated = edited.notes
        assert "the residual was fitted with the sentences before the edit" in residual
        assert f"transfer {fitted}/edited-{number} --encoder fake:32-1" in outdated
        head = promptboost.load(fitted / f"edited-{number}").head
        has_residual = np.linalg.norm(head.residual, axis=1) > 0
        assert [n for n, has in zip(head.class_names, has_residual, strict=True) if not has] == (
            ["owl"] if change.kind == "add-class" else []
        )


def test_a_look_that_the_parent_cannot_count_is_counted_by_the_child(fitted, monkeypatch):
    def read_only(*_, **__):
        raise PermissionError("read-only")

    monkeypatch.setattr("promptboost.run.edit.add_looks", read_only)
    change = Change(kind="add", class_name="sea", sentence="something wet", share=0.2)
    edited = edit_run(fitted / "run", [change], fitted / "edited")
    assert Lineage.read(fitted / "run").looks == 0
    assert Lineage.read(fitted / "edited").looks == edited.lineage.looks == 1
    assert [line.split("'")[0] for line in edited.history] == ["added ", "gave "]


def test_images_that_are_gone_can_be_named_as_the_error_says(fitted):
    shutil.move(fitted / "images", fitted / "moved")
    with pytest.raises(RunError, match=r"evaluate .*run DATA --held-out"):
        evaluate_run(fitted / "run", None, held_out=True)
    found = evaluate_run(fitted / "run", str(fitted / "moved"), held_out=True)
    assert found["held_out"]["looks"] == 1


def test_a_third_is_kept_back_by_what_is_in_the_images():
    colors = [Image.new("RGB", (4, 4), (number, 9, 9)) for number in range(200)]
    images = [LabeledImage(str(i), "ab"[i % 2], color) for i, color in enumerate(colors)]
    data = Dataset.of(images)
    shown, kept = (
        {image.id for image in shown_part(data, final=final).images} for final in (False, True)
    )
    assert shown | kept == {image.id for image in images}
    assert not shown & kept
    assert 50 < len(kept) < 84
    # Whatever else there is, and whatever it is called.
    few = Dataset.of([replace(image, id=f"again {image.id}") for image in images[:40]])
    again = {image.id for image in shown_part(few, final=True).images}
    assert again == {f"again {i}" for i in range(40) if str(i) in kept}

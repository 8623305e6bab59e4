import json

import pytest

from promptboost.pool import build_pool
from promptboost.pool.io import load_pool
from promptboost.run.run_folder import RunFolder
from tests.cli.cli_tools import FIT, call
from tests.pool.reader_tools import read_sentences
from tests.run.run_tools import unfinish, write_images


@pytest.fixture
def files(tmp_path):
    (tmp_path / "classes.txt").write_text("barn owl\nbat\nelk\n")
    (tmp_path / "birds_prompts_full.json").write_text(
        json.dumps({"Barn_Owl": ["An owl.", "", "an  OWL."], "bat": ["An elk."], "cow": ["A cow."]})
    )
    (tmp_path / "descriptors_birds.json").write_text(json.dumps({"bat": ["wings"]}))
    return tmp_path


def test_check_says_what_matched_how_and_what_is_odd(capsys, files):
    arguments = ["pool", "check", files / "birds_prompts_full.json"]
    arguments += [files / "descriptors_birds.json", "--classes", files / "classes.txt"]
    text = call(capsys, *arguments)
    assert text.code == 0
    for line in (
        "matched names: 1 underscores, 1 exact",
        "PP001 issue: Missing classes (1)",
        "PP003 tip: Names of no class (1)",
        "Barn_Owl: 1",
        "PP012 tip: Repeated sentences (1)",
        "bat: “An elk.” names elk",
        "2 of 3 classes have sentences; not elk",
    ):
        assert line in text.out
    record = call(capsys, *arguments, "--json").json
    assert record["without_sentences"] == ["elk"]
    first, second = record["sources"]
    assert first["matched"][0] == {"class": "barn owl", "name": "Barn_Owl", "how": "underscores"}
    codes = [finding["code"] for finding in first["findings"]]
    assert codes == ["PP001", "PP003", "PP011", "PP012", "PP015"]
    assert (second["kind"], second["missing"]) == ("dclip", ["barn owl", "elk"])


def test_check_with_an_encoder(capsys, files):
    (files / "long.json").write_text(json.dumps({"bat": ["word " * 100 + "."]}))
    arguments = ["pool", "check", files / "long.json", "--classes", files / "classes.txt", "--json"]
    found = call(capsys, *arguments, "--encoder", "fake:16-0").json["sources"][0]["findings"]
    assert [item["code"] for item in found] == ["PP001", "PP016"]
    assert "103 tokens, 77 are read" in found[1]["details"][0]


def test_long_sentences_are_cut_for_people_only(capsys, files):
    (files / "long.json").write_text(json.dumps({"bat": ["word " * 399] * 2}))
    arguments = ["pool", "check", files / "long.json", "--classes", files / "classes.txt"]
    assert max(map(len, call(capsys, *arguments).out.splitlines())) < 300
    assert "word " * 390 in call(capsys, *arguments, "--json").out


def test_what_check_prints_cannot_move_the_cursor(capsys, files):
    (files / "bad.json").write_text(json.dumps({"bat": ["a \x1b[2J", "b \u200b- c."]}))
    answer = call(capsys, "pool", "check", files / "bad.json", "--classes", files / "classes.txt")
    assert "PP013" in answer.out
    assert "\x1b" not in answer.out
    assert "\u200b" not in answer.out


def test_build_writes_what_fit_reads(capsys, files):
    arguments = ["pool", "build", files / "birds_prompts_full.json"]
    arguments += [files / "descriptors_birds.json", "--classes", files / "classes.txt"]
    answer = call(capsys, *arguments, "-o", files / "all.json", "--json")
    assert read_sentences(files / "all.json") == {
        "barn owl": ["An owl."],
        "bat": ["An elk.", "bat, which has wings."],
    }
    assert answer.json["left_out"] == {
        "blank": 1,
        "damaged": 0,
        "repeated": 1,
        "names_of_no_class": 1,
    }
    assert "1 of 3 classes have no sentence: elk" in answer.err
    shown = call(capsys, "pool", "show", files / "all.json", "--class", "Barn_Owl")
    assert shown.out == "An owl.\n"
    assert call(capsys, "pool", "show", files / "all.json").out.splitlines()[1].split() == [
        *("barn", "owl", "1", "all.json")
    ]


def test_build_uses_synonyms(capsys, files):
    (files / "synonyms.json").write_text(json.dumps({"elk": ["cow"]}))
    arguments = ["pool", "build", files / "birds_prompts_full.json", "-o", files / "all.json"]
    arguments += ["--classes", files / "classes.txt", "--synonyms", files / "synonyms.json"]
    assert call(capsys, *arguments).code == 0
    assert read_sentences(files / "all.json")["elk"] == ["A cow."]


def test_build_refuses_to_guess_and_leaves_the_old_file(capsys, files):
    (files / "two.json").write_text(json.dumps({"Bat": ["x"], "BAT": ["y"]}))
    (files / "all.json").write_text("old")
    answer = call(
        *(capsys, "pool", "build", files / "two.json", "--classes", files / "classes.txt"),
        *("-o", files / "all.json"),
    )
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "--synonyms" in answer.err
    assert (files / "all.json").read_text() == "old"


def test_classes_may_be_images_and_the_pool_fits(capsys, tmp_path):
    write_images(tmp_path / "images")
    names = [folder.name for folder in sorted((tmp_path / "images").rglob("*")) if folder.is_dir()]
    sentences = "".join(f"{name.upper()}\tone kind of {name}.\n" for name in names)
    (tmp_path / "mine.txt").write_text(sentences)
    arguments = ["pool", "build", tmp_path / "mine.txt", "--classes", tmp_path / "images"]
    built = call(capsys, *arguments, "-o", tmp_path / "pool.json", "--json")
    assert built.json["without_sentences"] == []
    arguments = ["fit", tmp_path / "images", "-o", tmp_path / "run", *FIT, "--json"]
    assert call(capsys, *arguments, "--prompts", tmp_path / "pool.json").code == 0


def test_fit_takes_a_released_file_as_it_is(capsys, tmp_path):
    write_images(tmp_path / "images")
    file = tmp_path / "descriptors_colors.json"
    file.write_text(json.dumps({"Sea": ["", "blue water"], "LEAF": ["green"], "cow": ["horns"]}))
    arguments = ["fit", tmp_path / "images", "-o", tmp_path / "run", *FIT, "--json"]
    answer = call(capsys, *arguments, "--prompts", file)
    assert answer.code == 0
    assert answer.json["pool"]["statistics"]["prompts_by_source"] == {"template": 64, "dclip": 2}
    assert answer.json["pool"]["missing"] == ["ember", "night"]
    assert answer.json["pool"]["unused"] == ["cow"]
    file.write_text('{"sea": [""]}')
    answer = call(capsys, *arguments, "--prompts", file, "--overwrite")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "only blank or damaged sentences; see promptboost pool check" in answer.err


# --- a pool as JSON Lines --------------------------------------------------------------------------


def sources(files):
    return [
        *(files / "birds_prompts_full.json", files / "descriptors_birds.json"),
        *("--classes", files / "classes.txt"),
    ]


def test_build_saves_a_pool_in_which_prompts_know_their_source(capsys, files):
    file = files / "pool.jsonl"
    arguments = ["pool", "build", *sources(files), "--concatenate", "all", "-o", file]
    answer = call(capsys, *arguments, "--json")
    pool = load_pool(file)
    by_hand = build_pool(
        ["barn owl", "bat", "elk"],
        descriptions={
            "cupl_full": {"barn owl": ["An owl."], "bat": ["An elk."]},
            "dclip": {"bat": ["bat, which has wings."]},
        },
        concatenate="all",
    )
    for name in by_hand.class_names:
        assert list(pool.prompts(name)) == list(by_hand.prompts(name))
    assert (pool.missing, pool.unused) == (("elk",), ("cow",))
    record = answer.json
    assert record["prompts_by_source"] == {
        "template": 48,
        "cupl_full": 2,
        "concat": 48,
        "dclip": 1,
    }
    assert (record["prompts"], record["fingerprint"]) == (99, pool.fingerprint)
    assert record["left_out"]["repeated"] == 1
    assert "1 of 3 classes have no sentence: elk" in answer.err
    text = call(capsys, *arguments)
    assert "99 prompts: 48 template, 2 cupl_full, 48 concat, 1 dclip" in text.out


def test_ablation_pools_are_one_option(capsys, files):
    arguments = ["pool", "build", *sources(files), "-o", files / "pool.jsonl"]
    assert call(capsys, *arguments, "--sources", "dclip").code == 0
    assert load_pool(files / "pool.jsonl").prompts_by_source == {"template": 48, "dclip": 1}
    assert call(capsys, *arguments, "--sources", "dclip, cupl", "--concatenate", "one").code == 0
    assert list(load_pool(files / "pool.jsonl").prompts("bat"))[16].source == "dclip"
    before = (files / "pool.jsonl").read_bytes()
    answer = call(capsys, *arguments, "--sources", "awt")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "there is no source 'awt'; there is cupl_full, dclip" in answer.err
    assert (files / "pool.jsonl").read_bytes() == before
    arguments[-1] = files / "some.json"
    assert call(capsys, *arguments, "--sources", "dclip").code == 0
    assert read_sentences(files / "some.json") == {"bat": ["bat, which has wings."]}


def test_a_file_of_sentences_holds_no_prompts(capsys, files):
    arguments = ["pool", "build", *sources(files), "-o", files / "all.json"]
    for option in (["--concatenate", "one"], ["--templates", "own"]):
        answer = call(capsys, *arguments, *option)
        assert answer.code == 2
        assert f"{option[0]} needs a pool" in answer.err
        assert answer.err.rstrip().endswith("all.jsonl")
    arguments[-1] = files / "all.txt"
    assert "ends in .jsonl" in call(capsys, *arguments).err
    assert not list(files.glob("all*"))


def test_a_source_may_say_its_format(capsys, files, monkeypatch):
    (files / "fragments.json").write_text(json.dumps({"bat": ["ears"]}))
    arguments = ["pool", "build", f"dclip={files / 'fragments.json'}", *sources(files)]
    assert call(capsys, *arguments, "-o", files / "all.json").code == 0
    found = read_sentences(files / "all.json")["bat"]
    assert found == ["bat, which has ears.", "An elk.", "bat, which has wings."]
    # What is there under that very name is meant; a word that is no format is part of a name.
    (files / "plain=odd.txt").write_text("bat\tfur\n")
    (files / "a=b.txt").write_text("bat\tteeth\n")
    monkeypatch.chdir(files)
    arguments = ["pool", "build", "plain=odd.txt", "a=b.txt", "--classes", "classes.txt"]
    arguments += ["-o", "all.json"]
    assert call(capsys, *arguments).code == 0
    assert read_sentences(files / "all.json") == {"bat": ["fur", "teeth"]}


def test_a_saved_pool_can_be_checked_shown_and_built_upon(capsys, files):
    file = files / "pool.jsonl"
    call(capsys, "pool", "build", *sources(files), "--concatenate", "one", "-o", file)
    shown = call(capsys, "pool", "show", file)
    assert shown.out.splitlines()[1].split() == ["barn", "owl", "18"]
    assert "54 prompts: 48 template, 2 cupl_full, 3 concat, 1 dclip" in shown.out
    record = call(capsys, "pool", "show", file, "--json").json
    assert record["prompts_of"] == {"barn owl": 18, "bat": 20, "elk": 16}
    read = call(capsys, "pool", "show", file, "--class", "Barn_Owl").out.splitlines()
    assert read[-2:] == ["An owl.", "a photo of a barn owl. An owl."]
    answer = call(capsys, "pool", "show", file, "--class", "cow")
    assert (answer.code, "it has barn owl, bat, elk" in answer.err) == (2, True)
    checked = call(capsys, "pool", "check", file, "--classes", files / "classes.txt", "--json").json
    assert checked["without_sentences"] == ["elk"]
    assert [source["name"] for source in checked["sources"]] == ["template", "cupl_full", "dclip"]
    (files / "more.txt").write_text("elk\thorns\n")
    built = ["pool", "build", file, files / "more.txt", "--classes", files / "classes.txt"]
    assert call(capsys, *built, "-o", files / "larger.jsonl").code == 0
    assert load_pool(files / "larger.jsonl").prompts_by_source == {
        "template": 48,
        "cupl_full": 2,
        "dclip": 1,
        "more.txt": 1,
    }


def test_a_saved_pool_fits_and_resumes_and_its_sources_are_in_the_figures(capsys, tmp_path):
    write_images(tmp_path / "images")
    (tmp_path / "mine.txt").write_text("Sea\tblue water\nleaf\tgreen\nember\tred\nnight\tdark\n")
    arguments = ["pool", "build", tmp_path / "mine.txt", "--classes", tmp_path / "images"]
    call(capsys, *arguments, "--concatenate", "all", "-o", tmp_path / "pool.jsonl")
    arguments = ["fit", tmp_path / "images", "-o", tmp_path / "run", *FIT, "--json"]
    answer = call(capsys, *arguments, "--prompts", tmp_path / "pool.jsonl")
    assert answer.code == 0
    assert answer.json["pool"]["statistics"]["prompts_by_source"] == {
        "template": 64,
        "mine.txt": 4,
        "concat": 64,
    }
    run = tmp_path / "run"
    whole = (run / "ensemble.json").read_bytes()
    unfinish(RunFolder(run))
    (run / "ensemble.json").unlink()
    assert call(capsys, "fit", tmp_path / "images", "-o", run, "--resume", "--json").code == 0
    assert (run / "ensemble.json").read_bytes() == whole
    again = call(capsys, *arguments, "--overwrite", "--prompts", tmp_path / "mine.txt")
    assert again.json["pool"]["prompts"] == 4 * (16 + 1)


def test_a_pool_of_other_classes_is_refused_before_anything_is_written(capsys, tmp_path, files):
    write_images(tmp_path / "images")
    call(capsys, "pool", "build", *sources(files), "-o", files / "pool.jsonl")
    arguments = ["fit", tmp_path / "images", "-o", tmp_path / "run", *FIT]
    answer = call(capsys, *arguments, "--prompts", files / "pool.jsonl")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "no prompts for the class 'ember' and 3 more" in answer.err
    assert not (tmp_path / "run").exists()


def test_show_templates_and_records(capsys, tmp_path):
    (tmp_path / "t.json").write_text('{"birds": ["a photo of a {c}."], "cars": ["a {c}"]}')
    answer = call(capsys, "pool", "show", tmp_path / "t.json", "--dataset", "birds")
    assert answer.out == "a photo of a {c}.\n"
    record = call(capsys, "pool", "show", tmp_path / "t.json", "--dataset", "cars", "--json").json
    assert record["sources"][0]["templates"] == ["a {c}"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pool", "show", "none.json"], "does not exist"),
        (["pool", "show", "birds_prompts_full.json", "--class", "bar owl"], "'Barn_Owl'"),
        (["pool", "show", "birds_prompts_full.json", "--kind", "cuppl"], "the kinds are"),
        (["pool", "check", "descriptors_birds.json"], "--classes"),
        (["pool", "check", "descriptors_birds.json", "--classes", "none"], "none"),
        (["pool", "bild"], "bild"),
    ],
)
def test_errors_are_one_line(capsys, files, monkeypatch, arguments, says):
    monkeypatch.chdir(files)
    answer = call(capsys, *arguments)
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert says in answer.err


def test_the_group_alone_shows_its_help(capsys):
    answer = call(capsys, "pool")
    assert (answer.code, answer.err) == (0, "")
    assert all(word in answer.out for word in ("check", "build", "show"))

"""Files made here exactly in the shape of each released source, with its traps."""

import json

import pytest

from promptboost import io
from promptboost.errors import FileFormatError, PoolError, SettingError
from promptboost.pool.readers import KINDS, read_sources
from promptboost.pool.readers.released import name_class
from promptboost.pool.templates import connect
from tests.pool.reader_tools import read_source


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, "utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("place", "kind", "name"),
    [
        ("cars_prompts_base.json", "cupl", "cupl_base"),
        ("cars_prompts_full.json", "cupl", "cupl_full"),
        ("descriptors_pets.json", "dclip", "dclip"),
        ("ucf_20_prompts.json", "gpt4vis", "gpt4vis"),
        ("pets_20_prompts_0_37_api.json", "gpt4vis", "gpt4vis"),
        ("AWT/AWT_zero_shot/descriptions/image_datasets/dtd.json", "awt", "awt_zero_shot"),
        ("AWT/AWT_few_shot/MM_Adapter/descriptions/dtd.json", "awt", "awt_few_shot"),
        ("dtd/category_description/CuPL_full.json", "proapo", "proapo:CuPL_full"),
        ("mine.json", "plain", "mine.json"),
    ],
)
def test_the_format_is_recognized(tmp_path, place, kind, name):
    source = read_source(write(tmp_path / place, {"owl": ["It has large eyes."]}))
    assert (source.kind, source.name) == (kind, name)
    assert source.sentences == {"owl": ["It has large eyes."]}


def test_a_named_format_wins_over_the_recognized_one(tmp_path):
    path = write(tmp_path / "mine.json", {"owl": ["large eyes"]})
    assert read_source(path).texts(["owl"], "owl") == ["large eyes"]
    assert read_source(path, "dclip").texts(["owl"], "owl") == ["owl, which has large eyes."]


def test_blank_sentences_and_line_breaks(tmp_path):
    path = write(tmp_path / "a_prompts_base.json", {"owl": ["", "\n An\nowl. ", "  \n"], "bat": []})
    source = read_source(path)
    assert source.sentences == {"owl": ["An owl."], "bat": []}
    assert source.blank == {"owl": 2}


def test_control_characters_are_left_out_and_said(tmp_path):
    source = read_source(write(tmp_path / "a.json", {"owl": ["\x1b[2J", "eyes"]}))
    assert source.sentences == {"owl": ["eyes"]}
    (skipped,) = source.skipped
    assert skipped.startswith("owl: ")
    assert "U+001B" in skipped


@pytest.mark.parametrize(
    ("fragment", "sentence"),
    [
        ("a freshwater fish", "elk, which is a freshwater fish."),
        ("An animal", "elk, which is An animal."),
        ("antlers", "elk, which has antlers."),
        ("a-frame horns", "elk, which has a-frame horns."),
        ("has horns.", "elk, which has horns."),
        ("typically brown", "elk, which typically brown."),
        ("used for milk", "elk, which is used for milk."),
        ("four legs", "elk, which has four legs."),
        ("4 legs", "elk, which has 4 legs."),
    ],
)
def test_connectors(fragment, sentence):
    assert connect("elk", fragment) == sentence


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("An object which has a thick skin.", "barn owl, which has a thick skin."),
        ("A satellite image which shows fields.", "barn owl, which shows fields."),
        ("A car with two doors.", "barn owl, with two doors."),
        ("A food that is round.", "barn owl, which is round."),
        ("An action where a ball is thrown.", "barn owl, where a ball is thrown."),
        ("A bird often found in woods.", "A bird often found in woods."),
        ("This bird is a bird which sings.", "This bird is a bird which sings."),
    ],
)
def test_lines_that_name_no_class(line, sentence):
    assert name_class("barn_owl", line) == sentence


def test_folder_of_text_files(tmp_path):
    write(tmp_path / "F-16ASLASHB.txt", 'A jet with wings.\r\n\r\n"A jet which flies."\r\n')
    write(tmp_path / "St. Bernard.txt", "A pet which drools.\nA pet which drools.")
    write(tmp_path / "._St. Bernard.txt", "x")  # what a Mac leaves on other people's discs
    write(tmp_path / "notes.md", "x")
    source = read_source(tmp_path)
    assert source.kind == "adaptclip"
    assert source.sentences["F-16ASLASHB"] == ["A jet with wings.", "A jet which flies."]
    assert len(source.sentences["St. Bernard"]) == 2
    assert source.blank == {"F-16ASLASHB": 1}
    assert source.stray == ("._St. Bernard.txt", "notes.md")
    assert source.texts(["F-16ASLASHB"], "F-16A/B")[1] == "F-16A/B, which flies."


def test_proapo_folder(tmp_path):
    write(tmp_path / "category_description" / "DCLIP.json", {"owl": ["large eyes"]})
    write(tmp_path / "category_description" / "AdaptCLIP.json", {"owl": ["A bird which hoots."]})
    write(tmp_path / "category_description" / "CuPL_base.json", {"owl": ["An owl."]})
    found = {source.name: source.texts(["owl"], "owl") for source in read_sources(tmp_path)}
    assert found == {
        "proapo:AdaptCLIP": ["owl, which hoots."],
        "proapo:CuPL_base": ["An owl."],
        "proapo:DCLIP": ["owl, which has large eyes."],
    }
    assert len(read_sources(tmp_path / "category_description")) == 3


def test_clip_benchmark(tmp_path):
    nested = write(tmp_path / "prompts.json", {"birds": {"owl": ["An owl."]}})
    assert read_source(nested).sentences == {"owl": ["An owl."]}
    assert read_source(nested).name == "clip_benchmark:birds"
    templates = write(tmp_path / "t.json", {"birds": ["a photo of a {c}."], "cars": ["a {c}"]})
    with pytest.raises(SettingError, match="birds, cars"):
        read_source(templates)
    assert read_source(templates, dataset="cars").texts([], "owl") == ["a owl"]
    with pytest.raises(SettingError, match="no dataset 'food'"):
        read_source(templates, dataset="food")
    listed = write(tmp_path / "list.json", ["a drawing of the {}.", "{} at night"])
    assert read_source(listed).texts([], "barn_owl") == [
        "a drawing of the barn owl.",
        "barn owl at night",
    ]


def test_a_list_of_class_names_is_no_source(tmp_path):
    with pytest.raises(FileFormatError, match="--classes"):
        read_source(write(tmp_path / "names.json", ["owl", "bat"]))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'class,sentence\r\nowl,large eyes\r\nbat,wings\r\nowl,"a beak, hooked"\r\n'),
        (
            "a.csv",
            '\ufeffid,Sentence,Class\n1,large eyes,owl\n2,wings,bat\n3,"a beak, hooked",owl\n',
        ),
        ("a.csv", 'class,sentence\nowl,large eyes\n\n,\nbat,wings\nowl,"a beak, hooked"\n , \n'),
        ("a.txt", "owl\tlarge eyes\n\nbat\twings\nowl\ta beak, hooked"),
        ("a.tsv", "owl\tlarge eyes\r\nbat\twings\r\nowl\ta beak, hooked\r\n"),
        (
            "a.jsonl",
            '{"class": "owl", "text": "large eyes"}\n{"class": "bat", "text": "wings"}\n'
            '{"class": "owl", "text": "a beak, hooked"}\n',
        ),
    ],
)
def test_own_files(tmp_path, name, content):
    source = read_source(write(tmp_path / name, content))
    assert source.kind == "plain"
    assert source.sentences == {"owl": ["large eyes", "a beak, hooked"], "bat": ["wings"]}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", '{"owl": ["x"', "cut off"),
        ("a.json", '{"owl": ["x"], "owl": ["y"]}', "occurs twice"),
        ("a.json", '{"owl": "x"}', "list of sentences"),
        ("a.json", '{"owl": {"eyes": ["large"]}, "bat": ["x"]}', "'owl' needs a list.*not a dict"),
        ("a.json", '{"owl": [1]}', "must be a string"),
        ("a.json", "{}", "no classes"),
        ("a.json", "3", "holds an int"),
        ("a.csv", "name,words\nowl,x\n", "no column 'class'; it has: name, words"),
        ("a.csv", "class,words\nowl,x\n", "needs class and sentence"),
        ("a.csv", "class,sentence\nowl\n", "line 2: 1 cells under 2 columns"),
        ("a.csv", "class,sentence\nowl,a beak, hooked\n", "line 2: 3 cells.*put quotes around"),
        ("a.csv", "class,sentence\nowl,x\n,y\n", "line 3: a class name is empty"),
        ("a.csv", "class,sentence,Sentence\nowl,x,y\n", "column 'sentence' 2 times"),
        ("a.csv", "", "holds no classes"),
        ("a.txt", "owl large eyes\n", "line 1, has no tab"),
        ("a.jsonl", "[]\n", "line 1: not an object; write .*class.*text"),
        ("a.xyz", "?", "--kind: proapo, adaptclip"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, name, content, says):
    with pytest.raises(FileFormatError, match=says):
        read_source(write(tmp_path / name, content))


def test_wrong_kinds_and_places(tmp_path):
    path = write(tmp_path / "a.json", {"owl": ["x"]})
    with pytest.raises(SettingError, match=", ".join(KINDS)):
        read_source(path, "cuppl")
    with pytest.raises(FileFormatError, match="is a file, and the kind adaptclip"):
        read_source(path, "adaptclip")
    with pytest.raises(FileFormatError, match="is a folder, and the kind cupl"):
        read_source(tmp_path, "cupl")
    with pytest.raises(FileFormatError, match="is not known"):
        read_source(tmp_path)
    with pytest.raises(PoolError, match="does not exist"):
        read_source(tmp_path / "none.json")
    latin = tmp_path / "latin.csv"
    latin.write_bytes("class,sentence\ncafé,x\n".encode("latin-1"))
    with pytest.raises(FileFormatError, match="not UTF-8"):
        read_source(latin)


def test_an_unchanged_file_is_read_once(tmp_path, monkeypatch):
    reads = []
    read = io.read_text
    monkeypatch.setattr(io, "read_text", lambda path, **more: reads.append(path) or read(path))
    path = write(tmp_path / "mine.json", {"owl": ["round eyes"]})
    assert read_sources(path) == read_sources(path) == read_sources(str(path))
    assert reads == [path]
    write(path, {"owl": ["a hooked beak"]})
    assert read_source(path).sentences == {"owl": ["a hooked beak"]}
    assert reads == [path, path]

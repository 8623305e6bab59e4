import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import FileFormatError, PoolError
from promptboost.pool import PromptPool, build_pool, save_pool
from promptboost.pool.io import load_pool
from promptboost.pool.pool import ClassPrompts, Prompt
from tests.pool.pool_strategies import content, pools


@given(pools())
def test_json_lines_lose_nothing(tmp_path_factory, pool):
    path = tmp_path_factory.mktemp("pool") / "pool.jsonl"
    save_pool(pool, path)
    again = load_pool(path)
    assert content(again) == content(pool)
    assert again.fingerprint == pool.fingerprint


odd = st.builds(
    Prompt,
    st.sampled_from(["an owl", "two  spaces ", "été \u2003 x", '"quoted" \\', "an owl eyes"]),
    st.sampled_from(["mine", "concat"]),
    st.sampled_from([None, "a {}"]),
    st.sampled_from([None, "eyes"]),
    st.sampled_from([None, "mine"]),
)


@given(st.lists(odd, min_size=1))
def test_prompts_of_any_make_come_back(tmp_path_factory, prompts):
    path = tmp_path_factory.mktemp("pool") / "pool.jsonl"
    pool = PromptPool({"owl": ClassPrompts("owl", prompts)}, ())
    save_pool(pool, path)
    assert content(load_pool(path)) == content(pool)


def small():
    return build_pool(
        ["owl", "bat"],
        templates=["a {}."],
        descriptions={"owl": ["eyes"], "bat": ["wings"]},
        concatenate="all",
    )


def test_the_lines_are_plain(tmp_path):
    save_pool(small(), tmp_path / "pool.jsonl")
    header, first, second, third, *_ = map(
        json.loads, (tmp_path / "pool.jsonl").read_text().splitlines()
    )
    assert header == {
        "promptboost_pool": 1,
        "class_names": ["owl", "bat"],
        "templates": ["a {}."],
        "prompts": 6,
        "missing": [],
        "unused": [],
    }
    assert first == {"class": "owl", "text": "an owl.", "source": "template", "template": "a {}."}
    assert second == {
        "class": "owl",
        "text": "eyes",
        "source": "descriptions",
        "sentence": "eyes",
    }
    assert third == {
        "class": "owl",
        "text": "an owl. eyes",
        "source": "concat",
        "template": "a {}.",
        "sentence": "eyes",
        "origin": "descriptions",
    }


def test_lines_may_be_edited_by_hand(tmp_path):
    path = tmp_path / "pool.jsonl"
    save_pool(small(), path)
    header, *lines = path.read_text().splitlines()
    added = '{"class": "owl", "text": "a beak", "source": "mine"}'
    text = "\n".join([header.replace('"prompts": 6', '"prompts": 7'), *lines, "", added])
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_pool(path).texts("owl") == ["an owl.", "eyes", "an owl. eyes", "a beak"]


def edit(**changes):
    def changed(lines):
        header = {**json.loads(lines[0]), **changes}
        return [json.dumps({k: v for k, v in header.items() if v is not None}), *lines[1:]]

    return changed


def line(number, **changes):
    def changed(lines):
        record = {**json.loads(lines[number - 1]), **changes}
        lines[number - 1] = json.dumps({k: v for k, v in record.items() if v is not ...})
        return lines

    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "line 1, is cut off or not JSON"),
        (lambda lines: lines[1:], r"line 1, is not that of a saved pool.*read_pool\("),
        (lambda lines: ["[]", *lines[1:]], "line 1, is not that of a saved pool"),
        (edit(promptboost_pool=2), "line 1, has version 2.*pip install --upgrade"),
        (edit(promptboost_pool=True), "line 1, is not that of a saved pool"),
        (edit(class_names=None), 'line 1, needs "class_names": a list of texts'),
        (edit(templates=["a {}", 3]), 'line 1, needs "templates": a list of texts'),
        (edit(templates=["a photo"]), "line 1, cannot be used: template 1 has 0 times"),
        (edit(class_names=["owl", "OWL", "bat"]), "line 1, cannot be used: two classes"),
        (edit(class_names=["owl", "bat", "eel"]), "no prompts for the class 'eel': add one"),
        (edit(class_names=["owl"]), "line 5, is about 'bat', no class of the first line"),
        (edit(prompts="6"), 'line 1, needs "prompts"'),
        (lambda lines: lines[:-1], "ends after 5 prompts instead of 6"),
        (lambda lines: [*lines[:3], lines[3][:20], *lines[4:]], "line 4, is cut off or not JSON"),
        (lambda lines: [*lines[:3], "[1]", *lines[4:]], 'line 4, should be {"class"'),
        (lambda lines: [*lines[:2], '{"class": "owl", "class": "bat"}'], "line 3,: 'class' occurs"),
        (line(3, text=...), 'line 3, needs "text"'),
        (line(3, text=" "), 'line 3, needs "text": a text that is not empty'),
        (line(3, source=7), 'line 3, needs "source"'),
        (line(3, sentence=None), 'line 3, needs "sentence"'),
        (line(3, text="\x1b[31m"), r'line 3, has the control character U\+001B in "text"'),
        (line(3, color="red"), "line 3, has the unknown field 'color'; remove it"),
    ],
)
def test_bad_lines_are_named(tmp_path, change, message):
    path = tmp_path / "pool.jsonl"
    save_pool(small(), path)
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    with pytest.raises(FileFormatError, match=message) as caught:
        load_pool(path)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path):
    path = tmp_path / "pool.jsonl"
    save_pool(small(), path)
    path.write_bytes(path.read_bytes().replace(b"wings", b"w\xffngs", 1))
    with pytest.raises(FileFormatError, match="line 6, is not UTF-8"):
        load_pool(path)


def test_bad_names_are_refused(tmp_path):
    with pytest.raises(PoolError, match=r"pool\.txt: the name of a pool ends in \.jsonl"):
        save_pool(small(), tmp_path / "pool.txt")
    with pytest.raises(PoolError, match="No such file"):
        load_pool(tmp_path / "none.jsonl")
    with pytest.raises(PoolError, match=r"cannot write the pool .*no such folder"):
        save_pool(small(), tmp_path / "none" / "pool.jsonl")


class Breaking(ClassPrompts):
    """Prompts that run out of memory after the last."""

    def __iter__(self):
        yield from super().__iter__()
        raise MemoryError

    def texts(self, key=str):
        yield from super().texts(key)
        raise MemoryError


def test_a_pool_that_is_not_written_whole_is_not_written(tmp_path):
    pool, path = small(), tmp_path / "pool.jsonl"
    save_pool(pool, path)
    before = path.read_bytes()
    broken = dataclasses.replace(
        pool,
        prompts_by_class={name: Breaking(name, pool.prompts(name)) for name in pool.class_names},
    )
    with pytest.raises(MemoryError):
        save_pool(broken, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["pool.jsonl"]

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.word_mixer import WordMixer, first_list, serving
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import LabelError, PoolError, SettingError
from promptboost.llm.client import AskError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import RowImages
from promptboost.methods.llmbo import LLMbo, message, read_templates
from promptboost.pool import build_pool, fill
from tests.llm.llm_server import Act, Server

pytest.importorskip("openai", reason="needs promptboost[llm]")

ENCODER = FakeEncoder()
NAMES = ("flame", "glacier", "fern")
TEMPLATES = (
    "a photo of a {}.",
    "a huge drawing of a {}.",
    "a {} seen from above at night.",
    "the silhouette of one {}.",
    "two old stickers of the same {}.",
    "a worn poster of a {} on a wall.",
    "clip art of a {}.",
)
POOL = build_pool(list(NAMES), templates=TEMPLATES)


@pytest.fixture(autouse=True)
def _no_keys_no_proxy_own_cache(monkeypatch, tmp_path):
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "cache"))


def few_shots(seed=2, per_class=30):
    """Noisy images that are best described by one template, which is not in the pool."""
    rng = np.random.default_rng(seed)
    rows = ENCODER.encode_texts([fill("clip art of the same {}", name) for name in NAMES])
    rows = rows.repeat(per_class, axis=0)
    rows = rows + rng.standard_normal(rows.shape).astype(np.float32) * 0.15
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    images = RowImages({ENCODER.id: rows.astype(np.float32)[:, None]})
    return FewShotSet(images, np.arange(3).repeat(per_class), NAMES)


SHOTS = few_shots()


def top1(template, shots=SHOTS):
    """The score, one image at a time."""
    right = 0
    texts = [ENCODER.encode_texts([fill(template, name)])[0] for name in NAMES]
    for row, label in zip(shots.images.rows(ENCODER), shots.labels, strict=True):
        cosines = [float(row @ text) for text in texts]
        right += cosines.index(max(cosines)) == label
    return right / len(shots.labels)


def method(url, **settings):
    return LLMbo(**{"model": "m", "base_url": url, "iterations": 2, **settings})


def answering(text):
    return Server(lambda question, time: Act(text(question, time) if callable(text) else text))


# What is said and what is read


def test_the_message_shows_the_best_and_the_worst():
    text = message(["good one {}", "good two {}"], ["bad one {}"], 3)
    assert text.index("good one") < text.index("good two") < text.index("bad one")
    for part in (
        "write 3 new templates",
        "fewer than 15 words",
        "exactly once",
        'begins with "- "',
    ):
        assert part in text
    assert "1 new template " in message(["a {}"], ["b {}"], 1)
    assert first_list(text) == ["good one {}", "good two {}"]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("- a {}.", ["a {}."]),
        ('Sure!\n- "a {}."\n- one {}\n- more {}', ["a {}.", "one {}"]),
        ("- `a red {}.`", ["a red {}."]),
        ("- a <b>red</b> {}.\x1b[31m", ["a red {}."]),
        ("<think>\n- a thought of a {}.\n</think>\n- a {}.", ["a {}."]),
        ("* a {}.", None),
        ("a {}.", None),
        ("", None),
        ("- ", None),
        ("- a photo.", None),
        ("- a {} and a {}.", None),
        ("- a {0}.", None),
        ("- a {name}.", None),
        ("- a {} {x}.", None),
        ("- a {}.\n- a photo.", None),
        ("- a {}.\n- one {}.\n- a photo.", None),
        ("- " + "very " * 10_000 + "old {}.", None),
        ("<think>\n- a {}.", None),
    ],
)
def test_replies_are_read_with_suspicion(reply, expected):
    assert read_templates(reply, 2) == expected


def test_a_line_that_was_cut_off_is_not_read():
    assert read_templates("- a {}.\n- a {} on", 2, cut_off=True) == ["a {}."]
    assert read_templates("- a {} on", 2, cut_off=True) is None


# The search


def test_the_model_sees_the_pool_sorted_by_top1_and_its_template_is_scored():
    with answering("- clip art of the same {}") as server:
        fitted = method(server.url, k=2, iterations=2).fit(SHOTS, POOL, ENCODER)
    assert len(server.requests) == 2
    assert all(body["temperature"] == 1.0 for _, body in server.requests)
    assert all(len(body["messages"]) == 1 for _, body in server.requests)

    shown = [line[2:] for line in server.questions[0].splitlines() if line.startswith("- ")]
    scores = [top1(template) for template in shown]
    ranked = sorted(map(top1, TEMPLATES))
    assert scores[:2] == ranked[:-3:-1]
    assert sorted(scores[2:]) == ranked[:2]
    # The second message has what the first one brought, at the top.
    best = top1("clip art of the same {}")
    assert best > max(ranked)
    assert first_list(server.questions[1])[0] == "clip art of the same {}"

    record = fitted.details["restarts"][0]
    assert fitted.details["template"] == "clip art of the same {}"
    assert record["score"] == best
    assert record["initial_score"] == max(ranked)
    assert [one["score"] for one in record["proposed"]] == [best, best]
    assert fitted.words() == tuple({f"clip art of the same {name}": 1.0} for name in NAMES)


def test_of_equal_templates_the_first_found_wins():
    best_of_pool = max(TEMPLATES, key=top1)
    with answering(f"- {best_of_pool.replace('{}', '{} .')}") as server:
        fitted = method(server.url).fit(SHOTS, POOL, ENCODER)
    assert top1(fitted.details["template"]) == top1(best_of_pool)
    assert fitted.details["template"] in TEMPLATES


def test_a_worse_template_does_not_win():
    worse = "a {} by the sea"
    assert top1(worse) < max(map(top1, TEMPLATES))
    with answering(f"- {worse}") as server:
        fitted = method(server.url).fit(SHOTS, POOL, ENCODER)
    assert fitted.details["template"] in TEMPLATES


def test_invalid_replies_are_asked_for_again():
    with answering(
        lambda _, time: "- no place" if time < 4 else "- clip art of the same {}"
    ) as server:
        fitted = method(server.url, iterations=1).fit(SHOTS, POOL, ENCODER)
    assert len(server.requests) == 4
    assert fitted.details["restarts"][0]["invalid_replies"] == 3
    assert fitted.details["template"] == "clip art of the same {}"


def test_fifteen_invalid_replies_end_an_iteration_and_only_nonsense_is_an_error():
    def script(question, time):
        return "- clip art of the same {}" if time == 16 else "I would rather not."

    with answering(script) as server:
        fitted = method(server.url, iterations=2).fit(SHOTS, POOL, ENCODER)
    assert len(server.requests) == 16
    assert len(fitted.details["restarts"][0]["proposed"]) == 1
    expected = r"30 replies.*'I would rather not\.'.*another model"
    with answering("I would\nrather not.") as server, pytest.raises(PoolError, match=expected):
        method(server.url, seed=1).fit(SHOTS, POOL, ENCODER)
    assert len(server.requests) == 30


def test_more_than_one_template_at_a_time():
    lines = ["- clip art of the same {}", "- a moss {}", "- too many {}"]
    with answering("\n".join(lines)) as server:
        fitted = method(server.url, n=2, iterations=1).fit(SHOTS, POOL, ENCODER)
    assert "write 2 new templates" in server.questions[0]
    proposed = fitted.details["restarts"][0]["proposed"]
    assert [one["template"] for one in proposed] == ["clip art of the same {}", "a moss {}"]


def test_restarts_begin_with_other_templates_and_the_best_is_kept():
    with answering("- a {}") as server:
        fitted = method(server.url, restarts=3, initial=3, k=1, iterations=1).fit(
            SHOTS, POOL, ENCODER
        )
    records = fitted.details["restarts"]
    assert len({record["best"] for record in records}) > 1
    assert len(server.requests) == len(records) == 3
    assert top1(fitted.details["template"]) == max(record["score"] for record in records)
    assert all(record["score"] == top1(record["best"]) for record in records)


def test_few_templates_are_not_shown_on_both_sides():
    pool = build_pool(list(NAMES), templates=TEMPLATES[:4])
    with answering("- a {}") as server:
        method(server.url, iterations=1).fit(SHOTS, pool, ENCODER)
    shown = [line for line in server.questions[0].splitlines() if line.startswith("- ")]
    assert len(shown) == len(set(shown)) == 4


def test_the_word_mixer_finds_something_better():
    with serving() as url:
        fitted = method(url, iterations=10).fit(SHOTS, POOL, ENCODER)
    assert top1(fitted.details["template"]) > max(map(top1, TEMPLATES))


# Replies are kept


def test_a_run_is_repeated_offline_from_its_replies(tmp_path):
    replies = tmp_path / "deep" / "replies.jsonl"
    with serving() as url:
        first = method(url, replies=str(replies)).fit(SHOTS, POOL, ENCODER)
    lines = [json.loads(line) for line in replies.read_text().splitlines()]
    assert len(lines) == 2
    assert all(line["model"] == "m" and line["parameters"]["temperature"] == 1.0 for line in lines)
    # The server is gone, and there is no key.
    offline = LLMbo(model="m", iterations=2, replies=str(replies), max_requests=0)
    again = offline.fit(SHOTS, POOL, ENCODER)
    assert again.details == first.details
    with pytest.raises(AskError, match=r"max_requests=0 allows no more.*replies\.jsonl"):
        LLMbo(model="m", iterations=3, replies=str(replies), max_requests=0).fit(
            SHOTS, POOL, ENCODER
        )


def test_a_run_that_broke_off_goes_on(tmp_path):
    replies = str(tmp_path / "replies.jsonl")
    with serving() as url:
        whole = method(url, iterations=4, replies=str(tmp_path / "other.jsonl"))
        expected = whole.fit(SHOTS, POOL, ENCODER).details
    with serving() as url:
        with pytest.raises(AskError, match="max_requests=2 allows no more"):
            method(url, iterations=4, replies=replies, max_requests=2).fit(SHOTS, POOL, ENCODER)
        resumed = method(url, iterations=4, replies=replies, max_requests=2)
        assert resumed.fit(SHOTS, POOL, ENCODER).details == expected


def test_the_same_message_sent_again_is_another_draw():
    # A worthless template in the middle of the ranking leaves the message as it was.
    with answering(lambda _, time: f"- a photo of a {'x' * time} {{}}.") as server:
        method(server.url, iterations=3, k=1).fit(SHOTS, POOL, ENCODER)
        sent = len(server.requests)
        method(server.url, iterations=3, k=1, seed=1).fit(SHOTS, POOL, ENCODER)
    assert sent == 3
    assert len(server.requests) == 6  # another seed does not use the replies of the first
    assert not any("\x1f" in question or "seed" in question for question in server.questions)


def test_replies_are_kept_beside_the_store_by_default(tmp_path):
    with serving() as url:
        method(url).fit(SHOTS, POOL, ENCODER)
    assert (tmp_path / "cache" / "replies" / "llmbo.jsonl").is_file()


def test_the_same_seed_gives_the_same_template(tmp_path):
    found = []
    for number in range(2):
        with serving(seed=3) as url:
            one = method(url, replies=str(tmp_path / f"{number}.jsonl"), initial=5, seed=4)
            found.append(one.fit(SHOTS, POOL, ENCODER).details)
    assert found[0] == found[1]


# One method among others


def test_is_kept_found_and_read_by_another_encoder(tmp_path):
    with serving() as url:
        fitted = method(url).fit(SHOTS, POOL, ENCODER)
    save_fitted(fitted, tmp_path)
    again = load_fitted(tmp_path, ENCODER)
    assert again.words() == fitted.words()
    assert again.details == fitted.details
    other = FakeEncoder(seed=1)
    rows = other.encode_texts([fill(fitted.details["template"], name) for name in NAMES])
    images = RowImages({other.id: rows[:, None]})
    assert fitted.transfer(other).predict(images).tolist() == [0, 1, 2]


def test_no_model_is_refused_before_any_work():
    with pytest.raises(SettingError, match=r"llmbo\?model=NAME.*OPENAI_API_KEY.*base_url="):
        make_method("llmbo").check(SHOTS, POOL, ENCODER)


def test_no_key_and_no_server_is_refused_before_any_work(monkeypatch):
    with pytest.raises(SettingError, match=r"cannot ask 'm': OPENAI_API_KEY.*base_url="):
        LLMbo(model="m").check(SHOTS, POOL, ENCODER)
    with pytest.raises(SettingError, match="ANTHROPIC_API_KEY"):
        LLMbo(model="m", provider="anthropic").check(SHOTS, POOL, ENCODER)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    LLMbo(model="m").check(SHOTS, POOL, ENCODER)


def test_a_server_that_is_not_there_is_refused_before_any_work(monkeypatch):
    with serving() as url:
        method(url).check(SHOTS, POOL, ENCODER)
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        LLMbo(model="m").check(SHOTS, POOL, ENCODER)
    for gone in (method(url), LLMbo(model="m")):
        with pytest.raises(SettingError, match=r"nothing answers at http://127\.0\.0\.1.*start"):
            gone.check(SHOTS, POOL, ENCODER)
        with pytest.raises(SettingError, match="nothing answers"):
            gone.fit(SHOTS, POOL, ENCODER)


def test_a_server_that_refuses_says_why():
    with Server(lambda *_: Act(status=404)) as server, pytest.raises(AskError, match=r"404.*model"):
        method(server.url).fit(SHOTS, POOL, ENCODER)


def test_nothing_to_begin_with_is_refused(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    empty = RowImages({ENCODER.id: np.zeros((0, 1, 32), dtype=np.float32)})
    with pytest.raises(LabelError, match="there is none"):
        LLMbo(model="m").check(FewShotSet(empty, np.zeros(0, dtype=int), NAMES), POOL, ENCODER)


@pytest.mark.parametrize("name", ["iterations", "k", "n", "restarts", "initial"])
def test_counts_are_one_or_more(name):
    with pytest.raises(SettingError, match=f"{name} is 0"):
        make_method(f"llmbo?{name}=0")


def test_other_settings_are_checked():
    with pytest.raises(SettingError, match="provider"):
        make_method("llmbo?provider=oracle")
    with pytest.raises(SettingError, match="max_requests is -1"):
        LLMbo(max_requests=-1)
    url = "http://127.0.0.1:8123/v1"
    assert make_method(f"llmbo?model=m&base_url={url}").base_url == url


# The stand-in


def test_the_word_mixer_uses_only_the_words_it_is_shown():
    good, bad = ["a photo of a {}.", "one {} at night, seen from above."], ["the worst {}."]
    text = message(good, bad, 20)
    words = {word for one in good for word in one.replace("{}", "").strip(".").split()}
    replies = WordMixer(seed=1).reply(text).splitlines()
    assert len(replies) == 20
    for line in replies:
        assert line.startswith("- ")
        assert line.count("{}") == 1
        assert len(line.split()) <= 15
        assert {w.strip(".,") for w in line[2:].replace("{}", "").split()} <= {
            *(w.strip(".,") for w in words),
            "",
        }
    assert WordMixer(seed=1).reply(text) == "\n".join(replies)
    assert WordMixer(seed=2).reply(text) != "\n".join(replies)


def test_the_word_mixer_draws_again_when_asked_again():
    mixer, text = WordMixer(), message(TEMPLATES[:3], TEMPLATES[3:], 1)
    assert len({mixer.reply(text) for _ in range(6)}) > 1


def test_the_word_mixer_refuses_what_is_no_chat():
    import urllib.error
    import urllib.request

    with serving() as url:
        for path, body, code in (
            ("/chat/completions", b"[]", 400),
            ("/other", b'{"messages": [{"content": "x"}]}', 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(url + path, data=body)
            assert caught.value.code == code
            caught.value.close()


def test_the_word_mixer_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.word_mixer", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "NOT a language model" in done.stdout

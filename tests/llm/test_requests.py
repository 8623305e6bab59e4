import signal
import threading
import time

import pytest

from promptboost.llm.client import ModelSettings, Reply
from promptboost.llm.generation import Budget, ask_all
from promptboost.llm.replies import ReplyCache
from tests.llm.llm_server import Act, Server
from tests.llm.test_client import NOW

pytest.importorskip("openai", reason="needs promptboost[llm]")

QUESTIONS = [f"question {i}" for i in range(12)]


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts():
    # A process that was started in the background ignores the signal, and its children do too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c():
    # A real signal: interrupt_main() does not wake a thread that waits.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.fixture
def cache(tmp_path):
    return ReplyCache(tmp_path / "replies.jsonl")


def settings(server, **options):
    return ModelSettings(
        "a-model", base_url=server.url, **{"timeout": 5.0, "max_retries": 3, **options}
    )


def test_all_are_answered_in_the_order_asked(cache):
    with Server(lambda question, _: Act(question.upper(), delay=0.01)) as server:
        answers = ask_all(settings(server), QUESTIONS, cache)
    assert [reply.text for reply in answers.replies.values()] == [q.upper() for q in QUESTIONS]
    assert list(answers.replies) == QUESTIONS
    assert (answers.cached, answers.requests, answers.tokens) == (0, 12, 12 * 18)
    assert (answers.failed, answers.stopped) == ({}, None)


def test_questions_overlap(cache):
    with Server(lambda *_: Act(delay=0.2)) as server:
        began = time.monotonic()
        ask_all(settings(server), QUESTIONS, cache, workers=6)
        took = time.monotonic() - began
    assert server.most_at_once == 6
    assert took < 12 * 0.2 / 2
    with Server(lambda *_: Act(delay=0.01)) as server:
        ask_all(settings(server), ["more", "and more"], cache, workers=1)
    assert server.most_at_once == 1


def test_what_was_answered_is_not_asked_again(cache):
    with Server(lambda *_: Act()) as server:
        ask_all(settings(server), QUESTIONS[:7], cache)
        answers = ask_all(settings(server), QUESTIONS, ReplyCache(cache.path))
    assert answers.cached == 7
    assert sorted(server.questions) == sorted(QUESTIONS)


def test_with_all_replies_there_no_server_and_no_key_is_needed(cache):
    with Server(lambda *_: Act()) as server:
        ask_all(settings(server), QUESTIONS, cache)
    elsewhere = ModelSettings("a-model")  # OpenAI's own, without a key
    answers = ask_all(elsewhere, QUESTIONS, ReplyCache(cache.path))
    assert (len(answers.replies), answers.requests) == (12, 0)


def test_no_requests_allowed_is_offline(cache):
    cache.add(ModelSettings("a-model"), "question 3", Reply("Yes.", 1, 1))
    answers = ask_all(ModelSettings("a-model"), QUESTIONS, cache, budget=Budget(0))
    assert list(answers.replies) == ["question 3"]
    assert answers.exhausted


def test_faults_are_mended_by_asking_again(cache):
    faults = {
        1: Act(status=500, headers=NOW),
        2: Act(delay=0.5),  # longer than the client waits
    }
    with Server(lambda _, number: faults.get(number, Act("At last."))) as server:
        answers = ask_all(settings(server, timeout=0.2), ["why"], cache)
    assert answers.replies["why"].text == "At last."
    assert answers.requests == len(server.requests) == 3


def test_a_question_that_keeps_failing_is_given_up_and_the_others_are_not(cache):
    def script(question, _):
        return Act(status=500, headers=NOW) if question == "question 3" else Act()

    with Server(script) as server:
        answers = ask_all(settings(server), QUESTIONS, cache)
    assert list(answers.failed) == ["question 3"]
    assert "500" in answers.failed["question 3"]
    assert len(answers.replies) == 11
    assert server.questions.count("question 3") == 4
    assert answers.stopped is None


def test_a_wrong_key_ends_it_at_once(cache):
    with Server(lambda *_: Act(status=401)) as server:
        answers = ask_all(settings(server), QUESTIONS, cache, workers=2)
    assert "401" in answers.stopped
    assert len(server.requests) <= 4


def test_a_server_that_only_fails_ends_it(cache):
    with Server(lambda *_: Act(status=400)) as server:
        answers = ask_all(settings(server), [f"{i}" for i in range(200)], cache, workers=2)
    assert "400" in answers.stopped
    assert len(server.requests) < 50


def test_the_budget_of_requests_counts_retries_and_stops(cache):
    def script(_, number):
        return Act(status=500, headers=NOW) if number == 1 else Act()

    with Server(script) as server:
        answers = ask_all(settings(server), QUESTIONS, cache, budget=Budget(7))
    assert len(server.requests) == answers.requests == 7
    assert answers.exhausted
    assert answers.stopped == "the budget of 7 requests is used up"
    assert len(answers.replies) < 7
    with Server(lambda *_: Act()) as server:
        rest = ask_all(settings(server), QUESTIONS, cache)
    assert len(rest.replies) == 12
    assert len(server.requests) == 12 - len(answers.replies)


@pytest.mark.parametrize("workers", [1, 4])
def test_the_budget_of_tokens_stops_and_the_next_call_resumes(cache, workers):
    with Server(lambda *_: Act(usage=(11, 7))) as server:
        options = {"budget": Budget(max_tokens=50), "workers": workers}
        answers = ask_all(settings(server), QUESTIONS, cache, **options)
        assert 3 <= len(server.requests) <= 3 + workers - 1
        assert answers.tokens == 18 * len(answers.replies) == 18 * len(server.requests)
        assert (answers.stopped, answers.exhausted) == ("the budget of 50 tokens is used up", True)
        rest = ask_all(settings(server), QUESTIONS, cache)
    assert len(rest.replies) == len(server.requests) == 12


def test_interruption_loses_nothing_and_the_next_call_asks_only_the_rest(cache):
    answered = threading.Semaphore(0)

    def script(question, _):
        if int(question.split()[1]) < 5:
            answered.release()
            return Act()
        return Act(delay=0.15)

    def interrupt():
        for _ in range(5):
            answered.acquire()
        time.sleep(0.05)
        press_ctrl_c()

    said = []
    with Server(script) as server:
        asked = settings(server)
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            ask_all(asked, QUESTIONS, cache, workers=2, notify=said.append)
        before = list(server.questions)
    assert said == ["waiting for pending replies …"]
    assert 5 <= len(before) < 12
    kept = ReplyCache(cache.path)
    # Also those under way when it happened: they are paid for.
    assert all(kept.find(asked, question) for question in before)
    with Server(lambda *_: Act()) as server:
        answers = ask_all(settings(server), QUESTIONS, kept)
    assert sorted(before + server.questions) == sorted(QUESTIONS)
    assert len(answers.replies) == 12


def test_interruption_ends_retries(cache):
    def script(*_):
        threading.Timer(0.2, press_ctrl_c).start()
        return Act(status=500, headers={"retry-after-ms": "600"})

    with Server(script) as server, pytest.raises(KeyboardInterrupt):
        ask_all(settings(server), ["why"], cache)
    assert len(server.requests) == 1


def test_a_full_disk_ends_it(cache):
    class Broken(ReplyCache):
        def add(self, *_):
            raise OSError(28, "No space left on device")

    with Server(lambda *_: Act()) as server, pytest.raises(OSError, match="No space"):
        ask_all(settings(server), QUESTIONS, Broken(cache.path), workers=2)
    assert len(server.requests) < 12

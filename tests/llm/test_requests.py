import signal
import threading
import time

import pytest

from promptboost.llm import Budget, Manner, ModelSettings, ReplyCache, Retries, ask_all
from promptboost.llm.client import Reply
from tests.llm.llm_server import Act, Server

pytest.importorskip("openai", reason="needs promptboost[llm]")

QUICK = Retries(attempts=4, first_delay=0.01, longest_delay=5.0)
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


def manner(**options):
    budget = Budget(options.pop("requests", None), options.pop("tokens", None))
    return Manner(budget, retries=options.pop("retries", QUICK), **options)


@pytest.fixture
def cache(tmp_path):
    return ReplyCache(tmp_path / "replies.jsonl")


def settings(server, **options):
    return ModelSettings("a-model", base_url=server.url, **{"timeout": 5.0, **options})


def test_all_are_answered_in_the_order_asked(cache):
    with Server(lambda question, _: Act(question.upper(), delay=0.01)) as server:
        answers = ask_all(settings(server), QUESTIONS, cache, manner())
    assert [reply.text for reply in answers.replies.values()] == [q.upper() for q in QUESTIONS]
    assert list(answers.replies) == QUESTIONS
    assert (answers.cached, answers.requests, answers.tokens) == (0, 12, 12 * 18)
    assert (answers.failed, answers.stopped) == ({}, None)


def test_questions_overlap(cache):
    with Server(lambda *_: Act(delay=0.2)) as server:
        began = time.monotonic()
        ask_all(settings(server), QUESTIONS, cache, manner(workers=6))
        took = time.monotonic() - began
    assert server.most_at_once == 6
    assert took < 12 * 0.2 / 2
    with Server(lambda *_: Act(delay=0.01)) as server:
        ask_all(settings(server), ["more", "and more"], cache, manner(workers=1))
    assert server.most_at_once == 1


def test_what_was_answered_is_not_asked_again(cache):
    with Server(lambda *_: Act()) as server:
        ask_all(settings(server), QUESTIONS[:7], cache, manner())
        answers = ask_all(settings(server), QUESTIONS, ReplyCache(cache.path), manner())
    assert answers.cached == 7
    assert sorted(server.questions) == sorted(QUESTIONS)


def test_with_all_replies_there_no_server_and_no_key_is_needed(cache):
    with Server(lambda *_: Act()) as server:
        ask_all(settings(server), QUESTIONS, cache, manner())
    elsewhere = ModelSettings("a-model")  # OpenAI's own, without a key
    answers = ask_all(elsewhere, QUESTIONS, ReplyCache(cache.path), manner())
    assert (len(answers.replies), answers.requests) == (12, 0)


def test_no_requests_allowed_is_offline(cache):
    cache.keep(ModelSettings("a-model"), "question 3", Reply("Yes.", 1, 1))
    answers = ask_all(ModelSettings("a-model"), QUESTIONS, cache, manner(requests=0))
    assert list(answers.replies) == ["question 3"]
    assert answers.exhausted


def test_faults_are_mended_by_asking_again(cache):
    faults = {
        1: Act(status=500),
        2: Act(raw=b"{not json"),
        3: Act(delay=0.5),  # longer than the client waits
    }
    with Server(lambda _, number: faults.get(number, Act("At last."))) as server:
        answers = ask_all(settings(server, timeout=0.2), ["why"], cache, manner())
    assert answers.replies["why"].text == "At last."
    assert answers.requests == len(server.requests) == 4


def test_a_question_that_keeps_failing_is_given_up_and_the_others_are_not(cache):
    def script(question, _):
        return Act(status=500) if question == "question 3" else Act()

    with Server(script) as server:
        answers = ask_all(settings(server), QUESTIONS, cache, manner())
    assert list(answers.failed) == ["question 3"]
    assert "500" in answers.failed["question 3"]
    assert len(answers.replies) == 11
    assert server.questions.count("question 3") == QUICK.attempts
    assert answers.stopped is None


def test_waits_grow():
    delays = [Retries(first_delay=1.0, longest_delay=8.0).delay(n) for n in range(1, 7)]
    for n, delay in enumerate(delays):
        assert 0.5 * min(8, 2**n) <= delay <= min(8, 2**n)


def test_retry_after_is_respected_by_all_threads(cache):
    limited = Act(status=429, headers={"retry-after": "1"})

    def script(question, number):
        return limited if question == "question 0" and number == 1 else Act(delay=0.05)

    with Server(script) as server:
        answers = ask_all(settings(server), QUESTIONS, cache, manner(workers=2))
    assert len(answers.replies) == 12
    hit = server.times[server.questions.index("question 0")]
    # One request may have been on its way; the others come after the second is over.
    early = [t for t in server.times if hit < t < hit + 0.9]
    assert len(early) <= 1


def test_too_many_requests_hold_all_threads_even_without_a_time(cache):
    patient = Retries(attempts=3, first_delay=2.0)  # the first wait is one second or two

    def script(question, number):
        return Act(status=429) if question == "question 0" and number == 1 else Act(delay=0.05)

    with Server(script) as server:
        answers = ask_all(settings(server), QUESTIONS, cache, manner(workers=2, retries=patient))
    assert len(answers.replies) == 12
    hit = server.times[server.questions.index("question 0")]
    assert len([t for t in server.times if hit < t < hit + 0.9]) <= 1


def test_too_many_requests_are_borne_longer_than_faults(cache):
    crowded, faulty = (ask_until_given_up(cache, Act(status=status)) for status in (429, 500))
    assert crowded > faulty == QUICK.attempts


def ask_until_given_up(cache, act):
    with Server(lambda *_: act) as server:
        ask_all(settings(server), ["why"], cache, manner())
    return len(server.requests)


def test_a_long_wait_is_told_and_told_once(cache):
    limited = Act(status=429, headers={"retry-after": "5"})
    said = []
    # All three are under way when the first is refused: one that asks later is refused anew.
    together = threading.Barrier(3)

    def script(question, number):
        if number == 1 and question in QUESTIONS[:3]:
            together.wait(timeout=60)
            return limited
        return Act()

    patient = Retries(attempts=3, first_delay=0.01, longest_delay=6.0)
    with Server(script) as server:
        asked = manner(workers=3, retries=patient, say=said.append)
        answers = ask_all(settings(server), QUESTIONS[:3], cache, asked)
    assert len(answers.replies) == 3
    assert len(said) == 1
    assert said[0].startswith("the server answered 429")
    assert said[0].endswith("; waiting 5 seconds")


def test_a_server_that_asks_for_too_much_patience_ends_it(cache):
    limited = Act(status=429, headers={"retry-after": "3600"})
    with Server(lambda *_: limited) as server:
        answers = ask_all(settings(server), QUESTIONS, cache, manner(workers=2))
    assert "asks to wait 3,600 seconds" in answers.stopped
    assert not answers.exhausted
    assert len(server.requests) <= 4


def test_a_wrong_key_ends_it_at_once(cache):
    with Server(lambda *_: Act(status=401)) as server:
        answers = ask_all(settings(server), QUESTIONS, cache, manner(workers=2))
    assert "401" in answers.stopped
    assert len(server.requests) <= 4


def test_a_server_that_only_fails_ends_it(cache):
    with Server(lambda *_: Act(status=400)) as server:
        answers = ask_all(settings(server), [f"{i}" for i in range(200)], cache, manner(workers=2))
    assert "400" in answers.stopped
    assert len(server.requests) < 50


def test_the_budget_of_requests_counts_retries_and_stops(cache):
    def script(_, number):
        return Act(status=500) if number == 1 else Act()

    with Server(script) as server:
        answers = ask_all(settings(server), QUESTIONS, cache, manner(requests=7))
    assert len(server.requests) == answers.requests == 7
    assert answers.exhausted
    assert answers.stopped == "the budget of 7 requests is used up"
    assert len(answers.replies) < 7
    with Server(lambda *_: Act()) as server:
        rest = ask_all(settings(server), QUESTIONS, cache, manner())
    assert len(rest.replies) == 12
    assert len(server.requests) == 12 - len(answers.replies)


def test_the_budget_of_tokens_is_never_passed(cache):
    with Server(lambda *_: Act(usage=(20, 80))) as server:
        asked = settings(server, reply_tokens=80)
        answers = ask_all(asked, QUESTIONS, cache, manner(tokens=450, workers=8))
    assert answers.exhausted
    assert "450 tokens" in answers.stopped
    assert answers.tokens == 400
    assert len(answers.replies) == len(server.requests) == 4


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
            ask_all(asked, QUESTIONS, cache, manner(workers=2, say=said.append))
        before = list(server.questions)
    assert said == ["waiting for the answers under way …"]
    assert 5 <= len(before) < 12
    kept = ReplyCache(cache.path)
    # Also those under way when it happened: they are paid for.
    assert all(kept.find(asked, question) for question in before)
    with Server(lambda *_: Act()) as server:
        answers = ask_all(settings(server), QUESTIONS, kept, manner())
    assert sorted(before + server.questions) == sorted(QUESTIONS)
    assert len(answers.replies) == 12


@pytest.mark.parametrize(("first_delay", "headers"), [(60.0, {}), (0.01, {"retry-after": "60"})])
def test_interruption_does_not_wait_for_further_attempts(cache, first_delay, headers):
    patient = Retries(attempts=9, first_delay=first_delay)

    def script(*_):
        threading.Timer(0.3, press_ctrl_c).start()
        return Act(status=500, headers=headers)

    began = time.monotonic()
    with Server(script) as server, pytest.raises(KeyboardInterrupt):
        ask_all(settings(server), ["why"], cache, manner(retries=patient))
    assert time.monotonic() - began < 10
    assert len(server.requests) == 1


def test_a_full_disk_ends_it(cache):
    class Broken(ReplyCache):
        def keep(self, *_):
            raise OSError(28, "No space left on device")

    with Server(lambda *_: Act()) as server, pytest.raises(OSError, match="No space"):
        ask_all(settings(server), QUESTIONS, Broken(cache.path), manner(workers=2))
    assert len(server.requests) < 12

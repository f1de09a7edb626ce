import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from forked import alive, wait_until

from rlobj.base.errors import RunError
from rlobj.rewards import MathVerifier
from rlobj.workers.worker import Worker

# Minutes in sympy, and no guard refuses it: integrals are left to math-verify.
SLOW = r"\boxed{\int_0^1 \int_0^x e^{-x^2 y^3} \sin(\cos(\tan(xy)))\,dy\,dx}"
LARGE = r"\boxed{\lim_{x \to 0} (x+y+z+w+1)^{200}}"


DEADLINE = 0.6  # what is right here needs half of it
BOMBS = [SLOW.replace("y^3", f"y^{n}") for n in range(4, 10)]


def hard(n):
    """A right answer that only a worker can decide, and its gold."""
    return rf"\boxed{{{n}+\sqrt{{2}}}}", rf"\sqrt{{2}}+{n}"


def decided(verdict):
    return verdict.correct, verdict.reason


def test_reason_names_what_decided(verifier):
    verdict = verifier.verify("I count 12.", "12")
    assert (verdict.correct, verdict.answer, verdict.reason) == (False, None, "no answer")
    assert verifier.verify(r"\boxed{12}", "12").reason == "same text"
    assert verifier.verify(r"\boxed{12}", "13").reason == "integers"
    verdict = verifier.verify(r"\boxed{3\cdot 4}", "12")
    assert (verdict.answer, verdict.reason) == (r"3\cdot 4", "exact")
    assert verifier.verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").reason == "numeric"
    assert decided(verifier.verify(r"\boxed{\int_0^1 2x \, dx}", "1")) == (True, "math-verify")


@pytest.mark.slow
def test_a_gold_answer_that_is_too_slow_leaves_other_answers_undecided():
    gold = SLOW.removeprefix(r"\boxed{").removesuffix("}")
    with MathVerifier(deadline=DEADLINE) as verifier:
        verdict = verifier.verify(rf"\boxed{{1+{gold}}}", gold)
        assert decided(verdict) == (None, "gold timeout")
        assert verifier.verify(SLOW, gold).correct is True


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\frac{1}{2}", r"\Gamma(10^9)"),
        ("7", r"\prod_{k=1}^{99999} k"),
        (r"\sqrt{2}", r"(1, 2^{2^{40}})"),
        ("x", r"\frac{x}{0}"),
    ],
)
def test_a_gold_answer_without_a_value_leaves_no_answer_wrong_for_it(verifier, answer, gold):
    verdict = verifier.compare(answer, gold)
    alike = verifier.compare(gold, gold)
    assert alike.correct is True
    assert verdict.correct is None or verdict.reason == "exact"  # a number is no pair
    assert verdict.correct is False or verdict.reason == "gold not settled"


class Replies:
    """A worker process that gives prepared replies, and keeps the questions."""

    def __init__(self, monkeypatch, *replies):
        self.asked, left = [], list(replies)

        def ask(process, *question):
            self.asked.append(question)
            return *left.pop(0), False

        monkeypatch.setattr(Worker, "reply", ask)


SOUND = (True, "numeric")


@pytest.mark.parametrize("reason", ["not settled", "error: KeyError"])
def test_an_answer_that_fails_by_itself_is_wrong_and_its_gold_is_checked_once(monkeypatch, reason):
    replies = Replies(monkeypatch, (None, reason), SOUND, (None, reason))
    with MathVerifier() as verifier:
        for n in (2, 3):
            verdict = verifier.verify(rf"\boxed{{\sqrt{{{n}}}+1}}", r"\sqrt{5}")
            assert decided(verdict) == (False, reason)
    assert [answer is None for _, answer in replies.asked] == [False, True, False]


def test_an_internal_error_before_the_worker_is_not_the_end(monkeypatch):
    def fail(*_):
        raise KeyError

    monkeypatch.setattr("rlobj.answers.verifier.check_equivalence", fail)
    with MathVerifier() as verifier:
        assert verifier.verify(*hard(1)).correct is True
        assert verifier.verify(r"\boxed{\Re 6}", "6").correct is False


@pytest.mark.slow
def test_a_verdict_does_not_depend_on_slow_questions_in_flight():
    pairs = [
        (r"\boxed{\sum_{k=1}^{3} k}", "6"),
        (r"\boxed{\int_0^1 2x\,dx}", "1"),
        (r"\boxed{\int_0^1 2x\,dx}", "2"),
        (r"\boxed{\lim_{x \to 0} \frac{\sin x}{x}}", "1"),
        hard(1),
    ]
    with MathVerifier(deadline=DEADLINE, workers=2) as verifier:
        alone = [decided(verifier.verify(*pair)) for pair in pairs]
    assert [correct for correct, _ in alone] == [True, True, False, True, True]
    with MathVerifier(deadline=DEADLINE, workers=2) as verifier, ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(verifier.verify, bomb, "5") for bomb in BOMBS[:3]]
        wait_until(verifier._pool._idle.empty)
        assert list(map(decided, verifier.verify_many(pairs))) == alone
        assert [future.result().reason for future in asked] == ["timeout"] * 3


@pytest.mark.slow
def test_a_busy_machine_does_not_change_a_verdict():
    """The deadline is in processor time, and each verdict here needs less than half of it."""
    pairs = [(rf"\boxed{{\int_0^1 {2 * n}x\,dx}}", str(n)) for n in range(1, 4)]
    burn = [sys.executable, "-c", "while True: pass"]
    with MathVerifier(deadline=0.4, workers=2) as verifier:
        verifier.verify_many([hard(1), hard(2)])  # started
        burners = [subprocess.Popen(burn) for _ in range(2 * (os.cpu_count() or 1))]
        try:
            assert all(verdict.correct for verdict in verifier.verify_many(pairs))
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()


@pytest.mark.slow
def test_an_interrupt_ends_the_wait_for_a_worker_and_leaves_the_verifier_usable():
    with MathVerifier(deadline=2.0) as verifier, ThreadPoolExecutor(1) as threads:
        verifier.verify(*hard(1))
        slow = threads.submit(verifier.verify, SLOW, "5")
        wait_until(verifier._pool._idle.empty)
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            verifier.verify(*hard(2))
        signal.signal(signal.SIGINT, handler)
        assert not slow.done()
        assert slow.result().reason == "timeout"
        assert verifier.verify(r"\boxed{\int_0^1 2x\,dx}", "1").correct is True


@pytest.mark.slow
def test_close_ends_the_wait_of_questions_for_a_worker():
    with ThreadPoolExecutor(8) as threads:
        with MathVerifier(deadline=DEADLINE) as verifier:
            verifier.verify(*hard(1))
            asked = [threads.submit(verifier.verify, bomb, "5") for bomb in BOMBS]
            wait_until(verifier._pool._idle.empty)
        found = [future.exception() for future in asked]
    assert sum(isinstance(error, RunError) for error in found) == len(BOMBS)


@pytest.mark.slow
def test_equal_slow_answers_are_asked_once_in_a_batch_and_later(monkeypatch) -> None:
    ask, asked = Worker.reply, []
    monkeypatch.setattr(Worker, "reply", lambda *given: asked.append(given) or ask(*given))
    with MathVerifier(deadline=DEADLINE) as verifier:
        verifier.verify(*hard(1))  # started
        asked.clear()
        verdicts = [*verifier.verify_many([(SLOW, "5")] * 2), verifier.verify(SLOW, "5")]
        assert len(asked) == 2  # and its gold answer
        assert [verdict.reason for verdict in verdicts] == ["timeout"] * 3
        assert not any(verdict.correct for verdict in verdicts)


@pytest.mark.slow
def test_an_answer_that_needs_too_much_memory_is_wrong():
    with MathVerifier(deadline=30.0, memory_gib=0.2) as verifier:
        assert verifier.verify(*hard(1)).correct is True
        assert decided(verifier.verify(LARGE, "5")) == (False, "memory")
        assert verifier.verify(*hard(2)).correct is True


def test_threads_share_the_workers_also_while_they_are_replaced():
    pairs = [(hard(n)[0], hard(n + n % 2)[1]) for n in range(40)]
    with (
        MathVerifier(workers=2, recycle_after=15) as verifier,
        ThreadPoolExecutor(8) as threads,
    ):
        before = verifier.process_ids
        verdicts = list(threads.map(lambda pair: verifier.verify(*pair), pairs))
        together = verifier.verify_many(pairs)
        assert verifier.process_ids != before
    expected = [n % 2 == 0 for n in range(40)]
    assert [verdict.correct for verdict in verdicts] == expected
    assert [verdict.correct for verdict in together] == expected


def test_compare_takes_extracted_answers(verifier):
    assert verifier.compare("$x=5$", "5").correct is True
    assert verifier.compare("", "5").reason == "no answer"
    assert verifier.compare(r"\sqrt{8}", r"2\sqrt{2}").correct is True


def test_numbers_are_read_as_their_text_and_none_is_empty(verifier):
    assert verifier.verify(r"\boxed{5}", 5).correct is True
    assert verifier.verify(r"\boxed{0.5}", 0.5).correct is True
    assert verifier.verify(None, "5").reason == "no answer"
    for empty in (None, "  "):
        assert decided(verifier.verify(r"\boxed{5}", empty)) == (None, "gold is empty")


def test_close_ends_all_processes():
    with MathVerifier(workers=2) as verifier:
        process_ids = verifier.process_ids
        assert len(process_ids) == 2
    assert not any(map(alive, process_ids))
    with pytest.raises(RunError, match="are closed"):
        verifier.verify(*hard(1))


@pytest.mark.slow
def test_a_script_without_a_main_guard_loads_sympy_in_the_worker_only(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from rlobj.rewards import MathVerifier\n"
        "with MathVerifier() as verifier:\n"
        "    print(verifier.verify(r'\\boxed{\\sqrt{8}}', r'2\\sqrt{2}').correct)\n"
        "    maps = open(f'/proc/{verifier.process_ids[0]}/maps').read()\n"
        "print('/torch/' in maps, '/pydantic_core/' in maps)\n"
        "print('sympy' in sys.modules, 'math_verify' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout == "True\nFalse False\nFalse False\n", done.stderr


def test_verify_needs_neither_setup_nor_torch():
    program = """if True:
        import sys, threading
        from rlobj.answers import verify
        pairs = [("\\\\boxed{1+\\\\sqrt2}", "\\\\sqrt2+1"), ("\\\\boxed{2}", "3")]
        found = []
        ask = lambda pair: found.append(verify(*pair).correct)
        threads = [threading.Thread(target=ask, args=(pair,)) for pair in pairs]
        [thread.start() for thread in threads] + [thread.join() for thread in threads]
        print(sorted(found), "torch" in sys.modules)
    """
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert (done.stdout.strip(), done.stderr) == ("[False, True] False", "")


def test_verify_answers_while_the_program_ends_and_leaves_no_process():
    program = """if True:
        import atexit
        from rlobj.answers import verify
        from rlobj.answers.verifier import shared_verifier
        atexit.register(lambda: print(verify("\\\\boxed{1+\\\\sqrt2}", "\\\\sqrt2+1").correct))
        verify("\\\\boxed{1+\\\\sqrt3}", "\\\\sqrt3+1")
        print(*shared_verifier().process_ids)
    """
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    processes, late = done.stdout.splitlines()
    assert (late, done.stderr) == ("True", "")
    wait_until(lambda: not any(alive(int(each)) for each in processes.split()))

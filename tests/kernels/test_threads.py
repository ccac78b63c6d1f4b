"""The CPU backend's threads: theirs alone, sized by the caller, invisible to everybody else."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import maxsim
from maxsim import cpu_pool


def in_new_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_starting_a_pool_changes_no_other_thread(restored_threads):
    default = in_new_thread(torch.get_num_threads)
    torch.set_num_threads(7)
    maxsim.score(torch.ones(3, 16), torch.ones(4, 16))
    assert torch.get_num_threads() == 7
    assert in_new_thread(torch.get_num_threads) == 7
    torch.set_num_threads(restored_threads)
    assert in_new_thread(torch.get_num_threads) == default


def test_a_caller_with_a_setting_of_its_own_keeps_it(restored_threads):
    def mine():
        torch.set_num_threads(3)
        maxsim.score(torch.ones(3, 16), torch.ones(4, 16))
        return torch.get_num_threads()

    assert in_new_thread(mine) == 3
    assert torch.get_num_threads() == restored_threads


def test_as_many_workers_as_the_caller_has_threads_each_single(restored_threads):
    torch.set_num_threads(3)
    meeting = threading.Barrier(3, timeout=20)
    seen = []

    def unit():
        meeting.wait()
        seen.append((threading.current_thread().name, torch.get_num_threads()))

    cpu_pool.run([unit] * 3)
    assert len({name for name, _ in seen}) == 3
    assert [threads for _, threads in seen] == [1, 1, 1]
    assert all(name.startswith("maxsim-cpu") for name, _ in seen)


def test_an_error_in_a_worker_reaches_the_caller_after_all_have_ended():
    done = []

    def fails():
        raise RuntimeError("from the worker")

    with pytest.raises(RuntimeError, match="from the worker"):
        cpu_pool.run([fails, lambda: done.append(1), lambda: done.append(2)])
    assert sorted(done) == [1, 2]


def test_working_together_the_caller_takes_part_and_no_more_than_wanted(restored_threads):
    torch.set_num_threads(3)
    for most, hands in ((1, 1), (2, 2), (9, 3)):
        meeting = threading.Barrier(hands, timeout=20)
        seen = []

        def work(meeting=meeting, seen=seen):
            meeting.wait()
            seen.append(threading.current_thread())

        cpu_pool.together(work, most)
        assert len(set(seen)) == len(seen) == hands
        assert threading.current_thread() in seen


@pytest.mark.parametrize("fails_in", ["caller", "worker"])
def test_working_together_an_error_reaches_the_caller_after_all_have_ended(restored_threads, fails_in):
    torch.set_num_threads(2)
    caller, meeting, done = threading.current_thread(), threading.Barrier(2, timeout=20), []

    def work():
        meeting.wait()
        if (threading.current_thread() is caller) == (fails_in == "caller"):
            raise RuntimeError("no more")
        done.append(1)

    with pytest.raises(RuntimeError, match="no more"):
        cpu_pool.together(work, 2)
    assert done == [1]


def test_many_callers_at_once_get_their_own_scores(compiled, unit):
    documents = maxsim.Ragged.from_list([unit(n, 64) for n in (5, 40, 700, 1, 90)] * 10)
    queries = [unit(n, 64) for n in (1, 9, 32, 70)] * 6
    wanted = [maxsim.score(query, documents) for query in queries]
    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(lambda query: maxsim.score(query, documents), queries))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_inference_mode_and_gradients_of_the_caller_do_not_matter(compiled, unit):
    query, documents = unit(5, 32), unit(4, 9, 32)
    wanted = maxsim.score(query, documents)
    with torch.inference_mode():
        assert torch.equal(maxsim.score(query.clone(), documents.clone()), wanted)
    assert torch.equal(maxsim.score(query, documents), wanted)
    assert torch.equal(maxsim.score(query.requires_grad_(), documents).detach(), wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_threads_of_its_own(unit):
    query, documents = unit(5, 32), unit(4, 9, 32)
    wanted = maxsim.score(query, documents)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os._exit(0 if torch.equal(maxsim.score(query, documents), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

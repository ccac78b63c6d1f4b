"""One writer per directory, whichever way the last one ended."""

import multiprocessing
import os
import time

import pytest

from maxsim_serve.errors import DirectoryInUse
from maxsim_serve.store.lock import DirectoryLock


def hold(directory, held):
    DirectoryLock(directory)
    held.set()
    time.sleep(60)


def test_a_second_process_is_refused_with_the_holders_pid(open_store, tmp_path):
    directory = tmp_path / "data"
    directory.mkdir()
    context = multiprocessing.get_context("fork")  # the child only takes the lock: no need to import it all
    held = context.Event()
    holder = context.Process(target=hold, args=(directory, held))
    holder.start()
    try:
        assert held.wait(30)
        with pytest.raises(DirectoryInUse, match=rf"in use by process {holder.pid} on ") as caught:
            open_store()
        assert caught.value.param == "data_dir"
    finally:
        holder.kill()
        holder.join()
    open_store()  # the kernel let go of the lock when its holder was killed


def test_the_same_process_is_refused_too(open_store):
    store = open_store()
    with pytest.raises(DirectoryInUse, match=f"process {os.getpid()} on "):
        open_store()
    store.close()
    open_store()

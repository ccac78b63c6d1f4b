"""`kill -9` at random moments of a mixed load, each followed by a restart, in one directory.

    python loadtest/torture.py --through store --rounds 30
    python loadtest/torture.py --through http --rounds 30

Four workers insert, update and delete batches of documents, each its own. A record is made before every
operation, and after it was acknowledged. When the process has been killed, a fresh one opens the directory:
    - every acknowledged write is there, exactly (vectors, text, payload);
    - no document whose deletion was acknowledged is back, and none is there that nobody wrote;
    - an operation that was under way is wholly there or not at all, every document of its batch alike.
Prints a line per round, and a verdict; the exit status is 1 where anything is wrong.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from torture_load import digest, make
from torture_subjects import HttpSubject, Observation, StoreSubject

from maxsim_serve.errors import DirectoryInUse
from maxsim_serve.store.lock import DirectoryLock

_LONGEST_LOAD_S = 2.0
_LONGEST_OPENING_S = 0.05
_OPENINGS_KILLED = 0.3  # share of rounds in which a recovery is killed too


class Expectation:
    """What must be stored: by id the version, from what was recorded."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._under_way: dict[int, dict[str, int | None]] = {}
        self._ids: set[str] = set()
        self._digests: dict[tuple[str, int], str] = {}
        self.done: Counter[str] = Counter()
        self.first_done = threading.Event()

    @property
    def ids(self) -> list[str]:
        """Every id that was ever written."""
        return sorted(self._ids)

    def record(self, worker: int, what: str, details: object) -> None:
        """`put` {id: version} or `delete` [id] when it begins, `done` when it is acknowledged."""
        if what == "done":
            operation = self._under_way.pop(worker)
            for id, version in operation.items():
                kind = "deletes" if version is None else "updates" if id in self._versions else "inserts"
                self.done[kind] += 1
            self._apply(operation)
            self.first_done.set()
        else:
            self._under_way[worker] = details if isinstance(details, dict) else dict.fromkeys(details)
            self._ids.update(details)

    def check(self, found: Observation) -> tuple[list[str], Counter[str]]:
        """What is wrong, and how the operations that were under way came out."""
        wrong: list[str] = []
        outcomes: Counter[str] = Counter()
        for operation in self._under_way.values():
            before = {id: self._expected(id, self._versions.get(id)) for id in operation}
            after = {id: self._expected(id, version) for id, version in operation.items()}
            seen = {id: found.digests.get(id) for id in operation}
            if seen == after:
                outcomes["whole"] += 1
                self._apply(operation)
            elif seen == before:
                outcomes["absent"] += 1
            else:
                wrong.append(f"TORN: {operation} left {seen}, neither {before} nor {after}")
        in_doubt = {id for operation in self._under_way.values() for id in operation}
        for id in (self._ids | found.digests.keys()) - in_doubt:
            expected, seen = self._expected(id, self._versions.get(id)), found.digests.get(id)
            if expected != seen:
                kind = "LOST" if seen is None else "BACK" if expected is None else "WRONG"
                wrong.append(f"{kind}: {id} is {seen}, acknowledged was {expected}")
        if found.documents != len(found.digests):
            wrong.append(f"COUNT: {found.documents} documents are counted, {len(found.digests)} are known")
        self._under_way.clear()
        self.first_done.clear()
        return wrong, outcomes

    def _apply(self, operation: dict[str, int | None]) -> None:
        for id, version in operation.items():
            if version is None:
                self._versions.pop(id, None)
            else:
                self._versions[id] = version

    def _expected(self, id: str, version: int | None) -> str | None:
        if version is None:
            return None
        if (id, version) not in self._digests:
            document = make(id, version)
            payload = {"version": version, "id": id}
            self._digests[id, version] = digest(document.vectors, document.text, payload)
        return self._digests[id, version]


def second_writer(data_dir: Path, pid: int) -> str | None:
    """What is wrong with the refusal of a second writer while the first runs, if anything is."""
    try:
        DirectoryLock(data_dir).release()
    except DirectoryInUse as refusal:
        named = f"process {pid} " in refusal.message
        return None if named else f"LOCK: the refusal does not name process {pid}: {refusal.message}"
    return "LOCK: a second writer was let in"


def run(subject: StoreSubject | HttpSubject, data_dir: Path, rounds: int, seed: int) -> int:
    """Rounds in which something was wrong."""
    rng = random.Random(seed)
    expectation = Expectation()
    failed = 0
    total: Counter[str] = Counter()
    for round in range(1, rounds + 1):
        expectation.done.clear()
        pid = subject.start(round, expectation.record)
        if not expectation.first_done.wait(120):
            raise SystemExit("no operation was acknowledged within 120 s")
        refusal = second_writer(data_dir, pid)
        load_s = rng.uniform(0, _LONGEST_LOAD_S)
        time.sleep(load_s)
        subject.kill()
        opening = ""
        if rng.random() < _OPENINGS_KILLED:
            opening_s = rng.uniform(0, _LONGEST_OPENING_S)
            subject.kill_while_opening(opening_s)
            opening = f", and again {opening_s * 1e3:.0f} ms into recovery"
        found = subject.observe(expectation.ids)
        done = Counter(expectation.done)
        wrong, outcomes = expectation.check(found)
        wrong += [refusal] if refusal else []
        total += done + outcomes
        failed += bool(wrong)
        newest = max(int(path.stem) for path in (data_dir / "segments").glob("*.rows"))
        print(
            f"round {round:2}: process {pid} killed after {load_s:.2f} s{opening}; acknowledged "
            f"{done['inserts']} inserts, {done['updates']} updates, {done['deletes']} deletes; under way "
            f"{outcomes['whole']} whole, {outcomes['absent']} absent; {found.documents} documents in "
            f"{found.segments} segments (newest {newest}): {'; '.join(wrong) or 'ok'}",
            flush=True,
        )
    print(
        f"{rounds} rounds, {failed} wrong: {total['inserts']} inserts, {total['updates']} updates and "
        f"{total['deletes']} deletes acknowledged, {total['whole'] + total['absent']} operations cut short: "
        + ("FAILED" if failed else "nothing lost, nothing back, nothing torn")
    )
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--through", choices=("store", "http"), default="store")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--data-dir", type=Path, help="a directory to use and keep (default: a temporary one)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data_dir = args.data_dir or Path(temporary) / "data"
        subject = (StoreSubject if args.through == "store" else HttpSubject)(data_dir, args.seed)
        try:
            failed = run(subject, data_dir, args.rounds, args.seed)
        finally:
            subject.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

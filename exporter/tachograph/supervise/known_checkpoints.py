"""The checkpoints of a run as its loop has registered them, and which is the newest that it can be restarted from.

Durable and suspect are the exporter's words; what is on disk is looked at here, by a process of its own
(`checkpoint_files.py`), so that a file system that hangs delays nothing further.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tachograph.processes.own_process import own_process
from tachograph.supervise.decision import Restorable
from tachograph.supervise.journal import CHECKPOINT
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.run_seen import CheckpointSeen, RunSeen
from tachograph.text.humanize import count

CHECK_SECONDS, CHECKSUMS_SECONDS = 20.0, 15.0
"""For all that is looked at before a restart; of that, for reading a checkpoint back."""

KILL_SECONDS = 1.0
FOLDER = "checkpoints"
MODULE = "tachograph.supervise.checkpoint_files"


class KnownCheckpoints:
    """Notes each checkpoint in the journal, and has a list made of its files while they are as they were saved."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._noted: set[CheckpointSeen] = set()
        self._unlisted: dict[int, str] = {}
        self._lister: subprocess.Popen[bytes] | None = None

    def note(self, seen: RunSeen) -> None:
        """Note those that all ranks have reported; what was saved before the run began is another run's."""
        memory, began = self._ledger.memory.checkpoints, self._ledger.memory.began
        new = [one for one in seen.checkpoints if one.is_durable and one not in self._noted and one.time >= began]
        self._noted = set(seen.checkpoints)
        for one in new:
            known = memory.by_step.get(one.step)
            is_new = known is None or known["saved"] != one.time
            if (one.step, one.time) in memory.put_aside:
                continue
            if is_new or (one.is_suspect and known is not None and not known["suspect"]):
                self._ledger.write(
                    CHECKPOINT, checkpoint=one.step, saved=one.time, path=one.path, suspect=one.is_suspect
                )
            if is_new and one.path:
                self._unlisted[one.step] = one.path
        self._list()

    def newest(self, before: int | None, saved_before: float | None = None) -> Restorable:
        """Return the newest from before a step, and from before a time of the day, that is good and as it was saved.

        Takes at most 20 s.
        """
        deadline = time.monotonic() + CHECK_SECONDS
        while self._list(deadline):
            pass
        passed_over: list[str] = []
        for step, known in sorted(self._ledger.memory.checkpoints.by_step.items(), reverse=True):
            if known["suspect"] or (before is not None and step >= before):
                fault = "it was saved once the loss had spiked or was not finite"
            elif saved_before is not None and known["saved"] >= saved_before:
                fault = "it may have been saved once the trouble had begun"
            else:
                fault = self._fault(step, known["path"], deadline)
            if not fault:
                return Restorable(step, tuple(passed_over))
            passed_over.append(f"that of step {count(step)}: {fault}")
        return Restorable(None, tuple(passed_over))

    def _listing(self, step: int) -> Path:
        return self._ledger.folder / FOLDER / f"{step}.json"

    def _list(self, deadline: float | None = None) -> bool:
        """Have the files of new ones listed, once the last lists are made; return whether there is more to do.

        With a deadline those are waited for.
        """
        if self._lister is not None:
            try:
                self._lister.wait(0.0 if deadline is None else max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                return False
            self._lister = None
        if not self._unlisted:
            return False
        new, self._unlisted = self._unlisted, {}
        try:
            (self._ledger.folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
            for step in new:
                self._listing(step).unlink(missing_ok=True)
            pairs = [text for step, path in new.items() for text in (path, str(self._listing(step)))]
            self._lister = subprocess.Popen(
                own_process(MODULE, "list", *pairs),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError:  # without a list, what is there then is what it is checked by
            return False
        return True

    def _fault(self, step: int, path: str, deadline: float) -> str:
        """Return what is wrong with the files of a checkpoint, empty if nothing is or if its place is not known."""
        if not path:
            return ""
        seconds = max(deadline - time.monotonic(), 0.0)
        command = own_process(MODULE, "check", path, str(self._listing(step)), str(min(seconds, CHECKSUMS_SECONDS)))
        try:
            checker = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                encoding="utf-8", errors="replace",
            )  # fmt: skip
        except OSError as error:
            return f"it cannot be looked at: {error.strerror or error}"
        assert checker.stdout is not None
        with checker.stdout:
            try:
                said, _ = checker.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                checker.kill()
                with suppress(subprocess.TimeoutExpired):  # a file system that hangs keeps it
                    checker.wait(KILL_SECONDS)
                return f"{path} does not answer within {CHECK_SECONDS:.0f} s"
        return said.strip() if checker.returncode == 0 else f"{path} cannot be looked at"

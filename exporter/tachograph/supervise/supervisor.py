"""The supervisor of one run on one node: starts the training, looks what the exporter concludes, and acts by policy.

Whatever happens in here, the training goes on: a fault of ours, or a journal that cannot be written, ends acting and
nothing else. Long, as it is one state machine: an attempt begins, runs, is judged, ends.
"""

from __future__ import annotations

import signal
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tachograph.catalog.run import TOLD_REASONS
from tachograph.humanize import age, count, listed
from tachograph.supervise.decision import (
    COOL_DOWN,
    GONE,
    WAIT,
    Decision,
    Hold,
    Situation,
    decide,
    held_back,
    not_before,
)
from tachograph.supervise.deeds import DONE, UNKILLABLE, Deeds, Keep
from tachograph.supervise.findings import (
    EXITED,
    FROZEN,
    HUNG,
    RunFinding,
    RunSeen,
    Silent,
    Unknown,
    nothing_seen,
    worst,
)
from tachograph.supervise.heartbeat import Facts, facts_of
from tachograph.supervise.hindsight import Hindsight
from tachograph.supervise.journal import (
    ATTEMPT,
    BLIND,
    ENDED,
    IGNORED,
    INTENT,
    NAME,
    OUTCOME,
    QUEUED,
    STARTED,
    SUPERVISOR,
    Journal,
    identity,
    owners,
)
from tachograph.supervise.known_checkpoints import KnownCheckpoints
from tachograph.supervise.launcher import IN_PLACE, QUEUED_AGAIN, Launcher, Outlook
from tachograph.supervise.ledger import ASK, SHADOW, Ledger
from tachograph.supervise.memory import EXTERNAL, FAILED, FINISHED, LOST, STOPPED
from tachograph.supervise.observer import Clocks, RunObserver, RunWatch, Silenced, never_silenced
from tachograph.supervise.plan import AttemptPlan
from tachograph.supervise.plan_obedience import PlanObedience
from tachograph.supervise.policy import KEEP_EVIDENCE, LEAVE, NOTIFY, RESTARTS, STOP, Policy, Rule
from tachograph.supervise.signals import Signals
from tachograph.supervise.totals import ASKED, DECIDED, WOULD
from tachograph.supervise.training import AttemptEnd, RunningAttempt

POLL_SECONDS = 5.0
"""How often the exporter is asked: an answer costs both together 5 ms."""
PENDING_SECONDS = 1.0
"""The same while something is wrong, since each second of waiting costs one of every GPU, and until a restart of ours
makes steps."""
WAIT_SECONDS = 0.5
"""How often something is looked for that comes soon: a rank's end, a confirmation."""
SETTLE_SECONDS, UNSEEN_SECONDS = 5.0, 1.0
"""How long the exporter may take to show how ranks ended whose command has, and ranks that it never showed."""
GAP_SECONDS = 20.0
"""Between two looks, after which a finding must hold anew: this process was stopped, or the exporter took so long."""
BLIND_SECONDS = 120.0
"""After so long without findings that is said: a training takes as long to make its recorder."""
ASK_SECONDS = 1800.0
"""How long a confirmation is awaited for a training that has ended."""
SCHEDULER_SECONDS, ASK_SCHEDULER_SECONDS = 120.0, 2.0
"""How long a scheduler may take to end this process once the job is queued again, or to answer after a restart of its
own; and how often it is asked again."""
LOST_SECONDS = 420.0
"""How long a silent node is waited for, or its scheduler to say that it is lost: Slurm takes 5 minutes by default."""

STATUS_STOPPED = 3
"""The exit status for a training that the policy ended."""
SIGNALLED = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
ASKED_TO_END = {-number for number in SIGNALLED} | {128 + number for number in SIGNALLED}
"""Statuses of a command that somebody asked to end."""
CONFIRMATIONS = "confirmed"
"""The folder in which `tachograph supervise confirm` leaves a file for each decision."""


@dataclass
class OpenFinding:
    """A finding that holds: since when, what was said of it, and the decision that waits for a confirmation."""

    trigger: str
    since: float
    seen: float
    looks: int = 0
    said: set[str] = field(default_factory=set)
    number: str = ""
    decision: Decision | None = None
    is_done: bool = False


class Supervisor:
    """Supervises one run until its command ends for good.

    `at` is called with a name before and after each side effect; tests end the process there.
    """

    def __init__(
        self,
        run: str,
        policy: Policy,
        mode: str,
        journal: Journal,
        source: RunWatch,
        *,
        launcher: Launcher,
        keep: Keep,
        say: Callable[[str], None],
        signals: Signals,
        clock: Clocks | None = None,
        tell: Callable[[Callable[[], Facts]], None] = lambda _: None,
        silenced: Silenced = never_silenced,
        at: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self._run, self._policy = run, policy
        self._launcher, self._say, self._signals, self._at = launcher, say, signals, at
        self._clock = clock or Clocks()
        self._ledger = Ledger(journal, mode, say, self._clock.now)
        self._memory = self._ledger.memory
        self._observer = RunObserver(source, self._clock, KnownCheckpoints(self._ledger), silenced, launcher)
        self._deeds = Deeds(self._ledger, keep, say, at)
        self._hindsight = Hindsight(self._ledger, self._clock.now)
        self._obedience = PlanObedience(AttemptPlan(run, 0))
        self._told: list[int] = []
        self._withdrawn = ""
        self._pending: OpenFinding | None = None
        self._blind_since: float | None = None
        self._is_blind = False

    def supervise(self, command: str) -> int:
        """Run the command until it ends for good; return its exit status, negative for a signal.

        `command` is what the journal has of it.
        """
        if (status := self._take_over()) is not None:
            return status
        self._ledger.write(SUPERVISOR, run=self._run, mode=self._ledger.mode, command=command, **identity())
        while True:
            status = self._attempt()
            if status is not None:
                return status
            if self._signalled_within(0.0):
                return -self._told[0]

    def _attempt(self) -> int | None:
        """Run one attempt; return the exit status, None where another attempt is due."""
        if (status := self._placed()) is not None:
            return status
        try:
            training = self._begin()
        except OSError as error:  # such as no memory, or no process, left to this user
            self._say(f"the command of run {self._run} cannot be started: {error.strerror or error}")
            self._ended(FAILED, None, f"it could not be started: {error.strerror or error}")
            return 127
        next_look = self._clock.monotonic()
        while not training.has_ended():
            for number in self._signals.wait([training], next_look - self._clock.monotonic()):
                self._pass_on(training, number)
            if self._clock.monotonic() >= next_look and not training.has_ended():
                is_over, status = self._look(training)
                if is_over:
                    return status
                is_waiting = self._pending is not None and not self._pending.is_done
                is_waiting |= self._memory.recovering is not None and not self._is_blind
                next_look = self._clock.monotonic() + (PENDING_SECONDS if is_waiting else POLL_SECONDS)
        return self._after(training)

    # What came before this supervisor.

    def _take_over(self) -> int | None:
        """Close what an earlier supervisor left open; return an exit status if it was about to stop the run."""
        stopped = False
        for entry in list(self._memory.open.values()):
            action = entry["action"]
            if action == NOTIFY:
                self._say(f"{entry['text']} (said again: the last supervisor ended as it said this)")
            stopped |= action == STOP
            text = {
                NOTIFY: "said again by the next supervisor",
                KEEP_EVIDENCE: "not repeated: the training ended with its supervisor",
                STOP: "the training ended with its supervisor, and is not started again",
            }.get(action, "the training ended with its supervisor; the next attempt is started now")
            self._ledger.write(OUTCOME, id=entry["id"], action=action, ok=action != KEEP_EVIDENCE, text=text)
        if (decided := self._memory.decided) is not None:
            stopped |= decided["action"] == STOP
            names = ("id", "trigger", "action", "cost", "signature", "line", "resume_step", "found", "nodes", "skip")
            self._ledger.write(INTENT, **{name: decided[name] for name in names if name in decided})
            text = "decided by the last supervisor, and the training ended with it"
            self._ledger.write(OUTCOME, id=decided["id"], action=decided["action"], ok=True, text=text)
        if self._memory.runs:
            why = "its supervisor ended, and the training with it"
            self._ledger.write(ENDED, how=LOST, status=None, step=None, why=why)
        self._hindsight.catch_up()
        if not stopped:
            return None
        self._say(
            f"run {self._run} was being stopped by policy when its last supervisor ended: the training has ended with "
            "it, and is not started. To start it all the same, give the command again"
        )
        return STATUS_STOPPED

    # An attempt's beginning and end.

    def _placed(self) -> int | None:
        """Have the job queued again if the attempt cannot run in it; return the exit status then."""
        left_out = self._left_out()
        outlook = self._known_outlook(left_out)
        if self._told:
            return -self._told[0]
        is_due = self._memory.due is not None or bool(left_out)
        if self._ledger.mode == SHADOW or outlook.unknown or not is_due:
            return None
        if outlook.withdrawn:
            self._say(f"the next attempt of run {self._run} is not started: {outlook.withdrawn}")
            return STATUS_STOPPED
        if outlook.where == IN_PLACE:
            return None
        why = outlook.why
        if outlook.where == QUEUED_AGAIN and self._memory.nodes.is_queued:
            why = f"{why}, though it was queued again for that"
        elif outlook.where == QUEUED_AGAIN and self._ledger.write(QUEUED, why=why, left_out=sorted(left_out)):
            self._at("before requeue")
            fault = self._launcher.queue_again(left_out)
            self._at("after requeue")
            if not fault:
                self._say(f"the next attempt of run {self._run} begins once its job, queued again, has nodes, as {why}")
                self._signalled_within(SCHEDULER_SECONDS)
                return -self._told[0] if self._told else STATUS_STOPPED
            why = f"{why}, and it cannot be queued again: {fault}"
        self._say(f"the next attempt of run {self._run} is not started: {why}")
        return STATUS_STOPPED

    def _left_out(self) -> Collection[str]:
        """Return the nodes that no attempt uses; in shadow mode it is as it would be without us."""
        return () if self._ledger.mode == SHADOW else self._memory.nodes.left_out

    def _begin(self) -> RunningAttempt:
        """Start the next attempt."""
        memory, due = self._memory, self._memory.due
        change = memory.plan
        plan = AttemptPlan(
            self._run, memory.attempts, skip=tuple(change.skip), rate=change.factor, clipping=change.factor
        )
        if due is not None:
            step, path = due["resume_step"], memory.checkpoints.path(due["resume_step"])
            plan = replace(plan, action=due["action"], reason=due["trigger"], step=step, checkpoint=path)
        self._pending, self._told, self._withdrawn = None, [], ""
        self._blind_since, self._is_blind = None, False
        self._ledger.write(
            ATTEMPT, attempt=plan.attempt, action=plan.action, reason=plan.reason, resume_step=plan.step
        )  # fmt: skip
        self._observer.begin(memory.best_step)
        self._obedience = PlanObedience(plan)
        self._at("before start")
        training = self._launcher.start(plan.environment(self._ledger.folder), self._left_out())
        self._at("after start")
        self._ledger.write(STARTED, attempt=plan.attempt)
        if plan.action:
            to = "" if plan.step is None else f", from the checkpoint of step {count(plan.step)}"
            self._say(f"attempt {plan.attempt} of run {self._run} is started, after {_words(plan.reason)}{to}")
        return training

    def _pass_on(self, training: RunningAttempt, number: int) -> None:
        if number in SIGNALLED:
            self._told.append(number)
        training.send_signal(number)

    def _signalled_within(self, seconds: float) -> bool:
        """Wait so long without a training, and return whether a signal came that ends the run."""
        arrived = self._signals.wait([], max(seconds, 0.0))
        self._told += [number for number in arrived if number in SIGNALLED]
        return bool(self._told)

    def _after(self, training: RunningAttempt) -> int | None:
        """Conclude why the command has ended; return its status, None where another attempt is due."""
        before = self._observer.seen
        seen: RunSeen | Unknown = Unknown("its ranks were not looked at")
        lost: Sequence[str] = ()
        try:
            if training.status != 0:
                self._withdrawn = self._known_outlook().withdrawn
            if not self._acquitted(training, training.status, seen):
                seen = self._settled(training)
            if isinstance(seen, RunSeen):
                self._observer.note(seen)
            elif training.status != 0:
                lost = self._launcher.outlook((), fresh=True).lost
        except Exception as error:  # noqa: BLE001 - whatever it is, the status is the command's
            self._ledger.fault(error)
        end = training.wait()
        status = STATUS_STOPPED if end.status is None else end.status
        if end.error:
            self._say(f"the command cannot be run: {end.error}")
            self._ended(FAILED, None, end.error)
            return 127
        if how := self._acquitted(training, end.status, seen):
            self._ended(how, status, self._withdrawn or _why(how, status, self._told))
            return status
        if isinstance(seen, Unknown) and not lost:
            self._ended(FAILED, status, f"nothing is done, as nothing is known: {seen.why}")
            self._say(
                f"the command of run {self._run} ended with {_status(status)}, and is not restarted, as nothing is "
                f"known of its ranks: {seen.why}"
            )
            return status
        try:
            if isinstance(seen, Unknown):
                seen = before or nothing_seen(self._run)
                finding = self._loss_of(lost, seen)
            else:
                finding = self._cause(training, end, seen, before)
            return self._after_failure(training, finding, status, seen)
        except Exception as error:  # noqa: BLE001 - the same
            self._ledger.fault(error)
            return status

    def _acquitted(self, training: RunningAttempt, status: int | None, seen: RunSeen | Unknown) -> str:
        """Return how the command ended if nothing failed, empty otherwise."""
        if status == 0:
            return FINISHED
        # The status of an srun is that of its tasks, which it asks to end itself after one has failed.
        was_asked = status in ASKED_TO_END and (not training.job or (status or 0) < 0)
        if self._told or was_asked or self._withdrawn:
            return EXTERNAL
        if isinstance(seen, Unknown) or (status or 0) < 0:  # a launcher that died: its ranks were asked to end by us
            return ""
        ends = [rank for rank in seen.ranks if rank.state in ("dead", "failed")]
        return EXTERNAL if ends and all(rank.end_reason in TOLD_REASONS for rank in ends) else ""

    def _known_outlook(self, left_out: Collection[str] = ()) -> Outlook:
        """Return what the scheduler says, which may be restarted meanwhile."""
        deadline = self._clock.monotonic() + SCHEDULER_SECONDS
        while (outlook := self._launcher.outlook(left_out, fresh=True)).unknown and self._clock.monotonic() < deadline:
            if self._signalled_within(ASK_SCHEDULER_SECONDS):
                break
        return outlook

    def _settled(self, training: RunningAttempt) -> RunSeen | Unknown:
        """Return what is known once the exporter shows how the ranks have ended, or after a while."""
        before = self._observer.seen
        deadline = self._clock.monotonic() + (SETTLE_SECONDS if before is not None else UNSEEN_SECONDS)
        lost = deadline + LOST_SECONDS
        while True:
            seen = self._observer.look_for_news(training)
            is_settled = isinstance(seen, RunSeen) and not seen.is_alive
            now = self._clock.monotonic()
            if is_settled or now >= (lost if isinstance(seen, Silent) else deadline):
                return seen
            if now >= deadline:
                outlook = self._launcher.outlook((), fresh=True)
                self._withdrawn = outlook.withdrawn
                if outlook.withdrawn or outlook.lost or self._signalled_within(ASK_SCHEDULER_SECONDS):
                    return seen
            self._signalled_within(WAIT_SECONDS)

    def _cause(self, training: RunningAttempt, end: AttemptEnd, seen: RunSeen, before: RunSeen | None) -> RunFinding:
        """Return the finding that explains the end of the command.

        Where a signal ended a launcher, its ranks were ended after it, by us.
        """
        status = end.status or 0
        launcher_died = (
            status < 0
            and before is not None
            and worst(before) is None
            and str(training.pid) not in {rank.pid for rank in before.ranks}
        )
        found = None if launcher_died else worst(seen)
        if found is not None and found.trigger not in (HUNG, FROZEN):
            return found
        said = f"The command of run {self._run} ended with {_status(status)}, and no rank failed before it."
        return RunFinding(EXITED, (), _status(status), seen.step, "", said)

    def _loss_of(self, nodes: Sequence[str], seen: RunSeen) -> RunFinding:
        """Return the finding that nodes are lost as a whole, with whatever ran on them, as their scheduler says."""
        said = (
            f"The command of run {self._run} has ended, and {listed(nodes)} is down or does not answer its scheduler."
        )
        return RunFinding(EXITED, (), "node_lost", seen.step, "", said)

    def _after_failure(self, training: RunningAttempt, finding: RunFinding, status: int, seen: RunSeen) -> int | None:
        """Do what the policy says of a command that has ended; return the status, None for another attempt."""
        pending = self._open(finding)
        situation = self._observer.situation(finding, seen, pending.since, ended=True)
        rule = self._policy.rules.get(finding.trigger)
        hold = None if rule is None else held_back(situation, self._policy, rule, self._memory)
        if rule is None or (hold is not None and hold.guard != COOL_DOWN):
            guard, why = ("policy", _unnamed(finding)) if hold is None else hold
            self._ledger.hold(situation, guard, why)
            self._ended(FAILED, status, why)
            return status
        decision = pending.decision or decide(situation, self._policy, rule, self._memory)
        if decision.action in RESTARTS and hold is not None and self._ledger.mode != SHADOW:
            if self._signalled_within(not_before(rule, self._memory) - self._clock.now()):
                self._ended(EXTERNAL, status, "a signal came before the restart was due")
                return status
            situation = self._observer.situation(finding, seen, pending.since, ended=True)
            decision = decide(situation, self._policy, rule, self._memory)
        if not self._may(situation, decision, pending, wait=ASK_SECONDS):
            why = "nothing is done in shadow mode" if self._ledger.mode == SHADOW else "nobody confirmed it"
            why = why if situation.silence is None else situation.silence.why
            self._ended(FAILED, status, "a signal came" if self._told else why)
            return status
        result = self._carry_out(training, situation, rule, decision, pending)
        if result != DONE:
            if result == UNKILLABLE:
                self._end_unkillable(status)
            else:
                self._ended(FAILED, status, "the journal cannot be written")
            return status
        if decision.action in RESTARTS:
            self._ended(FAILED, status, finding.text)
            return None
        self._ended(STOPPED if decision.action == STOP else FAILED, status, decision.why)
        return status

    def _end_unkillable(self, status: int | None) -> None:
        self._say(
            f"run {self._run} is not started again: some of its processes cannot be killed, as they wait in the "
            "kernel, for a GPU or a file system. Restart the node, or start the run on another one"
        )
        self._ended(STOPPED, status, UNKILLABLE)

    def _ended(self, how: str, status: int | None, why: str) -> None:
        seen = self._observer.seen
        step = None if seen is None else seen.step
        self._ledger.write(ENDED, how=how, status=status, step=step, why=why)
        self._hindsight.end(how)
        self._beat()

    def _beat(self) -> None:
        """Say that this supervisor looks, and how it is."""
        blind = 0.0 if self._blind_since is None else self._clock.monotonic() - self._blind_since
        self._tell(lambda: facts_of(self._ledger, self._policy, blind, self._clock.now()))

    # Findings while the command runs.

    def _look(self, training: RunningAttempt) -> tuple[bool, int | None]:
        """Look once, and act; return whether the attempt is over by that, and then the exit status, None for a next."""
        self._beat()
        try:
            seen = self._observer.look_for_news(training)
            self._note_blindness(seen)
            if isinstance(seen, Unknown) or self._told:
                self._withdraw("nothing is known of it now")
                return False, None
            return self._judge(training, seen)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._ledger.fault(error)
            return False, None

    def _note_blindness(self, seen: RunSeen | Unknown) -> None:
        """Say once for how long nothing has been known, and that something is again."""
        now = self._clock.monotonic()
        if isinstance(seen, RunSeen):
            if self._is_blind:
                self._ledger.write(BLIND, over=True, why="the exporter shows the run again")
                self._say(f"the exporter shows run {self._run} again")
            self._blind_since, self._is_blind = None, False
            return
        self._blind_since = now if self._blind_since is None else self._blind_since
        if now - self._blind_since >= BLIND_SECONDS and not self._is_blind:
            self._is_blind = True
            self._ledger.write(BLIND, over=False, why=seen.why)
            self._say(
                f"for {age(now - self._blind_since)} nothing has been known of run {self._run}, and nothing is done "
                f"until it is: {seen.why}. If the script names its run itself, give that name with --run"
            )

    def _judge(self, training: RunningAttempt, seen: RunSeen) -> tuple[bool, int | None]:
        """Act on what is wrong with a run whose command runs; return the same as `_look`."""
        moved = self._observer.note(seen)
        self._note_obedience(seen)
        finding = worst(seen)
        self._hindsight.look(seen, finding)
        if finding is None:
            self._ledger.note_steps(self._observer.first_step, seen.step)
            self._withdraw()
            return False, None
        pending = self._open(finding)
        pending.looks += 1
        situation = self._observer.situation(finding, seen, pending.since, ended=False, moved=moved)
        rule = self._policy.rules.get(finding.trigger)
        if rule is None:
            self._hold_once(pending, situation, "policy", _unnamed(finding))
            return False, None
        hold = held_back(situation, self._policy, rule, self._memory)
        if hold is not None and hold.guard != WAIT:
            self._hold_once(pending, situation, hold.guard, hold.why)
        if hold is not None or pending.looks < 2:
            return False, None
        return self._act_on(training, situation, rule, pending)

    def _note_obedience(self, seen: RunSeen) -> None:
        """Say once that the loop does not do what its plan says: it is not sent back another time."""
        if not self._memory.plan.ignored and (why := self._obedience.broken_by(seen)):
            self._ledger.write(IGNORED, attempt=self._memory.attempts - 1, why=why)
            self._say(f"{why}; run {self._run} is not sent back to a checkpoint again. See recorder.resume()")

    def _act_on(
        self, training: RunningAttempt, situation: Situation, rule: Rule, pending: OpenFinding
    ) -> tuple[bool, int | None]:
        """Carry out what the policy says of a finding, once a person agrees; return the same as `_look`."""
        if pending.is_done:
            return False, None
        decision = pending.decision or decide(situation, self._policy, rule, self._memory)
        if not self._may(situation, decision, pending):
            return False, None
        pending.is_done = True
        result = self._carry_out(training, situation, rule, decision, pending)
        if decision.action == LEAVE or result not in (DONE, UNKILLABLE):
            return False, None
        if decision.action == STOP:
            self._ended(STOPPED, None, decision.why)
            return True, STATUS_STOPPED
        if result == UNKILLABLE:
            self._end_unkillable(None)
            return True, STATUS_STOPPED
        self._ended(FAILED, None, situation.finding.text)
        return True, None

    def _open(self, finding: RunFinding) -> OpenFinding:
        """Return since when a finding has held, from now on if it is another than before."""
        now = self._clock.monotonic()
        if self._pending is None or self._pending.trigger != finding.trigger:
            self._withdraw()
            self._pending = OpenFinding(finding.trigger, now, now)
        elif now - self._pending.seen > GAP_SECONDS:
            self._pending.since, self._pending.looks = now, 0
        self._pending.seen = now
        return self._pending

    def _withdraw(self, why: str = "what was found is gone") -> None:
        """Forget the finding that held until now, and withdraw what was asked about it."""
        if self._pending is not None and self._pending.number and not self._pending.is_done:
            number = self._pending.number
            self._ledger.write(OUTCOME, id=number, action="ask", ok=False, text=f"withdrawn: {why}")
            self._say(f"the question {number} about run {self._run} is withdrawn: {why}")
        self._pending = None

    def _hold_once(self, pending: OpenFinding, situation: Situation, guard: str, why: str) -> None:
        """Write and say that nothing is done about a finding, once for each guard."""
        if guard not in pending.said:
            pending.said.add(guard)
            self._ledger.hold(situation, guard, why)

    # Decisions.

    def _may(self, situation: Situation, decision: Decision, pending: OpenFinding, wait: float = 0.0) -> bool:
        """Return whether a decision is to be carried out now: in act mode, or once a person has confirmed it.

        `wait` is for how many seconds to wait for that here.
        """
        mode = self._ledger.mode
        if situation.silence is not None:  # made while a restart waited for its cool-down
            self._ledger.hold(situation, *situation.silence)
            return False
        if mode == SHADOW:
            if not pending.is_done:
                pending.is_done = True
                self._ledger.decided(situation, decision, WOULD)
                self._say(
                    f"would {_words(decision.action)} (shadow mode: nothing is done): {decision.why}. "
                    f"{situation.finding.text}"
                )
            return False
        if (mode == ASK or decision.needs_person) and not self._agreed(situation, decision, pending, wait):
            return False
        pending.number = self._ledger.decided(situation, decision, DECIDED, number=pending.number)
        return self._ledger.mode == mode  # or else the journal has failed, and the decision is not on disk

    def _agreed(self, situation: Situation, decision: Decision, pending: OpenFinding, wait: float) -> bool:
        """Return whether a person has confirmed a decision, who is asked at first."""
        folder = self._ledger.folder
        if not pending.number:
            pending.decision = decision
            pending.number = self._ledger.decided(situation, decision, ASKED)
            with suppress(OSError):  # ours, so that an answer of root's is seen
                (folder / CONFIRMATIONS).mkdir(mode=0o700, exist_ok=True)
            if self._ledger.mode == SHADOW:  # the question is not on disk, so nobody can confirm it
                return False
            self._say(
                f"{situation.finding.text} To {_words(decision.action)}, {decision.why}, confirm with: "
                f"tachograph supervise confirm {pending.number} --state {folder.absolute()}"
            )
        answer = folder / CONFIRMATIONS / pending.number
        deadline = self._clock.monotonic() + wait
        while not self._is_confirmed(answer):
            self._beat()
            if self._clock.monotonic() >= deadline or self._signalled_within(WAIT_SECONDS):
                return False
        return True

    def _is_confirmed(self, answer: Path) -> bool:
        """Return whether a confirmation is there: a file of root's or of the journal's owner, in whosever folder."""
        try:
            found = answer.lstat()
            return stat.S_ISREG(found.st_mode) and found.st_uid in owners(self._ledger.folder / NAME)
        except OSError:
            return False

    def _carry_out(
        self, training: RunningAttempt, situation: Situation, rule: Rule, decision: Decision, pending: OpenFinding
    ) -> str:
        return self._deeds.carry_out(
            pending.number,
            decision,
            situation,
            rule,
            training=training,
            still_holds=lambda: self._still_holds(training, situation),
        )

    def _still_holds(self, training: RunningAttempt, situation: Situation) -> bool:
        """Return whether a finding still holds now that its evidence is kept, which takes a while."""
        for number in self._signals.wait([], 0.0):
            self._pass_on(training, number)
        seen = self._observer.look(training)
        finding = worst(seen) if isinstance(seen, RunSeen) else None
        is_same = finding is not None and finding.trigger == situation.finding.trigger
        if is_same and not self._told and not training.has_ended() and isinstance(seen, RunSeen):
            hold = self._observer.silenced(situation.finding, seen, True)
            if hold is None:
                return True
        else:
            hold = Hold(GONE, "it was gone before anything was ended")
        self._pending = None
        self._ledger.hold(situation, *hold)
        return False


def _unnamed(finding: RunFinding) -> str:
    return f"{_words(finding.trigger)} is not in the policy"


def _status(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"


def _why(how: str, status: int, told: Sequence[int]) -> str:
    if how == FINISHED:
        return "the command has finished"
    names = listed([signal.Signals(number).name for number in told])
    return f"ended from outside, by {names or _status(status)}: left alone, and no part of the budget"


def _words(name: str) -> str:
    """Return an action or a trigger as it is read in a sentence."""
    return name.replace("_", " ")

"""The supervisor of one run: starts the training, looks what the exporter concludes, and acts by policy.

Whatever happens in here, the training goes on: a fault of ours, or a journal that cannot be written, ends acting and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from tachograph.supervise.aftermath import Aftermath, known_outlook, status_words
from tachograph.supervise.attempt_starts import AttemptStarts
from tachograph.supervise.blindness import Blindness
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
from tachograph.supervise.deeds import CANNOT_END, DONE, UNKILLABLE, Deeds, Keep
from tachograph.supervise.heartbeat import Facts, facts_of
from tachograph.supervise.hindsight import Hindsight
from tachograph.supervise.journal import ENDED, IGNORED, QUEUED, SUPERVISOR, Entry, Journal, identity
from tachograph.supervise.known_checkpoints import KnownCheckpoints
from tachograph.supervise.launcher import IN_PLACE, QUEUED_AGAIN, Launcher, OutlivingLauncher
from tachograph.supervise.ledger import SHADOW, Ledger
from tachograph.supervise.memory import EXTERNAL, FAILED, STOPPED
from tachograph.supervise.observer import Alerts, Clocks, RunObserver, RunWatch, Silenced, never_silenced, no_alerts
from tachograph.supervise.pending import UNSURE, CurrentFinding, PendingFinding
from tachograph.supervise.permission import Permission
from tachograph.supervise.plan import AttemptPlan
from tachograph.supervise.plan_obedience import PlanObedience
from tachograph.supervise.policy import LEAVE, RESTARTS, STOP, Policy, Rule
from tachograph.supervise.run_seen import RunSeen, Unknown
from tachograph.supervise.signals import EndSignals, Signals
from tachograph.supervise.takeover import GOES_ON, STOPS, take_over
from tachograph.supervise.training import RunningAttempt
from tachograph.supervise.triggers import OF_ALERTS, RESTART_LOOP, RunFinding, words, worst, worst_of_alerts

POLL_SECONDS = 5.0
"""How often exporters are asked: an answer costs both together 5 ms."""
PENDING_SECONDS = 1.0
"""The same while something is wrong, since each second of waiting costs one of every GPU, and until a restart of ours
makes steps."""
ASK_SECONDS = 1800.0
"""How long a confirmation is awaited for a training that has ended."""
QUEUED_SECONDS = 120.0
"""How long a scheduler may take to end this process once the job is queued again."""

STATUS_STOPPED = 3
"""The exit status for a training that the policy ended."""


class _LeftError(Exception):
    """The supervisor was asked to end, and its training was not: the next one goes on with it."""


class Supervisor:
    """Supervises one run until its command ends for good."""

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
        outliving: OutlivingLauncher | None = None,
        tell: Callable[[Callable[[], Facts]], None] = lambda _: None,
        silenced: Silenced = never_silenced,
        alerts: Alerts = no_alerts,
    ) -> None:
        self._tell = tell
        self._run, self._policy = run, policy
        self._launcher, self._say = launcher, say
        self._clock = clock or Clocks()
        self._ends = EndSignals(signals)
        self._ledger = Ledger(journal, mode, say, self._clock.now)
        self._memory = self._ledger.memory
        self._observer = RunObserver(
            source, self._clock, KnownCheckpoints(self._ledger), launcher, silenced=silenced, alerts=alerts, say=say
        )
        self._starts = AttemptStarts(run, self._ledger, launcher, outliving, say)
        self._deeds = Deeds(self._ledger, keep, say)
        self._hindsight = Hindsight(self._ledger, self._clock.now)
        self._obedience = PlanObedience(AttemptPlan(run, 0))
        self._pending = CurrentFinding(self._ledger, self._clock.monotonic, run)
        self._permission = Permission(self._ledger, say, self._clock.monotonic, self._ends, self._beat)
        self._blindness = Blindness(run, self._ledger, say, self._clock.monotonic)

    def supervise(self, command: str) -> int:
        """Run the command until it ends for good; return its exit status, negative for a signal.

        `command` is what the journal has of it.
        """
        then = take_over(self._run, self._ledger, self._say, self._end_last if self._starts.outlive else None)
        if then == STOPS:
            return STATUS_STOPPED
        last = self._memory.running if then == GOES_ON else None
        if last is None:
            self._hindsight.catch_up()
        self._ledger.write(SUPERVISOR, run=self._run, mode=self._ledger.mode, command=command, **identity())
        while True:
            try:
                status = self._attempt(last)
            except _LeftError:
                self._say(f"run {self._run} goes on without a supervisor, and the next one takes it over")
                return -self._ends.told[0]
            last = None
            if status is not None:
                return status
            if self._ends.came_within(0.0):
                return -self._ends.told[0]

    def _attempt(self, last: Entry | None) -> int | None:
        """Run one attempt, or go on with the last one; return the exit status, None where another attempt is due."""
        if last is None and (status := self._placed()) is not None:
            return status
        try:
            training = self._begin(last)
        except OSError as error:  # such as no memory, or no process, left to this user
            self._say(f"the command of run {self._run} cannot be started: {error.strerror or error}")
            self._ended(FAILED, None, f"it could not be started: {error.strerror or error}")
            return 127
        next_look = self._clock.monotonic()
        while not training.has_ended():
            self._ends.pass_on(training, next_look - self._clock.monotonic(), wake=True)
            self._stay(training)
            self._starts.note()
            if self._clock.monotonic() >= next_look and not training.has_ended():
                is_over, status = self._look(training)
                if is_over:
                    return status
                is_waiting = self._pending.is_waiting
                is_waiting |= self._memory.recovering is not None and not self._blindness.is_said
                next_look = self._clock.monotonic() + (PENDING_SECONDS if is_waiting else POLL_SECONDS)
        self._starts.note()
        if training.outlives and (why := training.wait().error):
            return self._cannot_run(why)
        return self._after(training)

    def _placed(self) -> int | None:
        """Have the job queued again if the attempt cannot run in it; return the exit status then."""
        left_out = self._left_out()
        outlook = known_outlook(self._launcher, self._clock.monotonic, self._ends, left_out)
        if self._ends.told:
            return -self._ends.told[0]
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
            fault = self._launcher.queue_again(left_out)
            if not fault:
                self._say(f"the next attempt of run {self._run} begins once its job, queued again, has nodes, as {why}")
                return -self._ends.told[0] if self._ends.came_within(QUEUED_SECONDS) else STATUS_STOPPED
            why = f"{why}, and it cannot be queued again: {fault}"
        self._say(f"the next attempt of run {self._run} is not started: {why}")
        return STATUS_STOPPED

    def _left_out(self) -> Collection[str]:
        """Return the nodes that no attempt uses; in shadow mode it is as it would be without us."""
        return () if self._ledger.mode == SHADOW else self._memory.nodes.left_out

    def _begin(self, last: Entry | None) -> RunningAttempt:
        """Start the next attempt, or go on with the last one; raise OSError."""
        self._pending.forget()
        self._ends.begin()
        self._blindness.begin()
        plan = AttemptPlan(self._run, 0) if last else self._starts.next()  # obedience is judged at the first step
        self._observer.begin(self._memory.best_step, last["time"] if last else None)
        self._obedience = PlanObedience(plan)
        left_out = self._left_out()
        return self._starts.go_on(last, left_out) if last else self._starts.start(plan, left_out)

    def _end_last(self, last: Entry) -> bool:
        """End an attempt that an earlier supervisor was about to end for good; return whether it has ended."""
        is_over = self._starts.go_on(last, ()).end().left >= 0
        if not is_over:
            self._say(f"run {self._run} was being stopped, and goes on: {CANNOT_END[True]}")
        return is_over

    def _after(self, training: RunningAttempt) -> int | None:
        """Conclude why the command has ended; return its status, None where another attempt is due."""
        after = Aftermath(self._run, self._observer, self._launcher, self._clock.monotonic, self._ends)
        try:
            after.look(training)
        except Exception as error:  # noqa: BLE001 - whatever it is, the status is the command's
            self._ledger.fault(error)
        self._stay(training)
        end = training.wait()
        status = STATUS_STOPPED if end.status is None else end.status
        if end.error:
            return self._cannot_run(end.error)
        if how := after.acquitted(training, end.status):
            self._ended(how, status, after.why(how, status))
            return status
        if isinstance(after.seen, Unknown) and not after.lost:
            self._ended(FAILED, status, f"nothing is done, as nothing is known: {after.seen.why}")
            self._say(
                f"the command of run {self._run} ended with {status_words(status)}, and is not restarted, because "
                f"nothing is known of its ranks: {after.seen.why}"
            )
            return status
        try:
            return self._after_failure(training, *after.cause(training, end.status or 0), status)
        except _LeftError:
            raise
        except Exception as error:  # noqa: BLE001 - the same
            self._ledger.fault(error)
            return status

    def _after_failure(self, training: RunningAttempt, finding: RunFinding, seen: RunSeen, status: int) -> int | None:
        """Do what the policy says of a command that has ended; return the status, None for another attempt."""
        pending = self._pending.open(finding)
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
            if self._ends.came_within(not_before(rule, self._memory) - self._clock.now()):
                self._stay(training)
                self._ended(EXTERNAL, status, "a signal came before the restart was due")
                return status
            situation = self._observer.situation(finding, seen, pending.since, ended=True)
            decision = decide(situation, self._policy, rule, self._memory)
        granted = self._permission.granted(situation, decision, pending, renew=lambda: decision, wait=ASK_SECONDS)
        if granted is None:
            self._stay(training)
            why = "nothing is done in shadow mode" if self._ledger.mode == SHADOW else "nobody confirmed it"
            why = why if situation.silence is None else situation.silence.why
            self._ended(FAILED, status, "a signal came" if self._ends.told else why)
            return status
        result = self._carry_out(training, situation, rule, decision, pending)
        if result != DONE:
            if result == UNKILLABLE:
                self._end_unkillable(training, status)
            else:
                self._ended(FAILED, status, "the journal cannot be written")
            return status
        if decision.action in RESTARTS:
            self._ended(FAILED, status, finding.text)
            return None
        self._ended(STOPPED if decision.action == STOP else FAILED, status, decision.why)
        return status

    def _cannot_run(self, error: str) -> int:
        self._say(f"the command cannot be run: {error}")
        self._ended(FAILED, None, error)
        return 127

    def _stay(self, training: RunningAttempt) -> None:
        """Raise what ends this supervisor, if that was asked of it, and leaves its training to the next one."""
        if training.outlives and self._ends.told:
            raise _LeftError

    def _end_unkillable(self, training: RunningAttempt, status: int | None) -> None:
        self._say(f"run {self._run} is not started again: {CANNOT_END[training.outlives]}")
        self._ended(STOPPED, status, UNKILLABLE)

    def _ended(self, how: str, status: int | None, why: str) -> None:
        seen = self._observer.seen
        step = None if seen is None else seen.step
        self._ledger.write(ENDED, how=how, status=status, step=step, why=why)
        self._hindsight.end(how)
        self._beat()

    def _beat(self) -> None:
        """Say that this supervisor looks, and how it is."""
        blind = self._blindness.seconds
        self._tell(lambda: facts_of(self._ledger, self._policy, blind, self._clock.now()))

    def _look(self, training: RunningAttempt) -> tuple[bool, int | None]:
        """Look once, and act; return whether the attempt is over by that, and then the exit status, None for a next."""
        self._beat()
        try:
            is_quiet = not (self._pending.is_open or self._blindness.is_blind) and self._memory.recovering is None
            seen = self._observer.look_for_news(training, in_turns=is_quiet)
            self._blindness.note(seen)
            if isinstance(seen, Unknown) or self._ends.told:
                self._pending.withdraw("nothing is known of it now")
                return False, None
            return self._judge(training, seen)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._ledger.fault(error)
            return False, None

    def _judge(self, training: RunningAttempt, seen: RunSeen) -> tuple[bool, int | None]:
        """Act on what is wrong with a run whose command runs; return the same as `_look`."""
        moved = self._observer.note(seen)
        self._note_obedience(seen)
        finding = worst(seen)
        self._hindsight.look(seen, finding)
        if finding is None or finding.trigger in OF_ALERTS:
            self._ledger.note_steps(self._observer.first_step, seen)
        if finding is None:
            self._pending.withdraw(unsure=seen.alerts is None)
            return False, None
        pending = self._pending.open(finding, worst_of_alerts(seen), unsure=seen.alerts is None)
        pending.looks += 1
        situation = self._observer.situation(finding, seen, pending.since, ended=False, moved=moved)
        rule = self._policy.rules.get(finding.trigger)
        if rule is None:
            self._pending.hold_once(pending, situation, "policy", _unnamed(finding))
            return False, None
        hold = held_back(situation, self._policy, rule, self._memory)
        if hold is not None and hold.guard != WAIT:
            self._pending.hold_once(pending, situation, hold.guard, hold.why)
        if hold is not None or pending.looks < 2:
            return False, None
        return self._act_on(training, situation, rule, pending)

    def _note_obedience(self, seen: RunSeen) -> None:
        """Say once that the loop does not do what its plan says: it is not sent back another time."""
        if not self._memory.plan.ignored and (why := self._obedience.broken_by(seen)):
            self._ledger.write(IGNORED, attempt=self._memory.attempts - 1, why=why)
            self._say(f"{why}; run {self._run} is not sent back to a checkpoint again. See recorder.resume()")

    def _act_on(
        self, training: RunningAttempt, situation: Situation, rule: Rule, pending: PendingFinding
    ) -> tuple[bool, int | None]:
        """Carry out what the policy says of a finding, once a person agrees; return the same as `_look`."""
        if pending.is_done:
            return False, None
        renew = partial(decide, situation, self._policy, rule, self._memory)
        decision = self._permission.granted(situation, pending.decision or renew(), pending, renew=renew)
        if decision is None:
            return False, None
        pending.is_done = True
        result = self._carry_out(training, situation, rule, decision, pending)
        if decision.action == LEAVE or result not in (DONE, UNKILLABLE):
            return False, None
        if decision.action == STOP:
            self._ended(STOPPED, None, decision.why)
            return True, STATUS_STOPPED
        if result == UNKILLABLE:
            self._end_unkillable(training, None)
            return True, STATUS_STOPPED
        self._ended(FAILED, None, situation.finding.text)
        return True, None

    def _carry_out(
        self, training: RunningAttempt, situation: Situation, rule: Rule, decision: Decision, pending: PendingFinding
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
        self._ends.pass_on(training, 0.0)
        is_of_alerts = situation.finding.trigger in OF_ALERTS
        seen = self._observer.look(training, sure=is_of_alerts)
        finding = worst(seen) if isinstance(seen, RunSeen) else None
        is_same = finding is not None and finding.subject == situation.finding.subject
        if isinstance(seen, RunSeen) and situation.finding.trigger == RESTART_LOOP:  # its alert lasts for longer
            is_same &= not self._observer.gains(seen)
        if is_same and not self._ends.told and not training.has_ended() and isinstance(seen, RunSeen):
            hold = self._observer.silenced(situation.finding, seen, True)
            if hold is None:
                return True
        else:
            is_unknown = is_of_alerts and isinstance(seen, RunSeen) and seen.alerts is None
            hold = Hold(GONE, UNSURE if is_unknown else "it was gone before anything was ended")
        self._pending.withdraw(hold.why)
        self._ledger.hold(situation, *hold)
        return False


def _unnamed(finding: RunFinding) -> str:
    return f"{words(finding.trigger)} is not in the policy"

"""`tachograph supervise -- command`: starts a training and restarts it by policy; `history` and `confirm` beside it."""

from __future__ import annotations

import argparse
import os
import pwd
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tachograph.client.core.arguments import name as valid_name
from tachograph.client.hello.identity import discover
from tachograph.command_line import CommandParser
from tachograph.processes.process_tree import adopt_orphans
from tachograph.servers.http_client import without_password
from tachograph.servers.server_address import exporter_url, web_socket_path
from tachograph.supervise import evidence, slurm
from tachograph.supervise import policy as policies
from tachograph.supervise.alert_source import AlertSource, AlertSourceError, add_options, alert_source
from tachograph.supervise.findings import FindingSource
from tachograph.supervise.heartbeat import Heartbeat
from tachograph.supervise.journal import SUPERVISOR, Journal, JournalTakenError
from tachograph.supervise.journal_commands import FOLDER, confirm, say, show_history, state_folder
from tachograph.supervise.kubernetes.create_command import is_kubectl
from tachograph.supervise.kubernetes.run import PodNodes
from tachograph.supervise.kubernetes.setup import KubernetesSetup, taken_elsewhere
from tachograph.supervise.launcher import ChildCommand, Launcher, OutlivingLauncher, nodes_needed, restarter
from tachograph.supervise.ledger import MODES, SHADOW
from tachograph.supervise.memory import remember
from tachograph.supervise.observer import RunWatch
from tachograph.supervise.policy import Policy
from tachograph.supervise.several_nodes import SeveralNodes, sources_of
from tachograph.supervise.signals import Signals
from tachograph.supervise.slurm_job import SlurmJob, is_srun, job_nodes
from tachograph.supervise.supervisor import Supervisor
from tachograph.supervise.training import AttemptProcesses
from tachograph.supervise.triggers import TRIGGERS
from tachograph.text.humanize import listed
from tachograph.text.redact import redact
from tachograph.watch.program import end_as
from tachograph.wire import socket_path

NODE = "{node}"
"""Stands for the name of each node in --exporter."""
EPILOG = """\
The command runs as a child and gets every signal; any exit status but these is
its own. In shadow mode nothing is done; the journal has what would be.
kubectl create -f FILE is not run: the job in the file is made for each attempt,
and goes on without a supervisor until there is another one.

  tachograph supervise history [RUN]  shows the journal of a run
  tachograph supervise confirm ID     has a decision of ask mode carried out

examples:
  tachograph supervise --run llama-7b -- torchrun --nproc-per-node 8 train.py
  tachograph supervise --run llama-7b --mode act --evidence /shared/evidence \\
      -- torchrun --nproc-per-node 8 train.py
  tachograph supervise --run llama-7b --mode act --state /state/llama-7b \\
      -- kubectl create -f train.yaml
  tachograph supervise --show-policy > policy.yml

exit status:
  0    the command has finished; or the policy was shown
  1    the journal or --webhook's port cannot be opened, or is another run's
  2    wrong arguments, or a policy with faults, each of which is named
  3    the policy has stopped the training
  4    another supervisor has this run, or its job is another one's
  127  the command cannot be run
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    words = list(arguments)
    try:
        if words[:1] == ["history"]:
            return show_history(words[1:])
        if words[:1] == ["confirm"]:
            return confirm(words[1:])
        return _supervise(words)
    except SystemExit as end:
        return int(end.code or 0)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph supervise",
        usage="tachograph supervise [options] -- command\n       tachograph supervise {history,confirm} ...",
        description="Start a training on this node, and restart it by policy when the exporter\n"
        "concludes that a rank died, failed or froze, that the run hangs, or that its\n"
        "loss is not finite or has spiked for good.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", type=_run_name, help="the run, as its alerts name it (default: as a rank would)")
    parser.add_argument(
        "--mode", choices=MODES, default=SHADOW, help="do nothing, ask a person, or act (default: %(default)s)"
    )
    parser.add_argument("--policy", type=Path, metavar="FILE", help="what to do, in YAML (default: see --show-policy)")
    parser.add_argument("--show-policy", action="store_true", help="print the policy, once it is checked, and exit")
    parser.add_argument(
        "--evidence", type=Path, metavar="FOLDER", help="where evidence is kept (default: evidence, in --state)"
    )
    parser.add_argument(
        "--logs", type=Path, action="append", default=[], metavar="PATH",
        help="a log or a folder of logs, whose ends are evidence (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--state", type=Path, metavar="FOLDER", help=f"folder of the journal and the plans (default: {FOLDER}/RUN)"
    )
    parser.add_argument(
        "--exporter", metavar="NODE|URL",
        help="the exporter (default: the one of the ranks' socket; {node} in it: each node of a Slurm job, or of pods)",
    )  # fmt: skip
    parser.add_argument(
        "--spares", type=_count, default=0, metavar="N",
        help="nodes of a Slurm job that wait to take another's place (default: %(default)s)",
    )  # fmt: skip
    add_options(parser)
    return parser


def _supervise(words: Sequence[str]) -> int:
    place = words.index("--") if "--" in words else len(words)
    command = list(words[place + 1 :])
    parser = _parser()
    given = parser.parse_args(words[:place])
    path = given.policy or policies.DEFAULT
    try:
        policy = policies.read(path)
    except policies.PolicyError as error:
        for fault in error.faults:
            say(fault)
        return 2
    if given.show_policy:
        print(path.read_text(encoding="utf-8"), end="")
        return 0
    if not command:
        parser.error("expected -- and the command to run")
    nodes = job_nodes() if is_srun(command) else ()
    is_child = not is_srun(command) and not is_kubectl(command)
    if is_child and (needed := nodes_needed(command, os.environ)) > 1:
        parser.error(
            f"the command is one of {needed} nodes' (--nnodes, --num_machines or PET_NNODES): a run on several is "
            "supervised only with srun in a Slurm job, or from outside its pods with kubectl create. A supervisor on "
            "each would know and restart only a part of it"
        )
    if given.spares and len(nodes) <= given.spares:
        parser.error(f"--spares {given.spares}: the command must be srun, in a Slurm job of more nodes than that")
    try:
        kubernetes = KubernetesSetup(command) if is_kubectl(command) else None
    except ValueError as error:
        parser.error(str(error))
    try:
        addresses = _addresses(given.exporter, nodes) if kubernetes is None else {}
        if kubernetes is not None:
            _pod_address(given.exporter, "node", "127.0.0.1")
    except ValueError as error:
        parser.error(f"--exporter {given.exporter}: {error}")
    run = given.run or discover({}, os.environ).run
    try:
        source = alert_source(given, names_of(run), say)
    except AlertSourceError as error:
        parser.error(str(error))
    return _run(run, given, policy, addresses, command, alerts=source, kubernetes=kubernetes)


def _run(
    run: str,
    given: argparse.Namespace,
    policy: Policy,
    addresses: Mapping[str, str],
    command: Sequence[str],
    *,
    alerts: AlertSource,
    kubernetes: KubernetesSetup | None,
) -> int:
    """Supervise the command, and return its status or end by its signal."""
    folder = given.state or state_folder(run)
    _have_standard_streams()
    try:
        book = Journal(folder)
    except JournalTakenError as error:
        say(f"{error}; another run needs another name (--run) or another folder (--state)")
        return 4
    except OSError as error:
        say(f"the journal cannot be opened: {folder}: {error.strerror or error}; --state names another folder")
        return 1
    other = next((one["run"] for one in reversed(book.entries) if one["kind"] == SUPERVISOR and one["run"] != run), "")
    if other:  # its budget and its checkpoints are not this run's
        book.close()
        say(f"{book.path} is the journal of run {other}: give run {run} a folder of its own with --state")
        return 1
    if kubernetes is None:
        why = _taken_elsewhere(book) if is_srun(command) else ""
        parts = _launched(given, command, book, addresses, names_of(run))
    else:
        parts, why = _in_pods(given, kubernetes, book, run)
    if why:
        book.close()
        say(why)
        return 4
    kept = given.evidence or folder / "evidence"
    adopt_orphans()
    alone = [trigger for trigger in TRIGGERS if trigger not in policy.rules]
    say(
        f"run {run}, {given.mode} mode; findings from {parts.said}; "
        f"journal {book.path}" + (f"; not in the policy, and left alone: {', '.join(alone)}" if alone else "")
    )
    try:
        with ExitStack() as stack:
            if kubernetes is not None:
                stack.callback(kubernetes.api.close)
            try:
                url = stack.enter_context(alerts.server)
            except OSError as error:
                say(f"--webhook {given.webhook}: {error.strerror or error}")
                return 1
            if url:
                say(f"Alertmanager may send its webhooks to {url}")
            heartbeat, signals = stack.enter_context(Heartbeat(socket_path(), run)), stack.enter_context(Signals())
            status = Supervisor(
                run, policy, given.mode, book, parts.watch,
                launcher=parts.launcher, outliving=parts.outliving,
                keep=lambda number, seen: evidence.keep(parts.addresses(), seen, kept / number, given.logs),
                say=say, signals=signals, silenced=alerts.silenced, alerts=alerts.alerts,
                tell=lambda facts: heartbeat.tell(lambda: {**facts(), "webhooks": alerts.webhooks()}),
            ).supervise(redact(shlex.join(command)))  # fmt: skip
    finally:
        book.close()
    return end_as(status)


def _taken_elsewhere(book: Journal) -> str:
    """Return which other job has an attempt of this run under way, empty if none: not all file systems' locks tell."""
    owner = next((one for one in reversed(book.entries) if one["kind"] == SUPERVISOR), {})
    number = owner.get("job", "")
    if not number or number == os.environ["SLURM_JOB_ID"] or not remember(book.entries).running:
        return ""
    try:
        return "" if slurm.is_over(number) else f"job {number} already supervises this run, by {book.path}"
    except slurm.SlurmError as error:
        return f"whether job {number} still supervises this run, Slurm does not say: {error}"


@dataclass(frozen=True)
class _Parts:
    """The launcher of a command, and the source of its findings, `said` in words; `outliving` is as in `Supervisor`."""

    launcher: Launcher
    watch: RunWatch
    addresses: Callable[[], Mapping[str, str]]
    said: str
    outliving: OutlivingLauncher | None = None


def _launched(
    given: argparse.Namespace, command: Sequence[str], book: Journal, addresses: Mapping[str, str], names: Sequence[str]
) -> _Parts:
    said = listed(list(map(without_password, addresses.values())), 2)
    if not is_srun(command):
        (address,) = addresses.values()
        start = lambda environment: AttemptProcesses(command, environment, book.descriptor)  # noqa: E731
        child = ChildCommand(start, restarter(command, os.environ))
        return _Parts(child, FindingSource(address, names), lambda: addresses, said)
    job = SlurmJob(os.environ["SLURM_JOB_ID"], tuple(addresses), command, book.descriptor, given.spares)
    return _Parts(job, SeveralNodes(sources_of(addresses, names), lambda: job.used), lambda: addresses, said)


def _in_pods(given: argparse.Namespace, kubernetes: KubernetesSetup, book: Journal, run: str) -> tuple[_Parts, str]:
    """Return the same of a run in pods, and why it is another supervisor's, empty if it is not."""
    launcher = kubernetes.launcher(run, book.entries, say)
    nodes = PodNodes(launcher, run, lambda node, address: _pod_address(given.exporter, node, address))
    said = f"the nodes of {launcher.training.name} in namespace {launcher.training.namespace}"
    return _Parts(launcher, nodes, lambda: nodes.addresses, said, launcher), taken_elsewhere(launcher, book.entries)


def _pod_address(given: str | None, node: str, address: str) -> str:
    """Return the address of the exporter of a node with this name and this address; raise ValueError."""
    if given is not None and NODE not in given:
        raise ValueError(f"its pods may be on any node: write {NODE} where the name of each belongs")
    host = f"[{address}]" if ":" in address else address
    return _address(host if given is None else given.replace(NODE, node))


def names_of(run: str) -> list[str]:
    """Return the names under which an exporter may show a run of this user, the surest last: qualified by its owner."""
    owners = [f"uid:{os.getuid()}"]
    with suppress(KeyError):  # a container's uid without an entry
        owners.append(pwd.getpwuid(os.getuid()).pw_name)
    return [run, *(f"{owner}/{run}" for owner in owners)]


def _addresses(given: str | None, nodes: Sequence[str]) -> dict[str, str]:
    """Return the address of each node's exporter; of this one alone, which has no name, without others.

    Raise ValueError.
    """
    if not nodes:
        return {"": _address(given)}
    if given is not None and NODE not in given and len(nodes) > 1:
        raise ValueError(f"the job has {len(nodes)} nodes: write {NODE} where the name of each belongs")
    if given is not None:
        return {node: _address(given.replace(NODE, node)) for node in nodes}
    own = os.environ.get("SLURMD_NODENAME", "")
    return {node: _address(None if node == own else node) for node in nodes}


def _address(given: str | None) -> str:
    """Return the address of an exporter: the pages beside the ranks' socket, else this node's usual port."""
    own = web_socket_path(socket_path())
    text = given or (f"unix:{own}" if Path(own).exists() else "localhost")
    return exporter_url(text).removesuffix("/metrics")


def _run_name(text: str) -> str:
    if (found := valid_name(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r:.40} cannot name a run: 1 to 128 printable characters")
    return found


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number of nodes")
    return int(text)


def _have_standard_streams() -> None:
    """Open what of 0, 1 and 2 is closed: a file of ours with such a number would get what the training prints."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)

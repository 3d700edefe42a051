"""The environment variables that Tachograph reads, for docs/reference.md; a test compares them with the code."""

from __future__ import annotations

from typing import NamedTuple

RANK, BOTH, EXPORTER, COMMANDS = "a rank", "ranks and the exporter", "the exporter", "commands and hooks"


class Variable(NamedTuple):
    """A variable, its reader, and what it does."""

    name: str
    reader: str
    meaning: str


VARIABLES = (
    Variable("TACHOGRAPH_RUN", RANK, "The run's name; otherwise `TORCHELASTIC_RUN_ID`, or Slurm's job."),
    Variable("TACHOGRAPH_ROLE", RANK, "The role; otherwise torchrun's or a Ray actor's ([roles.md](roles.md))."),
    Variable("TACHOGRAPH_RANK", RANK, "The rank's number; otherwise `RANK`, PyTorch, MPI or Slurm."),
    Variable("TACHOGRAPH_LOCAL_RANK", RANK, "Its number on the node; otherwise `LOCAL_RANK`, MPI or Slurm."),
    Variable("TACHOGRAPH_WORLD_SIZE", RANK, "The number of ranks; otherwise `WORLD_SIZE`, PyTorch, MPI or Slurm."),
    Variable(
        "TACHOGRAPH_ATTEMPT", RANK,
        "Restarts so far; otherwise the larger of torchrun's and Slurm's.",
    ),
    Variable("TACHOGRAPH_TIER", RANK, "`hero`, `standard` or `dev`: who is woken ([pages.md](pages.md))."),
    Variable("TACHOGRAPH_HANG_SECONDS", RANK, "The run's own limit for a hang."),
    Variable("TACHOGRAPH_DISABLED", RANK, "Anything except empty or `0`: record nothing."),
    Variable("TACHOGRAPH_STACKS", RANK, "`0`: never look at lines of code ([blackbox.md](blackbox.md))."),
    Variable("TACHOGRAPH_BLACKBOX", RANK, "The folder of the rank's boxes; if set, SIGUSR2 asks for one; `0`: none."),
    Variable("TACHOGRAPH_SUMMARY_FILE", COMMANDS, "Set by `tachograph run --watch`: the file for the summary."),
    Variable("TACHOGRAPH_BISECT_VALUE", COMMANDS, "Set by `tachograph bisect` for the program: the value tried."),
    Variable("TACHOGRAPH_PLAN", RANK, "Set by `tachograph supervise`: the plan's file ([supervise.md](supervise.md))."),
    Variable("TACHOGRAPH_PLAN_ATTEMPT", RANK, "The same: its number, from 0."),
    Variable("TACHOGRAPH_PLAN_REASON", RANK, "The same: what ended the last one; empty in the first."),
    Variable("TACHOGRAPH_PLAN_STEP", RANK, "The same: the checkpoint's step to begin from; empty: the newest."),
    Variable("TACHOGRAPH_PLAN_CHECKPOINT", RANK, "The same: where it is; empty: not known."),
    Variable("TACHOGRAPH_PLAN_SKIP", RANK, "The same: steps to leave out, such as `120:130,200:216`."),
    Variable("TACHOGRAPH_PLAN_RATE", RANK, "The same: the factor of the learning rate."),
    Variable("TACHOGRAPH_PLAN_CLIPPING", RANK, "The same: the factor of the norm that gradients are clipped to."),
    Variable("TACHOGRAPH_JOB_ID", RANK, "The same, in Kubernetes: the attempt's mark; otherwise Slurm's job."),
    Variable("TACHOGRAPH_HEAD_NODE", RANK, "The same, under Slurm: the attempt's first node, for a rendezvous."),
    Variable("TORCH_NCCL_ENABLE_TIMING", RANK, "`1`: NCCL times its collectives ([collectives.md](collectives.md))."),
    Variable("TACHOGRAPH_SOCKET", BOTH, "The socket between ranks and the exporter."),
    Variable("XDG_RUNTIME_DIR", BOTH, "Its folder if `/run/tachograph` cannot be used."),
    Variable("NODE_NAME", EXPORTER, "The node's name; otherwise its host name."),
    Variable("TACHOGRAPH_EXPORTER_URL", COMMANDS, "The exporter, for `top` and `doctor`."),
    Variable("PROMETHEUS_URL", COMMANDS, "Prometheus."),
    Variable("ALERTMANAGER_URL", COMMANDS, "Alertmanager."),
    Variable("NETRC", COMMANDS, "A file for passwords instead of `~/.netrc`; read by the exporter, too."),
    Variable("NO_COLOR", COMMANDS, "`top` without colours."),
    Variable("TACHOGRAPH_JOBS", COMMANDS, "Slurm's folder of the job mapping, instead of `/run/tachograph-jobs`."),
)  # fmt: skip

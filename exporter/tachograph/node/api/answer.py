"""All that a node answers at one moment, as `/api/node` and the status page lay it out; docs/web.md describes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property

from tachograph._version import __version__
from tachograph.catalog import index as catalog
from tachograph.diagnosis import OLD_SECONDS
from tachograph.node.api.gpus import gpu_answer
from tachograph.node.api.problems import Problem, of_coverage, of_gpus, of_ports, of_run
from tachograph.node.api.runs import RunAnswer, run_answer
from tachograph.node.clock import Clock
from tachograph.node.gpu.conclusions.gpu_status import GpuStatus
from tachograph.node.ranks.conclusions.findings import RunPart
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample
from tachograph.node.web.private import MayRead
from tachograph.wire import jsonable

VERSION = 1


class NodeAnswer:
    """The answer of a node at the moment at which this is made; each part is worked out when it is asked for.

    `ports` are what it has concluded of its network ports. `may_read` says of whose runs the reader sees failure
    reasons: a message may hold paths and data of its user.
    """

    def __init__(
        self,
        node: str,
        table: RankTable,
        gpus: Sequence[GpuIdentity],
        snapshot: GpuSnapshot | None,
        clock: Clock,
        *,
        ports: Iterable[Sample] = (),
        may_read: MayRead = lambda _: True,
    ) -> None:
        self.node, self.snapshot = node, snapshot
        self.now, self.wall = clock.monotonic(), clock.wall()
        self._table, self._gpus, self._ports, self._may_read = table, gpus, tuple(ports), may_read

    @cached_property
    def _parts(self) -> list[RunPart]:
        names = dict.fromkeys(rank.key[0] for rank in self._table.ranks())
        return [RunPart(*self._table.concluded(name)) for name in names]

    @cached_property
    def runs(self) -> list[RunAnswer]:
        """The runs with ranks here, by name."""
        return [run_answer(part, self._may_read) for part in self._parts]

    @cached_property
    def gpus(self) -> list[GpuStatus]:
        """The GPUs with their last readings."""
        return [GpuStatus(identity, self.snapshot) for identity in self._gpus]

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems of ranks, GPUs and network ports, worst first, then those of a run that ended a while ago."""
        sizes = {gpu.identity.uuid: gpu.value(catalog.GPU_MEMORY_TOTAL) or 0.0 for gpu in self.gpus}
        runs = zip(self.runs, self._parts, strict=True)
        of_ranks = [problem for run, part in runs for problem in of_run(run, part.findings(sizes), sizes)]
        of_node = (
            *of_gpus(self.gpus, self.snapshot, self.now),
            *of_ports(self._ports),
            *of_coverage(self._table.unrecorded()),
        )
        found = (*of_ranks, *of_node)
        over = {run.run for run in self.runs if not any(rank.state in catalog.ALIVE for rank in run.ranks)}
        return sorted(found, key=lambda each: (each.run in over and (each.seconds or 0) > OLD_SECONDS, each.order))

    def as_json(self) -> str:
        """Return all of it as JSON; NaN and infinities are strings, as in the frames of a rank."""
        snapshot = self.snapshot
        said = {
            "version": VERSION,
            "exporter": __version__,
            "node": self.node,
            "time": self.wall,
            "runs": [
                {
                    **vars(run),
                    **{part: list(map(vars, getattr(run, part))) for part in ("checkpoints", "layers", "ranks")},
                }
                for run in self.runs
            ],
            "gpus": [gpu_answer(gpu, self.wall) for gpu in self.gpus],
            "unreadable": snapshot.reason if snapshot is not None and not snapshot.ok else "",
            "problems": [
                {
                    "kind": each.kind,
                    "urgent": each.urgent,
                    "run": each.run,
                    "seconds": each.seconds,
                    "text": each.sentence,
                    "remedy": each.remedy,
                }
                for each in self.problems
            ],
        }
        return json.dumps(jsonable(said), allow_nan=False)

"""All that a node concludes at one moment, and the JSON of `/api/node`, which docs/web.md describes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property

from tachograph._version import __version__
from tachograph.catalog import index as catalog
from tachograph.diagnosis import OLD_SECONDS
from tachograph.node.clock import Clock
from tachograph.node.judgement.gpus import GpuStatus, of_gpus
from tachograph.node.judgement.private import MayRead
from tachograph.node.judgement.problems import Problem, of_coverage, of_memory, of_run
from tachograph.node.judgement.runs import RunJudgement, judge_runs
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.samples import GpuIdentity, GpuSnapshot
from tachograph.wire import jsonable

VERSION = 1


class NodeJudgement:
    """The conclusions of a node at the moment at which this is made; each part is worked out when it is asked for.

    `may_read` says of whose runs the reader sees failure reasons: a message may hold paths and data of its user.
    """

    def __init__(
        self,
        node: str,
        table: RankTable,
        gpus: Sequence[GpuIdentity],
        snapshot: GpuSnapshot | None,
        clock: Clock,
        *,
        may_read: MayRead = lambda _: True,
    ) -> None:
        self.node, self.snapshot = node, snapshot
        self.now, self.wall = clock.monotonic(), clock.wall()
        self._table, self._gpus, self._may_read = table, gpus, may_read

    @cached_property
    def runs(self) -> list[RunJudgement]:
        """The runs with ranks here, by name."""
        return judge_runs(self._table, self._may_read)

    @cached_property
    def gpus(self) -> list[GpuStatus]:
        """The GPUs with their last readings."""
        return [GpuStatus(identity, self.snapshot) for identity in self._gpus]

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems of ranks and GPUs, worst first, but after them those of a run that ended a while ago."""
        sizes = {gpu.identity.uuid: gpu.value(catalog.GPU_MEMORY_TOTAL) or 0.0 for gpu in self.gpus}
        of_ranks = [problem for run in self.runs for problem in (*of_run(run), *of_memory(run, sizes))]
        of_node = (*of_gpus(self.gpus, self.snapshot, self.now), *of_coverage(self._table.unrecorded()))
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
            "gpus": [gpu.facts(self.wall) for gpu in self.gpus],
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

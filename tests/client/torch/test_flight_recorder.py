"""The Flight Recorder's entries: real dumps of gloo, and made-up ones of NCCL in PyTorch's documented format.

No dump of NCCL was at hand. What is made up has the keys that FlightRecorderDetail.hpp writes: as pickle (times are
None where unknown, sequence numbers are integers) and as JSON (0, and text).
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep, time_ns
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.core import notice
from tachograph.client.recorder import Recorder
from tachograph.client.signals.wait_by_lengths import Length, WaitByLengths
from tachograph.client.torch import flight_recorder as module
from tachograph.client.torch import recorders
from tachograph.client.torch.flight_recorder import ATTEMPTS, INTERVAL, PATIENCE, UNTIMED, FlightRecorderPoll, lengths
from tachograph.client.torch.recorders import parse_pickle
from tachograph_lab.processes import free_port
from tests.client.torch.nccl_run import Collective, Ring

JOB = """
import os, sys
import torch, torch.distributed as dist
child = os.fork()
os.environ["RANK"] = "0" if child else "1"
dist.init_process_group("gloo")
tensor, parts = torch.ones(8), [torch.empty(8), torch.empty(8)]
dist.all_reduce(tensor)
dist.all_gather(parts, tensor)
dist.broadcast(tensor.to(torch.bfloat16), 0)
dist.all_to_all_single(torch.empty(8), tensor)
dist.reduce(tensor, 0)
dist.barrier()
dist.all_reduce(tensor, group=dist.new_group([0, 1]))
native = torch._C._distributed_c10d
if child and hasattr(native, "_dump_fr_trace"):
    with open(sys.argv[1] + "/pickle", "wb") as file:
        file.write(native._dump_fr_trace(includeCollectives=True, includeStackTraces=False))
    with open(sys.argv[1] + "/json", "wb") as file:
        file.write(native._dump_fr_trace_json(includeCollectives=True))
dist.destroy_process_group()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def nobody(operation: str, group: str) -> bool:
    """Nothing is counted elsewhere."""
    return False


def look(poll: FlightRecorderPoll, dump: Mapping[str, Any], recorder: str = "nccl") -> None:
    """Read a dump of one recorder."""
    poll.read({recorder: dump}, nobody)


@pytest.fixture(scope="module")
def dumps(torch_programs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real job's dump in both formats."""
    folder = tmp_path_factory.mktemp("dumps")
    torch_programs(JOB, folder, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())).end()
    if not any(folder.iterdir()):
        pytest.skip("this PyTorch has no torch._C._distributed_c10d._dump_fr_trace")
    return folder


@pytest.mark.torch
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_real_dump_of_gloo(dumps: Path, form: str) -> None:
    """Both formats say the same: operation and payload of each entry, once; gloo's have no length, and none is made."""
    data = (dumps / form).read_bytes()
    dump = parse_pickle(data) if form == "pickle" else json.loads(data)
    poll = FlightRecorderPoll()
    for _ in range(2):  # what was seen is not seen again
        look(poll, dump)
        assert poll.families == {
            "collectives_total": {"all_reduce": 2, "all_gather": 1, "broadcast": 1, "all_to_all": 1, "other": 1,
                                  "barrier": 1},
            "collective_bytes_total": {"all_reduce": 64, "all_gather": 32, "broadcast": 16, "all_to_all": 32,
                                       "other": 32, "barrier": 0},
            "collective_seconds_total": {},
            "collective_bus_bytes_total": {},
        }  # fmt: skip


@pytest.mark.torch
def test_a_made_dump_has_the_keys_of_a_real_one(dumps: Path) -> None:
    """What a simulated run on NCCL writes differs from what this PyTorch writes in the lengths alone."""
    ring = Ring(10)
    ring.record(Collective(), 0.0, 0.001)
    real, made = parse_pickle((dumps / "pickle").read_bytes()), ring.dump(1.0)
    assert real["version"] == made["version"]
    assert real.keys() == made.keys()
    ours, theirs = made["entries"][0], real["entries"][0]
    assert ours.keys() - theirs.keys() == {"duration_ms"}
    assert theirs.keys() <= ours.keys()
    unknown = ("time_discovered_started_ns", "time_discovered_completed_ns")
    assert [type(ours[key]) for key in theirs if key not in unknown] == [
        type(theirs[key]) for key in theirs if key not in unknown
    ]


def entry(number: int, name: str = "all_reduce", ms: float | None = 2.0, **more: Any) -> dict[str, Any]:
    """An entry as NCCL's process group makes it; `ms` is its length, None while it is not known."""
    made = {
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{name}", "time_created_ns": 1795262155397148510,
        "input_sizes": [[1000, 250]], "input_dtypes": ["Float"], "output_sizes": [[1000, 250]],
        "output_dtypes": ["Float"], "state": "completed", "time_discovered_started_ns": 1795262155397148510,
        "time_discovered_completed_ns": 1795262155399148510, "retired": ms is not None, "timeout_ms": 600000,
        "is_p2p": False, **more,
    }  # fmt: skip
    return made if ms is None else {**made, "duration_ms": ms}


def dump(*entries: dict[str, Any], ranks: str = "[0, 1, 2, 3]") -> dict[str, Any]:
    """A dump of those entries."""
    status = {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": 9}
    configuration = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": configuration, "pg_status": {"0": status}, "entries": list(entries)}


def test_lengths_and_bus_bytes_by_operation() -> None:
    """A shard is what a rank gives to all_gather; what a rank receives it did not give, but it used the bus."""
    poll = FlightRecorderPoll()
    names = ["all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_to_all", "broadcast", "send 0->1",
             "recv 0<-1", "all_reduce_barrier", "reduce", "coalesced"]  # fmt: skip
    look(poll, dump(*(entry(number, name) for number, name in enumerate(names))))
    size = 1_000_000
    assert poll.families == {
        "collectives_total": {"all_reduce": 1, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "broadcast": 1,
                              "send_recv": 2, "barrier": 1, "other": 2},
        "collective_bytes_total": {"all_reduce": size, "all_gather": size, "reduce_scatter": size, "all_to_all": size,
                                   "broadcast": size, "send_recv": size, "barrier": size, "other": 2 * size},
        "collective_seconds_total": {"all_reduce": 0.002, "all_gather": 0.002, "reduce_scatter": 0.002,
                                     "all_to_all": 0.002, "broadcast": 0.002, "send_recv": 0.004, "barrier": 0.002},
        "collective_bus_bytes_total": {"all_reduce": 1.5 * size, "all_gather": 3 * size, "reduce_scatter": 0.75 * size,
                                       "all_to_all": 0.75 * size, "broadcast": size, "send_recv": 2 * size,
                                       "barrier": 0},
    }  # fmt: skip


def test_each_entry_is_counted_when_first_seen_and_timed_when_it_ends() -> None:
    """A ring that moves on, an entry under way, one that never ends, and a recorder that begins again."""
    poll = FlightRecorderPoll()

    def seen() -> tuple[float, float]:
        counts, seconds = poll.families["collectives_total"], poll.families["collective_seconds_total"]
        return counts.get("all_reduce", 0), round(seconds.get("all_reduce", 0), 6)

    look(poll, dump())
    look(poll, {})
    look(poll, dump(entry(0), entry(1, ms=None), entry(2, ms=None)))
    assert seen() == (3, 0.002)
    look(poll, dump(entry(1), entry(2, ms=None), entry(3)))
    assert seen() == (4, 0.006)
    look(poll, dump(entry(2, ms=None), entry(3), entry(900)))  # most fell out of the ring between two looks
    assert seen() == (5, 0.008)
    for _ in range(PATIENCE):
        look(poll, dump(entry(2, ms=None), entry(900)))
    assert poll.rings["nccl"].open == {}
    assert seen() == (5, 0.008)
    look(poll, dump(entry(0), entry(1)))
    assert seen() == (7, 0.012)


def test_what_cannot_be_known_is_not_timed() -> None:
    """A type of unknown size, a group of unknown size and a retired entry without a length are counted only."""
    poll = FlightRecorderPoll()
    look(
        poll,
        dump(
            entry(0, input_dtypes=["Strange"]),
            entry(1, process_group=["5", "tp"]),
            entry(2, ms=None, retired=True),
            entry(3, input_dtypes=["Float8_e4m3fn"]),
        ),
    )
    assert poll.families["collectives_total"] == {"all_reduce": 4}
    assert poll.families["collective_bytes_total"] == {"all_reduce": 2_250_000}
    assert poll.families["collective_seconds_total"] == {"all_reduce": 0.002}
    assert poll.families["collective_bus_bytes_total"] == {"all_reduce": 1.5 * 250_000}


def test_a_world_of_one_moves_nothing() -> None:
    """0 bytes over the bus, and the time it took."""
    poll = FlightRecorderPoll()
    look(poll, dump(entry(0), ranks="[0]"))
    assert poll.families["collective_bus_bytes_total"] == {"all_reduce": 0.0}
    assert poll.families["collective_seconds_total"] == {"all_reduce": 0.002}


def test_a_dump_can_hold_nothing_but_values() -> None:
    """A pickle that names a function is refused before anything of it is called."""
    with pytest.raises(pickle.UnpicklingError, match="system"):
        parse_pickle(pickle.dumps(os.system))


class Nccl:
    """A process with NCCL, of which `backends` are in use: counts how often its recorders are asked.

    `named` is what each is: since PyTorch 2.15 `nccl` is `nccl2`, and `_dump_nccl_trace` has nothing.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dumps = 0
        self.hooks: list[str] = []
        self.now = 100.0
        self.spared: bool | None = True
        self.fails = False
        self.backends = {"cpu:gloo,cuda:nccl": "nccl"}
        monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "1")
        self.native = SimpleNamespace(_dump_nccl_trace=self.dump, _dump_fr_trace=self.dump_of_hook)
        torch = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=self.native), device=str)
        monkeypatch.setattr(recorders, "loaded_torch", lambda: torch)
        for each in (module, recorders):
            monkeypatch.setattr(each, "in_use", lambda part: self)
        monkeypatch.setattr(module, "spares_captures", self.spare)
        monkeypatch.setattr(notice, "_logged", set())
        self.poll = FlightRecorderPoll(lambda: self.now)

    def spare(self) -> bool:
        assert self.spared is not None, "nothing but the former recorder asks CUDA's events"
        return self.spared

    def get_world_size(self) -> int:
        """As torch.distributed has it."""
        return 4

    @property
    def distributed_c10d(self) -> Any:
        """Return its groups: one of each backend in use, known by their numbers."""
        made = {self.group(called): configured for configured, called in self.backends.items()}
        return SimpleNamespace(_world=SimpleNamespace(pg_backend_config=made))

    def group(self, called: str) -> Any:
        """Return a process group whose accelerator's backend calls itself so."""

        class Group:
            def _get_backend(self, device: str) -> Any:
                return SimpleNamespace(name=lambda: "gloo" if device == "cpu" else called)

        return Group()

    def dump_of_hook(
        self,
        includeCollectives: bool | None = None,  # noqa: N803 - PyTorch's names, and its signature of 2.15
        includeStackTraces: bool | None = None,  # noqa: N803
        onlyActive: bool | None = None,  # noqa: N803
        backend: str = "gloo",
    ) -> bytes:
        assert includeCollectives
        assert includeStackTraces is False
        self.hooks.append(backend)
        return pickle.dumps(dump(*hooked(*self.entries(), backend=backend)))

    def dump(self, includeCollectives: bool, includeStackTraces: bool) -> bytes:  # noqa: N803 - PyTorch's names
        self.dumps += 1
        assert includeCollectives
        assert not includeStackTraces
        if self.fails:
            raise RuntimeError("renamed")
        if self.backends.get("cpu:gloo,cuda:nccl") == "nccl2":
            return pickle.dumps({**dump(), "pg_config": {}, "pg_status": {}})
        return pickle.dumps(dump(*self.entries()))

    def entries(self) -> list[dict[str, Any]]:
        """Return what is in the ring."""
        return [entry(self.dumps or len(self.hooks))]


def hooked(*made: dict[str, Any], backend: str) -> list[dict[str, Any]]:
    """Return entries as a hook of 2.15 writes them: its backend's name, numbers from 0."""
    renamed = [{**each, "profiling_name": each["profiling_name"].replace("nccl:", f"{backend}:")} for each in made]
    return [{**each, "op_id": each["op_id"] - 1} for each in renamed]


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Nccl:
    """A process with NCCL whose timing is on."""
    return Nccl(monkeypatch)


def test_waits_by_lengths_are_sent(
    record: Callable[..., Recorder], exporter: Any, nccl: Nccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the recorder of a process that nobody else measures, looked at for every frame, to the frame."""
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    monkeypatch.setattr(module, "COST_LIMIT", 1.0)
    monkeypatch.setattr("tachograph.client.torch.collectives.on_nccl", lambda: True)
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(nccl, "entries", lambda: made[-2000:])
    recorder = record()
    deadline = monotonic() + 90
    while not any("recent_wait_seconds" in frame["metrics"] for frame in exporter.frames("state")):
        assert monotonic() < deadline
        with recorder.step():
            for _ in range(2):
                made.append(entry(len(made), ms=7.0, time_created_ns=time_ns()))
            sleep(0.01)
    frame = exporter.wait_for(where=lambda frame: "recent_wait_seconds" in frame["metrics"])
    assert frame["metrics"]["recent_wait_seconds"] == pytest.approx(0.014)


def test_it_is_asked_at_most_every_15_seconds(nccl: Nccl) -> None:
    """However often a frame is sent."""
    for _ in range(60):
        nccl.poll.poll(nobody)
        nccl.now += 0.5
    assert nccl.dumps == 30 / INTERVAL
    assert nccl.poll.families["collectives_total"] == {"all_reduce": 2}


def test_a_costly_dump_is_made_more_seldom(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes 60 ms is made every minute: a thousandth of the time."""
    moments = iter(range(1000))
    monkeypatch.setattr(module, "perf_counter", lambda: next(moments) * 0.06)
    for _ in range(240):
        nccl.poll.poll(nobody)
        nccl.now += 0.5
    assert nccl.dumps == 2


def test_without_timing_nccl_or_a_way_to_spare_captures_it_is_never_asked(
    nccl: Nccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them alone is enough."""
    nccl.spared = False
    nccl.poll.poll(nobody)
    nccl.spared, nccl.poll = True, FlightRecorderPoll(lambda: nccl.now)
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "0")
    nccl.poll.poll(nobody)
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "yes")
    monkeypatch.setattr(recorders, "in_use", lambda part: None)
    nccl.now += INTERVAL
    nccl.poll.poll(nobody)
    assert nccl.dumps == 0


def test_a_recorder_that_changed_is_asked_a_few_times(nccl: Nccl) -> None:
    """It is a private API: whatever it raises costs these counters only, and soon nothing is tried."""
    nccl.fails = True
    for _ in range(ATTEMPTS + 5):
        nccl.poll.poll(nobody)
        nccl.now += INTERVAL
    assert nccl.dumps == ATTEMPTS


def test_nccl2_is_asked_in_its_own_recorder(nccl: Nccl) -> None:
    """Where 2.15 makes `nccl` of it: `_dump_nccl_trace` is not asked, nor CUDA, as a hook has no events."""
    nccl.backends, nccl.spared = {"cpu:gloo,cuda:nccl": "nccl2"}, None
    for _ in range(2):
        nccl.poll.poll(nobody)
        nccl.now += INTERVAL
    assert (nccl.dumps, nccl.hooks) == (0, ["nccl2", "nccl2"])
    assert nccl.poll.families["collectives_total"] == {"all_reduce": 2}
    assert nccl.poll.families["collective_seconds_total"] == {"all_reduce": 0.004}
    assert nccl.poll.families["collective_bus_bytes_total"] == {"all_reduce": 3e6}


def test_each_kind_of_nccl_is_read_by_itself(nccl: Nccl) -> None:
    """Both in one process: the numbers of one recorder's entries are not the other's, and a group of gloo's is none."""
    nccl.backends = {"cuda:nccl": "nccl", "cuda:nccl2": "nccl2", "cpu:gloo": "gloo", "cuda:nccl-lazy": "nccl-lazy"}
    for _ in range(3):
        nccl.poll.poll(nobody)
        nccl.now += INTERVAL
    assert (nccl.dumps, sorted(set(nccl.hooks))) == (3, ["nccl-lazy", "nccl2"])
    assert nccl.poll.families["collectives_total"] == {"all_reduce": 9}


def test_waits_are_of_all_kinds_of_nccl_since_none_has_forgotten() -> None:
    """The lengths of two rings are one list, in the order of enqueueing, from where the shorter one begins."""
    taken: list[Any] = []

    class Waits(WaitByLengths):
        def read(self, collectives: Sequence[Length]) -> None:
            taken.append(collectives)

    waits = Waits(lambda: True)
    waits.chosen = True
    poll = FlightRecorderPoll(waits=waits)
    old = [entry(number, process_group=("0", ""), time_created_ns=number * 10**9) for number in range(6)]
    new = [entry(number, process_group=("1", ""), time_created_ns=(number + 1) * 10**9 + 1) for number in range(2, 5)]
    poll.read({"nccl": dump(*old), "nccl2": dump(*new)}, nobody)
    assert [each.enqueued for each in taken[0]] == pytest.approx([3, 4, 4, 5, 5])
    poll.read({"nccl": dump(*old)}, nobody)
    assert taken[1] == lengths(old)
    poll.read({"nccl": dump(), "nccl2": {}}, nobody)
    assert taken[2] == []


def test_desync_debugging_times_the_former_nccl_alone(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nccl2` does not ask for TORCH_NCCL_DESYNC_DEBUG when it is made; 2.15 was watched at that."""
    monkeypatch.delenv("TORCH_NCCL_ENABLE_TIMING")
    monkeypatch.setenv("TORCH_NCCL_DESYNC_DEBUG", "1")
    nccl.backends = {"cuda:nccl": "nccl", "cuda:nccl2": "nccl2"}
    nccl.poll.poll(nobody)
    assert (nccl.dumps, nccl.hooks) == (1, [])


@pytest.mark.parametrize("why", ["untimed", "absent", "captures", "renamed", None])
def test_what_cannot_be_had_is_said_once(
    nccl: Nccl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str | None
) -> None:
    """Whoever asks for lengths and gets none reads why, in one line of the log, whatever the number of looks."""
    said = {
        "untimed": "on nccl2 are not measured: PyTorch does not time them: set TORCH_NCCL_ENABLE_TIMING=1 before",
        "absent": "on nccl2 are not measured: this PyTorch has no Flight Recorder of it",
        "captures": "are not measured: CUDA's driver cannot be told to spare the capture of a graph",
        "renamed": "are not measured: PyTorch's Flight Recorder cannot be read: RuntimeError('renamed')",
    }
    made = [entry(number, ms=None, retired=True) for number in range(UNTIMED)]
    if why == "untimed":
        monkeypatch.setattr(nccl, "entries", lambda: made)
        nccl.backends = {"cuda:nccl": "nccl2"}
    elif why == "absent":
        nccl.native._dump_fr_trace = lambda includeCollectives=None, includeStackTraces=None: b""  # noqa: N803
        nccl.backends = {"cuda:nccl2": "nccl2"}
    elif why is None:  # a coalesced part has no length of its own
        monkeypatch.setattr(nccl, "entries", lambda: [*made, entry(UNTIMED)])
    nccl.spared, nccl.fails = why != "captures", why == "renamed"
    for _ in range(ATTEMPTS + 5):
        nccl.poll.poll(nobody)
        nccl.now += INTERVAL
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (why is not None)
    assert why is None or said[why] in lines[0]


RELEASE = """
import torch._C._distributed_c10d as native
from tachograph.client.torch import recorders
one = getattr(native, "_dump_fr_trace_json", None)
hooks = "backend" in ((one and one.__doc__) or "")
there = {"gloo": one is not None, "nccl": hasattr(native, "_dump_nccl_trace"), "nccl2": hooks, "ucc": hooks}
for recorder, expected in there.items():
    for dump in (recorders.status(recorder), recorders.entries(recorder)):
        assert (dump is not None) == expected, recorder
        assert dump is None or dump["pg_status"] == {}, dump
"""


@pytest.mark.torch
def test_every_recorder_of_the_installed_release_can_be_asked(torch_programs: Any, tmp_path: Path) -> None:
    """By the names that this PyTorch has: none raises, and those it lacks are None."""
    torch_programs(RELEASE, tmp_path).end()


def test_without_a_driver_no_capture_is_spared() -> None:
    """The real function on a machine without libcuda, or with it: it answers, and raises nothing."""
    assert module.spares_captures() in (True, False)


def test_timing_is_asked_for_before_the_process_group(
    record: Callable[..., Recorder], exporter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL reads its settings when a group is made: before it the variable is set, after it the script is told once."""
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "0")
    record(run="off")
    assert os.environ["TORCH_NCCL_ENABLE_TIMING"] == "0"
    monkeypatch.setattr(module, "in_use", lambda part: object() if part == "distributed" else None)
    record(run="late", collective_timing=True)
    assert os.environ["TORCH_NCCL_ENABLE_TIMING"] == "0"
    frame = exporter.wait_for(where=lambda frame: "notices" in frame)
    assert frame["metrics"]["misuse_total"] == {"too_late": 1}
    assert "before init_process_group" in frame["notices"][0]
    monkeypatch.setattr(module, "in_use", lambda part: None)
    record(run="on", collective_timing=True)
    assert os.environ["TORCH_NCCL_ENABLE_TIMING"] == "1"


def test_what_was_overwritten_between_two_looks_counts_as_what_is_left() -> None:
    """A ring of four, a thousand collectives a look: a step's share of them is what slow networks are found by."""
    poll = FlightRecorderPoll()
    look(poll, dump(*map(entry, range(4))))
    look(poll, dump(*map(entry, range(1000, 1004))))
    assert poll.families["collectives_total"] == {"all_reduce": 1004}
    assert poll.families["collective_seconds_total"]["all_reduce"] == pytest.approx(2.008)
    busy = poll.families["collective_bus_bytes_total"]["all_reduce"]
    assert busy / poll.families["collective_seconds_total"]["all_reduce"] == pytest.approx(1.5e6 / 0.002)

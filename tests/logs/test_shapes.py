"""Launchers, containers, loggers and collectors: whatever stands before a line, the rank that failed is named, or none.

Each writer puts a line of a rank as one of them does. The run has four ranks on two nodes; rank 3 fails at
/w/train.py:80, and ten minutes later the others' watchdogs end them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import pytest

from tachograph.logs.reading import Reading, read
from tachograph.logs.sources import plan
from tachograph.logs.verdict import LogVerdict, conclude

START = datetime(2026, 11, 20, 10, 0, 0, 500_000, tzinfo=timezone.utc)
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 80, in step',
    "    y = model(batch)",
    '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/module.py", line 1553, in _call_impl',
    "    return forward_call(*args)",
    "           ^^^^^^^^^^^^^^^^^^^",
    "KeyError: 'tokens'",
)
OOM = "torch.OutOfMemoryError: CUDA out of memory."
WATCHDOG = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600047 milliseconds before timing out."
)


class Printed(NamedTuple):
    rank: int
    at: datetime
    text: str
    number: int

    @property
    def node(self) -> str:
        return f"g00{self.rank // 2 + 1}"

    @property
    def local(self) -> int:
        return self.rank % 2


Writer = Callable[[Printed], str]


def printed(*, jumbled: bool = True) -> list[Printed]:
    """Return what the ranks print: steps, the traceback of rank 3 among steps of others, and the watchdogs."""
    lines: list[tuple[int, datetime, str]] = []
    for step in range(5):
        lines += [(rank, START + timedelta(seconds=step), f"step {step} loss 2.{step}") for rank in range(4)]
    at = START + timedelta(seconds=6)
    for number, text in enumerate(TRACEBACK):
        lines.append((3, at, text))
        if jumbled and number in (0, 3):
            lines.append((number % 2, at, f"gradient norm {number}.25"))
    lines += [(rank, START + timedelta(seconds=606 + rank), WATCHDOG) for rank in range(3)]
    return [Printed(rank, at, text, number) for number, (rank, at, text) in enumerate(lines, 1)]


def iso(one: Printed) -> str:
    return f"{one.at:%Y-%m-%dT%H:%M:%S.%f}000Z"


def python(one: Printed) -> str:
    return f"{one.at:%Y-%m-%d %H:%M:%S},{one.at.microsecond // 1000:03}"


WRITERS: dict[str, tuple[Writer, int | None, str]] = {
    "torch": (lambda one: f"[rank{one.rank}]: {one.text}", 3, ""),
    "torchrun --tee": (lambda one: f"[default{one.rank}]:{one.text}", 3, ""),
    "torchrun --tee, nodes": (lambda one: f"{one.node}: [default{one.local}]:{one.text}", None, "g002"),
    "torchrun --tee and torch": (lambda one: f"[trainer{one.local}]:[rank{one.rank}]: {one.text}", 3, ""),
    "srun --label": (lambda one: f"{one.rank}: {one.text}", 3, ""),
    "srun --label of nodes, torchrun --tee": (
        lambda one: f"{one.rank // 2}: [default{one.local}]:{one.text}",
        None,
        "task 1",
    ),
    "srun --label of nodes and torch": (
        lambda one: f"{one.rank // 2}: [rank{one.rank}]: {one.text}",
        3,
        "task 1",
    ),
    "srun --label, wide": (lambda one: f"{one.rank:3}: {one.text}", 3, ""),
    "mpirun --tag-output": (lambda one: f"[1,{one.rank}]<stderr>:{one.text}", 3, ""),
    "mpirun --timestamp-output": (lambda one: f"{one.at:%a %b %d %H:%M:%S %Y}[1,{one.rank}]<stdout>:{one.text}", 3, ""),
    "prterun": (lambda one: f"[prterun-{one.node}-17@1,{one.rank}]<stderr>: {one.text}", 3, ""),
    "prterun --output tag-detailed": (
        lambda one: f"[prterun-g001-17@1,{one.rank}][{one.node}:77{one.rank}]<stderr>: {one.text}",
        3,
        "g002",
    ),
    "mpiexec -prepend-rank": (lambda one: f"[{one.rank}] {one.text}", 3, ""),
    "pdsh": (lambda one: f"{one.node}: {one.text}", None, "g002"),
    "pdsh, by address": (lambda one: f"10.0.0.{one.rank // 2}: {one.text}", None, "10.0.0.1"),
    "pdsh and torch": (lambda one: f"{one.node}: [rank{one.rank}]: {one.text}", 3, "g002"),
    "DeepSpeed": (lambda one: f"worker-{one.rank // 2}: {one.text}", None, "worker-1"),
    "SkyPilot": (
        lambda one: (
            f"(worker{one.rank // 2}, rank={one.rank // 2}, pid=23{one.rank}, ip=10.0.0.{one.rank // 2}) {one.text}"
        ),
        None,
        "10.0.0.1",
    ),
    "SkyPilot and torch": (
        lambda one: (
            f"(w{one.rank // 2}, rank={one.rank // 2}, pid=2, ip=10.0.0.{one.rank // 2}) [rank{one.rank}]: {one.text}"
        ),
        3,
        "10.0.0.1",
    ),
    "Ray": (lambda one: f"(RayTrainWorker pid=77{one.rank}, ip=10.0.0.{one.rank // 2}) {one.text}", None, "10.0.0.1"),
    "Ray and torch": (lambda one: f"(WorkerDict pid=77{one.rank}) [rank{one.rank}]: {one.text}", 3, ""),
    "Determined": (lambda one: f"[{python(one)}] [rank={one.rank}] {one.text}", 3, ""),
    "Determined, container": (lambda one: f"[{iso(one)}] 4f1a77 || [rank={one.rank}] {one.text}", 3, ""),
    "kubectl --prefix": (lambda one: f"[pod/llama-worker-{one.rank}/pytorch] {one.text}", None, "llama-worker-3"),
    "kubectl --prefix --timestamps": (
        lambda one: f"[pod/llama-worker-{one.rank}/pytorch] {iso(one)} [rank{one.rank}]: {one.text}",
        3,
        "llama-worker-3",
    ),
    "stern": (lambda one: f"llama-worker-{one.rank} pytorch {one.text}", None, "llama-worker-3"),
    "docker compose": (lambda one: f"trainer-{one.rank}  | {one.text}", None, "trainer-3"),
    "docker compose --timestamps": (lambda one: f"trainer-{one.rank}  | {iso(one)} {one.text}", None, "trainer-3"),
    "containerd": (lambda one: f"{iso(one)} stderr F [rank{one.rank}]: {one.text}", 3, ""),
    "docker json-file": (
        lambda one: json.dumps({"log": f"[rank{one.rank}]: {one.text}\n", "stream": "stderr", "time": iso(one)}),
        3,
        "",
    ),
    "fluent-bit": (
        lambda one: json.dumps(
            {
                "log": one.text,
                "kubernetes": {"pod_name": f"w-{one.rank}", "host": one.node, "labels": {"rank": str(one.rank)}},
                "time": iso(one),
            }
        ),
        3,
        "g002",
    ),
    "Cloud Logging": (
        lambda one: json.dumps(
            {
                "jsonPayload": {"message": f"[rank{one.rank}]: {one.text}"},
                "severity": "ERROR",
                "timestamp": iso(one),
                "resource": {"labels": {"pod_name": f"w-{one.rank}"}},
            }
        ),
        3,
        "w-3",
    ),
    "Datadog": (
        lambda one: json.dumps(
            {
                "content": {"message": one.text, "attributes": {"rank": one.rank}, "host": one.node},
                "timestamp": iso(one),
            }
        ),
        3,
        "g002",
    ),
    "logcli": (
        lambda one: json.dumps(
            {"labels": {"node": one.node}, "line": f"[rank{one.rank}]: {one.text}", "timestamp": iso(one)}
        ),
        3,
        "g002",
    ),
    "CloudWatch": (
        lambda one: json.dumps(
            {"timestamp": int(one.at.timestamp() * 1000), "message": f"[rank{one.rank}]: {one.text}", "logStream": "a"}
        ),
        3,
        "",
    ),
    "journalctl -o json": (
        lambda one: json.dumps(
            {
                "MESSAGE": f"[rank{one.rank}]: {one.text}",
                "_HOSTNAME": one.node,
                "__REALTIME_TIMESTAMP": str(int(one.at.timestamp() * 1e6)),
            }
        ),
        3,
        "g002",
    ),
    "journalctl": (
        lambda one: f"{one.at:%b %d %H:%M:%S} {one.node} torchrun[77]: [rank{one.rank}]: {one.text}",
        3,
        "g002",
    ),
    "journalctl -o short-iso": (
        lambda one: f"{one.at:%Y-%m-%dT%H:%M:%S}+0000 {one.node} python3[77{one.rank}]: {one.text}",
        None,
        "g002",
    ),
    "Megatron": (lambda one: f"[Rank {one.rank}] {one.text}", 3, ""),
    "Axolotl": (
        lambda one: f"[{python(one)}] [ERROR] [axolotl.train:80] [PID:12{one.rank}] [RANK:{one.rank}] {one.text}",
        3,
        "",
    ),
    "NeMo": (
        lambda one: f"[NeMo E {one.at:%Y-%m-%d %H:%M:%S} nemo_logging:{one.rank}] [rank{one.rank}]: {one.text}",
        3,
        "",
    ),
    "vLLM": (
        lambda one: (
            f"(Engine_{one.rank} pid=7{one.rank}) ERROR {one.at:%m-%d %H:%M:%S} [core.py:{400 + one.number}] {one.text}"
        ),
        None,
        "",
    ),
    "key=value": (lambda one: f"time={iso(one)} rank={one.rank} {one.text}", 3, ""),
    "rank | text": (lambda one: f"rank {one.rank} | {one.text}", 3, ""),
    "host, rank, colours": (
        lambda one: f"\x1b[36m{one.node}\x1b[0m \x1b[1m[rank{one.rank}]:\x1b[0m {one.text}",
        3,
        "g002",
    ),
    "grep -n": (lambda one: f"{one.number}:[rank{one.rank}]: {one.text}", 3, ""),
    "cat -n": (lambda one: f"{one.number:6}\t[rank{one.rank}]: {one.text}", 3, ""),
    "absl": (
        lambda one: (
            f"E{one.at:%m%d %H:%M:%S.%f} 1401{one.rank} train.py:{70 + one.number}] [rank{one.rank}]: {one.text}"
        ),
        3,
        "",
    ),
    "time only": (lambda one: f"{one.at:%H:%M:%S} [rank{one.rank}]: {one.text}", 3, ""),
    "nobody's": (lambda one: f"<{one.at:%H:%M:%S}|r@{one.node}|global_rank={one.rank}> {one.text}", 3, "g002"),
    "JSON behind a prefix": (
        lambda one: (
            f"[pod/w-{one.rank}/c] {iso(one)} " + json.dumps({"level": "error", "msg": one.text, "rank": one.rank})
        ),
        3,
        "w-3",
    ),
}


def judged(path: Path) -> LogVerdict:
    reading = Reading()
    read(plan([str(path)], reading.problems), reading, lambda _: None)
    return conclude(reading)


def right(verdict: LogVerdict, rank: int | None, node: str) -> None:
    assert verdict.state == "cause"
    first = verdict.findings[0]
    assert (first.line, first.frame) == ("KeyError: 'tokens'", "/w/train.py:80 in step")
    assert (first.rank, first.node) == (rank, node)


@pytest.mark.parametrize("name", WRITERS)
def test_one_file_of_all_ranks(name: str, tmp_path: Path) -> None:
    """The exception of rank 3, with its place, and its rank and node as far as the prefix says them."""
    writer, rank, node = WRITERS[name]
    path = tmp_path / "run.log"
    path.write_text("".join(writer(one) + "\n" for one in printed()), encoding="utf-8")
    right(judged(path), rank, node)


@pytest.mark.parametrize("name", WRITERS)
def test_a_head_behind_a_progress_bar(name: str, tmp_path: Path) -> None:
    """Which some other process left without a line break."""
    writer, rank, node = WRITERS[name]
    if name.startswith("JSON") or writer(printed()[0]).startswith("{"):
        return
    lines = [writer(one) for one in printed(jumbled=False)]
    at = next(number for number, line in enumerate(lines) if "Traceback" in line)
    lines[at] = "Train:  43%|####3     | 107/250 [09:28<12:40, 20.21s/it, loss=0.9]" + lines[at]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    right(judged(path), rank, node)


def text_of(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


STEPS = tuple(f"2026-11-20 10:00:0{step} step {step} loss 2.{step}" for step in range(5))
WHOLE = "\n".join(TRACEBACK)
OTHERS = {f"rank_{rank}.log": text_of(*STEPS, f"[rank{rank}]: {WATCHDOG}") for rank in range(3)}
FOLDERS: dict[str, tuple[dict[str, bytes], int | None, str]] = {
    "a file for each rank": ({"rank_3.log": text_of(*STEPS, *TRACEBACK)} | OTHERS, 3, ""),
    "packed": ({"rank_3.log.gz": gzip.compress(text_of(*STEPS, *TRACEBACK))} | OTHERS, 3, ""),
    "UTF-16": ({"rank_3.log": text_of(*STEPS, *TRACEBACK).decode().encode("utf-16")} | OTHERS, 3, ""),
    "line ends of Windows": ({"rank_3.log": text_of(*STEPS, *TRACEBACK).replace(b"\n", b"\r\n")} | OTHERS, 3, ""),
    "%j-%N-%t": (
        {f"4711-g00{n // 2 + 1}-{n}.err": text_of(*(TRACEBACK if n == 3 else [WATCHDOG])) for n in range(4)},
        3,
        "g002",
    ),
    "%x_%j_%t": (
        {f"vit_4711_{n}.err": text_of(*STEPS, *(TRACEBACK if n == 3 else [WATCHDOG])) for n in range(4)},
        3,
        "",
    ),
    "out and err": (
        {
            f"train.{n}.{end}": text_of(*(STEPS if end == "out" else TRACEBACK if n == 3 else [WATCHDOG]))
            for n in range(4)
            for end in ("out", "err")
        },
        3,
        "",
    ),
    "OpenMPI's folders": (
        {f"1/rank.{n}/stderr": text_of(*(TRACEBACK if n == 3 else [WATCHDOG])) for n in range(4)},
        3,
        "",
    ),
    "torchrun's folders": (
        {f"none_x/attempt_0/{n}/stderr.log": text_of(*(TRACEBACK if n == 3 else [WATCHDOG])) for n in range(4)},
        3,
        "",
    ),
    "folders of torchrun, of two nodes": (
        {
            f"n{node}/none_{node}a4f/attempt_0/{n}/stderr.log": text_of(*(TRACEBACK if node * n == 6 else [WATCHDOG]))
            for node in (1, 2)
            for n in range(4)
        },
        None,
        "n2",
    ),
    "a folder for each node": (
        {f"node{n // 2}/local_rank{n % 2}.log": text_of(*(TRACEBACK if n == 3 else [WATCHDOG])) for n in range(4)},
        None,
        "node1",
    ),
    "a file for each node": (
        {
            "g001.log": text_of(*(f"[rank{n}]: {WATCHDOG}" for n in range(2))),
            "g002.log": text_of(f"[rank2]: {WATCHDOG}", *(f"[rank3]: {line}" for line in TRACEBACK)),
        },
        3,
        "g002",
    ),
    "a file for each pod": (
        {f"worker-{n}.log": text_of(*(TRACEBACK if n == 3 else [WATCHDOG])) for n in range(4)},
        None,
        "worker-3",
    ),
    "a file for each pod of a job": (
        {f"llama-worker-{n}-previous.log": text_of(*(TRACEBACK if n == 3 else [WATCHDOG])) for n in range(4)},
        None,
        "llama-worker-3",
    ),
    "the kubelet's folders": (
        {
            f"train_llama-worker-{n}_1b2c3d4e-9f/pytorch/0.log": text_of(
                *(f"2026-11-20T10:00:00.5Z stderr F {line}" for line in (TRACEBACK if n == 3 else [WATCHDOG]))
            )
            for n in range(4)
        },
        None,
        "llama-worker-3",
    ),
    "one line of JSON with exc_info": (
        {
            "x.jsonl": text_of(
                json.dumps({"event": "failed", "rank": 3, "exc_info": WHOLE, "ts": "2026-11-20T10:00:00Z"})
            )
        },
        3,
        "",
    ),
    "one line of JSON, nested": (
        {
            "x.jsonl": text_of(
                json.dumps({"log": json.dumps({"message": f"failed\n{WHOLE}", "rank": 3}) + "\n", "stream": "stderr"})
            )
        },
        3,
        "",
    ),
    "stack_trace": (
        {
            "x.jsonl": text_of(
                json.dumps(
                    {
                        "@timestamp": "2026-11-20T10:00:00Z",
                        "message": "Uncaught",
                        "error": {"stack_trace": WHOLE},
                        "labels": {"rank": "3"},
                    }
                )
            )
        },
        3,
        "",
    ),
    "a long record": (
        {
            "x.jsonl": text_of(
                *(json.dumps({"message": f"step {n}", "rank": n}) for n in range(4)),
                json.dumps(
                    {
                        "rank": 3,
                        "exc_info": "\n".join((TRACEBACK[0], *TRACEBACK[3:5] * 60, *TRACEBACK[1:3], *TRACEBACK[3:])),
                        "message": "failed",
                    }
                ),
            )
        },
        3,
        "",
    ),
    "Kibana": (
        {
            "hits.ndjson": text_of(
                *(
                    json.dumps({"_source": {"message": line, "kubernetes": {"pod": {"name": "w-3"}}, "rank": "3"}})
                    for line in TRACEBACK
                )
            )
        },
        3,
        "w-3",
    ),
    "an object over several lines": (
        {"x.json": json.dumps([{"textPayload": f"[rank3]: {WHOLE}", "severity": "ERROR"}], indent=2).encode()},
        3,
        "",
    ),
    "a list of Cloud Logging": (
        {
            "x.json": json.dumps(
                [
                    {
                        "labels": {"rank": str(rank)},
                        "resource": {"labels": {"node_name": "a3-1"}},
                        "textPayload": text,
                        "timestamp": f"2026-11-20T10:0{7 - 2 * rank}:00.5Z",
                    }
                    for rank, text in ((0, WATCHDOG), (3, WHOLE))
                ],
                indent=2,
            ).encode()
        },
        3,
        "a3-1",
    ),
    "a list in an object, as CloudWatch's": (
        {
            "x.json": json.dumps(
                {
                    "events": [
                        {"timestamp": 1795168800000 + number, "message": f"[rank3]: {line}"}
                        for number, line in enumerate(TRACEBACK)
                    ],
                    "nextForwardToken": "f/1",
                },
                indent=4,
            ).encode()
        },
        3,
        "",
    ),
    "objects one after the other, as jq prints them": (
        {
            "x.json": "\n".join(
                json.dumps({"msg": line, "rank": 3, "host": {"name": "g002"}}, indent=2) for line in TRACEBACK
            ).encode()
        },
        3,
        "g002",
    ),
    "Stackdriver": (
        {
            "x.jsonl": text_of(
                json.dumps(
                    {
                        "severity": "ERROR",
                        "jsonPayload": {"message": f"[rank3]: {WHOLE}"},
                        "timestamp": "2026-11-20T10:00:00Z",
                    }
                )
            )
        },
        3,
        "",
    ),
    "partial lines of containerd": (
        {
            "x.log": text_of(
                *(f"2026-11-20T10:00:00.5Z stderr F [rank0]: step {n}" for n in range(4)),
                "2026-11-20T10:00:00.5Z stderr P [rank3]: Traceback (most rec",
                "2026-11-20T10:00:00.5Z stderr F ent call last):",
                *(f"2026-11-20T10:00:00.5Z stderr F [rank3]: {line}" for line in TRACEBACK[1:-1]),
                "2026-11-20T10:00:00.5Z stderr P [rank3]: KeyErr",
                "2026-11-20T10:00:00.5Z stderr F or: 'tokens'",
            )
        },
        3,
        "",
    ),
    "an exception group": (
        {
            "x.log": text_of(
                "[rank3]:   + Exception Group Traceback (most recent call last):",
                '[rank3]:   |   File "/w/main.py", line 9, in main',
                "[rank3]:   |     async with asyncio.TaskGroup() as g:",
                "[rank3]:   | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
                "[rank3]:   +-+---------------- 1 ----------------",
                *(f"[rank3]:     | {line}" for line in TRACEBACK),
                "[rank3]:     +------------------------------------",
            )
        },
        3,
        "",
    ),
    "rich": (
        {
            "x.log": text_of(
                "[rank3]: ╭──────────── Traceback (most recent call last) ────────────╮",
                "[rank3]: │ /w/train.py:80 in step                                     │",
                "[rank3]: │   78 │   def step(batch):                                  │",
                "[rank3]: │ ❱ 80 │   │   y = model(batch)                              │",
                "[rank3]: ╰────────────────────────────────────────────────────────────╯",
                "[rank3]: KeyError: 'tokens'",
            )
        },
        3,
        "",
    ),
    "loguru": (
        {
            "rank3.log": text_of(
                "2026-11-20 10:00:00.123 | ERROR    | __main__:main:12 - An error has been caught",
                TRACEBACK[0],
                "",
                '> File "/w/train.py", line 80, in step',
                "    y = model(batch)",
                "        └ <function model at 0x7f>",
                "",
                TRACEBACK[-1],
            )
        },
        3,
        "",
    ),
    "logging's exception": (
        {"rank3.log": text_of(f"[{STEPS[0][:19]}][ERROR] train: step failed", *TRACEBACK, f"{STEPS[1][:19]} bye")},
        3,
        "",
    ),
    "the exception alone, twice": ({"4711-node07-3.err": text_of("KeyError: 'tokens'", *TRACEBACK)}, 3, "node07"),
    "an error table of torchrun": (
        {
            "x.log": text_of(
                *(f"[rank3]: {line}" for line in TRACEBACK),
                "E1120 10:00:09.0 77 torch/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 42) of binary: python",
                "Root Cause (first observed failure):",
                "[0]:",
                "  time      : 2026-11-20_10:00:09",
                "  host      : g002",
                "  rank      : 3 (local_rank: 1)",
                "  exitcode  : 1 (pid: 42)",
                "  error_file: <N/A>",
            )
        },
        3,
        "",
    ),
    "two ranks fail alike, one after the other": (
        {"x.log": text_of(*(f"[rank3]: {line}" for line in TRACEBACK), *(f"[rank1]: {line}" for line in TRACEBACK))},
        3,
        "",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_and_forms(name: str, tmp_path: Path) -> None:
    """Names of files, packed and recoded ones, records of collectors, and the forms that tracebacks are printed in."""
    files, rank, node = FOLDERS[name]
    for file, content in files.items():
        path = tmp_path / "logs" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    verdict = judged(tmp_path / "logs")
    first = verdict.findings[0]
    assert verdict.state == "cause"
    assert (first.line, first.rank, first.node) == ("KeyError: 'tokens'", rank, node)
    assert any(one.frame == "/w/train.py:80 in step" for one in verdict.findings)


FURTHER: dict[str, tuple[Writer, int | None]] = {
    "horovod": (lambda one: f"[{one.rank}]<stderr>:{one.text}", 3),
    "horovod ts": (lambda one: f"{one.at:%a %b %d %H:%M:%S %Y}[{one.rank}]<stderr>:{one.text}", 3),
    "colossalai": (lambda one: f"[{one.at:%m/%d/%y %H:%M:%S}] ERROR    colossalai - rank {one.rank}: {one.text}", 3),
    "lightning": (lambda one: f"[rank: {one.rank}] {one.text}", 3),
    "mosaic": (
        lambda one: f"{python(one)}: rank{one.rank}[77{one.rank}][MainThread]: ERROR: composer.cli: {one.text}",
        3,
    ),
    "fairseq": (lambda one: f"{one.at:%Y-%m-%d %H:%M:%S} | ERROR | fairseq.trainer | rank={one.rank} | {one.text}", 3),
    "t-rank-pipe": (lambda one: f"{one.node} | rank {one.rank} | {one.text}", 3),
    "podlog": (lambda one: f"llama-worker-{one.rank} › pytorch │ {one.text}", None),
    "kubetail": (lambda one: f"[llama-worker-{one.rank} pytorch] {one.text}", None),
    "argo": (lambda one: f'llama-{one.rank}-main: time="{iso(one)}" level=error msg={one.text}', None),
    "azureml": (lambda one: f"{iso(one)} [{one.rank}] {one.text}", 3),
    "sagemaker": (lambda one: f"[1,mpirank:{one.rank},algo-{one.rank // 2}]<stderr>:{one.text}", 3),
    "sagemaker2": (
        lambda one: f"algo-{one.rank // 2}-abcde | [1,mpirank:{one.rank},algo-{one.rank // 2}]<stdout>:{one.text}",
        3,
    ),
    "dstack": (lambda one: f"[node={one.node} rank={one.rank}] {one.text}", 3),
    "logfmt": (lambda one: f"ts={iso(one)} level=error rank={one.rank} host={one.node} {one.text}", 3),
    "parens": (lambda one: f"({one.rank}) {one.text}", 3),
    "<3>": (lambda one: f"<rank {one.rank}> {one.text}", 3),
    "R3|": (lambda one: f"R{one.rank}| {one.text}", None),
    "W3": (lambda one: f"[W{one.rank}] {one.text}", None),
    "gpu": (lambda one: f"[GPU{one.local}] {one.text}", None),
    "verl": (
        lambda one: (
            f"\x1b[36m(WorkerDict pid={7000 + one.rank}, ip=10.0.0.{one.rank // 2})\x1b[0m [rank{one.rank}]: {one.text}"
        ),
        3,
    ),
    "verl2": (
        lambda one: f"\x1b[36m(WorkerDict pid={7000 + one.rank}, ip=10.0.0.{one.rank // 2})\x1b[0m {one.text}",
        None,
    ),
    "sglang": (lambda one: f"[{one.at:%Y-%m-%d %H:%M:%S} TP{one.rank}] {one.text}", None),
    "vllm worker": (lambda one: f"(VllmWorker rank={one.rank} pid=88{one.rank}) {one.text}", 3),
    "nemo2": (lambda one: f"{one.rank}: [NeMo E {one.at:%Y-%m-%d %H:%M:%S} x:1] {one.text}", 3),
    "host:number": (lambda one: f"[{one.node}:{one.rank}] {one.text}", None),
    "tqdm ansi": (lambda one: f"\x1b[2K\x1b[1G[rank{one.rank}]: {one.text}", 3),
    "slurm ts": (lambda one: f"{one.at:%Y-%m-%dT%H:%M:%S} {one.node} {one.rank}: {one.text}", 3),
    "journal short-precise": (
        lambda one: f"{one.at:%b %d %H:%M:%S.%f} {one.node} trainer[88]: [rank{one.rank}]: {one.text}",
        3,
    ),
    "k8s klog": (lambda one: f"E{one.at:%m%d %H:%M:%S.%f}   1 t.go:99] [rank{one.rank}]: {one.text}", 3),
    "timestamped us": (lambda one: f"{one.at:%m/%d/%Y %H:%M:%S} - ERROR - __main__ - [rank {one.rank}] {one.text}", 3),
    "structlog console": (lambda one: f"{iso(one)} [error    ] {one.text}   rank={one.rank}", 3),
    "docker swarm": (lambda one: f"train_worker.{one.rank}.abc123xyz@{one.node}    | {one.text}", None),
    "nomad": (lambda one: f"{one.node}/{one.rank}> {one.text}", None),
    "parallel --tag": (lambda one: f"{one.node}\t{one.text}", None),
    "ansible": (lambda one: f"{one.node} | {one.text}", None),
    "clush": (lambda one: f"{one.node}: {one.text}", None),
    "lsf jsrun": (lambda one: f"{one.rank}: {one.node}: {one.text}", 3),
    "flux -l": (lambda one: f"{one.rank}: {one.text}", 3),
    "accelerate": (lambda one: f"[Process {one.rank}] {one.text}", None),
    "json dd": (
        lambda one: json.dumps(
            {
                "ddsource": "python",
                "hostname": one.node,
                "service": "t",
                "message": f"{one.text}",
                "ddtags": "env:x",
                "rank": one.rank,
            }
        ),
        3,
    ),
    "json vector": (
        lambda one: json.dumps(
            {
                "file": "/var/log/pods/x/0.log",
                "kubernetes": {
                    "pod_name": f"w-{one.rank}",
                    "pod_node_name": one.node,
                    "pod_labels": {"training.kubeflow.org/replica-index": str(one.rank)},
                },
                "message": one.text,
                "timestamp": iso(one),
            }
        ),
        None,
    ),
    "json ecs": (
        lambda one: json.dumps(
            {
                "@timestamp": iso(one),
                "log.level": "error",
                "message": one.text,
                "process": {"pid": 77},
                "host": {"name": one.node},
                "labels": {"rank": one.rank},
            }
        ),
        3,
    ),
    "json otel": (
        lambda one: json.dumps(
            {
                "timeUnixNano": str(int(one.at.timestamp() * 1e9)),
                "severityText": "ERROR",
                "body": {"stringValue": one.text},
                "attributes": {"rank": one.rank},
                "resource": {"host.name": one.node},
            }
        ),
        3,
    ),
    "csv loki": (lambda one: f'{iso(one)} {{node="{one.node}", rank="{one.rank}"}} {one.text}', 3),
    "logcli default": (lambda one: f'{iso(one)} {{pod="w-{one.rank}"}} {one.text}', None),
    "crlf": (lambda one: f"[rank{one.rank}]: {one.text}\r", 3),
}


@pytest.mark.parametrize("name", FURTHER)
def test_further_prefixes(name: str, tmp_path: Path) -> None:
    """Of launchers that nobody thought of: the exception and its place, and the right rank or none."""
    writer, rank = FURTHER[name]
    path = tmp_path / "run.log"
    path.write_text("".join(writer(one) + "\n" for one in printed()), encoding="utf-8")
    first = judged(path).findings[0]
    assert (first.line.split("  ")[0], first.frame) == ("KeyError: 'tokens'", "/w/train.py:80 in step")
    assert first.rank == rank
    single = [one._replace(text=OOM if one.text == TRACEBACK[-1] else one.text) for one in printed()]
    text = "".join(writer(one) + "\n" for one in single if one.text not in TRACEBACK)
    path.write_text(text, encoding="utf-8")
    first = judged(path).findings[0]
    assert (first.category, first.rank) == ("out_of_memory", rank)

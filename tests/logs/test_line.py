"""The prefixes that launchers, containers, schedulers and loggers put before a line."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from tachograph.logs.line import LogLine
from tachograph.logs.record import read

NOW = 1796000000.0  # 30 November 2026
AT = datetime(2026, 11, 26, 3, 12, 33, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[rank3]: gone", LogLine("gone", rank=3)),
        ("[rank3]:   File", LogLine("  File", rank=3)),
        ("[rank: 3] gone", LogLine("gone", rank=3)),
        ("[default5]:gone", LogLine("gone", local_rank=5)),
        ("[rank3]:[E1126 03:12:33.500000 ProcessGroupNCCL.cpp:563] gone", LogLine("gone", AT + 0.5, 3)),
        ("[E ProcessGroupNCCL.cpp:456] [Rank 3] gone", LogLine("gone", rank=3)),
        ("W1126 03:12:33.500 25 torch/api.py:908] gone", LogLine("gone", AT + 0.5)),
        ("3: gone", LogLine("gone", rank=3)),
        ("  12: 2026-11-26 03:12:33,500 gone", LogLine("gone", AT + 0.5, 12)),
        ("[1,3]<stderr>:gone", LogLine("gone", rank=3)),
        ("2026-11-26T03:12:33.500000000Z stderr F gone", LogLine("gone", AT + 0.5)),
        ("2026-11-26T04:12:33+01:00 gone", LogLine("gone", AT)),
        ("2026-11-25T22:42:33-04:30 gone", LogLine("gone", AT)),
        ("[pod/worker-3/trainer] 2026-11-26T03:12:33Z [rank9]: gone", LogLine("gone", AT, 9, node="worker-3")),
        ("(RayTrainWorker pid=12, ip=10.0.0.2) gone", LogLine("gone", node="10.0.0.2", pid=12)),
        ("Nov 26 03:12:33 node07 kernel: [12345.678901] gone", LogLine("gone", AT, node="node07")),
        ("2026-11-26T03:12:33+00:00 node07 kernel: gone", LogLine("gone", AT, node="node07")),
        ("[  +0.000316] kernel: gone", LogLine("gone")),
        ("kern  :warn  : 2026-11-26T03:12:33,500000+00:00 gone", LogLine("gone", AT + 0.5)),
        ("w-1: w-1:29:44 [4] init.cc:263 NCCL WARN x", LogLine("init.cc:263 NCCL WARN x", None, None, 4, "w-1", 29)),
        ("[Thu Nov 26 03:12:33 2026] gone", LogLine("gone", AT)),
        ("11/26/2026 03:12:33 - gone", LogLine("gone", AT)),
        ("node01:123:456 [2] NCCL WARN gone", LogLine("NCCL WARN gone", None, None, 2, "node01", 123)),
        ("failed (x) local_rank: 3 (pid: 7)", LogLine("failed (x) local_rank: 3 (pid: 7)", None, None, 3)),
        ("srun: error: node07: task 3: x", LogLine("srun: error: node07: task 3: x", None, 3, None, "node07")),
        ("\x1b[31m[rank3]:\x1b[0m gone", LogLine("gone", rank=3)),
        (
            '{"MESSAGE":"gone","__REALTIME_TIMESTAMP":"1795662753500000","_HOSTNAME":"node07","_PID":"12"}',
            LogLine("gone", AT + 0.5, node="node07", pid=12),
        ),
        ('{"MESSAGE":[103,111,110,101],"_HOSTNAME":"node07"}', LogLine("gone", node="node07")),
        ('{"log":"[rank3]: gone\\n","stream":"stderr","time":"2026-11-26T03:12:33Z"}', LogLine("gone", AT, 3)),
        ('{"msg":"gone","ts":1795662753.5,"rank":4}', LogLine("gone", AT + 0.5, 4)),
        (
            '{"body":{"stringValue":"it is gone"},"attributes":[{"key":"rank","value":{"intValue":"4"}}]}',
            LogLine("it is gone", rank=4),
        ),
        ('{"loss": 2.3}', LogLine('{"loss": 2.3}')),
        ("{not an object", LogLine("{not an object")),
        ('{"msg":' + "[" * 5000, LogLine('{"msg":' + "[" * 5000)),
        ("9999-99-99 99:99:99 gone", LogLine("gone")),
        ("", LogLine("")),
    ],
)  # fmt: skip
def test_prefixes(line: str, expected: LogLine) -> None:
    """Time, rank, node and process are taken from them, and the text is what is left."""
    assert read(line, NOW).lines[0] == expected

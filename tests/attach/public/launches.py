"""A script that starts its second rank by itself, as Lightning's launcher does; its argument is its own rank.

They meet by a file: a port that is free now may be taken in a moment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch

RANK = int(sys.argv[1]) if len(sys.argv) > 1 else 1
if len(sys.argv) < 3:
    FOLDER = tempfile.mkdtemp()
    other = subprocess.Popen([sys.executable, __file__, str(1 - RANK), FOLDER])
else:
    FOLDER = sys.argv[2]
torch.distributed.init_process_group("gloo", f"file://{FOLDER}/store", rank=RANK, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
time.sleep(1.2)
torch.distributed.destroy_process_group()
if len(sys.argv) < 3:
    assert other.wait() == 0
    shutil.rmtree(FOLDER)
assert "RANK" not in os.environ

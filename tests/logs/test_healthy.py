"""What healthy trainings print: hints, retries, overflows, samples that are skipped, noise of libraries."""
# ruff: noqa: E501  lines as they are printed

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph.logs.reading import Reading, read
from tachograph.logs.sources import plan
from tachograph.logs.verdict import conclude


def steps(first: int, last: int, form: str = "step {n}/1000 loss: 2.1 grad_norm: 0.3") -> str:
    return "".join(form.format(n=n) + "\n" for n in range(first, last))


HEALTHY = [
    "W1120 10:00:00.1 77 torch/distributed/run.py:793] \n*****************************************\nSetting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded\n"
    + steps(0, 30),
    "2026-11-20 10:00:00.1: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered\n"
    + steps(0, 30),
    "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. This behaviour is the source of the following dependency conflicts.\n"
    + steps(0, 30),
    "[W socket.cpp:426] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).\n"
    + steps(0, 30),
    "node01:1:2 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\nnode01:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
    + steps(0, 30),
    "wandb: ERROR Error while calling W&B API: rate limit exceeded (<Response [429]>)\nwandb: WARNING A graphql request initiated by the public wandb API timed out (timeout=9 sec)\n"
    + steps(0, 30),
    steps(0, 30)
    + "wandb: Network error (ConnectionError), entering retry loop.\n"
    + steps(30, 35)
    + "Training completed. Do not forget to share your model on huggingface.co/models =)\n",
    steps(0, 30, "{{'loss': 2.1, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.{n}}}")
    + "OSError: [Errno 110] Connection timed out\n"
    + steps(30, 60, "{{'loss': 2.1, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.{n}}}"),
    "Failed to load image /data/a.jpg: cannot identify image file, skipping\n" * 5 + steps(0, 30),
    "[rank0]:[W1120 10:00:00.1 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.\n"
    + steps(0, 30)
    + "[rank0]:[W1120 10:10:00.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.\n",
    "/usr/lib/python3/site-packages/x.py:10: FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated.\n"
    + steps(0, 30),
    steps(
        0,
        10,
        " iteration {n}/ 1000 | lm loss: 2.1E+00 | loss scale: 65536.0 | number of skipped iterations: 0 | number of nan iterations: 0 |",
    )
    + " iteration 10/ 1000 | lm loss: 2.1E+00 | number of skipped iterations:   1 | number of nan iterations:   0 |\n"
    + steps(
        11,
        40,
        " iteration {n}/ 1000 | lm loss: 2.1E+00 | number of skipped iterations: 0 | number of nan iterations: 0 |",
    ),
    steps(0, 10, " iteration {n}/ 1000 | lm loss: 2.1 |")
    + " iteration 10/ 1000 | grad norm: nan | number of skipped iterations:   1 | number of nan iterations:   1 |\n"
    + steps(
        11,
        40,
        " iteration {n}/ 1000 | lm loss: 2.1E+00 | number of skipped iterations: 0 | number of nan iterations: 0 |",
    ),
    'Exception ignored in atexit callback: <function _exit_function at 0x7f>\nTraceback (most recent call last):\n  File "/x.py", line 1, in f\nBrokenPipeError: [Errno 32] Broken pipe\n',
    "RuntimeError: Failed to import transformers.integrations.bitsandbytes because of the following error: No module named 'triton.ops'\nWARNING: bitsandbytes disabled\n"
    + steps(0, 30),
    "(WorkerDict pid=77) WARNING 11-20 10:00:00 [scheduler.py:1057] Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space.\n"
    + steps(0, 30, "(TaskRunner pid=1) step:{n} - actor/loss:0.1"),
    "Could not estimate the number of tokens of the input, floating-point operations will not be computed\n"
    + steps(0, 30),
    "error: could not lock config file\n" + steps(0, 4) + "Training finished in 12 s\n",
    "INFO: Retrying (Retry(total=4)) after connection broken by 'ConnectTimeoutError': /simple/\n" + steps(0, 5),
    "Traceback (most recent call last):\n  File \"/w/a.py\", line 3, in load\nImportError: cannot import name 'flash_attn_func' from 'flash_attn'\n\nfalling back to sdpa\n"
    + steps(0, 2),
    "\r".join(f"Epoch 0: {n}%|#| {n}/100 [00:0{n % 10}<00:30, 3.2it/s, loss=2.1]" for n in range(30))
    + "\nKeyError: 'x' (handled)\n"
    + "\r".join(f"Epoch 0: {n}%|#| {n}/100 [00:0{n % 10}<00:30, 3.2it/s, loss=2.1]" for n in range(30, 60)),
    "[2026-11-20 10:00:00,1] [WARNING] [stage3.py:2069:step] 1 pytorch allocator cache flushes since last step. this happens when there is high memory pressure and is detrimental to performance.\n"
    + steps(0, 30),
    "2026-11-20 10:00:00 | ERROR | data | corrupt sample 12 in shard 3, skipped\n" + steps(0, 5),
    "Validation: best accuracy 0.91, error rate 0.09, error: 0.09\n" + steps(0, 5),
    "slurmstepd: error: x11: unable to connect to display\n" + steps(0, 30),
    "E1120 10:00:00.1 1 torch/_inductor/utils.py:1137] [0/0] Not enough SMs to use max_autotune_gemm mode\n"
    + steps(0, 30),
    "[E1120 10:00:00.1 ProcessGroupGloo.cpp:1] error: connect() timed out; will retry\n" + steps(0, 30),
    "torch._dynamo hit config.recompile_limit (8)\nWARNING: error: cannot use fused kernel\n" + steps(0, 30),
    steps(0, 30) + "Saving checkpoint failed: OSError: [Errno 5] Input/output error\nretry succeeded\n" + steps(30, 60),
    "httpx.ConnectError: [Errno 111] Connection refused\n" + steps(0, 5, "2026-11-20 10:0{n}:00 | epoch {n} done"),
]


@pytest.mark.parametrize("number", range(len(HEALTHY)))
def test_nothing_is_wrong(number: int, tmp_path: Path) -> None:
    """No line of it is the cause of anything."""
    path = tmp_path / "train.log"
    path.write_text(HEALTHY[number], encoding="utf-8")
    reading = Reading()
    read(plan([str(path)], reading.problems), reading, lambda _: None)
    verdict = conclude(reading)
    assert (verdict.state, verdict.roots) == ("nothing_wrong", [])

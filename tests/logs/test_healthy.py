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
    steps(0, 8)
    + "node01:1:2 [0] NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port active(9)\n"
    + "[2026-11-20 10:00:00,100] [WARNING] [stage3.py:2069:step] 2 pytorch allocator cache flushes since last step. this happens when there is high memory pressure and is detrimental to performance.\n",
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
    "[h264 @ 0x562e0e0b0d00] mmco: unref short failure\n[h264 @ 0x562e0e0b0d00] error while decoding MB 30 0, bytestream 26548\n"
    + steps(0, 30),
    steps(0, 10)
    + "[2026-11-20 10:00:54.2: W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\nStalled ranks:\n0: [grad_1, grad_2]\n"
    + steps(10, 40),
    "(raylet) WARNING: 64 PYTHON worker processes have been started on node: 273a with address: 10.0.0.7. This could be a result of using a large number of actors\n"
    + steps(0, 30, "(TrainWorker pid=77) step {n} loss 2.1"),
    "[drm] amdgpu kernel modesetting enabled.\namdgpu: Virtual CRAT table created for CPU\namdgpu 0000:c1:00.0: amdgpu: RAS: optional ras ta ucode is not available\namdgpu 0000:c1:00.0: amdgpu: SMU is initialized successfully!\namdgpu 0000:c1:00.0: amdgpu: ring sdma0 uses VM inv eng 0 on hub 8\n",
    "MIOpen(HIP): Warning [SQLiteBase] Unable to read system database file:/opt/rocm/miopen/share/miopen/db/gfx900_64.kdb Performance may degrade\n"
    + steps(0, 30),
    "[W VariableFallbackKernel.cpp:51] Warning: CAUTION: The operator 'aten::isin' is not currently supported on the NPU backend and will fall back to run on the CPU. This may have performance implications. (function npu_cpu_fallback)\n"
    + steps(0, 30),
    steps(0, 10)
    + "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1\nInvalidate trace cache @ step 10: expected module 2, but got module 271\n"
    + steps(10, 40),
    steps(0, 40, "Iter {n}: Train loss 1.3, LR 4.5e-07, grad_norm 4.2, skipped 0")
    + "Iter 40: SKIPPED non-finite batch (loss 1.23, norm nan) -- weights untouched\n"
    + steps(41, 50, "Iter {n}: Train loss 1.3, LR 4.5e-07, grad_norm 4.2, skipped 1"),
    "slurmstepd: error: couldn't chdir to `/home/u/burst-buffer': No such file or directory: going to /tmp instead\n"
    + steps(0, 30),
    "INFO:2026-11-20 10:00:00,865:jax._src.xla_bridge:925: Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open shared object file: No such file or directory\n"
    + steps(0, 30),
    "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#0\nmlx5_core 0000:13:00.0: mlx5_pcie_event:297:(pid 11): PCIe slot power capability was not advertised.\npcieport 0000:15:01.0: AER: Corrected error received: 0000:15:01.0\nmlx5_core 0000:63:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)\n",
    "2026-11-20 10:00:17.2: W tensorflow/core/common_runtime/device/device_host_allocator.h:46] could not allocate pinned host memory of size: 34359738368\n"
    + steps(0, 30),
    "error request failed with status 429 when executing http request <Request method=POST url=https://storage.googleapis.com/x>, sleeping for 0.8 seconds before retrying\n"
    + steps(0, 30),
    "n1:77:78 [0] NCCL INFO NET/IB : No device found.\nn1:77:78 [0] NCCL INFO NET/OFI No NIC info for dev 0\nn1:77:78 [0] NCCL INFO TUNER/Plugin: Failed to find ncclTunerPlugin_v3 symbol.\n"
    + steps(0, 30),
    "/w/sft.py:247: UserWarning: You passed a tokenizer with `padding_side` not equal to `right` to the SFTTrainer. This might lead to some unexpected behaviour due to overflow issues when training a model in half-precision.\n"
    + steps(0, 30),
    "/w/wds.py:12: UserWarning: UnicodeDecodeError(\"'utf-8' codec can't decode byte 0x92 in position 2: invalid start byte\")\n"
    + steps(0, 30),
    "Error while fetching `HF_TOKEN` secret value from your vault: Requesting secret HF_TOKEN timed out. Secrets can only be fetched when running from the Colab UI.\n"
    + steps(0, 30),
    "Warning: no access to tty (Bad file descriptor).\nThus no job control in this shell.\n"
    + steps(0, 3)
    + "training finished\n",
    "[W NNPACK.cpp:53] Could not initialize NNPACK! Reason: Unsupported hardware.\n[W CudaIPCTypes.cpp:15] Producer process has been terminated before all shared CUDA tensors released. See Note [Sharing CUDA tensors]\n"
    + steps(0, 30),
    steps(0, 10)
    + "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/x/commit/main\nRetrying in 1s [Retry 1/5].\n"
    + steps(10, 40),
    steps(0, 10)
    + "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\nrestarting the reward worker (attempt 1/3)\n"
    + steps(10, 40),
    steps(0, 5)
    + "Corrupt JPEG data: premature end of data segment\nlibpng warning: iCCP: known incorrect sRGB profile\n"
    + steps(5, 6),
    steps(0, 30)
    + "wandb: ERROR Failed to sync file output.log: 500 Internal Server Error\nwandb: Synced 5 W&B file(s)\n",
    steps(0, 30)
    + "Could not push to the hub: 504 Server Error: Gateway Time-out for url: https://huggingface.co/api/models/x/commit/main\n{'train_runtime': 812.1, 'train_samples_per_second': 41.1, 'train_loss': 1.71, 'epoch': 1.0}\n",
    steps(0, 30) + "OSError: [Errno 5] Input/output error\n`Trainer.fit` stopped: `max_epochs=3` reached.\n",
    "[2026-11-20 10:00:07,100][accelerate.utils.other][WARNING] - Detected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang. It is recommended to upgrade the kernel.\nslurmstepd: error: task/cgroup: unable to add task[pid=4711] to memory cg '(null)'\n"
    + steps(0, 2),
    "trainer.service: Main process exited, code=exited, status=0/SUCCESS\ntrainer.service: Deactivated successfully.\n",
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

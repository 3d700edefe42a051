"""Folders of logs as launchers, containers and loggers lay them out."""
# ruff: noqa: E501  lines as they are printed

from __future__ import annotations

import gzip
import json

from tests.logs.layouts import SAMPLE, UPLOAD, Files, at, folder, peer_gone, python_time, steps, traceback, watchdog


@folder("out_of_memory", rank=5)
def torchrun_killed_and_kernel() -> Files:
    files: Files = {
        f"none_x81k_2q9/attempt_0/{rank}/stderr.log": peer_gone(rank) if rank != 5 else "" for rank in range(8)
    }
    files |= {f"none_x81k_2q9/attempt_0/{rank}/stdout.log": steps(0, 60) for rank in range(8)}
    files["torchrun.log"] = (
        "W1120 10:01:02.000000 4700 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4711 closing signal SIGTERM\n"
        "E1120 10:01:03.000000 4700 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 5 (pid: 4716) of binary: /usr/bin/python3\n"
    )
    files["dmesg.txt"] = (
        "[Fri Nov 20 10:01:01 2026] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
        "[Fri Nov 20 10:01:01 2026] Memory cgroup out of memory: Killed process 4716 (python3) total-vm:2097152kB, anon-rss:1048576kB\n"
    )
    return files


@folder("software", rank=11)
def slurm_task_segfault() -> Files:
    files: Files = {
        f"4711-g00{1 + task // 8}-{task}.out": steps(0, 50) + ("" if task == 11 else peer_gone(task))
        for task in range(16)
    }
    files["slurm-4711.out"] = (
        "srun: error: g002: task 11: Segmentation fault (core dumped)\nsrun: Terminating StepId=4711.0\nslurmstepd: error: *** STEP 4711.0 ON g001 CANCELLED AT 2026-11-20T10:01:05 ***\nsrun: error: g001: tasks 0-7: Terminated\n"
    )
    return files


@folder("storage", node="llama-worker-2")
def kubernetes_evicted() -> Files:
    files: Files = {}
    for pod in range(4):
        ranks = range(4 * pod, 4 * pod + 4)
        text = "".join(steps(0, 30, f"[rank{rank}]: ") for rank in ranks)
        files[f"llama-worker-{pod}.log"] = text + ("" if pod == 2 else "".join(peer_gone(rank) for rank in ranks))
    files["events.txt"] = (
        "2026-11-20T09:59:00Z Normal Scheduled pod/llama-worker-2 Successfully assigned ml/llama-worker-2 to g003\n"
        "2026-11-20T10:00:31Z Warning Evicted pod/llama-worker-2 The node was low on resource: ephemeral-storage. Container trainer was using 812Gi, which exceeds its request of 0.\n"
        "2026-11-20T10:00:35Z Normal Killing pod/llama-worker-2 Stopping container trainer\n"
    )
    return files


@folder("data", rank=2)
def ray_session() -> Files:
    def prefix(rank: int) -> str:
        return f"(RayTrainWorker pid={4711 + rank}, ip=10.0.0.{rank}) [rank{rank}]: "

    driver = "".join(steps(0, 20, prefix(rank)) for rank in range(4))
    driver += (
        "".join(f"{prefix(1)}{line}\n" for line in UPLOAD.splitlines())
        + steps(20, 60, prefix(1))
        + steps(20, 60, prefix(2))
    )
    driver += traceback(
        "pyarrow.lib.ArrowInvalid: Could not open Parquet input source '<Buffer>': Parquet magic bytes not found in footer.",
        prefix(2),
        "/w/data.py",
        "__iter__",
    )
    driver += "2026-11-20 10:01:02,000\tERROR tune_controller.py:1331 -- Trial task failed for trial TorchTrainer_551a2_00000\n"
    driver += "ray.exceptions.RayTaskError(ArrowInvalid): ray::_RayTrainWorker__execute.get_next() (pid=4713, ip=10.0.0.2, actor_id=b3)\n"
    return {
        "session_2026-11-20_09-59-00_1_1/logs/job-driver-raysubmit_x.log": driver,
        "session_2026-11-20_09-59-00_1_1/logs/raylet.out": "[2026-11-20 10:01:03,000 I 700 700] (raylet) node_manager.cc:1481: NodeManager::DisconnectClient, disconnect_type=3, has creation task exception = false\n[2026-11-20 10:01:03,001 W 700 700] (raylet) node_manager.cc:20: A worker died or was killed while executing a task by an unexpected system error. Worker PID: 4713\n",
        "session_2026-11-20_09-59-00_1_1/logs/gcs_server.out": "[2026-11-20 10:01:04,000 I 600 600] (gcs_server) gcs_actor_manager.cc:1: Actor b3 is failed on worker, job id = 01000000\n",
    }


@folder("storage", rank=9)
def deepspeed_hostfile() -> Files:
    def prefix(rank: int) -> str:
        return f"worker-{rank // 8}: [rank{rank}]: "

    log = "".join(steps(0, 12, prefix(rank)) for rank in range(16))
    stale = "OSError: [Errno 116] Stale file handle: '/lustre/data/shard-00012.bin'"
    log += (
        traceback(stale, prefix(3), "/w/data.py", "read")
        + f"{prefix(3)}retrying in 5 s (attempt 1/3)\n"
        + steps(12, 40, prefix(3))
    )
    log += steps(12, 60, prefix(9)) + traceback(
        "OSError: [Errno 5] Input/output error: '/lustre/data/shard-00044.bin'", prefix(9), "/w/data.py", "read"
    )
    log += "".join(watchdog(rank, 700, f"worker-{rank // 8}: ") for rank in range(16) if rank != 9)
    log += "worker-0: [2026-11-20 10:11:50,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4711\nworker-1: [2026-11-20 10:11:50,100] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=7'] exits with return code = 1\n"
    return {"train_job.log": log}


@folder("hardware", rank=3)
def mpirun_output_filename() -> Files:
    files: Files = {}
    for rank in range(8):
        files[f"out/1/rank.{rank}/stdout"] = steps(0, 40)
        files[f"out/1/rank.{rank}/stderr"] = (
            traceback("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")
            if rank == 3
            else peer_gone(rank)
        )
    files["out/mpirun.log"] = (
        "--------------------------------------------------------------------------\nmpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[17,1],5]\n  Exit code:    1\n"
    )
    return files


@folder("out_of_memory")
def lightning_progress_bars() -> Files:
    bar = "".join(
        f"\rEpoch 3:  {n}%|####      | {n}/100 [00:{n:02}<02:12,  1.21it/s, v_num=7, train_loss=2.1{n}]"
        for n in range(58)
    )
    log = "GPU available: True (cuda), used: True\nInitializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n" + bar + "\n"
    log += traceback(
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
        file="/opt/venv/lib/python3.12/site-packages/torch/utils/data/_utils/signal_handling.py",
        name="handler",
    )
    return {
        "train.out": log,
        "train.err": "/opt/venv/lib/python3.12/site-packages/lightning/x.py:424: The 'val_dataloader' does not have many workers which may be a bottleneck. Consider increasing the value of the `num_workers` argument\n",
    }


@folder("numerical", rank=6)
def json_lines() -> Files:
    def record(seconds: float, rank: int, level: str, message: str, **more: str) -> str:
        return json.dumps({"ts": at(seconds).isoformat(), "level": level, "rank": rank, "msg": message, **more}) + "\n"

    files: Files = {}
    for rank in range(8):
        text = "".join(record(n, rank, "INFO", f"step {n} loss 2.1") for n in range(30))
        text += record(30, rank, "WARNING", "could not upload metrics, will try again", exc_info=UPLOAD)
        text += "".join(record(n, rank, "INFO", f"step {n} loss 2.1") for n in range(31, 60))
        if rank == 6:
            text += record(
                60, rank, "ERROR", "training failed", exc_info=traceback("FloatingPointError: gradients are Nan/Inf")
            )
        else:
            text += record(
                70,
                rank,
                "ERROR",
                "training failed",
                exc_info=traceback(
                    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:31000"
                ),
            )
        files[f"trainer-{rank // 4}.{rank % 4}.jsonl"] = text
    return files


@folder("configuration", rank=1)
def docker_json_file() -> Files:
    files: Files = {}
    for rank in range(4):
        text = (
            traceback(
                "FileNotFoundError: [Errno 2] No such file or directory: '/data/train/index.json'",
                f"[rank{rank}]: ",
                "/w/data.py",
                "open_index",
            )
            if rank == 1
            else ""
        )
        text = text or f"[rank{rank}]: {python_time(1)} INFO building the data set\n" + "".join(
            f"[rank{rank}]: {line}\n"
            for line in traceback(
                "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
            ).splitlines()
        )
        lines = text.splitlines(keepends=True)
        files[f"{rank}f{'0' * 10}-json.log"] = "".join(
            json.dumps(
                {"log": line, "stream": "stderr", "time": f"{at(2 if rank == 1 else 610):%Y-%m-%dT%H:%M:%S}.{n:09}Z"}
            )
            + "\n"
            for n, line in enumerate(lines)
        )
    return files


@folder("hardware", node="g003")
def journald_export() -> Files:
    def entry(seconds: float, host: str, identifier: str, message: str) -> str:
        return (
            json.dumps(
                {
                    "__REALTIME_TIMESTAMP": str(int(at(seconds).timestamp() * 1e6)),
                    "_HOSTNAME": host,
                    "SYSLOG_IDENTIFIER": identifier,
                    "MESSAGE": message,
                    "PRIORITY": "3",
                }
            )
            + "\n"
        )

    files: Files = {}
    for number in range(1, 5):
        host = f"g00{number}"
        text = "".join(entry(n, host, "train", f"step {n} loss 2.1") for n in range(30))
        if number == 3:
            text += entry(31, host, "kernel", "pcieport 0000:15:01.0: AER: Corrected error received: 0000:15:01.0")
            text += entry(
                40,
                host,
                "kernel",
                "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            )
            text += entry(41, host, "train", "torch.AcceleratorError: CUDA error: unknown error")
        else:
            text += entry(
                45,
                host,
                "train",
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006, remote process exited or there was a network error",
            )
        files[f"{host}.journal.json"] = text
    return files


@folder("numerical", rank=2)
def loguru_lines() -> Files:
    def line(seconds: float, level: str, message: str) -> str:
        return f"{at(seconds):%Y-%m-%d %H:%M:%S}.123 | {level:<8} | train:main:88 - {message}\n"

    files: Files = {}
    for rank in range(4):
        text = "".join(line(n, "INFO", f"[rank {rank}] step {n} loss 2.1") for n in range(40))
        text += line(20.5, "WARNING", f"[rank {rank}] gradient overflow, skipping step, loss scale 32768")
        if rank == 2:
            text += line(41, "CRITICAL", "[rank 2] Loss is NaN at step 41, stopping training")
        else:
            text += line(50, "ERROR", f"[rank {rank}] RuntimeError: Broken pipe")
        files[f"worker{rank}.log"] = text
    return files


@folder("out_of_memory", rank=3)
def rich_boxes() -> Files:
    files: Files = {}
    for rank in range(4):
        text = "".join(
            f"[{at(n):%H:%M:%S}] INFO     step {n} loss 2.1                                      train.py:88\n"
            for n in range(30)
        )
        if rank == 3:
            text += (
                "╭───────────────────── Traceback (most recent call last) ──────────────────────╮\n"
                "│ /w/train.py:80 in train_step                                                  │\n"
                "│                                                                              │\n"
                "│ ❱ 80     loss = model(batch)                                                  │\n"
                "╰──────────────────────────────────────────────────────────────────────────────╯\n"
                "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a\n"
                "total capacity of 79.11 GiB of which 1.2 GiB is free.\n"
            )
        else:
            text += "".join(f"{one}\n" for one in traceback("RuntimeError: Connection reset by peer").splitlines())
        files[f"rank{rank}.log"] = text
    return files


@folder("configuration", rank=1)
def windows_line_endings() -> Files:
    files: Files = {}
    for rank in range(4):
        text = steps(0, 30) + (
            traceback("PermissionError: [Errno 13] Permission denied: '/ckpt/step_30/rank1.pt'")
            if rank == 1
            else watchdog(rank, 640)
        )
        files[f"logs/rank_{rank}.txt"] = text.replace("\n", "\r\n")
    return files


@folder("storage", rank=2)
def rotated_and_packed() -> Files:
    files: Files = {}
    for rank in range(4):
        older = (
            steps(0, 40, f"[rank{rank}]: ")
            + "".join(f"[rank{rank}]: {line}\n" for line in SAMPLE.splitlines())
            + f"[rank{rank}]: skipping sample 4711\n"
            + steps(40, 60, f"[rank{rank}]: ")
        )
        newer = steps(60, 90, f"[rank{rank}]: ")
        newer += (
            traceback("OSError: [Errno 122] Disk quota exceeded: '/home/u/ckpt/step_90'", "[rank2]: ")
            if rank == 2
            else watchdog(rank, 700)
        )
        files[f"train.rank{rank}.log.1.gz"] = gzip.compress(older.encode())
        files[f"train.rank{rank}.log"] = newer
    return files


@folder("", silent=(6,))
def a_rank_is_silent() -> Files:
    return {f"rank_{rank}.log": steps(0, 40) + ("" if rank == 6 else watchdog(rank, 640)) for rank in range(8)}


@folder("out_of_memory", rank=5)
def mpirun_noticed() -> Files:
    files: Files = {f"rank-{rank}.out": steps(0, 40) for rank in range(8)}
    files["launcher.log"] = (
        "--------------------------------------------------------------------------\n"
        "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n"
        "--------------------------------------------------------------------------\n"
        "mpirun noticed that process rank 5 with PID 4716 on node g002 exited on signal 9 (Killed).\n"
    )
    return files


@folder("preemption")
def slurm_preempted() -> Files:
    files: Files = {}
    for rank in range(8):
        files[f"out.{rank}.txt"] = steps(0, 40, f"[rank{rank}]: ") + traceback(
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
            f"[rank{rank}]: ",
            "/opt/venv/lib/python3.12/site-packages/torch/distributed/elastic/multiprocessing/api.py",
            "_terminate_process_handler",
        )
    files["slurm-4711.out"] = (
        "slurmstepd: error: *** JOB 4711 ON g001 CANCELLED AT 2026-11-20T10:00:41 DUE TO PREEMPTION ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    )
    return files


@folder("data", rank=4)
def caught_before_the_fatal_one() -> Files:
    files: Files = {}
    for rank in range(8):
        text = steps(0, 20) + UPLOAD + steps(20, 40) + SAMPLE + "skipping sample 4711\n" + steps(40, 60)
        text += (
            traceback("OSError: [Errno 116] Stale file handle", file="/w/data.py")
            + "retrying in 5 s (attempt 1/5)\n"
            + steps(60, 90)
        )
        if rank == 4:
            text += (
                "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [17,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
                * 3
            )
            text += traceback("torch.AcceleratorError: CUDA error: device-side assert triggered")
        else:
            text += peer_gone(rank)
        files[f"rank_{rank}.log"] = text
    return files


@folder("hardware", node="g003")
def a_node_is_gone() -> Files:
    files: Files = {
        f"4711_{rank}.log": steps(0, 77 if 16 <= rank < 24 else 78) + ("" if 16 <= rank < 24 else watchdog(rank, 690))
        for rank in range(32)
    }
    files["slurm-4711.out"] = (
        "srun: error: Node failure on g003\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    )
    return files


@folder("network", node="g002")
def a_link_goes_down() -> Files:
    files: Files = {}
    for rank in range(16):
        text = steps(0, 30)
        if rank in (3, 11):
            peer = "10.0.0.2" if rank == 3 else "10.0.0.1"
            text += f"g00{1 + rank // 8}:47{rank}:49{rank} [{rank % 8}] {at(52):%Y-%m-%d %H:%M:%S} net_ib.cc:1300 NCCL WARN NET/IB : Got completion from peer {peer}<45678> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
        files[f"rank_{rank}.log"] = text + peer_gone(rank)
    files["g002/kern.log"] = "Nov 20 10:00:31 g002 kernel: [4711.000001] mlx5_core 0000:5c:00.0 ens1f0np0: Link down\n"
    files["g001/kern.log"] = (
        "Nov 20 09:10:31 g001 kernel: [1711.000001] mlx5_core 0000:5c:00.0: firmware version: 28.39.1002\n"
    )
    return files

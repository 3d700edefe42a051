"""Folders of logs in which nodes, kernels, schedulers and engines have their say."""
# ruff: noqa: E501  lines as they are printed

from __future__ import annotations

import json

from tests.logs.layouts import SAMPLE, UPLOAD, Files, at, folder, peer_gone, python_time, steps, traceback, watchdog


@folder("hardware", node="mi300-2")
def amd_gpu_reset() -> Files:
    files: Files = {
        f"rank_{rank:02}.log": steps(0, 40) + (watchdog(rank, 660) if rank not in (8, 9) else "") for rank in range(16)
    }
    files["kernel/mi300-1.txt"] = (
        "Nov 20 09:00:00 mi300-1 kernel: amdgpu 0000:05:00.0: amdgpu: SMU is initialized successfully!\n"
    )
    files["kernel/mi300-2.txt"] = (
        "Nov 20 09:00:00 mi300-2 kernel: amdgpu 0000:c5:00.0: amdgpu: SMU is initialized successfully!\n"
        "Nov 20 10:00:41 mi300-2 kernel: amdgpu 0000:c5:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE\n"
        "Nov 20 10:00:42 mi300-2 kernel: amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!\n"
        "Nov 20 10:00:52 mi300-2 kernel: amdgpu 0000:c5:00.0: amdgpu: GPU reset succeeded, trying to resume\n"
    )
    return files


@folder("configuration", rank=3)
def one_rank_does_not_start() -> Files:
    files: Files = {}
    for rank in range(8):
        if rank == 3:
            text = traceback(
                "ImportError: /opt/x/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
                file="/w/model.py",
                name="<module>",
            )
        else:
            text = traceback(
                "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.",
                file="/w/train.py",
                name="init",
            )
        files[f"logs/task-{rank}/stderr"] = text
        files[f"logs/task-{rank}/stdout"] = f"{python_time(rank)} INFO starting\n"
    return files


@folder("preemption")
def pbs_walltime() -> Files:
    files: Files = {
        "train.o77": "".join(steps(0, 50, f"{rank}: ") for rank in range(8))
        + "=>> PBS: job killed: walltime 3600 exceeded limit 3600\n"
    }
    files["train.e77"] = "mpirun: Forwarding signal 15 to job\nTerminated\n"
    return files


@folder("out_of_memory", rank=6)
def second_attempt_fails_like_the_first() -> Files:
    files: Files = {}
    for attempt in range(2):
        for rank in range(8):
            text = steps(100 * attempt, 100 * attempt + 40) if attempt == 0 else steps(720, 760)
            error = traceback(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", f"[rank{rank}]: "
            )
            text += error if rank == 6 else peer_gone(rank)
            files[f"run_ab12cd34/attempt_{attempt}/{rank}/stderr.log"] = text
    return files


@folder("software", rank=0)
def vllm_engine() -> Files:
    def line(level: str, source: str, text: str) -> str:
        return f"(EngineCore_DP0 pid=77) {level} 11-20 10:00:09 [{source}] {text}\n"

    log = line("INFO", "core.py:77", "Initializing a V1 LLM engine (v0.11.0)")
    log += "".join(
        line("ERROR", "multiproc_executor.py:671", text)
        for text in (
            "WorkerProc hit an exception.",
            *traceback(
                "AttributeError: 'MyConfig' object has no attribute 'rope_theta'", file="/w/model.py", name="__init__"
            ).splitlines(),
        )
    )
    log += line("ERROR", "core.py:708", "EngineCore failed to start.")
    log += traceback(
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "(APIServer pid=1) ",
    )
    return {
        "rank_0/vllm.log": log,
        "rank_1/vllm.log": "(APIServer pid=1) INFO 11-20 10:00:09 [api_server.py:1] waiting for the engine\n",
    }


@folder("network", rank=12, node="g002")  # its file names it, and so do the other lines there
def rdma_on_one_rank() -> Files:
    files: Files = {}
    for rank in range(16):
        text = steps(0, 40)
        if rank == 12:
            text += f"g002:47:49 [4] {at(41):%Y-%m-%d %H:%M:%S} net_ib.cc:90 NCCL WARN NET/IB : mlx5_4:1 Got async event : port error\n"
            text += f"g002:47:49 [4] {at(60):%Y-%m-%d %H:%M:%S} net_ib.cc:1300 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<45678> with status=12 opcode=0 len=0 vendor err 129 (Send)\n"
        files[f"4711.{rank}.err"] = text + peer_gone(rank)
    return files


@folder("data", node="pod-7")
def loader_worker_wraps_the_cause() -> Files:
    files: Files = {}
    for rank in range(8):
        text = steps(0, 20) + SAMPLE + "skipping sample 12\n" + steps(20, 60)
        if rank == 7:
            text += (
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 12, in <module>\n'
                "    for batch in loader:\n"
                '  File "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py", line 733, in __next__\n'
                "    data = self._next_data()\n"
                "RuntimeError: Caught RuntimeError in DataLoader worker process 3.\n"
                "Original Traceback (most recent call last):\n"
                '  File "/w/data.py", line 44, in collate\n'
                "    return torch.stack(items)\n"
                "RuntimeError: stack expects each tensor to be equal size, but got [24, 32, 32] at entry 0 and [24, 32, 64] at entry 1\n\n"
            )
        else:
            text += watchdog(rank, 700)
        files[f"pod-{rank}.log"] = text
    return files


@folder("storage", node="g004")
def kernel_of_one_node_lost_its_file_server() -> Files:
    files: Files = {
        f"g00{1 + rank // 4}/rank{rank}.log": steps(0, 30) + (watchdog(rank, 690) if rank // 4 != 3 else "")
        for rank in range(16)
    }
    files["g004/messages"] = (
        "Nov 20 10:00:35 g004 kernel: LustreError: 167-0: fs-MDT0000-mdc-ffff: This client was evicted by fs-MDT0000; in progress operations using this service will fail.\n"
        "Nov 20 10:02:35 g004 kernel: INFO: task python:4711 blocked for more than 120 seconds.\n"
    )
    return files


@folder("preemption", node="ip-10-0-0-7")
def spot_node_is_taken() -> Files:
    files: Files = {}
    for rank in range(8):
        files[f"worker-{rank // 4}-{rank % 4}.log"] = steps(0, 30, f"[rank{rank}]: ") + (
            f"[rank{rank}]: {python_time(31)} WARNING received SIGTERM, saving a checkpoint\n"
            if rank // 4
            else peer_gone(rank)
        )
    files["karpenter.json"] = (
        json.dumps(
            {
                "level": "INFO",
                "time": at(29).isoformat(),
                "message": "initiating delete from interruption message: spot interruption warning",
                "node": "ip-10-0-0-7",
            }
        )
        + "\n"
    )
    files["events.txt"] = (
        "2026-11-20T10:00:29Z Warning SpotInterrupted node/ip-10-0-0-7 Spot interruption warning was received\n"
    )
    return files


@folder("hardware")
def fabric_manager_is_down() -> Files:
    files: Files = {
        f"rank_{rank}.log": traceback(
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized"
        )
        for rank in range(8)
    }
    files["g001-fabricmanager.log"] = (
        "[Nov 20 2026 09:59:00] [ERROR] [tid 1] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33\n"
    )
    files["other_rank_9.log"] = UPLOAD + steps(0, 9)
    return files


@folder("numerical", rank=0)  # and on all others
def megatron_loss_is_nan_everywhere() -> Files:
    form = "iteration {n}/ 1000 | consumed samples: 3840 | lm loss: 2.1E+00 | grad norm: 0.311 | number of skipped iterations: 0 | number of nan iterations: 0 |"
    log = steps(0, 40, "[default7]:", form)
    log += "".join(
        f"[default{rank}]:AssertionError: Rank {rank}: found NaN in local forward loss calculation. Device: {rank}, node: g001\n"
        for rank in (0, 1, 2, 3, 4, 5, 6, 7)
    )
    return {"megatron.log": log}


@folder("", silent=(2,))
def rank_two_hangs_in_its_own_file() -> Files:
    files: Files = {f"out/rank-{rank}/train.log": steps(0, 40) for rank in range(4)}
    for rank in (0, 1, 3):
        files[f"out/rank-{rank}/train.log"] = (
            steps(0, 40)
            + f"[E ProcessGroupGloo.cpp:144] Rank {rank} timed out\n"
            + traceback(
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
                f"[rank{rank}]: ",
            )
        )
    return files


def _ended(rank: int, error: str) -> str:
    gone = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.9]:45012"
    return traceback(error if rank == 2 else gone)


@folder("storage", rank=2)
def an_answer_of_loki() -> Files:
    streams = []
    for rank in range(4):
        text = steps(0, 20) + _ended(rank, "OSError: [Errno 28] No space left on device: '/scratch/tokens.bin'")
        values = [[str(int((at(line).timestamp()) * 1e9)), one] for line, one in enumerate(text.splitlines())]
        streams.append({"stream": {"pod": f"pretrain-{rank}", "rank": str(rank)}, "values": values})
    answer = {"status": "success", "data": {"resultType": "streams", "result": streams}}
    return {"query_range.json": json.dumps(answer)}


@folder("software", rank=2)
def a_paste_of_several_files() -> Files:
    text = ""
    for rank in range(6):
        text += f"\n==> logs/rank_{rank}.log <==\n" + steps(0, 12)
        text += _ended(rank, "ValueError: max() arg is an empty sequence")
    return {"all.txt": text}


def _by_node(dashes: int, error: str) -> Files:
    """Return six nodes' logs below headers between so many dashes; cn23 has the error."""
    line = "-" * dashes
    parts = (f"{line}\ncn{21 + rank}\n{line}\n" + steps(0, 12) + _ended(rank, error) for rank in range(6))
    return {"out.txt": "".join(parts)}


@folder("configuration", node="cn23")
def nodes_by_dshbak() -> Files:
    return _by_node(16, "PermissionError: [Errno 13] Permission denied: '/projects/ckpt/step_12'")


@folder("storage", node="cn23")
def nodes_by_clush() -> Files:
    return _by_node(15, "OSError: [Errno 116] Stale file handle: '/projects/ckpt/step_12'")


@folder("preemption")
def a_node_that_is_not_ready_since_it_is_taken_away() -> Files:
    files: Files = {f"job-{rank}.log": steps(0, 20) + peer_gone(rank) for rank in range(4)}
    files["events.txt"] = (
        "3m  Warning  NodeNotReady  node/gke-spot-1  Node is not ready\n"
        "4m  Normal  TerminationNotice  node/gke-spot-1  instance is being preempted by Compute Engine\n"
    )
    return files


@folder("numerical", rank=3)
def the_workers_that_ray_train_started() -> Files:
    places = [("10.0.3.4", 4501), ("10.0.3.4", 4502), ("10.0.3.9", 4501), ("10.0.3.9", 9912)]
    text = "(TrainController pid=4400) Started training worker group of size 4: \n"
    for rank, (ip, pid) in enumerate(places):
        text += f"(TrainController pid=4400) - (ip={ip}, pid={pid}) world_rank={rank}, local_rank={rank % 2}, node_rank={rank // 2}\n"
    workers = [f"(RayTrainWorker pid={pid}{f', ip={ip}' if ip != places[0][0] else ''}) " for ip, pid in places]
    text += "".join(steps(0, 20, worker) for worker in workers)
    text += traceback("AssertionError: Found non-finite loss nan at step 19", workers[3])
    gone = "".join(f"{workers[2]}{line}\n" for line in _ended(0, "").splitlines())
    return {"driver.log": text + gone}


@folder("network", rank=7)
def a_card_of_a_rank_that_its_file_is_named_after() -> Files:
    files: Files = {f"rank{rank}.log": steps(0, 25) + watchdog(rank, 700) for rank in range(8)}
    files["rank7.log"] = (
        steps(0, 25)
        + "gpu-1:907:1399 [3] transport/net_ib/p2p.cc:510 NCCL WARN NET/IB: Got completion from peer 10.1.0.7<41511> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_READ(2) reqSize=0 vendor_err=129 req_type=Send localGid ::ffff:10.1.0.3 remoteGids ::ffff:10.1.0.7 hca mlx5_2\n"
        + watchdog(7, 700)
    )
    return files


@folder("network")
def a_card_of_a_node_whose_ranks_share_a_file() -> Files:
    files: Files = {f"rank{node}.log": steps(0, 25) for node in range(2)}
    files["rank1.log"] = steps(0, 25) + "".join(
        f"gpu-1:{907 + gpu}:1399 [{gpu}] transport/net_ib/p2p.cc:510 NCCL WARN NET/IB: Got completion from peer 10.1.0.7<41511> with status=12 opcode=2 len=0 vendor err 129 (Send)\n"
        for gpu in (3, 5)
    )
    return files


@folder("configuration", rank=8)
def an_unknown_error_beside_the_one_that_explains_it() -> Files:
    unknown = "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start."
    text = "".join(traceback(unknown, f"{rank}: ") for rank in range(8, 16))
    text += "8: Failed to initialize NVML: Driver/library version mismatch\n"
    return {"slurm-1.out": text + "srun: error: n02: tasks 8-15: Exited with exit code 1\n"}


@folder("software", rank=3)
def records_of_a_collector_that_takes_the_ends_of_lines_away() -> Files:
    text = ""
    for rank, error in ((3, "TypeError: 'NoneType' object is not iterable"), (0, ""), (1, ""), (2, "")):
        own = steps(0, 9) + (traceback(error) if error else _ended(0, ""))
        for line in own.splitlines():
            record = {"date": at(60).timestamp(), "stream": "stderr", "log": f"[rank{rank}]: {line}"}
            text += json.dumps(record | {"kubernetes": {"pod_name": f"bert-worker-{rank}"}}) + "\n"
            text += json.dumps(record | {"log": "", "logtag": "F"}) + "\n"
    return {"fluent.log": text}


@folder("storage", rank=0)
def events_of_a_cloud_in_one_line() -> Files:
    text = steps(0, 9) + traceback(
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation: Please reduce your request rate."
    )
    events = [
        {"timestamp": int(at(number).timestamp() * 1000), "message": f"[rank0]: {line}", "ingestionTime": 1}
        for number, line in enumerate(text.splitlines())
    ]
    return {"events.json": json.dumps({"events": events, "nextForwardToken": "f/1"})}


@folder("out_of_memory")
def a_job_that_htcondor_holds() -> Files:
    files: Files = {f"job.err.{rank}": "" if rank == 2 else steps(0, 9) + _ended(0, "") for rank in range(4)}
    files["job.log"] = (
        "012 (8812.002.000) 2026-11-20 10:20:17 Job was held.\n\tError from slot1_1@gpu7: Job has gone over cgroup memory limit of 131072 megabytes. Peak usage: 131071 megabytes.  Consider resubmitting with a higher request_memory.\n\tCode 34 Subcode 0\n"
    )
    return files


@folder("storage", rank=5)
def a_checkpoint_that_one_rank_could_not_write() -> Files:
    error = (
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([5])\n"
        "Traceback (most recent call last): (RANK 5)\n"
        '  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/checkpoint/utils.py", line 163, in reduce_scatter\n'
        "    local_data = map_fun()\nOSError: [Errno 28] No space left on device"
    )
    lines = traceback(error, name="save").splitlines()
    return {
        f"rank_{rank}.log": steps(0, 20) + "".join(f"[rank{rank}]: {line}\n" for line in lines) for rank in range(8)
    }


@folder("", silent=())
def ranks_that_only_say_that_they_failed() -> Files:
    return {
        f"rank_{rank}.log": steps(0, 20, f"[rank {rank}] ")
        + f"{python_time(21 + rank)} ERROR [rank {rank}] failed\n"
        + _ended(0, "")
        for rank in range(4)
    }


@folder("", silent=())
def a_first_rank_that_sums_up() -> Files:
    files: Files = {f"rank_{rank}.log": steps(0, 20, f"[rank {rank}] ") + _ended(0, "") for rank in range(4)}
    said = (
        f"{python_time(21)} ERROR [rank 0] the training loop ended early, see the config and the options of the run\n"
    )
    return files | {"rank_0.log": steps(0, 20, "[rank 0] ") + said + _ended(0, "")}


def _flap(seconds: float) -> str:
    return f"{at(seconds):%b %d %H:%M:%S} n1 kernel: [9912.1] mlx5_core 0000:5e:00.0 ibs2: Link down\n"


@folder("software", rank=2)
def a_link_that_was_down_an_hour_before() -> Files:
    minutes = "".join(f"{python_time(60 * step)} INFO step {step} loss 2.1\n" for step in range(60))
    files: Files = {f"rank_{rank}.log": minutes + peer_gone(rank) for rank in range(4)}
    error = "TypeError: can't convert cuda:0 device type tensor to numpy."
    return files | {"rank_2.log": minutes + traceback(error, "[rank2]: "), "syslog": _flap(60)}


@folder("network")
def a_link_that_is_down_when_steps_end() -> Files:
    minutes = "".join(f"{python_time(60 * step)} INFO step {step} loss 2.1\n" for step in range(60))
    files: Files = {f"rank_{rank}.log": minutes + watchdog(rank, 4200) for rank in range(4)}
    return files | {"syslog": _flap(59 * 60)}

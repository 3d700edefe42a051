"""The environment of a rank: versions, devices, and the variables that configure them, without secrets."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping

from tachograph._version import __version__
from tachograph.client.torch.loaded_torch import in_use, loaded_torch
from tachograph.text.redact import redact

SHOWN = frozenset((
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_HOME",
    "CUDA_VERSION", "CUDA_MODULE_LOADING", "CUDA_CACHE_PATH", "CUDA_SCALE_LAUNCH_QUEUES",
    "NVIDIA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_ALGO", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_BUFFSIZE", "NCCL_COLLNET_ENABLE",
    "NCCL_CROSS_NIC", "NCCL_CUMEM_ENABLE", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DMABUF_ENABLE", "NCCL_IB_DISABLE",
    "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_RETRY_CNT",
    "NCCL_IB_SL", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_TC", "NCCL_IB_TIMEOUT", "NCCL_LAUNCH_MODE", "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MNNVL_ENABLE", "NCCL_NET",
    "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_NET_PLUGIN", "NCCL_NSOCKS_PERTHREAD", "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_PXN_DISABLE", "NCCL_RAS_ENABLE", "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_NTHREADS", "NCCL_TIMEOUT", "NCCL_TOPO_FILE",
    "NCCL_TUNER_PLUGIN",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_HIGH_PRIORITY",
    "TORCH_NCCL_NAN_CHECK", "TORCH_NCCL_PROPAGATE_ERROR", "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_CPP_STACK", "TORCH_CPP_LOG_LEVEL",
    "TORCH_CUDA_ARCH_LIST", "TORCH_LOGS", "TORCH_COMPILE_DISABLE", "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_SHOW_CPP_STACKTRACES",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "GLOO_DEVICE_TRANSPORT", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND",
    "MKL_NUM_THREADS",
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION",
    "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_GPUS", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_RESTART_COUNT",
    "TACHOGRAPH_RUN", "TACHOGRAPH_ROLE", "TACHOGRAPH_RANK", "TACHOGRAPH_LOCAL_RANK", "TACHOGRAPH_WORLD_SIZE",
    "TACHOGRAPH_ATTEMPT", "TACHOGRAPH_TIER", "TACHOGRAPH_HANG_SECONDS", "TACHOGRAPH_STACKS", "TACHOGRAPH_BLACKBOX",
    "TACHOGRAPH_SOCKET",
))  # fmt: skip
"""Variables that decide how a run behaves, each by its whole name: `NCCL_AUTH` and `CUDA_PASSPHRASE` are somebody's
own, and no list of words knows what all secrets are called. Their values are redacted all the same."""

VALUE_LIMIT = 256


def environment_summary(environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return versions, devices and variables as plain values; what is not known is left out."""
    summary: dict[str, object] = {
        "python": platform.python_version(),
        "tachograph": __version__,
        "host": platform.node(),
        "script": sys.argv[0],  # not its arguments: people pass tokens there
        "variables": {
            name: redact(value)[:VALUE_LIMIT] for name, value in sorted(environment.items()) if name in SHOWN
        },
    }
    torch = loaded_torch()
    for key, read in (
        ("torch", lambda: torch.__version__),
        ("cuda", lambda: torch.version.cuda),
        ("device", lambda: in_use("cuda").get_device_name()),
        ("nccl", lambda: ".".join(map(str, in_use("cuda").nccl.version()))),
        ("backend", lambda: in_use("distributed").get_backend()),
        ("world_size", lambda: in_use("distributed").get_world_size()),
    ):
        try:
            value = read()
        except Exception:  # noqa: BLE001 - absent, half imported, or built without it: not known
            continue
        if value is not None:
            summary[key] = str(value) if not isinstance(value, int) else value
    return summary

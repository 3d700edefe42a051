"""The environment of a rank: versions, devices, and the variables that configure them, without secrets."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping

from tachograph._version import __version__
from tachograph.client.torch.loaded_torch import in_use, loaded_torch
from tachograph.redact import redact

PREFIXES = ("NCCL_", "TORCH_", "TORCHELASTIC_", "CUDA_", "GLOO_", "OMP_", "SLURM_JOB_", "TACHOGRAPH_", "PYTORCH_")
"""Variables that decide how a run behaves. A list of what to show, not of what to hide: secrets have any name."""

VALUE_LIMIT = 256
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


def environment_summary(environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return versions, devices and variables as plain values; what is not known is left out."""
    summary: dict[str, object] = {
        "python": platform.python_version(),
        "tachograph": __version__,
        "host": platform.node(),
        "script": sys.argv[0],  # not its arguments: people pass tokens there
        "variables": {
            name: redact(value[:VALUE_LIMIT])
            for name, value in sorted(environment.items())
            if name.startswith(PREFIXES) and not any(word in name for word in _SECRET)
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

"""Check `versions`: the software that ranks must have alike, found without importing it."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tachograph.preflight.finding import FAIL, WARN, Conclusion, Facts, PreflightFinding
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.preflight.speeds import minority

LIBRARIES = (
    "numpy", "triton", "transformers", "accelerate", "deepspeed", "lightning", "megatron-core", "flash-attn",
    "transformer-engine", "apex", "xformers", "bitsandbytes", "peft", "trl", "torchtitan",
)  # fmt: skip
MUST = ("Python", "torch", "CUDA of torch", "HIP of torch", "NCCL", "cuDNN")
"""Where a difference breaks or hangs a run; others may be harmless."""


def measure(site: PreflightSite) -> Facts:
    """Return name -> version of what is installed here."""
    found = {"Python": platform.python_version()} | torch_versions(installed_torch())
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found |= _of_cuda()
    return {"versions": found, "kernel": platform.release(), "interpreter": sys.executable}


def installed_torch() -> Path | None:
    """Return the folder of the PyTorch that an import would load."""
    spec = find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def torch_versions(folder: Path | None) -> dict[str, str]:
    """Return what PyTorch's version.py says of itself, and of CUDA or HIP."""
    if folder is None:
        return {}
    try:
        text = (folder / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {"torch": "unknown"}
    found = {}
    for name, key in (("__version__", "torch"), ("cuda", "CUDA of torch"), ("hip", "HIP of torch")):
        if version := re.search(rf"^{name}\b[^=\n]*= *['\"]([^'\"]+)", text, re.MULTILINE):
            found[key] = version[1]
    return found


def _of_cuda() -> dict[str, str]:
    """Return the versions that only a loaded PyTorch with CUDA knows."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    found = {"NCCL": ".".join(map(str, torch.cuda.nccl.version()))}
    if cudnn := torch.backends.cudnn.version():
        found["cuDNN"] = str(cudnn)
    return found


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name the ranks whose versions are not those of the others."""
    findings = []
    names = sorted(
        {name for one in facts.values() for name in one["versions"]}, key=lambda name: (name not in MUST, name)
    )
    for name in names:
        values = {rank: one["versions"].get(name, "none") for rank, one in facts.items()}
        odd = minority(values)
        usual = sorted(set(values.values()) - set(odd))
        for value, ranks in sorted(odd.items()):
            others = f"; the others have {usual[0]}" if usual else ""
            findings.append(
                PreflightFinding(
                    FAIL if name in MUST else WARN,
                    f"{site.who_does(ranks, 'has', 'have')} {name} {value}{others}",
                    f"install one version of {name} everywhere: one image, or one environment on shared storage",
                    tuple(ranks),
                )
            )
    first = next(iter(facts.values()))["versions"]
    shown = [f"{name} {first[name]}" for name in MUST if name in first]
    return Conclusion(", ".join(shown) + ("" if "torch" in first else ", no PyTorch"), findings)


CHECK = PreflightCheck("versions", "software alike on all ranks", measure, conclude)

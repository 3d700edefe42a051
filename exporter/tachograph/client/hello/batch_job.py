"""The batch job this process belongs to, by what Slurm or Kubernetes left in its environment."""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.client.core.arguments import name

_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_HOSTS_FILE = "/etc/hosts"
JOB_ID_ENVIRONMENT = "TACHOGRAPH_JOB_ID"
"""What `tachograph supervise` gives to the pods of an attempt, which Kubernetes numbers by nothing that they know."""


def batch_job(
    environment: Mapping[str, str], namespace_file: str = _NAMESPACE_FILE, hosts_file: str = _HOSTS_FILE
) -> dict[str, str]:
    """Return scheduler, job_id, namespace and pod, as far as they are known; empty outside of both.

    Each task of an array has a Slurm job id of its own. That is all that slurmd's prolog is given, too, so it is what
    ranks and GPUs are joined by; which task of which array it is has the run's name. In Kubernetes it is the attempt
    of a supervisor.
    """
    slurm = _value(environment, "SLURM_JOB_ID", "SLURM_JOBID")
    job = {
        "job_id": slurm or _value(environment, JOB_ID_ENVIRONMENT),
        **_pod(environment, namespace_file, hosts_file),
    }
    known = {key: value for key, value in job.items() if value}
    if not known:
        return {}
    return {"scheduler": "slurm" if slurm else "kubernetes", **known}


def _pod(environment: Mapping[str, str], namespace_file: str, hosts_file: str) -> dict[str, str]:
    """Return pod and namespace: given by the downward API, else by what every pod has.

    HOSTNAME is the pod's name unless the pod's specification gives another; on the host's network it is the node's, and
    then it is left out. Only the kubelet's own first line of /etc/hosts tells the two apart.
    """
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return {}
    pod = _value(environment, "POD_NAME")
    if not pod and "host network" not in _first_line(hosts_file):
        pod = _value(environment, "HOSTNAME")
    return {"namespace": _value(environment, "POD_NAMESPACE") or name(_first_line(namespace_file)) or "", "pod": pod}


def _value(environment: Mapping[str, str], *variables: str) -> str:
    return next((found for variable in variables if (found := name(environment.get(variable)))), "")


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs 3 ms to import
            return file.readline(512)
    except OSError:
        return ""

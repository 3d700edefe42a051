"""The parts of `tachograph supervise -- kubectl create -f FILE`, put together from command line and journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from tachograph.supervise.journal import Entry
from tachograph.supervise.kubernetes import manifest as manifests
from tachograph.supervise.kubernetes.api import ApiError, KubernetesApi
from tachograph.supervise.kubernetes.create_command import CreateCommand, read_command
from tachograph.supervise.kubernetes.manifest import Manifest, ManifestError
from tachograph.supervise.kubernetes.run import KubernetesRun
from tachograph.supervise.kubernetes.training_object import TrainingObject
from tachograph.supervise.memory import remember


class KubernetesSetup:
    """A command and its file, which can be read; the API server is not asked before `launcher`."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raise ValueError for another command, or a file from which no run can be started."""
        self.command: CreateCommand = read_command(command)
        try:
            self.manifest: Manifest = manifests.read(self.command.file)
            manifests.rendered(self.manifest, "", "", {}, ["node"])  # of a form that can be changed
        except ManifestError as error:
            raise ValueError(str(error)) from error
        own = self.manifest.training["metadata"].get("namespace")
        if own and self.command.namespace not in ("", own):
            raise ValueError(f"--namespace {self.command.namespace}: {self.manifest.name} is in namespace {own}")
        self.api = KubernetesApi(self.command.program, self.command.options)

    def launcher(self, run: str, entries: Sequence[Entry], say: Callable[[str], None]) -> KubernetesRun:
        """Return what starts the attempts of a run with this journal."""
        given = self.manifest.training["metadata"].get("namespace") or self.command.namespace
        training = TrainingObject(self.api, self.manifest, given or self.api.namespace(), say)
        return KubernetesRun(training, run, remember(entries).marks, say)


def taken_elsewhere(launcher: KubernetesRun, entries: Sequence[Entry]) -> str:
    """Return that the object that trains is no attempt of this run; empty if it is, is not there, or is not known."""
    with suppress(ApiError):
        found = launcher.training.get()
        if found is not None and found.mark not in launcher.marks:
            if found.mark in [one["mark"] for one in entries if "mark" in one]:
                return f"{launcher.training.name} is there still, and its run has finished. To begin again, delete it"
            return (
                f"{launcher.training.name} is there already, and not by this journal: another supervisor, or a person, "
                "has made it. To begin, delete it"
            )
    return ""

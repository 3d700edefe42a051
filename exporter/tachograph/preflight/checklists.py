"""Checklists: what to look at before a run, when it grows, and for weeks; what a machine can check names its check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

BY_HAND = "by hand"


class ChecklistItem(NamedTuple):
    """A line of a checklist, and the checks that answer it; without any it is for a person."""

    text: str
    checks: tuple[str, ...] = ()


ITEMS: Mapping[str, tuple[ChecklistItem, ...]] = {
    "before": (
        ChecklistItem("PyTorch, CUDA and NCCL are alike on all ranks", ("versions",)),
        ChecklistItem("Environment variables are right and alike", ("variables",)),
        ChecklistItem("Every rank finds the rendezvous", ("rendezvous", "group")),
        ChecklistItem("Shared memory and ulimits suffice", ("limits",)),
        ChecklistItem("GPUs are complete, healthy and unused", ("gpus",)),
        ChecklistItem("The model fits the GPU", ("memory",)),
        ChecklistItem("The checkpoint folder can be written and has room", ("checkpoints",)),
        ChecklistItem("Each rank has an equal share of the data", ("loader",)),
        ChecklistItem("BatchNorm is synchronised, every parameter gets a gradient", ("model",)),
        ChecklistItem("The loss falls on one batch that is trained on again and again"),
        ChecklistItem("Seeds are set, and differ between ranks where they must (dropout, augmentation)"),
        ChecklistItem("A run of some steps, saved and resumed, goes on with the same loss"),
        ChecklistItem("Alerts reach a person: tachograph doctor --send-test-page"),
    ),
    "scaling-up": (
        ChecklistItem("All ranks form a process group", ("ranks", "group")),
        ChecklistItem("No rank computes more slowly than the others", ("compute", "memory-bandwidth")),
        ChecklistItem("No link is slow", ("pairs", "collectives")),
        ChecklistItem("Clocks agree, or logs of several nodes cannot be compared", ("clocks",)),
        ChecklistItem("The loader keeps up with the step", ("loader",)),
        ChecklistItem("Memory for each rank is still enough at this layout", ("memory",)),
        ChecklistItem("Storage takes the checkpoints of all nodes at the same time", ("checkpoints",)),
        ChecklistItem("Learning rate and warm-up fit the larger global batch"),
        ChecklistItem("The run at the next smaller scale had the loss and the MFU that were expected"),
        ChecklistItem("Ranks of one tensor-parallel group are on one node, and pipeline stages are balanced"),
        ChecklistItem("The process group's timeout is longer than the longest save or evaluation"),
    ),
    "long-run": (
        ChecklistItem("There is room for as many checkpoints as are kept", ("checkpoints",)),
        ChecklistItem("No memory repair is pending, no link is degraded", ("gpus",)),
        ChecklistItem("Products are right to the last bit", ("compute",)),
        ChecklistItem("Nothing left from debugging slows every step", ("variables",)),
        ChecklistItem("Checkpoints are saved about every sqrt(2 x cost of a save x time between failures)"),
        ChecklistItem("The scheduler restarts the job after a failure, and the job resumes by itself"),
        ChecklistItem("A checkpoint was restored on other nodes, with data order and random states"),
        ChecklistItem("Old checkpoints are removed, and the best ones kept elsewhere"),
        ChecklistItem("Spare nodes are there for those that fail"),
        ChecklistItem("Somebody is on call, and knows the runbooks"),
        ChecklistItem("Tokens, credentials and reservations last longer than the run"),
    ),
}


def answered(name: str, states: Mapping[str, str]) -> Iterator[tuple[str, ChecklistItem]]:
    """Yield each line with its state: the worst of its checks that ran, `skipped` if none did, or BY_HAND."""
    order = ("fail", "warn", "ok")
    for item in ITEMS[name]:
        own = {states[check] for check in item.checks if check in states}
        state = next((state for state in order if state in own), "skipped") if item.checks else BY_HAND
        yield state, item

"""A hook on a model that is copied or saved."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

from tachograph.client.torch.model.layers import ModelHook


class Watch:
    """Something that can be neither copied nor saved, like a recorder."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: list[tuple[object, ...]] = []

    def observe(self, *arguments: object) -> str:
        """Note a call."""
        self.seen.append(arguments)
        return "an answer that would replace the layer's output"


def test_a_hook_calls_and_answers_nothing() -> None:
    """A forward hook that returned something would change what the model computes."""
    watch = Watch()
    answer: Any = ModelHook(watch.observe)
    assert answer("module", "inputs") is None
    assert watch.seen == [("module", "inputs")]


def test_a_copy_does_nothing() -> None:
    """A copy, also one from a pickle, belongs to nobody: neither does it fail, nor does it observe."""
    watch = Watch()
    hook = ModelHook(watch.observe)
    for other in (copy.deepcopy(hook), copy.copy(hook), pickle.loads(pickle.dumps(hook))):
        other("module", "inputs")
    assert watch.seen == []

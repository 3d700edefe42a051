"""The operations of a step: given with their convention, or counted once by PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.flops import model_flops
from tachograph.client.hello.workload import Workload
from tachograph.client.recorder import Recorder

Make = Callable[..., Recorder]
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip


def test_model_flops_bring_their_convention() -> None:
    """The result of `model_flops` says how it was counted; its total is used."""
    flops = model_flops.of_config(LLAMA, sequence_length=32, convention="causal")
    workload = Workload(2, tokens_per_step=10, flops_per_token=flops)
    assert workload.per_step["flops_total"] == flops.total * 5
    assert (workload.facts["flops_convention"], workload.refused) == ("causal", 0)


@pytest.mark.parametrize(
    ("given", "fact", "refused"),
    [
        ({"flops_per_token": 6.0}, "given", 0),
        ({"flops_per_step": 6.0}, "given", 0),
        ({"flops_per_token": 6.0, "flops_convention": "packed_window"}, "packed_window", 0),
        ({"flops_convention": "measured"}, "measured", 0),
        ({"flops_per_token": 6.0, "flops_convention": "rough"}, "given", 1),
        ({"flops_per_token": 6.0, "flops_convention": 3}, "given", 1),
        ({"flops_per_token": model_flops.ModelFlops(1, 2, 3, 0, "full"), "flops_convention": "causal"}, "full", 1),
        ({"flops_per_token": model_flops.ModelFlops(1, 2, 3, 0, "full"), "flops_convention": "full"}, "full", 0),
        ({}, None, 0),
    ],
)
def test_the_convention_is_a_fact(given: dict[str, Any], fact: str | None, refused: int) -> None:
    """Figures of two conventions must never be compared: the label says which; what is unknown is counted."""
    workload = Workload(1, tokens_per_step=10, **given)
    assert (workload.facts.get("flops_convention"), workload.refused) == (fact, refused)


def test_every_convention_is_taken() -> None:
    """Those of `model_flops`, and the two that are not its own."""
    for convention in (*model_flops.CONVENTIONS, "measured", "given"):
        assert Workload(1, flops_convention=convention).facts["flops_convention"] == convention


def test_hardware_flops_need_tokens() -> None:
    """Per token alone says nothing of a step; with tokens it is a counter of its own."""
    assert Workload(1, hardware_flops_per_token=8.0).per_step == {}
    per_step = Workload(2, tokens_per_step=10, flops_per_token=6.0, hardware_flops_per_token=8.0).per_step
    assert per_step == {"tokens_total": 5, "flops_total": 30, "hardware_flops_total": 40}


def test_the_first_count_stays() -> None:
    """A counter must not fall: a second measurement, and one beside a given number, change nothing that is there."""
    workload = Workload(1)
    workload.measured(100.0)
    workload.measured(50.0)
    assert workload.per_step == {"flops_total": 100, "hardware_flops_total": 100}
    assert workload.facts["flops_convention"] == "measured"
    given = Workload(1, tokens_per_step=10, flops_per_token=6.0)
    given.measured(80.0)
    assert (given.per_step["flops_total"], given.per_step["hardware_flops_total"]) == (60, 80)
    assert given.facts["flops_convention"] == "given"


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
class TestWithTorch:
    """Against what a step really executes."""

    def test_a_counted_step(self, exporter: Any, record: Make) -> None:
        """A linear layer costs 2 operations a weight and sample forward, 4 backward; the step itself is tagged."""
        torch = pytest.importorskip("torch")
        recorder = record()
        layer = torch.nn.Linear(30, 20)
        with recorder.step(), recorder.count_flops():
            layer(torch.ones(8, 30, requires_grad=True)).sum().backward()
        for _ in range(2):
            with recorder.step():
                pass
        metrics = exporter.next_state()["metrics"]
        assert metrics["flops_total"] == metrics["hardware_flops_total"] == 3 * 6 * 8 * 30 * 20

    def test_fused_attention_on_a_cpu_is_counted(self, record: Make) -> None:
        """PyTorch's counter finds nothing in the fused CPU kernel; here it is unfused while counted, and only then."""
        torch = pytest.importorskip("torch")
        from torch.nn.attention import _cur_sdpa_kernel_backends

        recorder, before = record(), set(_cur_sdpa_kernel_backends())
        query = torch.ones(2, 4, 16, 8)
        with recorder.step(), recorder.count_flops():
            torch.nn.functional.scaled_dot_product_attention(query, query, query)
        assert recorder._calls.state.workload.per_step["flops_total"] == 2 * 4 * 2 * 2 * 16 * 16 * 8
        assert set(_cur_sdpa_kernel_backends()) == before

    def test_recomputation_is_counted(self, record: Make) -> None:
        """With activation checkpointing the figure is the hardware's: two forwards' worth and a backward."""
        torch = pytest.importorskip("torch")
        from torch.utils.checkpoint import checkpoint

        recorder = record(tokens_per_step=1, flops_per_token=5.0)
        block = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU())
        with recorder.step(), recorder.count_flops():
            checkpoint(block, torch.ones(4, 16, requires_grad=True), use_reentrant=False).sum().backward()
        per_step = recorder._calls.state.workload.per_step
        assert per_step["flops_total"] == 5
        assert per_step["hardware_flops_total"] > 2 * 6 * 4 * 16 * 16

    def test_nothing_to_count_is_counted_as_dropped(self, record: Make) -> None:
        """A block without a matrix product gives no figure, and no zero."""
        torch = pytest.importorskip("torch")
        recorder = record()
        with recorder.count_flops():
            torch.ones(3).sum()
        assert recorder._calls.state.workload.per_step == {}
        assert recorder._calls.state.dropped.count == 1

    def test_the_users_exception_passes(self, record: Make) -> None:
        """It goes through untouched, counts nothing, and leaves no counter behind."""
        torch = pytest.importorskip("torch")
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        recorder, error = record(), ValueError("mine")

        def step() -> None:
            with recorder.count_flops():
                torch.ones(2, 2) @ torch.ones(2, 2)
                raise error

        with pytest.raises(ValueError, match="mine") as caught:
            step()
        assert caught.value is error
        assert _get_current_dispatch_mode() is None
        assert recorder._calls.state.workload.per_step == {}

    def test_a_model_without_parameters(self, record: Make) -> None:
        """Watched and counted without a word against it; there is only nothing to say."""
        torch = pytest.importorskip("torch")
        recorder = record()
        recorder.watch(torch.nn.ReLU(), layers=3, checksum_every=1, update_every=1, activations=True)
        recorder.watch(torch.nn.ReLU())
        assert recorder._calls.state.dropped.count == 0


def test_without_torch_nothing_is_imported(record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting needs PyTorch in the process; the recorder never brings it."""
    import sys

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    recorder = record()
    with recorder.count_flops():
        pass
    assert recorder._calls.state.dropped.count == 1
    assert "torch" not in sys.modules

"""torchtitan's own trainer on a CPU: FSDP2, its chunked loss, its container of optimizers, its loader, its checkpoints.

torchtitan trains on GPUs; what it asks of one is answered here. It takes its values by the methods that are wrapped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._utils
from injected import strike
from truth import Truth

HERE = Path.cwd()
MINE = HERE / f"rank{os.environ['RANK']}"
FORWARD_SECONDS, VOCABULARY = 0.05, 2000


def stand_in_for_a_gpu() -> None:
    """Answer what torchtitan asks a device for that a CPU has no word for."""
    torch._utils._get_available_device_type = lambda: "cpu"
    answers: dict[str, Any] = {
        "current_device": lambda: 0,
        "empty_cache": lambda: None,
        "get_device_name": lambda *_: "cpu",
        "get_device_properties": lambda *_: SimpleNamespace(total_memory=1 << 34, name="cpu", multi_processor_count=1),
        "max_memory_allocated": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "memory_stats": lambda *_: {},
        "reset_peak_memory_stats": lambda *_: None,
    }
    for name, answer in answers.items():
        setattr(torch.cpu, name, answer)
    if not hasattr(torch.distributed, "set_timeout"):  # newer than PyTorch 2.13
        torch.distributed.set_timeout = lambda *_: None
    from torch.distributed.fsdp import FSDPModule

    # gloo cannot multiply while it sums; gradients are then averaged
    FSDPModule.set_gradient_divide_factor = lambda *_: None
    FSDPModule.set_force_sum_reduction_for_comms = lambda *_: None


def assets() -> None:
    """Write the tokenizer and the text that torchtitan's checkout has, and its wheel lacks."""
    os.environ["HF_HOME"], os.environ["HF_HUB_OFFLINE"] = str(MINE / "hub"), "1"
    from tokenizers import Tokenizer, models, pre_tokenizers

    MINE.mkdir()
    os.chdir(MINE)
    folder = Path("tests/assets")
    for name in ("tokenizer", "c4_test"):
        (folder / name).mkdir(parents=True)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    tokenizer.save(str(folder / "tokenizer/tokenizer.json"))
    special = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(special), encoding="utf-8")
    texts = (" ".join(f"w{(7 * row + word * word) % VOCABULARY}" for word in range(400)) for row in range(500))
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "c4_test/data.json").write_text("".join(lines), encoding="utf-8")


def attention() -> None:
    """Replace flex attention, which needs a compiler for each shape, by PyTorch's own."""
    from torchtitan.models.common.attention import FlexAttention

    def attend(self: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        made = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return made.transpose(1, 2).contiguous()

    FlexAttention.forward = attend


def configuration(options: argparse.Namespace) -> Any:
    """Return torchtitan's debug model, smaller and shorter."""
    from torchtitan.models.llama3 import config_registry, model_registry

    made = config_registry.llama3_debugmodel()
    made.model_spec = model_registry("debugmodel", attn_backend="flex")
    made.parallelism.spmd_backend = "partial_dtensor"
    made.training.local_batch_size, made.training.seq_len, made.training.steps = 2, 64, options.steps
    made.training.mixed_precision_param = "float32"
    made.checkpoint.enable, made.checkpoint.interval = True, options.save_every
    made.checkpoint.folder = str(HERE / "saved")
    made.validator.freq, made.validator.steps = options.evaluate_every, 5
    if hasattr(made.validator, "enable"):
        made.validator.enable = True
    made.validator.dataloader.dataset = "c4_test"
    return made


def count(truth: Truth) -> None:
    """Have torchtitan's trainer tell the truth of each micro-batch, step, and validation."""
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.components.validate import Validator
    from torchtitan.trainer import Trainer

    step, micro_batch = Trainer.train_step, Trainer.forward_backward_step
    log, validate = MetricsProcessor.log, Validator.validate

    def counted_step(self: Any, batches: Any) -> None:
        rate = self.lr_schedulers.schedulers[0].get_last_lr()[0]
        step(self, batches)
        truth.rates += [rate, self.lr_schedulers.schedulers[0].get_last_lr()[0]]  # and the next one's
        truth.step_of_micro_batches()

    def counted_micro_batch(self: Any, **given: Any) -> Any:
        if not truth.batches:
            truth.time_forward(self.model_parts[0])
            truth.time_forward(self.model_parts[0].lm_head)  # which the loss calls, chunk by chunk
            self.model_parts[0].register_forward_pre_hook(takes_its_time)
        truth.batch()
        loss = micro_batch(self, **given)
        truth.micro_batch(loss.detach())
        return loss

    def counted_validation(self: Any, *given: Any) -> None:
        began = time.monotonic()
        validate(self, *given)
        truth.evaluated(began)

    def counted_log(self: Any, number: int, mean: float, most: float, norm: float, **more: Any) -> None:
        truth.norms.append(norm)
        log(self, number, mean, most, norm, **more)

    Trainer.train_step, Trainer.forward_backward_step = counted_step, counted_micro_batch
    MetricsProcessor.log = counted_log
    Validator.validate = counted_validation


def takes_its_time(module: torch.nn.Module, _: object) -> None:
    """Have the model's forward take longer."""
    time.sleep(FORWARD_SECONDS)
    if module.training:
        strike("forward")


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save_every", type=int, default=10)
    parser.add_argument("--evaluate_every", type=int, default=10)
    options = parser.parse_args()
    stand_in_for_a_gpu()
    assets()
    attention()
    truth = Truth()
    count(truth)
    from torchtitan.models.llama3 import config_registry
    from torchtitan.train import main as train

    config_registry.llama3_cpu = lambda: configuration(options)
    sys.argv[1:] = ["--module", "llama3", "--config", "llama3_cpu"]
    train()
    truth.checkpoints = sorted(int(each.name.partition("-")[2]) for each in (HERE / "saved").glob("step-*"))
    truth.write()


main()

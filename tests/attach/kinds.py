"""The kinds of loops there are, each as small as can be, one after the other; prints what was recorded of each as JSON.

Every kind is the twin in plain PyTorch of what some framework does; it knows nothing of Tachograph. Each is recorded by
an observer of its own, behind the one set of hooks that a process has.
"""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from tachograph.attach.observer import Observer
from tachograph.attach.script_recording import ScriptRecording
from tachograph.attach.summary import Summary
from tachograph.attach.torch_hooks import attach
from tachograph.client.recorder import Recorder

STEPS = 12
SLEEP = 0.004
GENERATES, REWARDS = 0.5, 0.3
"""Seconds: all steps together are shorter, also on a busy machine."""
RATE = 0.015625

ALIVE: list[torch.optim.Optimizer] = []
KINDS: dict[str, Callable[[], float | None]] = {}


def kind(loop: Callable[[], float | None]) -> Callable[[], float | None]:
    """Add a loop, which returns its last step's loss."""
    KINDS[loop.__name__] = loop
    return loop


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))


def kept(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Keep an optimizer alive until its rate was read."""
    ALIVE.append(optimizer)
    return optimizer


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return kept(torch.optim.SGD(parameters, lr=RATE))


def batches(number: int = STEPS) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(2 * number, 4)), batch_size=2)


def loss_of(network: torch.nn.Module, batch: torch.Tensor | None = None) -> torch.Tensor:
    time.sleep(SLEEP)
    return network(torch.randn(2, 4) if batch is None else batch).square().mean()


@kind
def plain() -> float:
    """The loop of every tutorial."""
    network = model()
    optimizer = sgd(network.parameters())
    for (batch,) in batches():
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@kind
def group_by_group() -> float:
    """One optimizer, stepped once for each group of its parameters (ZeRO's base optimizer)."""
    network = model()
    optimizer = sgd([{"params": part.parameters()} for part in network])
    groups = optimizer.param_groups
    for (batch,) in batches():
        loss = loss_of(network, batch)
        loss.backward()
        for group in groups:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = groups
        optimizer.zero_grad()
    return loss.item()


@kind
def container() -> float:
    """An optimizer whose step is that of others (torchtitan's)."""

    class Container(torch.optim.Optimizer):
        def __init__(self, parts: Any) -> None:
            self.parts = [sgd(part.parameters()) for part in parts]
            super().__init__([each for part in parts for each in part.parameters()], {})

        def step(self, closure: Any = None) -> None:
            for part in self.parts:
                part.step()

    network = model()
    optimizer = Container(network)
    for _ in range(STEPS):
        loss = loss_of(network)
        network.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@kind
def closure() -> float:
    """The model runs inside of the optimizer's step (Lightning, Composer, L-BFGS)."""
    network = model()
    optimizer = sgd(network.parameters())

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(network, batch)
        loss.backward()
        return loss

    loader = iter(batches())
    for _ in range(STEPS):
        (batch,) = next(loader)
        last = optimizer.step(run)
    return last.item()


@kind
def searching() -> float:
    """L-BFGS calls its closure several times a step; its loss is that of the first, which its `step` returns."""
    network = model()
    optimizer = kept(torch.optim.LBFGS(network.parameters(), lr=RATE, max_iter=3, tolerance_grad=0, tolerance_change=0))
    seen: list[float] = []

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(network, batch)
        loss.backward()
        seen.append(loss.item())
        return loss

    loader = iter(batches())
    for _ in range(STEPS):
        (batch,) = next(loader)
        seen.clear()
        optimizer.step(run)
    return seen[0]


@kind
def guarded() -> float:
    """Every other step is skipped, as its loss is not finite: its gradients are zeroed, and it is logged as nothing."""
    network = model()
    optimizer = sgd(network.parameters())
    for number, (batch,) in enumerate(batches(2 * STEPS)):
        loss = loss_of(network, batch)
        if number % 2 == 0:
            loss = loss * math.inf
        loss.backward()
        if math.isfinite(loss.item()):
            optimizer.step()
        network.zero_grad() if number % 4 else optimizer.zero_grad()
    return loss.item()


@kind
def weighted_terms() -> float:
    """Micro-batches whose losses are weighted sums, and divided by nothing: their mean is the loss."""
    return accumulated(1, loss=lambda *given: 0.9 * loss_of(*given) + 0.1 * loss_of(*given))


@kind
def means_by_hand() -> float:
    """Micro-batches whose losses are sums over the mask's ones: each is a mean of its own."""
    mask = torch.tensor([[1.0], [0.0]])
    return accumulated(
        1, loss=lambda network, batch: (network(batch).square() * mask.repeat(1, 8)).sum() / (8 * mask).sum()
    )


@kind
def added_up_in_place() -> float:
    """What is logged is the detached loss, which shares its memory, summed over the ranks."""
    network = model()
    optimizer = sgd(network.parameters())
    for (batch,) in batches():
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        last = loss.item()
        loss.detach().mul_(4)  # all_reduce
        optimizer.step()
    return last


@kind
def two_loaders() -> float:
    """Labelled and unlabelled batches, one of each a step."""
    network = model()
    optimizer = sgd(network.parameters())
    for (first,), (second,) in zip(batches(), batches(), strict=True):
        loss = loss_of(network, first) + loss_of(network, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@kind
def fetched_after_forward() -> float:
    """The next batch is fetched between forward and backward; forward is in the step all the same."""
    network = model()
    optimizer = sgd(network.parameters())
    loader = iter(batches())
    batch = next(loader)[0]
    while batch is not None:
        loss = loss_of(network, batch)
        batch = next(loader, [None])[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@kind
def distilled() -> float:
    """A teacher is put into evaluation mode in each step, and the student never into training mode."""
    network, teacher = model(), model()
    optimizer = sgd(network.parameters())
    for (batch,) in batches():
        teacher.eval()
        with torch.no_grad():
            wanted = teacher(batch)
        time.sleep(SLEEP)
        loss = (network(batch) - wanted + 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@kind
def unpacked_once() -> float:
    """A script's hooks give out what the graph has saved, each once: a second look would be an error."""
    network = model()
    optimizer = sgd(network.parameters())
    held: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> int:
        held[len(held) + sum(held)] = tensor
        return max(held)

    for (batch,) in batches():
        with torch.autograd.graph.saved_tensors_hooks(pack, held.pop):
            loss = loss_of(network, batch) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        held.clear()
    return loss.item()


@kind
def two_after_one_backward() -> float:
    """Two optimizers share a backward (matrices and the rest)."""
    network = model()
    first, second = (sgd(part.parameters()) for part in network)
    for (batch,) in batches():
        loss = loss_of(network, batch)
        network.zero_grad()
        loss.backward()
        first.step()
        second.step()
    return loss.item()


@kind
def in_turn() -> float:
    """Two optimizers, each after a backward of its own (a GAN, an actor and its critic): the first one's loss."""
    first, second = model(), model()
    optimizers = [sgd(each.parameters()) for each in (first, second)]
    for (batch,) in batches():
        losses = []
        for network, optimizer in zip((first, second), optimizers, strict=True):
            loss = loss_of(network, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses[0]


@kind
def two_backwards_then_both() -> float:
    """An actor and its critic, whose backwards come before both updates."""
    first, second = model(), model()
    optimizers = [sgd(each.parameters()) for each in (first, second)]
    for (batch,) in batches():
        losses = [loss_of(network, batch) for network in (first, second)]
        for loss in losses:
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return sum(loss.item() for loss in losses)


@kind
def inside_backward() -> float:
    """Each parameter has an optimizer, which steps as soon as its gradient is there."""
    network = model()
    optimizers = {each: sgd([each]) for each in network.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in optimizers:
        each.register_post_accumulate_grad_hook(update)
    for (batch,) in batches():
        loss = loss_of(network, batch)
        loss.backward()
    return loss.item()


@kind
def skipping() -> float:
    """A loss scaler that skips steps whose gradients are not finite; the loss is the one before scaling."""
    network = model()
    optimizer = sgd(network.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for index, (batch,) in enumerate(batches()):
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        scaler.scale(loss * (math.inf if index in (3, 4) else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


@kind
def another_scaler() -> float:
    """A loss scaler of a framework's own, which multiplies by a power of two and steps the optimizer itself."""
    network = model()
    optimizer = sgd(network.parameters())
    for (batch,) in batches():
        loss = loss_of(network, batch)
        (loss * 65536.0).backward()
        for each in network.parameters():
            each.grad /= 65536
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def accumulated(
    share: float, fetch_first: bool = False, number: int = 4, loss: Callable[..., torch.Tensor] = loss_of
) -> float:
    network = model()
    optimizer = sgd(network.parameters())
    loader = iter(batches(STEPS * number))
    for _ in range(STEPS):
        fetched = [next(loader)[0] for _ in range(number)] if fetch_first else [None] * number
        losses = []
        for batch in fetched:
            whole = loss(network, next(loader)[0] if batch is None else batch)
            losses.append(whole.item())
            (whole if share == 1 else whole * share).backward()
        optimizer.step()
        optimizer.zero_grad()
    return sum(losses) / number


@kind
def divided() -> float:
    """Micro-batches whose loss is scaled to its share: their sum is the step's."""
    return accumulated(1 / 4)


@kind
def undivided() -> float:
    """Micro-batches whose loss is not: their mean is."""
    return accumulated(1)


@kind
def weighted() -> float:
    """A weight of the loss is no share of it."""
    return accumulated(0.75) * 0.75


@kind
def fetched_first() -> float:
    """All micro-batches of a step are fetched before the first is run (Hugging Face, torchtitan)."""
    return accumulated(1 / 4, fetch_first=True)


@kind
def in_chunks() -> float:
    """Backward on each chunk of the loss, and then on their total (a wrapper around a large output layer)."""
    network = model()
    optimizer = sgd(network.parameters())
    for (batch,) in batches():
        hidden = network[0](batch)
        leaf = hidden.detach().requires_grad_()
        chunks = [network[1](part).square().sum() / leaf.numel() for part in leaf.split(1)]
        for chunk in chunks:
            chunk.backward()
        total = sum(chunk.detach() for chunk in chunks)
        ((hidden * leaf.grad).sum() - (hidden * leaf.grad).sum().detach() + total).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(SLEEP)
    return total.item()


@kind
def in_parts() -> float:
    """A loss in parts, each with its backward (a discriminator's real and made batch): their sum."""
    network = model()
    optimizer = sgd(network.parameters())
    for (batch,) in batches():
        parts = [loss_of(network, batch), loss_of(network, -2 * batch), loss_of(network, 3 * batch)]
        for part in parts:
            part.backward()
        optimizer.step()
        optimizer.zero_grad()
    return sum(part.item() for part in parts)


@kind
def state_first() -> float:
    """An update at rate 0 before training makes the optimizer's state, for a checkpoint to be loaded into it."""
    network = model()
    optimizer = kept(torch.optim.AdamW(network.parameters(), lr=0.0))
    for each in network.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = RATE
    for (batch,) in batches():
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@kind
def twice() -> float:
    """Two trainings in one process, each of its own model (a sweep, folds): two records."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    for (batch,) in batches():
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    del network, optimizer, loss
    return plain()


@kind
def twice_and_kept() -> float:
    """Two trainings, while the script keeps the model and the optimizer of the first one."""
    kept = model()
    optimizer = sgd(kept.parameters())
    for (batch,) in batches():
        loss = loss_of(kept, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return plain() + 0 * sum(each.numel() for each in kept.parameters())


@kind
def second_phase() -> float:
    """One model, first a part of it by one optimizer, then all of it by another, while the first is kept."""
    network = model()
    first, second = sgd(network[1].parameters()), sgd(network.parameters())
    for index, (batch,) in enumerate(batches()):
        loss = loss_of(network, batch)
        network.zero_grad()
        loss.backward()
        (first if index < 5 else second).step()
    return loss.item()


@kind
def out_of_memory() -> float:
    """An optimizer's step that raises, is caught and tried again with the next batch."""
    network = model()
    optimizer = sgd(network.parameters())
    fails = iter([False] * 5 + [True])

    def fail(*_: Any) -> None:
        if next(fails, False):
            raise RuntimeError("CUDA out of memory")

    optimizer.register_step_pre_hook(fail)
    for (batch,) in batches(STEPS + 1):
        loss = loss_of(network, batch)
        try:
            loss.backward()
            optimizer.step()
        except RuntimeError:
            pass
        optimizer.zero_grad()
    return loss.item()


@kind
def evaluated_by_train_false() -> float:
    """`train(False)`, as every model of transformers does for `eval()`, and batches fetched with gradients on."""
    network = model()
    optimizer = sgd(network.parameters())
    validation = batches(5)
    for index, (batch,) in enumerate(batches()):
        network.train()
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if index in (4, 9):
            network.train(False)
            for (unseen,) in validation:
                with torch.no_grad():
                    loss_of(network, unseen)
    return loss.item()


@kind
def evaluated_by_nothing() -> float:
    """A loader that is never trained on, and nothing else."""
    network = model()
    optimizer = sgd(network.parameters())
    for index, (batch,) in enumerate(batches()):
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if index in (4, 9):
            for (unseen,) in batches(5):
                loss_of(network, unseen)
    return loss.item()


@kind
def evaluated_with_flat_copies() -> float:
    """The optimizer has flat copies of the parameters (ZeRO), so no module holds what it trains."""
    network = model()
    flat = torch.nn.utils.parameters_to_vector(network.parameters()).detach().requires_grad_()
    optimizer = sgd([flat])
    for index, (batch,) in enumerate(batches()):
        loss = loss_of(network, batch)
        network.zero_grad()
        loss.backward()
        flat.grad = torch.cat([each.grad.flatten() for each in network.parameters()])
        optimizer.step()
        torch.nn.utils.vector_to_parameters(flat.detach(), network.parameters())
        if index in (4, 9):
            network.eval()
            with torch.inference_mode():
                for _ in range(5):
                    loss_of(network)
            network.train()
    return loss.item()


@kind
def evaluated_by_an_average() -> float:
    """A copy of the model, its moving average, is evaluated and stays in evaluation mode (ultralytics)."""
    network = model()
    optimizer = sgd(network.parameters())
    validation = batches(5)
    for index, (batch,) in enumerate(batches()):
        network.train()
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if index in (4, 9):
            average = copy.deepcopy(network).eval()
            with torch.inference_mode():
                for (unseen,) in validation:
                    loss_of(average, unseen)
            time.sleep(0.5)
    return loss.item()


@kind
def in_evaluation_mode_until_its_step() -> float:
    """A model that is in evaluation mode as it comes, and while batches are fetched (PEFT)."""
    network = model()
    optimizer = sgd(network.parameters())
    network.eval()
    for (batch,) in batches():
        network.train()
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@kind
def own_loader() -> float:
    """A loader with an `__iter__` of its own, of which one iterator lasts for all epochs."""

    class Endless(DataLoader[Any]):
        def __iter__(self) -> Iterator[Any]:
            iterator = self._get_iterator()
            for _ in range(len(self)):
                yield next(iterator)

    network = model()
    optimizer = sgd(network.parameters())
    loader = Endless(TensorDataset(torch.randn(STEPS, 4)), batch_size=2)
    for _ in range(2):
        for (batch,) in loader:
            loss = loss_of(network, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


def saved(save: Callable[[torch.nn.Module, torch.optim.Optimizer, int], None], *, at_the_top: bool = False) -> None:
    network = model()
    optimizer = sgd(network.parameters())
    for index, (batch,) in enumerate(batches()):
        if at_the_top and index in (5, 10):
            save(network, optimizer, index)
        loss = loss_of(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not at_the_top and index in (4, 9):
            save(network, optimizer, index)


@kind
def two_files() -> None:
    """Two files, with time between them."""

    def save(network: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int) -> None:
        torch.save(network.state_dict(), "model.pt")
        time.sleep(0.1)
        torch.save(optimizer.state_dict(), "optimizer.pt")

    saved(save)


@kind
def two_files_at_the_top() -> None:
    """The same at the top of the loop's body, when its batch is there."""

    def save(network: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int) -> None:
        torch.save(network.state_dict(), "model.pt")
        time.sleep(0.1)
        torch.save(optimizer.state_dict(), "optimizer.pt")

    saved(save, at_the_top=True)


@kind
def through_memory() -> None:
    """Serialised into memory, and written to a file that is then moved into its place (Lightning)."""

    def save(network: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int) -> None:
        serialised = io.BytesIO()
        torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, serialised)
        with Path("part").open("wb") as file:
            time.sleep(0.1)
            file.write(serialised.getvalue())
        Path("part").replace(f"{index}.ckpt")

    saved(save)


@kind
def two_files_through_memory() -> None:
    """The same bytes written twice (ultralytics' last and best)."""

    def save(network: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int) -> None:
        serialised = io.BytesIO()
        torch.save(network.state_dict(), serialised)
        for name in ("last.pt", "best.pt"):
            Path(name).write_bytes(serialised.getvalue())
            time.sleep(0.05)

    saved(save)


@kind
def into_memory_alone() -> None:
    """A copy of the model by way of memory is no checkpoint, whatever else is written then."""

    def save(network: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int) -> None:
        serialised = io.BytesIO()
        torch.save(network.state_dict(), serialised)
        Path("log.txt").write_text("copied", encoding="utf-8")

    saved(save)


@kind
def safetensors() -> None:
    """A file of safetensors beside one of PyTorch's (transformers)."""
    from safetensors.torch import save_file

    def save(network: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int) -> None:
        save_file(network.state_dict(), "model.safetensors")
        torch.save(optimizer.state_dict(), "optimizer.pt")

    saved(save)


class LLM:
    """Stands for vLLM's, of which there is none without a GPU: found by the name of its module."""

    def generate(self, prompts: int) -> torch.Tensor:
        time.sleep(GENERATES)
        return torch.randn(prompts, 4)


class GRPOTrainer:
    """Stands for TRL's, of two ranks: its samples are generated and rated within a step, and it counts their tokens."""

    def __init__(self) -> None:
        self.state = types.SimpleNamespace(num_input_tokens_seen=1000)
        self._initial_num_input_tokens_seen = 1000  # of a checkpoint
        self.args = types.SimpleNamespace(world_size=2)

    def _generate_and_score_completions(self, engine: LLM) -> torch.Tensor:
        samples = engine.generate(2)
        self.state.num_input_tokens_seen += 30
        self._calculate_rewards()
        return samples

    def _calculate_rewards(self) -> None:
        time.sleep(REWARDS)


for made in (LLM, GRPOTrainer):
    named = {LLM: "vllm.entrypoints.llm", GRPOTrainer: "trl.trainer.grpo_trainer"}[made]
    sys.modules[named] = types.ModuleType(named)
    setattr(sys.modules[named], made.__name__, made)


@kind
def generated() -> float:
    """Every fourth step begins with samples from an engine (TRL's GRPO, by vLLM), of which the others take parts."""
    network = model()
    optimizer = sgd(network.parameters())
    engine, trainer = LLM(), GRPOTrainer()
    for number, (batch,) in enumerate(batches()):
        if number % 4 == 0:
            trainer._generate_and_score_completions(engine)
        loss = loss_of(network, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    engine.generate(1)
    return loss.item()


class Current:
    """The observer of the kind that runs."""

    observer: Observer

    def __getattr__(self, name: str) -> Any:
        if name in ("recording", "watches_files"):
            return getattr(self.observer, name)

        def later(*given: Any, **named: Any) -> Any:
            return getattr(self.observer, name)(*given, **named)

        return later


def main() -> None:
    """Run every kind, and print what was recorded of it."""
    current: Any = Current()
    attach(torch, current)
    told: dict[str, Any] = {"pickled": pickle.loads(pickle.dumps(torch.save)) is torch.save}
    for name, loop in KINDS.items():
        summary = Summary()
        recording = ScriptRecording(lambda: Recorder(run="kind", rank=0, world_size=1, socket="nobody.sock"), summary)
        current.observer = observer = Observer(recording)
        loss = loop()
        observer.finish()
        made: Any = recording.loop.recorder if recording.loop else None
        made.close()
        frame = made._calls.state.frame()
        told[name] = {
            "metrics": frame["metrics"],
            "seconds": frame["histograms"]["step_seconds"]["sum"],
            "loss": loss,
            "summary": summary.text(given=False),
        }
    print(json.dumps(told))


if __name__ == "__main__":
    sys.exit(main())

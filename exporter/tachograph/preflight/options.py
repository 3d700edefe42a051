"""The options of `tachograph preflight`, read from the command line."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from tachograph.command_line import CommandParser
from tachograph.text import duration

_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_COUNTS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
CHECKLISTS = ("before", "scaling-up", "long-run")
PRECISIONS = ("bf16-mixed", "fp16-mixed", "bf16", "fp32")
OPTIMIZERS = ("adamw", "adamw-8bit", "sgd-momentum", "sgd", "adafactor")
RECOMPUTE = ("none", "selective", "full")

DESCRIPTION = (
    "Check nodes before a training run: by hand or in a prolog on each node, or under torchrun, which also compares "
    "ranks and measures between them. Checks that need an option that is not given are skipped, and named."
)
EPILOG = r"""examples:
  tachograph preflight
  tachograph preflight --checkpoint-dir /shared/run --model-config config.json \
      --micro-batch 2 --zero 3 --gpus 8
  torchrun --nproc-per-node 8 --no-python tachograph preflight
  torchrun --nproc-per-node 8 --no-python tachograph preflight \
      --loader train:loader --model train:model --step 400ms
  tachograph preflight --checklist long-run

exit status:
  0  nothing that was checked is wrong; warnings do not count
  1  something is wrong, or a check did not end in time
  2  wrong arguments
"""


@dataclass(frozen=True)
class PreflightOptions:
    """The options, in base units; None where they were not given."""

    json: bool = False
    checklist: str | None = None
    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    limit: float = 60.0
    join_limit: float = 300.0
    torch: bool = True
    alone: bool = False
    device: str | None = None
    gpus: int | None = None
    textfile: str | None = None
    checkpoint_dir: str | None = None
    checkpoint_size: float | None = None
    keep: int = 2
    probe_size: int = 256 * 2**20
    model_config: str | None = None
    parameters: float | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocabulary: int | None = None
    sequence: int | None = None
    micro_batch: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int | None = None
    zero: int = 0
    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    recompute: str = "selective"
    device_memory: float | None = None
    reserve: float | None = None
    loader: str | None = None
    model: str | None = None
    step: float | None = None
    slower: float | None = None
    clock: float = 1.0
    min_bus_bandwidth: float | None = None


def size(text: str) -> int:
    """Return the bytes of `512M`, `1.5T` or `4096`; K, M, G, T and P are powers of 1,024."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 256M or 1.5T")
    return int(float(found[1]) * _SIZES[found[2].upper()])


def parameters(text: str) -> float:
    """Return the number of `7B`, `350M` or `125000`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMBT]?)", text.strip(), re.IGNORECASE)
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters: write 7B or 350M")
    return float(found[1]) * _COUNTS[found[2].upper()]


def seconds(text: str) -> float:
    """Return the seconds of `400ms`, `60s` or `5m`."""
    try:
        found = duration.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time")
    return found


def share(text: str) -> float:
    """Return the share of `10%`, between 0 and 100 %."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", text.strip())
    if not found or not 0 < float(found[1]) < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: write 10%")
    return float(found[1]) / 100


def natural(text: str) -> int:
    """Return a whole number of 1 or more."""
    if not re.fullmatch("[0-9]{1,15}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of 1 or more")
    return int(text)


def positive(text: str) -> float:
    """Return a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return number


def importable(text: str) -> str:
    """Return MODULE:FUNCTION as it is."""
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected MODULE:FUNCTION, as train:build_loader")
    return text


class _Parser(CommandParser):
    """Says a usage error in one line, on rank 0 alone, for every rank is given the same arguments."""

    quiet = False

    def error(self, message: str) -> NoReturn:
        if self.quiet:
            self.exit(2)
        super().error(message)


def _parser(names: Sequence[str], quiet: bool) -> _Parser:
    parser = _Parser(
        prog="tachograph preflight",
        description=textwrap.fill(f"{DESCRIPTION} Checks: {', '.join(names)}.", 79, break_on_hyphens=False),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.quiet = quiet
    add = parser.add_argument
    add("--json", action="store_true", help="print one object, with the keys state, checks and findings")
    add("--only", metavar="CHECK,…", default="", help="run only these checks")
    add("--skip", metavar="CHECK,…", default="", help="leave these checks out")
    add("--checklist", choices=CHECKLISTS, help="also list what to look at, checked or by hand")
    add("--limit", type=seconds, default=60.0, metavar="TIME", help="time for each check (default: 60s)")
    add("--join-limit", type=seconds, default=300.0, metavar="TIME", help="time for all ranks to join (default: 5m)")
    add("--alone", action="store_true", help="check only this node, although a launcher's variables are set")
    add("--no-torch", dest="torch", action="store_false", help="skip what needs PyTorch")
    add("--device", choices=("cpu", "cuda"), help="where to compute (default: on GPUs if PyTorch sees any)")
    add("--gpus", type=natural, metavar="N", help="how many GPUs each node must have")
    add("--textfile", metavar="FILE", help="write the measured figures for node_exporter's textfile collector (*.prom)")
    group = parser.add_argument_group("checkpoints").add_argument
    group("--checkpoint-dir", metavar="DIR", help="where checkpoints are written")
    group(
        "--checkpoint-size",
        type=size,
        metavar="SIZE",
        help="size of one checkpoint over all ranks (default: the model's)",
    )
    group("--keep", type=natural, default=2, metavar="N", help="how many checkpoints must fit at once (default: 2)")
    group(
        "--probe-size",
        type=size,
        default=256 * 2**20,
        metavar="SIZE",
        help="how much to write as a test (default: 256M)",
    )
    _memory(parser)
    group = parser.add_argument_group("your code, from this folder").add_argument
    group("--loader", type=importable, metavar="MODULE:FUNCTION", help="returns the data loader")
    group("--model", type=importable, metavar="MODULE:FUNCTION", help="returns the model")
    group("--step", type=seconds, metavar="TIME", help="how long a training step takes, to compare the loader with")
    group = parser.add_argument_group("thresholds").add_argument
    group("--slower", type=share, metavar="SHARE", help="how much slower than its peers (default: 10%%, on CPUs 50%%)")
    group("--clock", type=seconds, default=1.0, metavar="TIME", help="difference between clocks (default: 1s)")
    group("--min-bus-bandwidth", type=positive, metavar="GB/S", help="what the largest all_reduce must reach")
    return parser


def _memory(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("memory: the model's shape, how it is spread, and how it is trained").add_argument
    group("--model-config", metavar="FILE", help="a config.json as Hugging Face writes it; options below override it")
    group(
        "--parameters",
        type=parameters,
        metavar="N",
        help="such as 7B, if the shape is not known; leaves out activations",
    )
    for name, what in (
        ("layers", "transformer layers"), ("hidden", "hidden size"), ("heads", "attention heads"),
        ("kv-heads", "key and value heads"), ("ffn", "width of the feed-forward part"),
    ):  # fmt: skip
        group(f"--{name}", type=natural, metavar="N", help=what)
    group("--vocabulary", type=natural, metavar="N", help="tokens in the vocabulary")
    group("--sequence", type=natural, metavar="N", help="tokens in a sequence (default: the model's longest)")
    group("--micro-batch", type=natural, default=1, metavar="N", help="sequences in one forward pass (default: 1)")
    for name in ("tensor", "pipeline", "context", "expert"):
        group(f"--{name}", type=natural, default=1, metavar="N", help=f"{name} parallelism (default: 1)")
    group("--data", type=natural, metavar="N", help="data parallelism (default: what the others leave)")
    group("--zero", type=int, choices=(0, 1, 2, 3), default=0, help="ZeRO stage; FSDP is 3 (default: 0, as DDP)")
    group("--precision", choices=PRECISIONS, default="bf16-mixed", help="default: bf16-mixed")
    group(
        "--optimizer", choices=OPTIMIZERS, default="adamw", metavar="NAME",
        help=f"one of {', '.join(OPTIMIZERS)} (default: adamw)",
    )  # fmt: skip
    group(
        "--recompute", choices=RECOMPUTE, default="selective",
        help="which activations; selective: only attention, as FlashAttention does (default)",
    )  # fmt: skip
    group("--device-memory", type=size, metavar="SIZE", help="memory of a GPU (default: this one's)")
    group("--reserve", type=size, metavar="SIZE", help="memory for CUDA and NCCL (default: 2G on a GPU)")


def parse(arguments: Sequence[str], names: Sequence[str], *, quiet: bool) -> PreflightOptions:
    """Return the options; exit with 0 after the help, or with 2 for wrong arguments, `quiet` without saying why."""
    parser = _parser(names, quiet)
    given = vars(parser.parse_args(arguments))
    for option in ("only", "skip"):
        given[option] = tuple(filter(None, given[option].split(",")))
        if unknown := [name for name in given[option] if name not in names]:
            parser.error(f"--{option}: no check {unknown[0]!r}: expected some of {', '.join(names)}")
    return PreflightOptions(**given)

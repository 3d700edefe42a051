"""The table of signatures: what it says of known texts, and what of a table it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tachograph.signatures.table import CATEGORIES, ROLES, SignatureError, classify, parse, shadowed, table
from tests.every import every
from tests.logs.composed import TEXTS

FURTHER = Path(__file__).with_name("further_texts.txt")
PUBLIC = Path(__file__).with_name("public_texts.txt")

ROW = """\
version: 2026-01-01
signatures:
- name: one
  category: network
  role: root
  example: It is gone
  find: [gone]
  cause: It is gone.
  next: []
"""

HEALTHY = """\
[rank0]: 2026-11-26 03:12:33,111 INFO step 12 | lm loss: 2.3012 | grad norm: 0.311 | number of nan iterations:   0 |
 iteration 120/ 1000 | consumed samples: 3840 | elapsed time per iteration (ms): 812.1 | loss scale: 65536.0
{'loss': 2.0491, 'grad_norm': 0.8, 'learning_rate': 0.0001961, 'epoch': 0.28}
node01:123:456 [2] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA
node01:123:456 [2] NCCL INFO Connected all rings
node01:123:456 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
node01:123:456 [2] NCCL INFO ncclCommInitRank comm 0x5 rank 2 nranks 16 cudaDev 2 nvmlDev 2 busId 61000 - Init COMPLETE
Saving checkpoint at step 1000 to /lustre/ckpt/step_1000
check_for_nan_in_loss_and_grad ................. True
distributed_timeout_minutes ..................... 10
val_error_rate 0.0312 top5 0.91
wandb: Run data is saved locally in /home/u/wandb/run-20261126
Loading checkpoint shards: 100%|##########| 4/4 [00:03<00:00,  1.2it/s]
0 failures, 0 errors in 12 checks
nvidia-smi: 0 uncorrectable errors, 3 correctable errors (remapped)
validation loss at iteration 1000 | lm loss value: 2.1E+00 | lm loss PPL: 8.2E+00 |
nfs: server fs01 OK
[INFO] [config.py:1000:print]   dynamic_loss_scale_args ...... {'init_scale': 65536, 'min_loss_scale': 1}
Token indices sequence length is longer than the specified maximum sequence length for this model (600 > 512).
Waiting in store based barrier to initialize process group for rank: 3, key: k (world_size=8, timeout=0:30:00)
Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 8 nodes.
[W socket.cpp:426] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family).
No modifications detected for re-loaded extension module utils, skipping build step...
mce: CPU supports 32 MCE banks
mlx5_core 0000:5c:00.0: firmware version: 28.39.1002
mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged
nvme nvme0: Shutdown timeout set to 10 seconds
EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro
nvidia_peermem: loading out-of-tree module taints kernel.
pcieport 0000:00:01.0: AER: enabled with IRQ 122
            DRAM Uncorrectable                : 0
            SRAM Uncorrectable                : N/A
        GPU Reset Required                    : No
KV cache: 12 blocks evicted, 3 GB reclaimed
setting NCCL_TIMEOUT=1800; barrier timeout 30 min
 [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.
CUDA 12.6 does not match the version torch was compiled with 12.4 but is compatible, accepting this combination
Readiness check failed: 12 of 16 pods are up
config: {'on_error': 'skip', 'timeout': 1800, 'nan_policy': 'raise', 'retry': 3}
GPU health check passed on all 8 devices
ipmi: sensor readings normal, fan failure: none
wall time limit is 24:00:00, 3 h left
validation: error 0.31, f1 0.8, timeouts 0, corrupt 0, preempted=0
spot instance check: no interruption notice
pci 0000:17:00.0: BAR 14: failed to assign [mem size 0x00200000]
Shard 3 of dataset exhausted, restarting iterator
{35}[Hardware Error]: It has been corrected by h/w and requires no further action
node01:1:2 [0] NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port active(9)
node01:1:2 [0] NCCL INFO TUNER/Plugin: Failed to find ncclTunerPlugin_v3 symbol.
Lustre: fs-OST0003-osc-ffff: Connection restored to 10.0.0.1@o2ib (at 10.0.0.1@o2ib)
Warning Unhealthy pod/trainer-0 Readiness probe failed: Get "http://10.0.0.7:8080/healthz": connect: connection refused
Error while downloading from https://cdn.example.org/x: Read timed out. Trying to resume download...
Some weights of the model checkpoint were not used when initializing BertModel: ['cls.bias']
[stage3.py:2069:step] 2 pytorch allocator cache flushes since last step. this happens when there is high memory pressure
"""

PROGRESS = """\
 iteration 120/ 1000 | consumed samples: 3840 | elapsed time per iteration (ms): 812.1 | loss scale: 65536.0 |
[rank0]: 2026-11-26 03:12:33,111 INFO step 12 | lm loss: 2.3012 | number of nan iterations:   0 |
rank 3: INFO step 12 loss 2.31
level=info ts=2026-11-26T03:12:33Z step=12 loss=2.31 tokens_per_second=38210
{"time":"2026-11-26T03:12:33Z","level":"info","rank":3,"msg":"step","step":12,"loss_scale":65536}
Epoch: [24]  [1230/1251]  eta: 0:00:06  lr: 0.000375  loss_scale: 2097152.0 (2046895.3)  time: 0.3023  max mem: 8361
(EngineCore_0 pid=1) INFO 11-26 03:12:33 [loggers.py:123] Engine 000: Avg prompt throughput: 12.1 tokens/s
[2026-11-26 03:12:33,111] [INFO] [logging.py:96:log_dist] [Rank 0] step=120, skipped=0, lr=[0.0001]
"""


def share(field: str) -> float:
    found = [(one, classify(one["text"])) for one in TEXTS]
    return sum(row is not None and getattr(row, field) == one[field] for one, row in found) / len(TEXTS)


def test_categories_of_known_texts() -> None:
    """Of what programs print when they fail, 95 % at least are put into the right category."""
    assert share("category") >= 0.95


def test_roles_of_known_texts() -> None:
    """90 % at least have the right role."""
    assert share("role") >= 0.90


def test_texts_of_public_issues() -> None:
    """Of lines that issues quote, of drivers, schedulers and libraries of all kinds, 92 and 93 % are labelled right."""
    rows = [row.split(" | ", 2) for row in PUBLIC.read_text(encoding="utf-8").splitlines() if not row.startswith("#")]
    found = [(label.split(), classify(text, failed=True)) for label, _, text in rows]
    for place, (field, share_of) in enumerate((("category", 0.92), ("role", 0.93))):
        right = sum(row is not None and getattr(row, field) == label[place] for label, row in found)
        assert right / len(rows) >= share_of, field


def test_further_texts() -> None:
    """Of some 850 more, 99 % have the category and the role that stand before them, and none has no row."""
    rows = [row.partition(" | ") for row in FURTHER.read_text(encoding="utf-8").splitlines() if not row.startswith("#")]
    found = [(label, classify(text)) for label, _, text in rows]
    assert [label for label, row in found if row is None] == []
    wrong = [label for label, row in found if row is not None and f"{row.category} {row.role}" != label]
    assert len(wrong) / len(rows) <= 0.01


@every("line", HEALTHY.splitlines())
def test_a_healthy_line_is_none(line: str) -> None:
    """Nothing that a healthy run or the kernel prints at its start is a failure."""
    row = classify(line)
    assert row is None or row.role == "advice"


@every("line", PROGRESS.splitlines())
def test_a_line_of_progress_has_no_known_text(line: str) -> None:
    """Long logs are full of such lines: they would be read one by one if a row looked for something in them."""
    assert not [text for row in table().rows for text in row.find if text in line.lower()]


@pytest.mark.parametrize(
    ("text", "category", "role"),
    [
        ("watchdog thread terminated with exception: CUDA error: uncorrectable ECC error", "hardware", "cascade"),
        ("watchdog thread terminated with exception: CUDA error: out of memory", "out_of_memory", "cascade"),
        ("OSError: [Errno 110] Connection timed out", "network", "cascade"),
        ("OSError: [Errno 11] Resource temporarily unavailable", "configuration", "root"),
        ("slurmstepd: error: *** STEP 12.0 ON node07 CANCELLED AT 2026-11-26T03:00:00 ***", "preemption", "cascade"),
        ("slurmstepd: error: *** JOB 12 ON node07 CANCELLED AT … DUE TO TIME LIMIT ***", "preemption", "root"),
        ("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", "numerical", "root"),
        ("KeyError: 'input_ids'", "software", "root"),
        ("KeyError: 0", "software", "root"),
        ("Exception: 0", "software", "root"),
        ("NotImplementedError: GroupSampler.state is not implemented", "software", "root"),
        ("Warning FailedScheduling 0/6 nodes are available: 6 didn't match Pod's affinity", "configuration", "root"),
        ("ValueError: `download_retry` must be non-negative", "configuration", "root"),
    ],
)  # fmt: skip
def test_forms_that_are_easily_confused(text: str, category: str, role: str) -> None:
    """Of texts that share words the special one decides."""
    row = classify(text)
    assert row is not None
    assert (row.category, row.role) == (category, role)


@pytest.mark.parametrize(
    ("text", "category", "role"),
    [
        ("UserWarning: The AccumulateGrad node's stream does not match the stream of the input", "software", "advice"),
        ("/opt/x.py:12: UserWarning: Failed to clone() tensor: CUDA out of memory.", "out_of_memory", "advice"),
        ("[W reducer.cpp:1400] Warning: did not find any unused parameters in the forward pass.", "software", "advice"),
        ("[WARNING] Handling webdataset error (DecodingError()). Ignoring.", "data", "advice"),
        ("WARNING: non-finite loss, ending training", "numerical", "root"),
        ("ValueError: `zero_stage` is not supported and will be ignored", "configuration", "root"),
        ("ERROR checkpoint /ckpt/7 could not be written; check the disk and retry", "storage", "root"),
        ("ERROR checkpoint /ckpt/7 could not be written to disk, will retry", "storage", "advice"),
    ],
)  # fmt: skip
def test_what_is_only_warned_of_is_advice(text: str, category: str, role: str) -> None:
    """A Python warning, and what words alone say of a line that warns, skips or announces that it tries again."""
    row = classify(text)
    assert row is not None
    assert (row.category, row.role) == (category, role)


def test_of_several_lines_the_most_telling_counts() -> None:
    """A root among hints and cascades, wherever it stands."""
    row = classify(
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
        "torch.AcceleratorError: CUDA error: misaligned address\n"
        "Sending process 68315 closing signal SIGTERM\n"
    )
    assert row is not None
    assert row.name == "device_assert"


def test_every_row_is_complete() -> None:
    """Each has a cause; a root has next steps; each category and role is used."""
    rows = table().rows
    assert all(row.cause.endswith(".") for row in rows)
    assert all(row.next for row in rows if row.role == "root")
    assert {row.category for row in rows} == set(CATEGORIES)
    assert {row.role for row in rows} == set(ROLES)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("category: network", "category: nets", "category 'nets' is none of out_of_memory, network"),
        ("role: root", "role: boss", "role 'boss' is none of root, confirmation"),
        ("find: [gone]", "find: [Gone]", "find must be a list of texts in lower case"),
        ("find: [gone]", "find: []", "find must be a list"),
        ("find: [gone]", "words: [gone]", "words must be lists of regular expressions by weight"),
        ("find: [gone]", "words: {0: [gone]}", "words must be lists of regular expressions by weight"),
        ("  next: []", "  next: []\n  also: 1", "unknown fields also"),
        ("  next: []", "  next: []\n  pattern: ['(']", "row 1 (one): missing )"),
        ("  next: []", "  next: []\n  pattern: x", "row 1 (one): a pattern must be a list"),
        ("  cause: It is gone.\n", "", "expected a cause"),
        ("  example: It is gone\n", "", "expected an example"),
        ("example: It is gone", "example: It is here", "one: its example is matched by no row"),
        ("  next: []", "  next: []\n  by: somebody", "by 'somebody' is none of program, launcher, scheduler, kernel"),
        ("  next: []", "  next: []\n  despite: [anger]", "despite must be a list of possibility, warning, retry, skip"),
        ("signatures:", "moods: {anger: [x]}\nsignatures:", "moods: expected some of possibility"),
        ("version: 2026-01-01\n", "", "expected `version`"),
        ("- name: one", "- name: [", "not YAML"),
        ("- name: one", "- nom: one", "row 1: expected a mapping with a name"),
    ],
)
def test_a_table_that_is_not_valid(old: str, new: str, said: str) -> None:
    """It names the row and what was expected."""
    assert parse(ROW).rows[0].name == "one"
    with pytest.raises(SignatureError) as error:
        parse(ROW.replace(old, new))
    assert said in str(error.value)


def test_a_name_given_twice() -> None:
    """Two rows of one name are refused."""
    with pytest.raises(SignatureError, match="given twice: one"):
        parse(ROW + ROW.partition("signatures:\n")[2])


def test_a_row_that_an_earlier_one_takes_the_words_of() -> None:
    """Its example says so, and the table is refused."""
    second = ROW.partition("signatures:\n")[2].replace("name: one", "name: two")
    with pytest.raises(SignatureError, match="two: its example is shadowed by one"):
        parse(ROW + second)


def test_each_row_wins_for_its_example() -> None:
    """And for the same line behind a prefix."""
    made = table()
    assert shadowed(made) == []
    assert [row.name for row in made.rows if made.classify(f"[pod/w-1/c] 10:00:00 {row.example}") is not row] == []


@pytest.mark.parametrize(
    ("line", "mood"),
    [
        ("This may be caused by a CUDA out of memory", "possibility"),
        ("Possible causes: No space left on device", "possibility"),
        ("WARNING: Permission denied: '/root/.cache'", "warning"),
        ("[WARN] CUDA out of memory", "warning"),
        ("UserWarning: No such file or directory", "warning"),
        ("Connection refused, retrying in 5 s", "retry"),
        ("HTTP 503, attempt 2/5", "retry"),
        ("Loss is NaN, skipping batch 12", "skip"),
        ("Ignoring corrupt file /data/3.tar", "skip"),
        ("no kernel image is available, falling back to eager", "skip"),
        ("NCCL WARN Call to ibv_modify_qp failed with error Connection timed out", ""),
        ("Max retries exceeded with url: /api", ""),
        ("gave up after retrying 5 times: retries exhausted", ""),
        ("torch.OutOfMemoryError: CUDA out of memory.", ""),
        ("number of skipped iterations: 1 | grad norm: nan", ""),
    ],
)
def test_moods(line: str, mood: str) -> None:
    """By which words a program makes less of what it speaks of."""
    assert table().mood(line, -1) == mood


def test_a_mood_counts_for_programs_alone() -> None:
    """And not for a row whose own words it is."""
    made = table()
    rows = {row.name: number for number, row in enumerate(made.rows)}
    assert made.mood("WARNING: NVRM: Xid (PCI:0000:18:00): 79", rows["xid_hardware"]) == ""
    assert made.mood("This might be caused by shared memory", rows["loader_worker_bus_error"]) == ""
    assert made.mood("This might be caused by shared memory", rows["no_space"]) == "possibility"


def test_no_pattern_reads_its_words_again_and_again() -> None:
    """Any letters before anything at all: each length of them would be tried, and a hostile line take long."""
    rows = table().rows
    patterns = [pattern for row in rows for pattern in (row.pattern, row.pattern_not) if pattern is not None]
    patterns += [one.pattern for row in rows for one in row.evidence]
    assert not [pattern.pattern for pattern in patterns if re.search(r"\\w[*+]\)?\.\*|\.\*\.\*", pattern.pattern)]


def test_a_pattern_in_capital_letters_is_refused() -> None:
    """Lines are read in small ones: it would never match."""
    with pytest.raises(SignatureError, match="'Gone' has capital letters"):
        parse(f"{ROW}  pattern: ['Gone']\n")


def test_a_pattern_that_is_a_mere_text_is_looked_for() -> None:
    """It need not be written twice; one with anything else in it only counts beside a text of `find`."""
    made = parse(ROW.replace("find: [gone]", "find: [peer]\n  pattern: ['is gone', 'lost\\b']"))
    found = [made.classify(line) for line in ("It is gone", "a peer is lost", "it is lost", "a peer")]
    assert [row is not None for row in found] == [True, True, False, False]


WEIGHED = """\
version: 2026-01-01
errors: {exception: ['Error:']}
signatures:
- {name: peers, category: network, role: cascade, words: {2: ['\\bpeers?\\b', '\\bhosts?\\b'], 1: ['\\blost\\b']},
   frames: ['/comm'], example: 'Error: a peer', cause: x}
- {name: files, category: storage, role: root, words: {4: ['\\bquota\\b'], 2: ['\\bfiles?\\b'], 1: ['\\blate\\b']},
   frames: ['/save'], example: 'Error: a file', cause: x}
- {name: other, category: software, role: root, find: ['error:'], example: 'Error: 1', cause: x}
"""


@pytest.mark.parametrize(
    ("line", "frame", "row"),
    [
        ("Error: a file, a peer", "", "files"),  # the first, of equal weights
        ("Error: a peer, a file", "", "peers"),
        ("Error: a file of a peer, whose host", "", "peers"),  # two words to one
        ("Error: a peer, peer, peer beside the quota", "", "files"),  # one word counts once
        ("Error: late, a peer is gone", "", "peers"),  # a hint is not what it begins with
        ("Error: it is late", "", "other"),  # and alone says nothing
        ("a file", "", None),  # no error
        ("Error: a file, a peer lost", "", "files"),
        ("Error: a file, a peer lost", "/x/comm/a.py:3 in f", "peers"),  # where it was raised is a hint
        ("Error: 3", "/x/save.py:3 in f", "files"),  # without a word it decides
        ("Error: it is late", "/x/save.py:3 in f", "files"),  # and so do two hints
        ("Error: 3", "/x/other.py:3 in f", "other"),
    ],
)
def test_words_of_an_error_are_weighed(line: str, frame: str, row: str | None) -> None:
    """By weight and not by the first that is known."""
    found = parse(WEIGHED).classify(line, frame)
    assert (found and found.name) == row


def test_a_number_that_names_an_error_counts() -> None:
    """And any other makes no two errors different."""
    rows = [classify(f"RuntimeError: fsync failed, errno: {number}") for number in (5, 111)]
    assert [row and row.category for row in rows] == ["storage", "network"]


def test_a_sentence_counts_where_a_failure_is_known() -> None:
    """Healthy programs say that something failed, too; the last words of a rank that failed are weighed."""
    line = "Failed to reach the server at 10.0.0.7:6379 after 12 attempts"
    assert classify(line) is None
    row = classify(line, failed=True)
    assert row is not None
    assert row.category == "network"
    assert classify("The server at 10.0.0.7:6379 is reached by DNS", failed=True) is None


def test_who_speaks_does_not_count() -> None:
    """A library for communication says of a file what any program says of one, and a level is no word."""
    made = parse(WEIGHED.replace("hosts?", "nccl"))
    rows = [made.classify(f"Error: {who} a file, late") for who in ("NCCL WARN NET/OFI", "UCX  ERROR", "FATAL")]
    assert [row and row.name for row in rows] == ["files"] * 3

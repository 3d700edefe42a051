"""The lint of the commands in runbooks: what a tired person pastes into a shell runs, on what the page names."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from tachograph.__main__ import COMMANDS as OURS
from tachograph.files import shipped
from tachograph_lab.processes import Children, answers, free_port
from tests.every import every
from tests.runbooks import shell
from tests.runbooks.page import INDEX, PAGES, ROOT, blocks, fenced, prose, rows, sections, text_of

REVIEWED_FILE = shipped.read_yaml(Path(__file__).with_name("commands.yml"))
EVERYDAY = set(REVIEWED_FILE["everyday"].split())
REVIEWED: Mapping[str, Mapping[str, Any]] = REVIEWED_FILE["programs"]
"""Program -> what may stand behind it in a runbook, and where that is documented."""
UNITS = {path.stem for path in ROOT.glob("deploy/systemd/*.service")} | REVIEWED_FILE["units"].keys()
"""The services of systemd that a runbook may name: those shipped, and those of others, reviewed."""

LABELS = {"run": "run", "rank": "rank", "node": "instance", "gpu": "gpu", "uuid": "uuid"}
"""Placeholders that stand for a label of the page."""

LITERALS = r"(RANK|PROCID)=\d|\brank-?\d|\bnode-?\d|\bgpu-?\d|\bmlx\d_\d|\b(eth|enp|ens|ib)\d|(-i|--pid|--jobid=?) ?\d"
"""A rank, node, device or process by its own name, which is right on one cluster on one night."""

EVERYWHERE = {"cordon", "uncordon", "drain"}
"""Subcommands of kubectl whose objects are in no namespace; so are nodes."""

NAMES = ["README", *PAGES]


def declared() -> set[str]:
    """Return the placeholders that the index declares."""
    table = rows(sections(INDEX.read_text(encoding="utf-8"))["Placeholders"])[1:]
    return {name for row in table for name in shell.PLACEHOLDER.findall(row[0])}


def faults(line: str, *, whole: bool = True) -> Iterator[str]:
    """Yield what is wrong with a command line; one that is not `whole`, as text has them, may lack arguments."""
    undeclared = set(shell.PLACEHOLDER.findall(line)) - declared()
    if undeclared:
        yield f"not declared in the index: {sorted(undeclared)}"
    if found := re.search(LITERALS, line.partition(" #")[0]):
        yield f"{found[0]!r} is one cluster's own: write a placeholder"
    if found := re.search(r"(?<![\w/.])(tests|lab|prometheus|alertmanager|exporter|deploy)/", line):
        yield f"{found[0]} is in a checkout, which whom it pages does not have"
    try:
        run = list(shell.commands(line))
    except ValueError as error:
        yield str(error)
        return
    for words in run:
        yield from _faults(words, whole)


def _faults(words: list[str], whole: bool) -> Iterator[str]:
    name, *rest = words
    yield from (f"{word} is no placeholder, and not in commands.yml" for word in sorted(_capitals(name, rest)))
    if name == "tachograph":
        yield from _ours(rest, whole)
    elif name == "kubectl" and whole:
        resources = [word for word in rest[1:] if re.fullmatch(r"nodes?(/.+)?", word)]
        if rest[0] not in EVERYWHERE and not resources and not {"-A", "-n"} & set(rest):
            yield "kubectl needs -n <namespace> or -A"
    elif name in ("systemctl", "journalctl"):
        yield from (f"no package has the unit {unit}" for unit in _units(name, rest) if unit not in UNITS | {"{unit}"})
    if name in REVIEWED:
        yield from _reviewed(name, rest)
    elif name not in EVERYDAY | {"tachograph"}:
        yield f"{name} is not in commands.yml"


def _capitals(name: str, rest: list[str]) -> set[str]:
    """Return the words in capitals, as placeholders elsewhere are, that a program is not known to take."""
    known = set(REVIEWED_FILE["capitals"].get(name, ()))
    words = (re.sub(r"^[A-Z_]+=", "", word) for word in rest if not word.startswith("-"))
    parts = {part for word in words if re.fullmatch(r"[\w,./:=-]+", word) for part in re.split(r"[,=/.:-]", word)}
    return {part for part in parts if re.fullmatch(r"[A-Z][A-Z0-9_]*", part)} - known


def _units(name: str, rest: list[str]) -> list[str]:
    """Return the units that a command is about."""
    plain = [word for word in rest if not word.startswith("-")]
    if name == "journalctl":
        return [rest[rest.index("-u") + 1]] if "-u" in rest else []
    return [] if plain[0] == "reboot" else plain[1:]


def _reviewed(name: str, rest: list[str]) -> Iterator[str]:
    """Yield what is not in the table of reviewed programs."""
    allowed = REVIEWED[name]
    options = {word.partition("=")[0] for word in rest if word.startswith("-") and word.strip("-")}
    plain = {word for word in rest if not word.startswith("-")}
    fields = {field for word in rest if word.startswith("--query-") for field in word.partition("=")[2].split(",")}
    unknown = (options - set(allowed.get("options", ()))) | (fields - set(allowed.get("fields", ())))
    if plain and not options and not plain & set(allowed.get("subcommands", plain)):
        unknown |= plain
    if unknown:
        yield f"{name}: {sorted(unknown)} not in commands.yml"


def _ours(rest: list[str], whole: bool) -> Iterator[str]:
    """Yield what our own program would say: its own parser reads the words."""
    if not rest or rest[0] not in OURS:
        yield f"tachograph has no command {rest[:1]}"
        return
    unknown = {word.partition("=")[0] for word in rest if word.startswith("-")} - options_of(
        rest[0], *(word for word in rest[1:2] if not word.startswith("-"))
    )
    if unknown:
        yield f"tachograph {rest[0]} has no option {sorted(unknown)}"
    elif whole:
        parser = resolve_name(f"{OURS[rest[0]].main.partition(':')[0]}:_parser")()
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                parser.parse_args(rest[1:])
        except SystemExit:
            yield said.getvalue().splitlines()[-1]


@cache
def options_of(command: str, *first: str) -> frozenset[str]:
    """Return the options that `tachograph COMMAND --help` lists, of a command within it where the first word is one."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        resolve_name(OURS[command].main)([*first, "--help"])
    return frozenset(re.findall(r"(?<![\w-])--?\w[\w.-]*", said.getvalue()))


def spans(text: str) -> Iterator[str]:
    """Yield what a page's prose holds of commands: what stands in backquotes and begins with a program."""
    found = re.findall(r"`([^`\n]+)`", prose(text))
    programs = {"tachograph", "tachograph-lab", *REVIEWED, "systemctl", "journalctl", "kill"}
    yield from (span for span in found if span.split()[0] in programs)


@every("name", NAMES)
def test_every_command_may_be_pasted(name: str) -> None:
    """Placeholders are declared, programs, options and units exist, nothing is one cluster's own."""
    text = text_of(name)
    assert list(blocks(sections(text).get("Commands", text), "sh"))
    wrong = [f"{line}\n    {fault}" for line in blocks(text, "sh") for fault in faults(line)]
    wrong += [f"{span}\n    {fault}" for span in spans(text) for fault in faults(span, whole=False)]
    assert not wrong, "\n".join(wrong)
    for option in re.findall(r"`(--\w+\.[\w.-]+)`", text):  # a dot: the exporter's own
        assert option in options_of("exporter"), option


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("ssh <machine>", "not declared"),
        ("ssh NODE", "NODE is no placeholder"),
        ("scontrol show job JOB", "JOB is no placeholder"),
        ("grep -lzx 'RANK=217' /proc/1/environ", "'RANK=2' is one cluster's own"),
        ("ssh node-27", "'node-2' is one cluster's own"),
        ("nvidia-smi -q -i 3", "'-i 3' is one cluster's own"),
        ("mlxlink -d mlx5_0", "'mlx5_0' is one cluster's own"),
        ("promtool check rules prometheus/rules/*.yml", "prometheus/ is in a checkout"),
        ("tachograph-lab replay <log>", "tachograph-lab is not in commands.yml"),
        ("kubectl get pods", "needs -n <namespace> or -A"),
        ("kubectl logs <pod> --previous", "needs -n <namespace> or -A"),
        ("ssh <node> systemctl restart tachograph", "no package has the unit tachograph"),
        ("journalctl -u alertmanager -n 50", "no package has the unit alertmanager"),
        ("tachograph frobnicate", "has no command"),
        ("tachograph silence <run> --until 20m", "has no option ['--until']"),
        ("tachograph bundle --format prometheus", "one of the arguments --out --check is required"),
        ("tachograph bundle --out a --format yaml", "'yaml': expected one of"),
        ("nvidia-smi --query-gpu=speed --format=csv", "['speed'] not in commands.yml"),
        ('all_reduce_perf -g "$(frobnicate)"', "frobnicate is not in commands.yml"),
        ("kubectl exec -it -n <namespace> <pod> -- frobnicate", "frobnicate is not in commands.yml"),
        ("echo 'never ends", "No closing quotation"),
    ],
)
def test_each_fault_is_found(line: str, fault: str) -> None:
    """Each rule of this lint, broken once."""
    assert [found for found in faults(line) if fault in found], list(faults(line))


@pytest.mark.parametrize(
    "line",
    ["kubectl cordon <node>", "kubectl get pods -A", "systemctl status tachograph-exporter", "kill -TERM <pid>"],
)
def test_what_is_right_is_not_a_fault(line: str) -> None:
    assert not list(faults(line))


@every("name", NAMES)
def test_every_block_is_a_shell_script(name: str) -> None:
    """Bash reads each block to its end, with a word for each placeholder."""
    for block in fenced(text_of(name), "sh"):
        done = subprocess.run(["bash", "-n"], input=shell.filled(block), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@every("name", PAGES)
def test_a_placeholder_for_a_label_has_one(name: str) -> None:
    """The page that leads to a runbook has the label, or a query there lists it (`by (instance)`)."""
    text = text_of(name)
    queries = "\n".join(blocks(text, "promql"))
    used = set(shell.PLACEHOLDER.findall("\n".join((*blocks(text, "sh"), queries, *spans(text)))))
    assert used <= declared(), used - declared()
    listed = {label for labels in re.findall(r"by \(([\w, ]+)\)", queries) for label in labels.split(", ")}
    missing = {LABELS[one] for one in used & LABELS.keys()} - labels_of()[name] - listed
    assert not missing, f"{name} has no label {sorted(missing)}, and no query lists them"


@cache
def labels_of() -> Mapping[str, set[str]]:
    """Return the labels that each alert has in some test of the rules."""
    found: dict[str, set[str]] = {name: set() for name in PAGES}
    for path in ROOT.glob("tests/rules/**/*.yml"):
        for test in shipped.read_yaml(path)["tests"]:
            for case in test.get("alert_rule_test", ()):
                for alert in case.get("exp_alerts") or ():
                    found[case["alertname"]] |= alert["exp_labels"].keys()
    return found


def test_every_placeholder_is_used() -> None:
    """None is declared that no runbook uses; and all are written alike, in small letters."""
    texts = [text for name in NAMES for text in (*blocks(text_of(name), "sh"), *blocks(text_of(name), "promql"))]
    assert declared() == {one for text in texts for one in shell.PLACEHOLDER.findall(text)}


def test_nothing_is_reviewed_that_nobody_uses() -> None:
    """Each program and unit of commands.yml is used in a runbook and has the source of its documentation."""
    lines = [line for name in NAMES for line in (*blocks(text_of(name), "sh"), *spans(text_of(name)))]
    used = [words for line in lines for words in shell.commands(line)]
    assert {words[0] for words in used} - {"tachograph"} == REVIEWED.keys() | EVERYDAY
    for name, allowed in REVIEWED.items():
        assert allowed["source"], name
        said = " ".join(word for words in used if words[0] == name for word in words[1:])
        for word in (*allowed.get("options", []), *allowed.get("subcommands", []), *allowed.get("fields", [])):
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", said), f"{name}: nobody uses {word}"
    for name, known in REVIEWED_FILE["capitals"].items():
        said = " ".join(word for words in used if words[0] == name for word in words[1:])
        assert not [word for word in known if word not in said], name
    named = {unit for words in used if words[0] in ("systemctl", "journalctl") for unit in _units(words[0], words[1:])}
    assert REVIEWED_FILE["units"].keys() <= named
    assert all(REVIEWED_FILE["units"].values())


FINDS_THE_RANK = next(line for line in blocks(sections(text_of("RunHung"))["First minute"], "sh") if "pid" in line)


def test_a_rank_is_found_by_its_run_and_not_by_its_number() -> None:
    """The line that finds a rank's process is the same wherever it stands; RANK=1 is in every job's environment."""
    lines = {line for name in NAMES for line in blocks(text_of(name), "sh") if "--exporter <node> --json" in line}
    assert lines == {FINDS_THE_RANK}
    pages = [*ROOT.glob("runbooks/*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    assert not [page.name for page in pages if re.search(r"/proc/\S*/environ", page.read_text(encoding="utf-8"))]


def test_a_hung_run_has_a_way_in_on_every_platform() -> None:
    """Kubernetes, Slurm and bare metal: a labelled line each, in its first minute."""
    lines = list(blocks(sections(text_of("RunHung"))["First minute"], "sh"))
    marks = [line.partition("# ")[2] for line in lines]
    assert [mark for mark in marks if mark in ("Kubernetes", "Slurm", "bare metal")] == marks[2:5]


def test_the_line_finds_the_rank_of_the_run(tmp_path: Path) -> None:
    """Run as it stands, on a node with two jobs: the run, the rank and the process of each, one below the other."""
    command = f"{sys.executable} -m tachograph"
    loop = (
        "import sys, time, tachograph; r = tachograph.Recorder(run=sys.argv[1], rank=1, world_size=2); time.sleep(600)"
    )
    with Children(tmp_path) as children:
        address, socket = f"127.0.0.1:{free_port()}", tmp_path / "rank.sock"
        flags = ["--no-gpu", f"--web.listen-address={address}", f"--socket={socket}"]
        exporter = children.start("exporter", [sys.executable, "-m", "tachograph", "exporter", *flags])
        exporter.wait_until(lambda: answers(f"http://{address}/-/ready"), 90)
        environment = {"TACHOGRAPH_SOCKET": str(socket)}
        jobs = {run: children.start(run, [sys.executable, "-c", loop, run], environment) for run in ("mine", "theirs")}
        line = FINDS_THE_RANK.replace("<node>", address).replace("tachograph top", f"{command} top --interval 0.2")

        def said() -> str:
            return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False).stdout

        def named(run: str) -> bool:
            return bool(re.search(rf'"run": "[^"]*{run}",\s+"rank": 1,\s+"pid": "{jobs[run].pid}"', said()))

        exporter.wait_until(lambda: all(map(named, jobs)), 60)


def _run_python_line(page: str, part: str, **files: Path) -> str:
    """Run the line of a page that holds `part`, with these files in place of its placeholders; return its output."""
    (line,) = (line for line in blocks(text_of(page), "sh") if part in line)
    for name, path in files.items():
        line = line.replace(f"<{name.replace('_', '-')}>", str(path))
    line = line.replace("python ", f"{sys.executable} ", 1)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
@pytest.mark.slow
def test_checkpoints_of_one_file_and_of_shards_are_read(tmp_path: Path) -> None:
    """A folder of torch.distributed.checkpoint becomes a file, of which the runbooks' lines show what is in it."""
    shards, file = tmp_path / "step-40", tmp_path / "step-40.pt"
    script = (
        "import sys, torch, torch.distributed.checkpoint as dcp\n"
        "model = {'weight': torch.tensor([1.0, float('nan')]), 'bias': torch.ones(2)}\n"
        "dcp.save({'model': model, 'scaler': {'scale': 0.5}, 'scheduler': {'last_epoch': 40}}, "
        "checkpoint_id=sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, shards], check=True, timeout=120)
    _run_python_line("README", "dcp_to_torch", checkpoint=shards, checkpoint_file=file)
    assert set(_run_python_line("README", "print(*torch", checkpoint_file=file).split()) == {
        "model", "scaler", "scheduler",
    }  # fmt: skip
    assert _run_python_line("LossNotFinite", "isfinite", checkpoint_file=file) == "1\n"
    assert "0.5" in _run_python_line("AmpSkippingSteps", "scaler", checkpoint_file=file)
    assert "40" in _run_python_line("LearningRateStuck", "scheduler", checkpoint_file=file)

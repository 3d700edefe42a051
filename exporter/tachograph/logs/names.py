"""Facts from the names of files: node, attempt and rank, learned from all files of a folder together."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from tachograph.logs.sightings import Context

_RANK = re.compile(
    r"(?<![A-Za-z])(?<!local[_-])(?<!lora[_-])(?<!low[_-])(?<!node[_-])(?:global[_-]?)?(?:rank|task|proc|process)[-_.=]?(\d{1,6})(?!\d)",
    re.IGNORECASE,
)
_LOCAL = re.compile(r"(?<![A-Za-z])local[_-]?rank[-_.=]?(\d{1,4})(?!\d)", re.IGNORECASE)
_ELASTIC = re.compile(r"(?:^|/)(?:attempt|restart|cycle)[-_]?(\d{1,6})/(?:(\d{1,4})/)?")
_NODE = re.compile(
    r"(?:^|[/_.-])((?:node|host|worker|pod|gpu|dgx|nid|ip-|cn|hgx)[A-Za-z]*[-_]?\d[A-Za-z0-9-]*)", re.IGNORECASE
)
_POD = re.compile(r"(?:^|[/_.])((?:[a-z0-9]+-)+(?:worker|master|launcher|node|replica)-\d+(?:-\d+)*)(?=[_./]|-[a-z]|$)")
"""With the name of its job, as Kubernetes gives it."""
_ARRAY = re.compile(r"slurm-\d+_\d+")
"""Slurm's own name for the log of a job of an array."""
_OF_TASK = re.compile(r"(?:^|[-_.])\d{3,}[-_.](?P<node>[A-Za-z][\w]*\d)[-_.](?P<task>\d{1,5})$")
"""`%j-%N-%t`: job, node, task."""
_OF_PROCESS = re.compile(r"\.(?:INFO|WARNING|ERROR|FATAL)(?=\.|$)")
"""glog writes a file for each severity of one process: what it is called by is that process, and no node."""
_NO_RANK = re.compile(
    r"\d{4}-?\d\d-?\d\d|\.(?:log|out|err|txt)\.\d+$"
    r"|(?<![A-Za-z])(?:restart|attempt|retry|try|cycle|seed|epoch|step|run|job|part|trial|exp|version|v|fold)[-_.]?\d+",
    re.IGNORECASE,
)
"""Numbers that tell files apart and are none: dates, rotated logs, and what they are called."""
_RUN = re.compile(r"_[a-z0-9_]{8}$|^none_")
"""A folder that torchrun makes for each time that it is started."""
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[A-Za-z]+[A-Za-z-]*\d+")
_BEFORE_RANK = re.compile(r"(?:^|[-_.])(?:r|p)?$", re.IGNORECASE)
_OUT_OR_ERR = re.compile(r"[-_.]?(?:std)?(?:out|err)(?=[-_.]|$)|\.(?:log|txt|gz|bz2|xz|jsonl?)(?=\.|$)", re.IGNORECASE)


def contexts(paths: Sequence[Path]) -> list[Context]:
    """Return what the paths say, in their order; `guess` names the files whose numbers are ranks, if lines agree."""
    found = [alone(path, number) for number, path in enumerate(paths, 1)]
    named = [one.rank for one in found]
    if len(paths) > 1 and None not in named and len(set(named)) == 1:
        found = [one._replace(rank=None) for one in found]  # the number of something else, such as of an adapter
    groups: dict[tuple[str, str], list[int]] = {}
    for at, (path, one) in enumerate(zip(paths, found, strict=True)):
        if one.rank is None and one.local_rank is None and not _ARRAY.match(path.name):
            groups.setdefault((str(path.parent), _NUMBER.sub("#", _guessed(path))), []).append(at)
    for (_, name), members in groups.items():
        _guess(name, members, paths, found)
    return _unique(_by_others(paths, _by_folders(paths, found)))


def _by_folders(paths: Sequence[Path], found: list[Context]) -> list[Context]:
    """Return files of local ranks that come again in another folder with it as their node."""
    within = {
        at: path.absolute().parts
        for at, (path, one) in enumerate(zip(paths, found, strict=True))
        if one.local_rank is not None and not one.node
    }
    alike = {(found[at].attempt, found[at].local_rank, parts[-1]) for at, parts in within.items()}
    if len(alike) == len(within):
        return found
    levels = enumerate(zip(*within.values(), strict=False))
    differ = next((level for level, names in levels if len(set(names)) > 1), None)
    if differ is None or any(_RUN.search(parts[differ]) for parts in within.values()):
        return found
    return [one._replace(node=within[at][differ]) if at in within else one for at, one in enumerate(found)]


def _by_others(paths: Sequence[Path], found: list[Context]) -> list[Context]:
    """Return the files whose name has the node of another one in it with this node."""
    nodes = {one.node for one in found if one.node}
    words = [[word for word in re.split(r"[_.]|-(?!\d)", _stem(path)) if word in nodes] for path in paths]
    return [
        one if one.node or len(named) != 1 else one._replace(node=named[0])
        for one, named in zip(found, words, strict=True)
    ]


def alone(path: Path, number: int) -> Context:
    """Return what a single path says by words: rank-3.log, attempt_0/3/stderr.log as torchrun makes them, node07/…."""
    text = "/".join(path.parts[-3:])
    rank = next((match for part in reversed(path.parts[-3:]) if (match := _RANK.search(part))), None)
    elastic, local, task = _ELASTIC.search(text), _LOCAL.search(text), _OF_TASK.search(_stem(path))
    node = _POD.search(text) or _NODE.search(text if _OF_PROCESS.search(path.name) is None else f"{path.parent}/")
    try:
        written = path.stat().st_mtime
    except OSError:
        written = time.time()
    own = rank[1] if rank else task["task"] if task else None
    within = local[1] if local else elastic[2] if elastic else None
    return Context(
        number,
        written,
        node=task["node"] if task else node[1].removesuffix(".log") if node else "",
        attempt=int(elastic[1]) if elastic else None,
        rank=None if own is None else int(own),
        local_rank=None if own is not None or within is None else int(within),
    )


def _stem(path: Path) -> str:
    return _OUT_OR_ERR.sub("", path.name)


def _guessed(path: Path) -> str:
    """Return a name without the numbers that are no rank whatever they count."""
    return _stem(Path(_NO_RANK.sub("_", path.name)))


def _guess(name: str, members: Sequence[int], paths: Sequence[Path], found: list[Context]) -> None:
    """Note the numbers that tell files of one name apart, as ranks, and the words that do, as nodes."""
    stems, nodes = [_guessed(paths[at]) for at in members], [found[at].node for at in members]
    numbers = [[*_NUMBER.finditer(stem)] for stem in stems]
    if len(set(stems)) < 2 or not numbers[0]:
        return
    for place in reversed(range(len(numbers[0]))):
        values = [int(one[place][0]) for one in numbers]
        if len(set(values)) < 2:
            continue
        if all(_BEFORE_RANK.search(stem[: one[place].start()]) for stem, one in zip(stems, numbers, strict=True)):
            of_nodes = any(node.endswith(str(value)) for node, value in zip(nodes, values, strict=True))
            if max(values) < 4 * len(set(values)) + 8 and not of_nodes:
                for at, value in zip(members, values, strict=True):
                    found[at] = found[at]._replace(rank=value, guess=name)
                continue
            return
        for at, stem, one in zip(members, stems, numbers, strict=True):
            word = next((w for w in _WORD.finditer(stem) if w.start() < one[place].end() <= w.end()), None)
            if word and not found[at].node:
                found[at] = found[at]._replace(node=word[0])


def _unique(found: list[Context]) -> list[Context]:
    """Return ranks that come again on another node as what they are: ranks within their nodes."""
    nodes: dict[tuple[int | None, int], set[str]] = {}
    for one in found:
        if one.rank is not None:
            nodes.setdefault((one.attempt, one.rank), set()).add(one.node)
    if all(len(names) == 1 for names in nodes.values()):
        return found
    return [one if one.rank is None else one._replace(rank=None, local_rank=one.rank) for one in found]

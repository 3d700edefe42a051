"""The faults of bench/nodes.py, each with what people must receive."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodes_fleet import NODES, OnHosts, TwoCells
from nodes_scene import AFTERWARDS_SECONDS, LOST, STUCK, Notice, Scene
from nodes_upgrade import OneTower, upgrade

GAP_SECONDS = 12.0
"""Between two restarts."""


NODE_DOWN = Notice("NodeDown", instance=LOST)
HUNG = Notice("RunHung", instance=LOST, rank=str(STUCK))


def node_lost(scene: Scene) -> None:
    """Lose a node."""
    scene.lose_node()
    scene.await_page(NODE_DOWN, 60)


def node_lost_without(replica: int) -> Callable[[Scene], None]:
    """Return the loss of a node when one Alertmanager has been lost before."""

    def play(scene: Scene) -> None:
        scene.kill(f"alertmanager-{replica}")
        scene.pause(20)
        node_lost(scene)

    return play


def cut_off(scene: Scene) -> None:
    """Cut a node off from everything for 90 s; its ranks live and go on then."""
    scene.strike()
    scene.fleet.network.cut(LOST)
    scene.pause(90)
    scene.fleet.network.join(LOST)
    scene.pause(90)


def unheard(scene: Scene) -> None:
    """Lose what a node sends to its cell's Prometheus for two minutes, in that direction alone; the run goes on."""
    scene.fleet.network.lose(LOST, 100, ["cell-b"])
    scene.pause(120)
    scene.fleet.network.mend()
    scene.pause(60)


def lossy(scene: Scene) -> None:
    """Lose three in ten packets that a node sends, to anybody, for three minutes."""
    scene.fleet.network.lose(LOST, 30)
    scene.pause(180)
    scene.fleet.network.mend()
    scene.pause(60)


def one_way_up(scene: Scene) -> None:
    """Lose all that a cell sends to one of two replicas for 90 s; a rank of that cell hangs meanwhile.

    After two minutes that replica says NodesUnreachable, and TCP may take many seconds until it sends again.
    """
    scene.fleet.network.lose("cell-b", 100, ["above-0"])
    scene.pause(30)
    scene.hang()
    scene.pause(60)
    scene.fleet.network.mend()
    scene.pause(90)


def cell_lost(scene: Scene) -> None:
    """Lose the Prometheus of a cell for three minutes."""
    scene.strike()
    scene.kill("cell-b")
    scene.pause(180)
    scene.fleet.start_again()
    scene.pause(90)


def node_lost_without_cell(scene: Scene) -> None:
    """Lose the Prometheus of the other cell, and a node two minutes later."""
    scene.kill("cell-a")
    scene.pause(120)
    scene.lose_node()
    scene.await_page(Notice("RunHung"), 300)


def disk_full_above(scene: Scene) -> None:
    """Fill the disk of a replica above for two minutes, and have a rank hang meanwhile."""
    ballast = scene.fleet.data("above-0") / "ballast"
    fill(ballast)
    scene.pause(30)
    scene.hang()
    scene.pause(90)
    ballast.unlink()
    scene.pause(60)


def disk_full_in_cell(scene: Scene) -> None:
    """Fill the disk of a cell's Prometheus and have a rank hang there; after two and a half minutes mend it.

    Room alone is not enough: a torn record stops its remote_write until a restart repairs the write-ahead log.
    """
    ballast = scene.fleet.data("cell-b") / "ballast"
    fill(ballast)
    scene.pause(30)
    scene.hang()
    scene.pause(120)
    ballast.unlink()
    scene.restart("cell-b")
    scene.pause(90)


def damaged(part: str) -> Callable[[Scene], None]:
    """Return a Prometheus that is killed and has its newest write-ahead log overwritten in places, during a hang."""

    def play(scene: Scene) -> None:
        scene.hang()
        scene.pause(60)
        scene.kill(part)
        scene.notes.append(damage(scene.fleet.data(part) / "wal"))
        scene.fleet.start_again()
        scene.pause(120)

    return play


def in_order(*parts: str) -> Callable[[Scene], None]:
    """Return the restart of all programs, one after the other, and a rank that hangs after the third."""

    def play(scene: Scene) -> None:
        for number, part in enumerate(parts):
            if number == 3:
                scene.hang()
            scene.restart(part)
            scene.pause(GAP_SECONDS)
        scene.pause(AFTERWARDS_SECONDS)

    return play


EVERYTHING = (*(f"exporter-{node}" for node in NODES), *TwoCells.parts)
SHUFFLED = tuple(random.Random(51).sample(EVERYTHING, len(EVERYTHING)))


@dataclass(frozen=True)
class StoryOfNodes:
    """A fault and what must be received; `within` is the limit for the page, in seconds after the fault."""

    words: str
    play: Callable[[Scene], None]
    expect: Sequence[Notice] = ()
    within: float | None = None
    small_disk: str = ""
    """The program whose data is on a small disk."""
    fleet: type[OnHosts] = TwoCells


STORIES = {
    "node": StoryOfNodes("a node is lost", node_lost, [NODE_DOWN], 20),
    "node, 0 lost": StoryOfNodes(
        "a node is lost; Alertmanager 0 was lost before", node_lost_without(0), [NODE_DOWN], 20
    ),
    "node, 1 lost": StoryOfNodes(
        "a node is lost; Alertmanager 1 was lost before", node_lost_without(1), [NODE_DOWN], 20
    ),
    "cut off": StoryOfNodes(
        "a node is cut off from everything for 90 s; its ranks live", cut_off, [NODE_DOWN], 20
    ),
    "unheard": StoryOfNodes("what a node sends to its Prometheus is lost for 2 min; its run goes on", unheard),
    "lossy": StoryOfNodes("30 % of what a node sends, to anybody, is lost for 3 min", lossy),
    "one way up": StoryOfNodes(
        "what a cell sends to one of the replicas above is lost for 90 s; a rank there hangs", one_way_up, [HUNG], 45
    ),
    "cell": StoryOfNodes(
        "a cell's Prometheus is lost for 3 min", cell_lost, [Notice("NodesUnreachable", cell="b")], 180
    ),
    "cell and node": StoryOfNodes(
        "a cell's Prometheus is lost, and two minutes later a node of the other cell, with ranks of a run over both",
        node_lost_without_cell, [Notice("NodesUnreachable", cell="a"), Notice("RunHung")], 240,
    ),
    "disk of a cell": StoryOfNodes(
        "the disk of a cell's Prometheus is full for 2½ min; a rank there hangs; then it is restarted with room",
        disk_full_in_cell, [Notice("NodesUnreachable", cell="b"), HUNG], small_disk="cell-b",
    ),
    "disk above": StoryOfNodes(
        "the disk of a replica above is full for 2 min; a rank hangs", disk_full_above, [HUNG], 45,
        small_disk="above-0",
    ),
    "log of a cell": StoryOfNodes(
        "a rank hangs; a cell's Prometheus is killed, its write-ahead log damaged, and started again",
        damaged("cell-b"), [HUNG], 45,
    ),
    "log above": StoryOfNodes("the same with a replica above", damaged("above-0"), [HUNG], 45),
    "restarts": StoryOfNodes(
        "everything is killed and started again, nodes first; a rank hangs meanwhile", in_order(*EVERYTHING), [HUNG]
    ),
    "restarts, reversed": StoryOfNodes("the same in reverse", in_order(*reversed(EVERYTHING)), [HUNG]),
    "restarts, shuffled": StoryOfNodes(f"the same, as shuffled: {', '.join(SHUFFLED)}", in_order(*SHUFFLED), [HUNG]),
    "upgrade": StoryOfNodes(
        "the last release is upgraded: exporters one by one, then rules and routes, then clients", upgrade,
        fleet=OneTower,
    ),
}  # fmt: skip


def fill(ballast: Path) -> None:
    """Fill a disk to the last byte."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return


def damage(log: Path) -> str:
    """Overwrite a kilobyte in the middle of the newest segment of a write-ahead log; return what was done."""
    segment = sorted(path for path in log.iterdir() if path.name.isdigit())[-1]
    size = segment.stat().st_size
    with segment.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * min(1024, size // 4))
    return f"{segment.name} of {size >> 10} KB"

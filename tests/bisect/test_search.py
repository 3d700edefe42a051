"""What is run next, and what is concluded: breaking points of made-up commands, a bad node among many, node lists."""

from __future__ import annotations

from itertools import combinations
from random import Random
from statistics import median

import pytest

from tachograph.bisect.boundary import Boundary, Candidates, next_value
from tachograph.bisect.nodes import NOTHING, UNPROVEN, BadNode, expand, next_set
from tachograph.bisect.scale import changes
from tachograph.bisect.tally import ONCE_FLAKY, Tally, Trial, lead_for


def trial(value: str, works: bool) -> Trial:
    return Trial(value, works, int(not works), 1.0, "")


def breaking_point(
    within: Candidates, works_to: int, *, random: Random, wrong: float, lead: int
) -> tuple[Boundary, int]:
    """Bisect a made-up command, a share of whose runs has the wrong outcome; return the result and the runs."""
    trials: list[Trial] = []
    while isinstance(value := next_value(within, trials, lead), int):
        works = value <= works_to if within.good < within.bad else value >= works_to
        trials.append(trial(str(value), works is (random.random() >= wrong)))
        assert len(trials) < 500
    return value, len(trials)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("wrong", [0.0, 0.1])
def test_the_breaking_point_is_exact(seed: int, wrong: float) -> None:
    """Twenty made-up commands, of which no run or a tenth of the runs has the wrong outcome."""
    random = Random(seed)
    bad = random.randint(2, 4096)
    works_to = random.randint(1, bad - 1)
    lead = lead_for(wrong) if wrong else 2
    found, runs = breaking_point(Candidates(1, bad), works_to, random=random, wrong=wrong, lead=lead)
    assert found == Boundary(works_to, works_to + 1)
    assert wrong or runs <= 2 + 12 + 2, "both ends, log2 of the range, both neighbours once more"


def test_a_good_end_above_the_bad_one() -> None:
    """Where the larger works: the smallest that works, beside the largest that fails."""
    found, _ = breaking_point(Candidates(64, 1), 17, random=Random(0), wrong=0, lead=2)
    assert found == Boundary(17, 16)


def test_multiples_of_a_step() -> None:
    """Only multiples are tried between the ends, which may be none."""
    assert Candidates(3, 30, 8).values() == [3, 8, 16, 24, 30]
    assert Candidates(32, 8, 8).values() == [32, 24, 16, 8]
    assert breaking_point(Candidates(8, 64, 8), 39, random=Random(0), wrong=0, lead=2)[0] == Boundary(32, 40)


def test_an_end_that_is_not_as_it_was_given() -> None:
    """A good end that fails, or a bad one that works, is said only once it is sure."""
    within = Candidates(1, 8)
    assert next_value(within, [trial("1", False)], 2) == 1
    assert next_value(within, [trial("1", False)] * 2, 2) == Boundary(None, 1, "good")
    assert next_value(within, [trial("1", True), *[trial("8", True)] * 2], 2) == Boundary(8, None, "bad")


def test_a_value_that_had_both_outcomes_is_repeated_more_often() -> None:
    """Once a run was denied, two agreeing runs are not enough any more; half of the runs is no success."""
    tally = Tally([trial("4", True), trial("4", False)], 2)
    assert (tally.flaky, tally.lead, tally.works("4")) == (["4"], ONCE_FLAKY, None)
    assert Tally([trial("4", True), trial("4", False)] * 8, 2).works("4") is False
    assert (lead_for(0.1), lead_for(0.01)) == (5, 3)


def culprit(bad: set[str], nodes: list[str], *, fewest: int = 1, wrong: float = 0.0, lead: int = 1) -> BadNode:
    """Bisect nodes; the command fails if all of `bad` are among them."""
    random, trials = Random(str(sorted(bad))), list[Trial]()
    while not isinstance(found := next_set(nodes, (), fewest, trials, lead), BadNode):
        assert len(found) >= min(fewest, len(nodes))
        assert len(set(found)) == len(found)
        works = not bad <= set(found)
        trials.append(trial(",".join(found), works is (random.random() >= wrong)))
        assert len(trials) < 500
    return found


NODES = expand("node[01-64]")


@pytest.mark.parametrize("fewest", [1, 2, 8])
def test_the_bad_one_of_64_nodes_in_nine_rounds(fewest: int) -> None:
    """Wherever it is: six halvings, the proof, and at most two runs of others where all of these failed."""
    found = [culprit({node}, NODES, fewest=fewest) for node in NODES]
    assert [one.node for one in found] == NODES
    assert max(one.rounds for one in found) <= 9
    assert median(one.rounds for one in found) == 7


@pytest.mark.parametrize("count", range(1, 13))
def test_no_innocent_is_convicted(count: int) -> None:
    """With none, one or two bad nodes and any size of a run: a bad node is named, or it is said that none can be."""
    nodes = [f"n{number}" for number in range(count)]
    for bad in (set(each) for number in (0, 1, 2) for each in combinations(nodes, number)):
        for fewest in range(1, count + 1):
            trials: list[Trial] = []
            while not isinstance(found := next_set(nodes, (), fewest, trials, 1), BadNode):
                assert len(set(found)) == len(found) >= fewest
                trials.append(trial(",".join(found), not bad & set(found)))
                assert len(trials) < 100
            assert found.node in {None, *bad}
            if not bad:
                assert found.why == NOTHING
            elif len(bad) == 1 and count > fewest:
                assert found.node in bad, "others worked beside it"
            elif found.node is None:
                assert found.why == UNPROVEN


def test_a_command_that_always_fails_convicts_nobody() -> None:
    """Nor does one that needs all the nodes there are, unless some are given that work."""
    for fewest in (1, 2, 4):
        trials: list[Trial] = []
        while not isinstance(found := next_set(["a", "b", "c", "d"], (), fewest, trials, 1), BadNode):
            trials.append(trial(",".join(found), False))
        assert (found.node, found.why) == (None, UNPROVEN)
    trials = []
    while not isinstance(found := next_set(["a", "b", "c", "d"], ("x", "y", "z", "w"), 4, trials, 1), BadNode):
        trials.append(trial(",".join(found), "c" not in found))
    assert found.node == "c"


def test_the_bad_node_among_flaky_runs() -> None:
    """With a tenth of wrong runs, and told so."""
    assert [culprit({node}, NODES, wrong=0.1, lead=lead_for(0.1)).node for node in NODES[::4]] == NODES[::4]


def test_one_of_two_bad_nodes_is_named_rightly() -> None:
    """A run is filled up with nodes that were found to be good, and with no others."""
    trials: list[Trial] = []
    while not isinstance(found := next_set(NODES, (), 2, trials, 1), BadNode):
        trials.append(trial(",".join(found), not {"node10", "node33"} & set(found)))
    assert (found.node, trials[-1].value) == ("node10", "node09,node10")


@pytest.mark.parametrize("wrong", range(6))
def test_one_wrong_run_on_the_way_is_found(wrong: int) -> None:
    """The node that is left works alone: the runs on the way are repeated, and the right one is named."""
    trials: list[Trial] = []
    while not isinstance(found := next_set(NODES, (), 1, trials, 1), BadNode):
        works = "node23" not in found
        trials.append(trial(",".join(found), works is not (len(trials) == wrong)))
    assert found.node == "node23"


def test_a_pair_is_no_single_node() -> None:
    """Two nodes that fail together only, in different halves: no node is blamed."""
    found = culprit({"node03", "node60"}, NODES)
    assert (found.node, len(found.among)) == (None, 64)
    assert culprit({"elsewhere"}, NODES).among == ()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b, c", ["a", "b", "c"]),
        ("gpu[08-10,12]", ["gpu08", "gpu09", "gpu10", "gpu12"]),
        ("r[1-2]n[01-02]x,login", ["r1n01x", "r1n02x", "r2n01x", "r2n02x", "login"]),
        ("10.0.0.[9-10]:22", ["10.0.0.9:22", "10.0.0.10:22"]),
    ],
)
def test_lists_of_nodes_as_slurm_writes_them(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    ["", ",", "a[", "a]", "a[1-", "a[x]", "a[3-1]", "a[0-99999999]", "[1-999][1-999]n", "a,a", "a;b", "-w", "a,,b"],
)
def test_lists_that_are_none(text: str) -> None:
    """What is not a list is refused, before anything runs."""
    with pytest.raises(ValueError, match=r"node|range"):
        expand(text)


def said(kind: str, works: int, fails: int) -> str:
    return "\n".join(changes(kind, works, fails, 8))


def test_what_changes_at_a_node_boundary() -> None:
    """From one node to two, the network is new; within a node it is not in question."""
    crossed = said("ranks", 8, 16)
    assert "Node boundary: 16 ranks are 2 nodes, 8 were 1 node" in crossed
    assert "NCCL_ALGO=Ring" in crossed
    assert "by as much, 2 (Goyal et al. 2017), with Adam by something between its root, 1.41" in crossed
    assert "become 1 on 16 ranks after 2 on 8" in crossed
    assert "no node boundary is crossed" in said("ranks", 4, 8)
    assert "`tachograph bisect nodes`" in said("ranks", 16, 32)
    assert "the last one has 4" in said("ranks", 8, 12)
    assert "12 is not" in said("ranks", 8, 12)


def test_what_changes_with_a_batch_and_with_layers() -> None:
    """Memory first; no other rate is asked for by a neighbour."""
    assert "here 2 times" in said("batch", 8, 16)
    assert "Effective batch: it is 2 times as large" in said("batch", 8, 16)
    assert "Effective batch" not in said("batch", 32, 33)
    assert "33 layers over a number of stages" in said("layers", 32, 33)

"""Check `pairs`: ranks exchange messages two by two, then with other partners, so that a bad rank shows as itself.

In one round a slow pair is two suspects; in the next the healthy one is fast with another partner (the method of
DLRover's network check). Up to eight ranks every pair has its turn, beyond two rounds do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from tachograph.preflight.devices import synchronize
from tachograph.preflight.finding import FAIL, Conclusion, Facts, Measurement, PreflightFinding, Untyped, skip
from tachograph.preflight.process_group import backend
from tachograph.preflight.site import CPU, PreflightCheck, PreflightSite
from tachograph.preflight.speeds import usual
from tachograph.text.humanize import duration

Pair: TypeAlias = tuple[int, int]

ALL_PAIRS = 8
ROUNDS = 2
PASSES = 2
"""How often each pair has its turn, and a slow one once more, alone."""
MOST_AGAIN = 64
PINGS, TRANSFERS = 10, 3
SIZE, CPU_SIZE = 2**26, 2**21
SLOWER = {"nccl": 2.0, "gloo": 4.0}
"""How many times slower than the usual a link must be; what shares CPUs with it makes a loopback two times slower."""
LATENCY_FLOOR = {"nccl": 100e-6, "gloo": 3e-3}
"""Slower by less, in seconds, says nothing: ranks may be several switches, or a busy CPU, apart."""


def rounds(ranks: Sequence[int]) -> list[list[Pair]]:
    """Return who exchanges with whom in each round; no two rounds have a pair in common.

    The circle method: the first stays, the others move on by one. Of an odd number one rests in each round.
    """
    circle: list[int | None] = list(ranks) if len(ranks) % 2 == 0 else [*ranks, None]
    every = []
    for _ in range(len(circle) - 1 if len(ranks) <= ALL_PAIRS else ROUNDS):
        half = len(circle) // 2
        couples = zip(circle[:half], reversed(circle[half:]), strict=True)
        every.append([(min(a, b), max(a, b)) for a, b in couples if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return every


def measure(site: PreflightSite) -> Facts:
    """Return latency and bytes per second with each partner, and the partners whose messages came wrong."""
    order = site.exchange.read("pairs/order", site.options.limit) if site.rank else _ordered(site)
    partners = [pair for couples in rounds(order) for pair in couples if site.rank in pair]
    found: dict[str, dict[str, Untyped]] = {}
    for _ in range(PASSES):
        for pair in partners:
            _add(found, pair, _exchanged(pair[0] + pair[1] - site.rank, site))
    site.exchange.publish(f"pairs/first/{site.rank}", found)
    again = site.exchange.read("pairs/again", site.options.limit) if site.rank else _suspected(site)
    for number, (first, second) in enumerate(again):
        if site.rank in (first, second):
            if number:
                site.exchange.read(f"pairs/done/{number - 1}", site.options.limit)
            for _ in range(PASSES):
                _add(found, (first, second), _exchanged(first + second - site.rank, site))
            site.exchange.publish(f"pairs/done/{number}", 1)
    return {"pairs": found}


def _add(found: dict[str, dict[str, Untyped]], pair: Pair, now: dict[str, Untyped]) -> None:
    """Keep the best of what was measured of a pair: a slow link stays slow, what disturbed it may be over."""
    best = found.setdefault("-".join(map(str, pair)), now)
    best["latency"] = min(best["latency"], now["latency"])
    best["bandwidth"] = max(best["bandwidth"], now["bandwidth"])
    best["right"] &= now["right"]


def _suspected(site: PreflightSite) -> list[Pair]:
    """Return the links that were slow while all measured, to be measured again one by one; tell the others."""
    every = site.exchange.gather("pairs/first", sorted(site.node_of), site.options.limit / 2)
    _, latency, bandwidth = _links({rank: {"pairs": one} for rank, one in every.items()})
    again = slow_links(latency, bandwidth, backend(site))
    site.exchange.publish("pairs/again", again if len(again) <= MOST_AGAIN else [])
    return again if len(again) <= MOST_AGAIN else []


def _links(facts: Mapping[int, Facts]) -> tuple[dict[Pair, bool], dict[Pair, float], dict[Pair, float]]:
    """Return for each pair whether messages came right, the latency and the bandwidth, the worse of both ends'."""
    ends: dict[Pair, list[Mapping[str, Untyped]]] = {}
    for one in facts.values():
        for text, figures in one["pairs"].items():
            first, second = map(int, text.split("-"))
            ends.setdefault((first, second), []).append(figures)
    return (
        {pair: all(one["right"] for one in figures) for pair, figures in ends.items()},
        {pair: max(one["latency"] for one in figures) for pair, figures in ends.items()},
        {pair: min(one["bandwidth"] for one in figures) for pair, figures in ends.items()},
    )


def _ordered(site: PreflightSite) -> list[int]:
    """Return the ranks in an order in which neighbours are on different nodes, and tell it to the others."""
    place: dict[str, int] = {}
    order = []
    for rank in sorted(site.node_of):
        node = site.node_of[rank]
        place[node] = place.get(node, -1) + 1
        order.append((place[node], rank))
    ranks = [rank for _, rank in sorted(order)]
    site.exchange.publish("pairs/order", ranks)
    return ranks


def _exchanged(partner: int, site: PreflightSite) -> dict[str, Untyped]:
    import torch
    from torch import distributed

    site.progress += 1
    small = torch.zeros(8, device=site.device)
    first = site.rank < partner

    def ping() -> None:
        if first:
            distributed.send(small, partner)
            distributed.recv(small, partner)
        else:
            distributed.recv(small, partner)
            distributed.send(small, partner)
        synchronize(site.device)

    ping()  # connects, and waits for a partner that is still in the round before
    latency = min(_seconds(ping) for _ in range(PINGS)) / 2
    size = (CPU_SIZE if site.device == CPU else SIZE) // 4
    mine = torch.full((size,), float(site.rank + 1), device=site.device)
    theirs = torch.empty_like(mine)

    def both_ways() -> None:
        works = distributed.batch_isend_irecv(
            [distributed.P2POp(distributed.isend, mine, partner), distributed.P2POp(distributed.irecv, theirs, partner)]
        )
        for work in works:
            work.wait()
        synchronize(site.device)

    both_ways()
    seconds = min(_seconds(both_ways) for _ in range(TRANSFERS))
    right = bool((theirs == partner + 1).all())
    return {"latency": latency, "bandwidth": 4 * size / seconds, "right": right}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name ranks that are slow with every partner, and pairs that are slow by themselves."""
    right, latency, bandwidth = _links(facts)
    if not right:
        return skip("there is one rank alone")
    findings = [
        PreflightFinding(FAIL, f"messages between {_both(pair, site)} came wrong", "leave the link's nodes out", pair)
        for pair, came_right in right.items()
        if not came_right
    ]
    judged = [pair for pair in right if not site.slow_ranks & set(pair)]
    bad = slow_links(
        {pair: latency[pair] for pair in judged}, {pair: bandwidth[pair] for pair in judged}, backend(site)
    )
    ranks, pairs = culprits(bad, judged)
    for chosen in _by_node(ranks, site):
        own = [pair for pair in bad if set(pair) & set(chosen)]
        findings.append(
            PreflightFinding(
                FAIL,
                f"{site.who_does(chosen, 'is', 'are')} slow with every partner: "
                + _compared(own, judged, latency, bandwidth),
                "look at its network card, cable and switch port, and its CPU",
                tuple(chosen),
            )
        )
    for pair in pairs:
        findings.append(
            PreflightFinding(
                FAIL,
                f"the link between {_both(pair, site)} is slow: {_compared([pair], judged, latency, bandwidth)}",
                "each is fast with others: look at the path between them, switches and routes",
                pair,
            )
        )
    measured = [
        Measurement(f"pair_{what}", value, pair[0], (("peer", str(pair[1])),))
        for what, of in (("latency_seconds", latency), ("bandwidth_bytes_per_second", bandwidth))
        for pair, value in of.items()
    ]
    shown = judged or list(right)
    message, speed = duration(_usual_latency(shown, latency)), usual({pair: bandwidth[pair] for pair in shown})
    turns = len(rounds(sorted(site.node_of)))
    summary = f"{len(right)} pairs in {turns} rounds, usually {message} and {speed / 1e9:,.2f} GB/s"
    return Conclusion(summary, findings, measured, slow_ranks=frozenset(ranks))


def _usual_latency(pairs: Collection[Pair], latency: Mapping[Pair, float]) -> float:
    return 1 / usual({pair: 1 / max(latency[pair], 1e-9) for pair in pairs})


def slow_links(latency: Mapping[Pair, float], bandwidth: Mapping[Pair, float], by: str) -> list[Pair]:
    """Return the links that are much slower than the usual one, in latency or in bandwidth."""
    if len(latency) < 2:
        return []
    ratio, floor = SLOWER[by], LATENCY_FLOOR[by]
    short, wide = _usual_latency(latency, latency), usual(bandwidth)
    return [
        pair for pair in latency if latency[pair] > max(ratio * short, short + floor) or bandwidth[pair] * ratio < wide
    ]


def culprits(slow: Collection[Pair], tested: Collection[Pair]) -> tuple[list[int], list[Pair]]:
    """Return the ranks whose links are slow with every partner, and the slow links that no such rank explains.

    A rank needs two slow links, or it is not told from its partner.
    """
    left = set(slow)
    ranks: list[int] = []
    while left:
        counts = {rank: sum(rank in pair for pair in left) for pair in left for rank in pair}
        worst = max(counts, key=lambda rank: (counts[rank], -rank))
        own = [pair for pair in tested if worst in pair and not set(pair) & set(ranks)]
        if counts[worst] < 2 or counts[worst] < len(own):
            break
        ranks.append(worst)
        left = {pair for pair in left if worst not in pair}
    return sorted(ranks), sorted(left)


def _by_node(ranks: Sequence[int], site: PreflightSite) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(site.node_of.get(rank, ""), []).append(rank)
    return list(groups.values())


def _both(pair: Pair, site: PreflightSite) -> str:
    return " and ".join(site.who([rank]) for rank in pair)


def _compared(
    own: Sequence[Pair], judged: Sequence[Pair], latency: Mapping[Pair, float], bandwidth: Mapping[Pair, float]
) -> str:
    usually = usual({pair: bandwidth[pair] for pair in judged})
    message = duration(max(latency[pair] for pair in own))
    speed = min(bandwidth[pair] for pair in own)
    return (
        f"{message} for a message, usually {duration(_usual_latency(judged, latency))}; "
        f"{speed / 1e9:,.3f} GB/s, usually {usually / 1e9:,.3f}"
    )


CHECK = PreflightCheck(
    "pairs", "ranks two by two, partners swapped", measure, conclude, needs_torch=True, needs_ranks=True, grouped=True
)

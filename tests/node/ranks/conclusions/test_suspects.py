"""Who is suspected of a hang."""

from __future__ import annotations

from tachograph.node.ranks.conclusions.suspects import collectives_behind, hang_suspects, is_crowd, stopped_first


def test_suspects() -> None:
    """Of those not waiting, who stopped first or is behind; else who stopped first; else who does not wait."""
    phases: dict[int, str | None] = {0: "backward", 1: "data", 2: "collective", 3: None}
    assert hang_suspects({0: {"0": 1}, 1: {"0": 2}, 2: {"0": 3}}, phases) == {1: 1.0}
    assert hang_suspects({0: {"0": 1}, 2: {"0": 3}}, phases) == {0: 2.0}
    assert hang_suspects({}, phases) == {1: 0.0}
    assert hang_suspects({}, dict.fromkeys(range(3), "data")) == {}
    assert hang_suspects({}, {0: "data"}) == {}
    assert collectives_behind({0: {"0": 9, "1": 4}, 1: {"0": 7}, 2: {}, 3: {"1": 1}}) == {1: 2, 3: 3}


def test_who_waits_for_another_did_not_stop_first() -> None:
    """Behind in one group, ahead in another: a victim. If all are, whoever the fewest are with; else nobody is one."""
    chain = {0: {"a": 9, "c": 5}, 1: {"a": 8, "b": 5}, 2: {"b": 4, "c": 5}, 3: {"d": 7}}
    assert collectives_behind(chain) == {1: 1, 2: 1}
    assert stopped_first(chain) == {2: 1}
    assert hang_suspects(chain, dict.fromkeys(chain, "other")) == {2: 1}
    assert stopped_first({0: {"a": 9, "b": 4}, 1: {"a": 8, "b": 5}}) == {0: 1, 1: 1}
    went_on = {0: {"all": 5, "a": 10}, 1: {"all": 5, "b": 10}, 2: {"all": 4, "a": 11}, 3: {"all": 5, "b": 10}}
    assert stopped_first(went_on) == {2: 1}


def test_many_suspects_are_a_crowd() -> None:
    """More than eight, or more than half of the ranks."""
    assert [is_crowd(*of) for of in ((1, 2), (2, 3), (8, 16), (9, 64), (1, 1))] == [False, True, False, True, False]

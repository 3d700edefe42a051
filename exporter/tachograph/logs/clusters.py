"""Errors that no row knows, put together by their wording; the only module that imports drain3."""

from __future__ import annotations

from collections.abc import Iterable


def templates(texts: Iterable[str]) -> dict[str, str]:
    """Return the template of each text, with <*> where texts of one kind differ; each text itself without drain3."""
    given = list(dict.fromkeys(texts))
    try:
        from drain3 import TemplateMiner
        from drain3.template_miner_config import TemplateMinerConfig
    except ModuleNotFoundError:
        return {text: text for text in given}
    config = TemplateMinerConfig()
    config.drain_max_clusters = 1_000
    miner = TemplateMiner(config=config)
    numbers = {text: int(miner.add_log_message(text)["cluster_id"]) for text in given}
    found = {cluster.cluster_id: str(cluster.get_template()) for cluster in miner.drain.clusters}
    return {text: found.get(number, text) for text, number in numbers.items()}

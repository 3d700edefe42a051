"""Structured logs of a training job: one JSON object a line, from those ranks that log something of their own.

import tachograph.export.logs

tachograph.export.logs.configure(recorder)                    # standard error; or path="/var/log/training/rank5.jsonl"
logging.getLogger("train").info("epoch done", extra={"event": "epoch", "fields": {"epoch": 3}})
"""

from __future__ import annotations

from tachograph.export.logs.configure import configure
from tachograph.export.logs.json_lines import JsonLines
from tachograph.export.logs.rank_filter import RankFilter

__all__ = ["JsonLines", "RankFilter", "configure"]

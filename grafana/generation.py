"""A section of the dashboard "Run" for loops that generate what they train on: the engines beside the trainer's phases.

The engines' metrics are their own (vLLM's, otherwise SGLang's), with the labels `run` and `engine` of
targets/engines.yml.
"""

from __future__ import annotations

from panels import PHASES, UNITS, Json, coloured, lines, named, query
from series import of_run
from tachograph.catalog import index as c

NO_ENGINE = "no engine of the run is scraped: name it in targets/engines.yml"


def either(*names: str) -> str:
    """Return the first of several metrics that an engine has."""
    return f"({' or '.join(of_run(name) for name in names)})"


def rate(*names: str) -> str:
    """Return the rate of the first of several counters that an engine has."""
    return f"({' or '.join(f'rate({of_run(name)}[$__rate_interval])' for name in names)})"


def generation() -> list[Json]:
    """Return who generates, who waits for whom, and how full the engines are."""
    phases = f"count by (phase) ({of_run(c.RANK_PHASE)}) / on () group_left () count({of_run(c.RANK_PHASE)})"
    requests = {
        "running": f"sum({either('vllm:num_requests_running', 'sglang:num_running_reqs')})",
        "waiting": f"sum({either('vllm:num_requests_waiting', 'sglang:num_queue_reqs')})",
    }
    tokens = rate("vllm:generation_tokens_total", "sglang:generation_tokens_total")
    cache = either("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
    seconds, answers = (
        rate(*(f"{engine}:e2e_request_latency_seconds_{end}" for engine in ("vllm", "sglang")))
        for end in ("sum", "count")
    )
    updated = of_run("vllm:rl_weight_update_operation_duration_seconds_count", operation="finish")
    steps, updates = (
        f"max by ({by}) ({one} - {one} offset 10m)" for by, one in (("", of_run(c.RUN_TRAIN_STEP)), ("engine", updated))
    )
    return [
        lines("What the trainer does", UNITS["ratio"], "Share of the ranks in each phase. Long in generate or sync "
              "while the engines are busy: the trainer waits for them. Long in backward while they have no request: "
              "they wait for the trainer.", [query(phases, "{{phase}}")], "no rank is running",
              stack=True, overrides=coloured(PHASES), min=0, max=1, w=12),
        lines("Requests", "none", "In the run's engines. Many waiting: add engines, or send fewer prompts at once. "
              "None for a long time: the engines are idle.", [named(requests)], NO_ENGINE, min=0, decimals=0, w=12),
        lines("Generated tokens", "none", "Per second, by engine. One below the others holds up the batch.",
              [query(f"sum by (engine) ({tokens})", "{{engine}}")], NO_ENGINE, min=0, w=8),
        lines("KV cache in use", UNITS["ratio"], "By engine. Near 1, requests wait or are preempted and begin again.",
              [query(f"max by (engine) ({cache})", "{{engine}}")], NO_ENGINE, min=0, max=1, w=8),
        lines("Request latency", UNITS["seconds"], "Mean time from request to last token, by engine. The batch waits "
              "for the longest, so one engine above the others holds it up.",
              [query(f"sum by (engine) ({seconds}) / sum by (engine) ({answers} > 0)", "{{engine}}")], NO_ENGINE,
              min=0, w=8),
        lines("Preemptions", "none", "Requests per minute that an engine put back for lack of KV cache. 0 is good.",
              [query(f"60 * sum by (engine) ({rate('vllm:num_preemptions_total')})", "{{engine}}")],
              "no engine of the run is scraped, or none is vLLM", min=0, soft_max=1, w=12),
        lines("Steps per weight update", "none", "That the trainer made for each time that an engine got its weights, "
              "in ten minutes. 1: samples are by the newest ones; above, by weights that are up to so many steps old.",
              [query(f"{steps} / on () group_right () ({updates} > 0)", "{{engine}}")],
              "no engine of the run counts weight updates, as newer vLLM does", min=0, soft_max=2, w=12),
    ]  # fmt: skip

"""The panel of what changed in a run: attempts, ranks, nodes, configuration, versions."""

from __future__ import annotations

from panels import Json, override, query, table
from series import HERE, of_cluster, of_run
from shell import SAME, link
from tachograph.catalog import index as c

SHOWN = 20
FACTS = ("precision", "global_batch", "framework")


def _seen(what: str, label: str, vector: str) -> str:
    """Return one series for each value of a label: `what` it is, and `is` what it says."""
    valued = f'label_replace(group by ({label}) ({vector}), "is", "$1", "{label}", "(.+)")'
    return f'label_replace({valued}, "what", "{what}", "", "")'


def what_changed(**more: object) -> Json:
    """Return the table of what began or left within the range, the newest first.

    Whatever was there when the range, or the run in it, began is not a change; its nodes may be a minute apart.
    """
    facts = f"group by ({', '.join(FACTS)}) ({of_run(c.TRAIN_CONFIG_INFO)})"
    labels = ", ".join(f'"{name}"' for name in FACTS)
    nodes = _seen("node came", "instance", of_run("node:run:info"))
    kinds = (
        _seen("attempt", "attempt", of_run(c.RUN_RESTARTS)),
        f'label_replace(count_values("is", max({of_run(c.RUN_WORLD_SIZE)})), "what", "ranks", "", "")',
        f'label_replace(label_join({facts}, "is", " ", {labels}), "what", "settings", "", "")',
        _seen("driver", "driver_version", f"{of_cluster(c.GPU_INFO, gpu='0')} and {HERE}"),  # of a node's one driver
        _seen("exporter", "version", f"{of_cluster(c.EXPORTER_INFO)} and {HERE}"),
        nodes,
    )
    now = f"max by (what, is) ({' or '.join(kinds)})"
    goes_on = f"group({of_run('node:run:info')})"  # at its end all nodes leave, which is not a change
    run = f"min_over_time(timestamp({goes_on})[$__range:1m])"
    began = f"(min_over_time(timestamp({now})[$__range:1m]) > on () group_left () ({run} + 60))"
    left = f"max_over_time(timestamp({nodes})[$__range:1m]) unless on (is) {nodes} and on () {goes_on}"
    gone = f'label_replace(max by (is) ({left}), "what", "node left", "", "")'
    age = of_run(c.RUN_BATCH_CHANGED)  # shown from then on for as long as the run is known
    batch = f'label_replace(max(timestamp({age}) - {age}) > on () {run}, "what", "batch", "", "")'
    return table(
        "What changed",
        f"What began within the time range, and nodes that left, the newest {SHOWN}: attempts (restarts), number of "
        "ranks, nodes, batch, versions of driver and exporter; with --rank.series=all also precision, global batch and "
        "framework. Empty is good. A line here explains a slowdown or a spike that begins with it.",
        [query(f"topk({SHOWN}, 1000 * ({began} or {gone} or {batch}))", table=True)],
        "Nothing changed in this time range.",
        {"Value": "At", "what": "What", "is": "Now"},
        overrides=[
            override("At", unit="dateTimeAsIsoNoDateIfToday", custom__width=145),
            override("What", custom__width=85),
            override("Now", links=[link("What happened then", "incident", run=SAME)], custom__minWidth=80),
        ],
        sort=[{"displayName": "At", "desc": True}],
        **more,
    )

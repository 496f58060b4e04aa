"""Pictures of benchmarks, drawn with ``[bench]``: ``python -m benchmarks.plots LINES.json FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_COST = {
    "state.touch_seconds": "1,000 keys touched, checkpoint included: s",
    "state.touch_bytes": "bytes that it writes",
    "state.bytes": "bytes of the state",
}
_RATES = {
    "state.mini_batch_sum_events_per_s": "built-in sum, mini-batches",
    "state.builtin_sum_events_per_s": "built-in sum",
    "state.flink_sql_events_per_s": "Flink SQL, RocksDB",
    "state.flink_sql_hashmap_events_per_s": "Flink SQL, heap",
    "state.spark_jvm_agg_events_per_s": "Spark groupBy().sum(), JVM",
    "state.process_function_events_per_s": "process function",
    "state.pyflink_thread_events_per_s": "PyFlink, thread mode",
    "state.pyflink_process_events_per_s": "PyFlink, process mode",
    "state.spark_tws_events_per_s": "Spark transformWithState",
}
_OURS = (
    "state.mini_batch_sum_events_per_s",
    "state.builtin_sum_events_per_s",
    "state.process_function_events_per_s",
)
_OWN_COLOR, _OTHER_COLOR = "#1f6f8b", "#b0b7bd"


def draw_cost(lines: list[dict[str, Any]], file: Path) -> None:
    """Draws the cost of state by its size."""
    figure, panels = pyplot.subplots(1, len(_COST), figsize=(11, 3.2), layout="constrained")
    for panel, (metric, title) in zip(panels, _COST.items(), strict=True):
        points = [(each["settings"]["keys"], each["value"]) for each in lines if each["metric"] == metric]
        panel.plot(*zip(*points, strict=True), marker="o", color=_OWN_COLOR)
        panel.set(title=title, xlabel="keys", xscale="log", yscale="log" if metric == "state.bytes" else "linear")
        panel.set_ylim(bottom=None if metric == "state.bytes" else 0)
        panel.title.set_size("medium")
        panel.grid(alpha=0.3)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def draw_rates(lines: list[dict[str, Any]], file: Path) -> None:
    """Draws events per second compared with other engines."""
    found = {each["metric"]: each["value"] for each in lines}
    metrics = [metric for metric in _RATES if metric in found][::-1]
    figure, panel = pyplot.subplots(figsize=(8, 0.6 + 0.42 * len(metrics)), layout="constrained")
    colors = [_OWN_COLOR if metric in _OURS else _OTHER_COLOR for metric in metrics]
    bars = panel.barh([_RATES[metric] for metric in metrics], [found[metric] for metric in metrics], color=colors)
    panel.bar_label(bars, [f" {found[metric]:,.0f}" for metric in metrics])
    panel.set(xscale="log", xlabel="events/s, 100,000 keys, 2 cores")
    panel.margins(x=0.2)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def draw_forms(lines: list[dict[str, Any]], file: Path) -> None:
    """Draws the rate of each form, as a share of that of a ``ValueState`` function."""
    found = {each["metric"].split(".")[1]: each for each in lines if each["metric"].endswith("_vs_value_state")}
    names = [name.removesuffix("_vs_value_state").replace("_", " ") for name in found][::-1]
    shares = [each["value"] for each in found.values()][::-1]
    figure, panel = pyplot.subplots(figsize=(8, 0.6 + 0.42 * len(names)), layout="constrained")
    panel.bar_label(panel.barh(names, shares, color=_OWN_COLOR), fmt=" %.2f")
    panel.set(xlabel="rate / rate of a ValueState function, in the same run")
    panel.margins(x=0.2)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def draw_growth(lines: list[dict[str, Any]], file: Path) -> None:
    """Draws events per second by the number of events, keys and subtasks, and by the bytes of a value."""
    panels_of = {
        "events": ("events", {"sum": "growth.sum_events_per_s", "process": "growth.process_events_per_s"}),
        "keys": ("keys", {"sum": "growth.keys_events_per_s"}),
        "parallelism": (
            "subtasks on two cores",
            {"sum": "growth.sum_subtasks_events_per_s", "process": "growth.process_subtasks_events_per_s"},
        ),
        "value_bytes": ("bytes of a value", {"process": "growth.values_events_per_s"}),
    }
    colors = {"sum": _OWN_COLOR, "process": _OTHER_COLOR}
    names = {"sum": "built-in sum", "process": "process function"}
    figure, panels = pyplot.subplots(1, len(panels_of), figsize=(13, 3.2), layout="constrained")
    for panel, (setting, (title, metrics)) in zip(panels, panels_of.items(), strict=True):
        for form, metric in metrics.items():
            points = [(each["settings"][setting], each["value"]) for each in lines if each["metric"] == metric]
            panel.plot(*zip(*sorted(points), strict=True), marker="o", color=colors[form], label=names[form])
        panel.set(xlabel=title, xscale="log", yscale="log" if setting == "value_bytes" else "linear")
        panel.set_ylim(bottom=None if setting == "value_bytes" else 0)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    panels[0].set_ylabel("events/s")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def main() -> None:
    source, folder = (Path(argument) for argument in sys.argv[1:])
    lines = [json.loads(each) for each in source.read_text().splitlines()]
    measured = {each["metric"].split(".")[0] for each in lines}
    if "state" in measured:
        draw_cost(lines, folder / "performance-state.png")
        draw_rates(lines, folder / "performance-rates.png")
    if "forms" in measured:
        draw_forms(lines, folder / "performance-forms.png")
    if "growth" in measured:
        draw_growth(lines, folder / "performance-growth.png")


if __name__ == "__main__":
    main()

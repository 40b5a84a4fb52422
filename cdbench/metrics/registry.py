"""Every metric as one object, in the order a full table shows them.

``METRICS`` follow from the trace of one run; ``compared.py`` describes the figures that need two
modes or the model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cdbench.metrics import depth, energy, latency, launches, memory, predictor, rates
from cdbench.metrics.compared import COMPARED as COMPARED
from cdbench.metrics.compared import Description as Description
from cdbench.metrics.compared import Direction as Direction
from cdbench.metrics.latency import Samples
from cdbench.metrics.percentiles import percentile
from cdbench.metrics.trace import RunTrace


@dataclass(frozen=True)
class Metric(Description):
    """A number of one run. ``compute`` answers None where it is undefined, never 0.

    ``samples`` gives the single values of a latency (its ``compute`` is their mean), for
    percentiles.
    """

    compute: Callable[[RunTrace], float | None]
    samples: Callable[[RunTrace], Samples] | None = None


def evaluate(trace: RunTrace) -> dict[str, float | None]:
    """Every metric of one run, by name."""
    return {name: metric.compute(trace) for name, metric in METRICS.items()}


def sample_percentiles(
    metric: Metric, trace: RunTrace, qs: Sequence[float]
) -> tuple[float | None, ...]:
    """Percentiles of a latency in one run; None each below its minimum number of requests.

    Raises:
        ValueError: the metric has no samples.
    """
    if metric.samples is None:
        raise ValueError(f"metric {metric.name} has no single values to take a percentile of")
    samples = metric.samples(trace)
    values_N = np.array(samples.values, np.float64)
    return tuple(percentile(values_N, q, distinct=samples.requests) for q in qs)


def _latency(
    unit: str, formula: str, needs: tuple[str, ...], samples: Callable[[RunTrace], Samples]
) -> Metric:
    name = samples.__name__
    return Metric(name, unit, "down", formula, needs, lambda trace: samples(trace).mean, samples)


_REQUESTS = ("requests",)
_LAUNCHES = ("launches",)
_PREDICTED = ("requests", "lookahead")

_ALL = (
    _latency(
        "s",
        "first token on the host − arrival; undefined under all-at-once arrivals",
        ("requests", "arrivals"),
        latency.ttft,
    ),
    _latency(
        "s/token",
        "(finish − first token) / (output tokens − 1), mean over requests with two or more",
        _REQUESTS,
        latency.tpot,
    ),
    _latency("s", "gap between consecutive tokens, pooled over requests", _REQUESTS, latency.itl),
    _latency("s", "finish − arrival", _REQUESTS, latency.e2e),
    _latency(
        "s/token",
        "mean over requests of (finish − arrival) / output tokens",
        _REQUESTS,
        latency.normalized_latency,
    ),
    _latency("s", "admission − arrival", _REQUESTS, latency.queue_time),
    Metric(
        "output_throughput",
        "token/s",
        "up",
        "output tokens of finished requests / wall of the timed region, fill and drain included",
        _REQUESTS,
        rates.output_throughput,
    ),
    Metric(
        "steady_throughput",
        "token/s",
        "up",
        "tokens / window, from max_residents finished with others waiting to an empty queue",
        _REQUESTS,
        rates.steady_throughput,
    ),
    Metric(
        "steady_decode_throughput",
        "token/s",
        "up",
        "later tokens in the steady window / (window − time in prefill launches within it)",
        ("requests", "launches"),
        rates.steady_decode_throughput,
    ),
    Metric(
        "decode_throughput",
        "token/s",
        "up",
        "later tokens of finished requests / (wall − time in prefill launches)",
        ("requests", "launches"),
        rates.decode_throughput,
    ),
    Metric(
        "request_throughput",
        "req/s",
        "up",
        "finished requests / wall of the timed region",
        _REQUESTS,
        rates.request_throughput,
    ),
    Metric(
        "goodput",
        "req/s",
        "up",
        "finished requests meeting every SLO given / wall",
        ("requests", "slo"),
        rates.goodput,
    ),
    Metric(
        "ms_per_loop",
        "ms",
        "down",
        "time in core launches with decode rows / their number",
        _LAUNCHES,
        launches.ms_per_loop,
    ),
    Metric(
        "floor_ms_per_loop",
        "ms",
        "none",
        "mean over the same launches of max(bytes / measured bandwidth, FLOPs / measured rate)",
        ("launches", "stages"),
        launches.floor_ms_per_loop,
    ),
    Metric(
        "host_share",
        "fraction",
        "down",
        "wall of the timed region with no stage running / wall",
        _LAUNCHES,
        rates.host_share,
    ),
    Metric(
        "cost_per_million_tokens",
        "currency",
        "down",
        "price per hour / 3600 · wall / output tokens · 10^6",
        ("requests", "price_per_hour"),
        rates.cost_per_million_tokens,
    ),
    Metric(
        "energy_per_token",
        "J/token",
        "down",
        "device's energy counter over the timed region / output tokens of finished requests",
        ("requests", "energy_j"),
        energy.energy_per_token,
    ),
    Metric(
        "peak_device_bytes",
        "byte",
        "down",
        "most device memory in this process's tensors; the other modes' warm pools included",
        ("peak_device_bytes",),
        energy.peak_device_bytes,
    ),
    Metric(
        "peak_kv_bytes",
        "byte",
        "down",
        "most KV rows in use at once, in bytes",
        ("kv",),
        memory.peak_kv_bytes,
    ),
    Metric(
        "preemptions",
        "count",
        "down",
        "requests moved to host memory for want of KV rows",
        ("kv",),
        memory.preemptions,
    ),
    Metric(
        "prefix_hit_rate",
        "fraction",
        "up",
        "prompt tokens found in the prefix cache / prompt tokens; null where it is off",
        ("kv",),
        memory.prefix_hit_rate,
    ),
    Metric(
        "mean_depth",
        "loops/token",
        "down",
        "executed loops of later tokens / later tokens",
        _REQUESTS,
        depth.mean_depth,
    ),
    Metric(
        "requested_depth",
        "loops/token",
        "none",
        "loops the rule asked for at lag 0, over later tokens / later tokens",
        _REQUESTS,
        depth.requested_depth,
    ),
    Metric(
        "wasted_loops",
        "loops",
        "down",
        "Σ max(0, executed − requested) over later tokens + loops of cancelled tokens",
        _REQUESTS,
        depth.wasted_loops,
    ),
    Metric(
        "short_loops",
        "loops",
        "down",
        "Σ max(0, requested − executed) over later tokens",
        _REQUESTS,
        depth.short_loops,
    ),
    Metric(
        "token_loops",
        "loops",
        "down",
        "Σ executed depths of later tokens + loops of stop and cancelled tokens",
        _REQUESTS,
        depth.token_loops,
    ),
    Metric(
        "predictor_precision",
        "fraction",
        "up",
        "exits called that the rule asked for by then / exits called, before R",
        _PREDICTED,
        predictor.predictor_precision,
    ),
    Metric(
        "predictor_recall",
        "fraction",
        "up",
        "exits called in time / exits that the rule asked for before R",
        _PREDICTED,
        predictor.predictor_recall,
    ),
    Metric(
        "predictor_exact",
        "fraction",
        "up",
        "later tokens at exactly the depth due, max(2, requested) / later tokens",
        _PREDICTED,
        predictor.predictor_exact,
    ),
    Metric(
        "predictor_depth_error",
        "loops",
        "down",
        "mean |executed − max(2, requested)| of later tokens; a least value where a call was early",
        _PREDICTED,
        predictor.predictor_depth_error,
    ),
    Metric(
        "core_launches",
        "launches",
        "down",
        "core launches with decode rows",
        _LAUNCHES,
        launches.core_launches,
    ),
    Metric(
        "coda_launches",
        "launches",
        "down",
        "coda launches with decode rows",
        _LAUNCHES,
        launches.coda_launches,
    ),
    Metric(
        "prelude_launches",
        "launches",
        "down",
        "prelude launches with decode rows",
        _LAUNCHES,
        launches.prelude_launches,
    ),
    Metric(
        "prefill_launches",
        "launches",
        "down",
        "launches of any stage with prompt rows",
        _LAUNCHES,
        launches.prefill_launches,
    ),
    Metric(
        "core_occupancy",
        "fraction",
        "up",
        "decode rows of core launches / (core launches · width)",
        _LAUNCHES,
        launches.core_occupancy,
    ),
    Metric(
        "coda_width",
        "rows",
        "up",
        "mean decode rows of a coda launch",
        _LAUNCHES,
        launches.coda_width,
    ),
    Metric(
        "refills",
        "tokens",
        "none",
        "tokens at loop 1 that joined a core launch beside deeper ones",
        _LAUNCHES,
        launches.refills,
    ),
    Metric(
        "kv_bytes_per_token",
        "byte",
        "down",
        "2·(prelude + s·core + coda layers)·kv_heads·head_dim·bytes, mean over prompt (s = m) and "
        "later tokens (s = min(depth, m))",
        ("requests", "kv"),
        memory.kv_bytes_per_token,
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""Every metric of one run, by name."""

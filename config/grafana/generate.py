"""Prints the Grafana dashboard: `python config/grafana/generate.py`, run by `make docs`.

The panels stand here as data, in the order a night shift reads them: is it well, slow, busy, full?
A panel marked `gpu` shows nothing on a machine without one; its description then begins with `GPU only.`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

OUTPUT = Path(__file__).parent / "dashboards" / "maxsim.json"
GPU_ONLY = "GPU only."

_SELECTED = 'instance=~"$instance"'
_DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


@dataclass(frozen=True)
class Panel:
    """`queries` are (expression, legend); `limit` draws a line; a unit is Grafana's name for it."""

    title: str
    unit: str
    description: str
    queries: tuple[tuple[str, str], ...]
    stacked: bool = False
    gpu: bool = False
    limit: float | None = None


def _rate(metric: str, by: str = "", labels: str = "") -> str:
    selector = f"{_SELECTED},{labels}" if labels else _SELECTED
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def _quantile(q: float, metric: str, by: str = "", labels: str = "") -> str:
    return f"histogram_quantile({q}, {_rate(f'{metric}_bucket', f'le, {by}' if by else 'le', labels)})"


def _mean(metric: str) -> str:
    return f"{_rate(f'{metric}_sum')} / {_rate(f'{metric}_count')}"


def _now(metric: str, by: str, of: str = "sum") -> str:
    return f"{of} by ({by}) ({metric}{{{_SELECTED}}})"


_DURATION = "maxsim_http_request_duration_seconds"

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is it well?",
        (
            Panel(
                "Ready",
                "bool_yes_no",
                "Whether each service answers requests. No: it loads, drains, or its engine has stopped.",
                ((f"maxsim_ready{{{_SELECTED}}}", "{{instance}}"),),
            ),
            Panel(
                "Request rate",
                "reqps",
                "Requests answered, by route. 'unmatched' are paths that no route serves.",
                ((_rate("maxsim_http_requests_total", "route"), "{{route}}"),),
                stacked=True,
            ),
            Panel(
                "Errors",
                "percentunit",
                "Share of requests answered with a 5xx code: 500 a fault, 503 a refusal, 507 a full store.",
                ((f"instance:maxsim_errors:ratio_rate5m{{{_SELECTED}}}", "{{instance}}"),),
            ),
            Panel(
                "Answers by code",
                "reqps",
                "What clients are told. 499 is a client that hung up before its answer.",
                ((_rate("maxsim_http_requests_total", "code"), "{{code}}"),),
                stacked=True,
            ),
            Panel(
                "Rejections by reason",
                "reqps",
                "Given up before they were scored: queue_full (429), deadline and draining (503), abandoned, "
                "whose client hung up. The alert counts all but the abandoned.",
                ((_rate("maxsim_rejected_total", "reason"), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Out of memory",
                "short",
                "Requests that failed for lack of memory in the last 10 minutes. Any is an alert.",
                ((f"increase(maxsim_oom_total{{{_SELECTED}}}[10m])", "{{instance}}"),),
            ),
        ),
    ),
    (
        "Is it slow, and where?",
        (
            Panel(
                "Median latency by route",
                "s",
                "Half of the requests are answered faster, from the request line to the last byte.",
                ((_quantile(0.5, _DURATION, "route"), "{{route}}"),),
            ),
            Panel(
                "99th percentile by route",
                "s",
                "One request in a hundred takes longer. Dashed: the objective for ranking requests.",
                (
                    (_quantile(0.99, _DURATION, "route"), "{{route}}"),
                    ("maxsim:objective_p99_seconds", "objective"),
                ),
            ),
            Panel(
                "Latency by stage",
                "s",
                "Mean time of each stage of a rerank or search, stacked. From launch to download (on a CPU: "
                "the kernel) it is the time of a whole batch, shared by its requests.",
                (
                    (
                        _now("instance_stage:maxsim_stage_duration_seconds:mean5m", "stage", "avg"),
                        "{{stage}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "99th percentile by stage",
                "s",
                "Which stage the slow requests spend their time in. A long queue with a short kernel wants "
                "another machine; a long kernel wants fewer candidates.",
                ((_quantile(0.99, "maxsim_stage_duration_seconds", "stage"), "{{stage}}"),),
            ),
            Panel(
                "Queue depth",
                "short",
                "Requests that wait to be scored. At the setting queue_depth further ones get 429.",
                ((_now("maxsim_queue_depth", "instance"), "{{instance}}"),),
            ),
            Panel(
                "Age of the oldest request in the queue",
                "s",
                "How long the oldest one has waited. The alert is at half of the deadline.",
                (
                    (_now("maxsim_queue_oldest_age_seconds", "instance", "max"), "{{instance}}"),
                    (f"0.5 * min(maxsim_deadline_seconds{{{_SELECTED}}})", "half of the deadline"),
                ),
            ),
            Panel(
                "Busy",
                "percentunit",
                "Share of the time in which a batch was on the device (on a CPU: in the kernel). Near 100 % "
                "the machine carries no more, and the queue grows.",
                ((_rate("maxsim_stream_busy_seconds_total", "instance"), "{{instance}}"),),
            ),
        ),
    ),
    (
        "What is it asked?",
        (
            Panel(
                "Requests in a batch",
                "short",
                "Requests scored as one work list: the mean and the 95th percentile. 1: idle.",
                (
                    (
                        _mean("maxsim_batch_requests"),
                        "mean",
                    ),
                    (_quantile(0.95, "maxsim_batch_requests"), "p95"),
                ),
            ),
            Panel(
                "Pairs in a batch",
                "short",
                "(query, document) pairs in one work list: the mean and the 95th percentile.",
                (
                    (_mean("maxsim_batch_pairs"), "mean"),
                    (_quantile(0.95, "maxsim_batch_pairs"), "p95"),
                ),
            ),
            Panel(
                "Candidates per request",
                "short",
                "How many documents a request ranks: the mean and the 95th percentile.",
                (
                    (
                        _mean("maxsim_rerank_candidates"),
                        "mean",
                    ),
                    (_quantile(0.95, "maxsim_rerank_candidates"), "p95"),
                ),
            ),
            Panel(
                "Missing ids",
                "percentunit",
                "Share of the candidate ids that are not stored. Above 1 % the retriever's index and the "
                "store have drifted apart.",
                ((f"instance:maxsim_missing_ids:ratio_rate5m{{{_SELECTED}}}", "{{instance}}"),),
                limit=0.01,
            ),
            Panel(
                "Kernel launches",
                "ops",
                "Work lists scored, by kernel and stored type.",
                ((_rate("maxsim_kernel_launches_total", "kernel, dtype"), "{{kernel}} {{dtype}}"),),
            ),
            Panel(
                "Writes",
                "ops",
                "Documents written or deleted, by outcome.",
                ((_rate("maxsim_store_mutations_total", "op, outcome"), "{{op}} {{outcome}}"),),
            ),
            Panel(
                "Texts encoded",
                "ops",
                "Texts that the model made into token rows: queries, and documents that came as text. "
                "Nothing where clients send vectors.",
                ((_rate("maxsim_encoded_texts_total", "kind"), "{{kind}}"),),
            ),
        ),
    ),
    (
        "What is full?",
        (
            Panel(
                "Store by tier",
                "bytes",
                "Token rows resident in each tier, against its budget. Writes past it are refused (507).",
                (
                    (_now("maxsim_store_bytes", "tier"), "{{tier}} used"),
                    (_now("maxsim_store_capacity_bytes", "tier"), "{{tier}} budget"),
                ),
            ),
            Panel(
                "Store used",
                "percentunit",
                "Share of each tier's budget that is used. The alert is at 90 %.",
                ((f"instance_tier:maxsim_store_used:ratio{{{_SELECTED}}}", "{{instance}} {{tier}}"),),
                limit=0.9,
            ),
            Panel(
                "Store by collection",
                "bytes",
                "Token rows of each collection, dead ones included. Past the first 100: '(other)'.",
                ((_now("maxsim_store_bytes", "collection, tier"), "{{collection}} {{tier}}"),),
                stacked=True,
            ),
            Panel(
                "Documents by collection",
                "short",
                "Documents stored in each collection.",
                ((_now("maxsim_store_documents", "collection"), "{{collection}}"),),
                stacked=True,
            ),
            Panel(
                "Dead rows",
                "bytes",
                "Rows of deleted and replaced documents, which compaction will free.",
                ((_now("maxsim_store_dead_bytes", "collection"), "{{collection}}"),),
                stacked=True,
            ),
            Panel(
                "Scrapes",
                "bool_yes_no",
                "Whether Prometheus reaches each target. No: every other panel is blind for it.",
                (('up{job="maxsim"}', "{{instance}}"),),
            ),
        ),
    ),
    (
        "GPU",
        (
            Panel(
                "GPU memory by purpose",
                "bytes",
                "Stacked, against what the device has: the store, staging (what is uploaded), workspace "
                "(the rest of PyTorch's reserve), other (contexts, code, and whatever else uses the card).",
                (
                    (_now("maxsim_gpu_memory_bytes", "purpose"), "{{purpose}}"),
                    (f"sum(maxsim_gpu_memory_total_bytes{{{_SELECTED}}})", "total"),
                ),
                stacked=True,
                gpu=True,
            ),
            Panel(
                "Stream bandwidth",
                "Bps",
                "Bytes copied to the device (up: requests, and rows of a search that scans the host) and "
                "back (down). While busy: for each second that a batch is on the device; in a scan, what the "
                "bus carries. Host rows that a rerank reads in place are not in it.",
                (
                    (_rate("maxsim_stream_bytes_total", "direction"), "{{direction}}"),
                    (
                        f"{_rate('maxsim_stream_bytes_total')} / {_rate('maxsim_stream_busy_seconds_total')}",
                        "while busy",
                    ),
                ),
                gpu=True,
            ),
            Panel(
                "Kernel compilations",
                "short",
                "Kernels compiled, or loaded from the cache, since the start. 'live' ones made a request "
                "wait; any is an alert.",
                ((_now("maxsim_kernel_compilations_total", "phase"), "{{phase}}"),),
                gpu=True,
            ),
            Panel(
                "Requests by CUDA graph",
                "percentunit",
                "Share of the requests that one replayed graph scored. A graph is captured when a kind of "
                "request comes again; requests that share a batch, and very large ones, go without.",
                (
                    (
                        f"{_rate('maxsim_graph_replays_total')} / {_rate('maxsim_rerank_candidates_count')}",
                        "of all requests",
                    ),
                ),
                gpu=True,
            ),
        ),
    ),
)


def dashboard() -> dict[str, object]:
    panels: list[dict[str, object]] = []
    y = 0
    for title, row in ROWS:
        at: dict[str, int] = {"x": 0, "y": y, "w": _WIDTH * _COLUMNS, "h": 1}
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "gridPos": at, "panels": []})
        y += 1
        for i, panel in enumerate(row):
            columns = _COLUMNS - i % _COLUMNS if i == len(row) - 1 else 1  # the last one fills its line
            at = {"x": i % _COLUMNS * _WIDTH, "y": y + i // _COLUMNS * _HEIGHT}
            at |= {"w": columns * _WIDTH, "h": _HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, at))
        y += -(-len(row) // _COLUMNS) * _HEIGHT
    return {
        "uid": "maxsim",
        "title": "maxsim-serve",
        "tags": ["maxsim"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_instances()]},
        "annotations": {"list": [_restarts()]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, object]:
    lines = [name for _, name in panel.queries if name in _LINES]
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }
    defaults: dict[str, object] = {"unit": panel.unit, "min": 0, "custom": custom}
    if panel.limit is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.limit}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        custom["thresholdsStyle"] = {"mode": "dashed"}
    return {
        "type": "timeseries",
        "id": number,
        "title": panel.title,
        "description": f"{GPU_ONLY} {panel.description}" if panel.gpu else panel.description,
        "datasource": _DATASOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": defaults, "overrides": [_dashed(name) for name in lines]},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for i, (expression, legend) in enumerate(panel.queries)
        ],
    }


# What others are held against: drawn as a dashed line, and no part of a stack.
_LINES = frozenset({"objective", "half of the deadline", "total"})


def _dashed(name: str) -> dict[str, object]:
    properties = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
        {"id": "custom.stacking", "value": {"mode": "none"}},
        {"id": "custom.fillOpacity", "value": 0},
        {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
    ]
    return {"matcher": {"id": "byName", "options": name}, "properties": properties}


def _instances() -> dict[str, object]:
    query = "label_values(maxsim_ready, instance)"
    return {
        "name": "instance",
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": "instances"},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _restarts() -> dict[str, object]:
    return {
        "name": "starts",
        "enable": True,
        "datasource": _DATASOURCE,
        "expr": "changes(maxsim_start_duration_seconds[1m]) > 0",
        "iconColor": "blue",
        "titleFormat": "{{instance}} started",
    }


def as_json() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(as_json(), encoding="utf-8")

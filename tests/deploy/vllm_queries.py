"""The queries of vLLM's dashboards for Grafana, with values for the dashboards' variables.

tests/data/vllm_dashboards.json has the expressions of the panels by dashboard, each once, as they are in examples/observability
of vLLM's repository in November 2026.
"""
import json
import os
import re

DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "vllm_dashboards.json")
METRIC = re.compile(r"\bvllm:(\w+)")
# Beginnings of the names of series that only parts of vLLM export that are not here.
ABSENT = {
    "mm_cache_": "images",
    "nixl_": "a connector of KV caches",
    "kv_offload_": "a connector of KV caches",
    "simple_kv_offload_": "a connector of KV caches",
    "num_requests_kv_fetch_by_stage": "a connector of KV caches",
    "estimated_": "estimates of operations and bytes",
    "rl_weight_update_": "updates by vLLM's own transfer of weights",
}
# A share of lookups in other servers' caches, of which there are none: the counters are here, and stay 0.
NO_LOOKUPS = "external_prefix_cache_"
# Choices of the dashboards' variables that are bounds of buckets.
BOUNDS = {"$ttft_slo": ("0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0", "10.0"),
          "$tpot_slo": ("0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.5")}
# vLLM serves one model. Prometheus refuses this query for a server of several, whose process would have several names.
ONE_MODEL = "process_start_time_seconds"


def expressions():
    """(dashboard, expression)"""
    with open(DATA, encoding="utf-8") as file:
        found = json.load(file)
    return [(name, expression) for name, those in found.items() for expression in those]


def is_absent(expression):
    """Whether all series of vLLM's that the expression names belong to parts that are not here."""
    names = METRIC.findall(expression)
    return bool(names) and all(name.startswith((*ABSENT, NO_LOOKUPS)) for name in names)


def vllm_queries(window, model, instance):
    """(dashboard, query) of everything that is here. window: as 1m. model: for dashboards that show one. instance: serves one model
    alone."""
    for name, expression in expressions():
        if is_absent(expression):
            continue
        query = expression.replace('="$model_name"', f'="{model}"').replace("$__rate_interval", window).replace("$__range", "5m")
        query = query.replace("$instance", re.escape(instance).replace("\\", "\\\\") if ONE_MODEL in query else ".+")
        query = re.sub(r"\$(?:job|model_name|engine|Deployment_id)\b", ".+", query)
        variable = next((one for one in BOUNDS if one in query), None)
        for bound in BOUNDS.get(variable, ("",)):
            yield name, query.replace(variable, bound) if variable else query

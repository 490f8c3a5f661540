"""Queries of the kinds that vLLM's dashboards for Grafana make (in vLLM's repository under examples/observability, in November
2026), over the series that the queries name. Left out are series of parts that Somnus does not have: images, NIXL and other
connectors of KV caches, estimates of FLOPs."""
SELECTOR = 'job=~".+", instance=~".+", model_name=~".+"'

HISTOGRAMS = (
    "e2e_request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds",
    "request_time_per_output_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens",
    "request_prefill_kv_computed_tokens", "iteration_tokens_total")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info", "engine_sleep_state")
COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "request_success_total", "num_preemptions_total",
            "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_cached_total", "prompt_tokens_by_source_total",
            "prompt_tokens_cached_by_source_total", "external_prefix_cache_queries_total", "external_prefix_cache_hits_total",
            "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
            "spec_decode_num_accepted_tokens_per_pos_total")
# Values of labels that a panel asks for.
LABELLED = (
    'num_requests_waiting_by_reason{%s, reason="capacity"}', 'num_requests_waiting_by_reason{%s, reason="deferred"}',
    'engine_sleep_state{%s, sleep_state="awake"}', 'engine_sleep_state{%s, sleep_state="discard_all"}',
    'prompt_tokens_by_source_total{%s, source="local_compute"}', 'prompt_tokens_by_source_total{%s, source="local_cache_hit"}',
    'prompt_tokens_by_source_total{%s, source="external_kv_transfer"}', 'request_success_total{%s, finished_reason="error"}',
    'request_success_total{%s, finished_reason="stop"}', 'request_success_total{%s, finished_reason="length"}',
    # Service levels: a single bucket, by the bucket's bound.
    'time_to_first_token_seconds_bucket{%s, le="1.0"}', 'time_to_first_token_seconds_bucket{%s, le="0.25"}',
    'time_to_first_token_seconds_bucket{%s, le="10.0"}', 'request_time_per_output_token_seconds_bucket{%s, le="0.1"}',
    'request_time_per_output_token_seconds_bucket{%s, le="0.025"}')


def vllm_queries(window):
    """The queries that panels make of each series. `window`: as 1m."""
    for name in HISTOGRAMS:
        def rate(part, series=f"vllm:{name}"):
            return f"rate({series}_{part}{{{SELECTOR}, engine=~\".+\"}}[{window}])"
        yield f"histogram_quantile(0.95, sum by (le, instance) ({rate('bucket')}))"
        yield f"sum by (le) ({rate('bucket')})"
        yield f"sum({rate('sum')}) / (sum({rate('count')}) > 0)"
    for name in GAUGES:
        yield f"max by (instance, engine, model_name) (vllm:{name}{{{SELECTOR}, engine=~\".+\"}})"
    for name in COUNTERS:
        yield f"sum by (instance, engine, model_name) (rate(vllm:{name}{{{SELECTOR}, engine=~\".+\"}}[{window}]))"
    for query in LABELLED:
        yield f"sum(vllm:{query % SELECTOR})"
    hits, looked_up = (f"sum(rate(vllm:prefix_cache_{part}_total{{{SELECTOR}}}[{window}]))" for part in ("hits", "queries"))
    yield f"{hits} / ({looked_up} > 0)"
    for operation in ("sleep", "wake"):
        yield f'sum by (operation) (vllm:sleep_mode_operation_duration_seconds_count{{job=~".+", operation="{operation}"}})'
    yield f'sum by (handler) (rate(http_request_duration_seconds_sum{{job=~".+"}}[{window}]))'
    yield f'sum by (status) (rate(http_requests_total{{job=~".+", status="2xx"}}[{window}])) > 0'
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_max_fds", "process_start_time_seconds"):
        yield f'sum by (instance) ({name}{{job=~".+"}})'
    yield f'sum by (instance) (rate(process_cpu_seconds_total{{job=~".+"}}[{window}]))'

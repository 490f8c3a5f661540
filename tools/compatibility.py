#!/usr/bin/env python3
"""Makes the tables of docs/compatibility.md: vLLM's names beside the names in the sources.

Usage: tools/compatibility.py           writes the tables into the page, between its marks
       tools/compatibility.py --check   ends with 1 where the page has other tables (tests/tools/docs_test.py)
What is here is read from the sources: flags from coordinator/flags/*.cc, fields from coordinator/openai/field_table.cc, routes
from coordinator/http/routes.cc, metrics from coordinator/metrics/*.cc, arguments and methods of Python from clients/python
(compatibility_python.py). vLLM's names below are those of its version 0.33; a word behind a name says what somebody who used the
name does here.
"""
import glob
import os
import re
import sys

import compatibility_python

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "compatibility.md")

# Flags of `vllm serve`. "": only the sources say whether the flag is here. "...": the replacement, or why there is none.
FLAGS = {
    "model": "", "served-model-name": "", "dtype": "", "quantization": "", "max-model-len": "", "load-format": "", "seed": "",
    "generation-config": "", "config": "", "runner": "", "chat-template": "", "default-chat-template-kwargs": "",
    "enable-auto-tool-choice": "", "tool-call-parser": "", "reasoning-parser": "", "enforce-eager": "",
    "tensor-parallel-size": "", "data-parallel-size": "", "pipeline-parallel-size": "",
    "gpu-memory-utilization": "", "kv-cache-memory-bytes": "", "kv-cache-dtype": "", "block-size": "", "swap-space": "",
    "enable-prefix-caching": "", "max-num-seqs": "", "max-num-batched-tokens": "", "max-num-partial-prefills": "",
    "max-long-partial-prefills": "", "long-prefill-token-threshold": "", "scheduling-policy": "", "async-scheduling": "",
    "host": "", "port": "", "api-key": "", "ssl-certfile": "", "ssl-keyfile": "", "ssl-ca-certs": "", "allowed-origins": "",
    "allowed-methods": "", "allowed-headers": "", "allow-credentials": "", "enable-request-id-headers": "", "root-path": "",
    "shutdown-timeout": "",
    "otlp-traces-endpoint": "", "kv-cache-metrics": "", "kv-cache-metrics-sample": "", "enable-tokenizer-info-endpoint": "",
    "enable-sleep-mode": "", "sleep-mode-backend": "there is one backend",
    "sleep-preserve-parameter-names": "a sleep of level 1 keeps all weights, and an update onto them need not bring all",
    "sleep-mode-offload-cudagraph": "graphs stay in a sleep, and are not captured again; their pool sleeps as `workspace`",
    "enable-nccl-comm-suspend": "always so, where NCCL can",
    "enable-cumem-allocator": "all large memory can sleep",
    "weight-transfer-config": "a client of `UpdateWeights` chooses the way: messages, shared memory, CUDA IPC",
    "enable-scale-out": "`/inference/v1/generate` and `render` are always there",
    "tokens-only": "the tokenizer is always there",
    "logprobs-mode": "log-probabilities are the model's own, before temperature, penalties and grammars",
    "enable-return-routed-experts": "routes of tokens do not leave the workers; `--expert-load-metrics` counts them",
    "return-sampling-mask": "masks of the sampler do not leave the workers",
    "enable-chunked-prefill": "prompts are always computed in chunks", "trust-remote-code": "no code of a model is ever run",
    "tokenizer": "the tokenizer is the model's own", "tokenizer-mode": "there is one tokenizer",
    "revision": "models are directories or files", "download-dir": "nothing is downloaded", "hf-token": "nothing is downloaded",
    "speculative-config": "`--speculative`, `--num-speculative-tokens`, `--draft-model`",
    "enable-lora": "", "max-loras": "", "max-cpu-loras": "", "max-lora-rank": "",
    "lora-modules": "one module a flag, which may be repeated, or a JSON list",
    "structured-outputs-config": "one engine for grammars; `--structured-outputs-*` bound it",
    "pooler-config": "`--pooling-type`", "kv-transfer-config": "caches do not move between servers",
    "cpu-offload-gb": "weights are wholly on the device", "distributed-executor-backend": "workers are processes, by `--workers`",
    "nnodes": "`--workers=remote:N`", "node-rank": "a worker's `--rank`", "master-addr": "a worker's `--coordinator`",
    "headless": "a worker is a program of its own", "max-logprobs": "20", "uvicorn-log-level": "`--log-level`",
    "disable-log-requests": "requests are logged by `--access-log` alone", "enable-expert-parallel": "",
    "attention-backend": "kernels are chosen by the device", "compilation-config": "nothing is compiled at run time",
    "disable-custom-all-reduce": "the all-reduce is chosen by measured times", "cudagraph-capture-sizes": "`--graph-sizes`",
    "limit-mm-per-prompt": "there are no images", "response-role": "the role is the assistant's",
}

# Of vLLM's SamplingParams and OpenAI server, beyond the fields that the sources list.
FIELDS = (
    "model",
    "messages",
    "prompt",
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "stream",
    "stream_options",
    "echo",
    "suffix",
    "user",
    "response_format",
    "structured_outputs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "include_reasoning",
    "reasoning_effort",
    "thinking_token_budget",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
    "length_penalty",
    "cache_salt",
    "priority",
    "request_id",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "return_weight_versions",
    "return_prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
    "logits_processors",
    "logprob_token_ids",
    "prompt_embeds",
    "repetition_detection",
    "session_id",
     "stream_interval")

ROUTES = {
    "/v1/models": "",
    "/v1/completions": "",
    "/v1/chat/completions": "",
    "/v1/responses": "",
    "/v1/messages": "",
    "/v1/messages/count_tokens": "",
    "/v1/embeddings": "",
    "/pooling": "",
    "/tokenize": "",
    "/detokenize": "",
    "/tokenizer_info": "",
    "/inference/v1/generate": "",
    "/v1/chat/completions/render": "",
    "/v1/completions/render": "",
    "/health": "",
    "/ping": "",
    "/version": "",
    "/load": "",
    "/metrics": "",
    "/server_info": "",
    "/sleep": "",
    "/wake_up": "",
    "/is_sleeping": "",
    "/pause": "",
    "/resume": "",
    "/is_paused": "",
    "/collective_rpc": "",
    "/reset_prefix_cache": "",
    "/reset_mm_cache": "",
    "/reset_encoder_cache": "",
    "/get_world_size": "",
    "/weight_info": "",
    "/weight_checker": "",
    "/release_kv_cache_memory": "",
    "/update_weight_version": "",
    "/abort_requests": "",
    "/score": "no model scores pairs",
    "/rerank": "no model scores pairs",
    "/classify": "no model classifies",
    "/v1/audio/transcriptions": "there is no sound",
    "/v1/audio/translations": "there is no sound",
    "/v1/load_lora_adapter": "",
    "/v1/unload_lora_adapter": "",
    "/init_weight_transfer_engine": "updates of the weights come by gRPC (`UpdateWeights`)",
    "/start_weight_update": "the same",
    "/start_draft_weight_update": "a draft model keeps its weights",
    "/update_weights": "the same",
    "/finish_weight_update": "the same",
    "/start_profile": "`GET /trace`",
    "/stop_profile": "`GET /trace`",
    "/scale_elastic_ep": "replicas are drained and restarted, experts stay where they are",
    "/invocations": "SageMaker's; the other routes do",
    "/v2/embed": "Cohere's; `/v1/embeddings` does",
     }

METRICS = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "iteration_tokens_total",
    "request_success_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "request_max_num_generation_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "cache_config_info",
    "engine_sleep_state",
    "engine_sleep_component_state",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "prompt_tokens_cached_total",
    "prompt_tokens_by_source_total",
    "prompt_tokens_cached_by_source_total",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
    "lora_requests_info",
    "num_requests_waiting_by_reason",
    "request_prefill_kv_computed_tokens",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "sleep_mode_operation_duration_seconds",
    "rl_sleep_mode_operations_total",
    "rl_sleep_mode_operation_duration_seconds",
    "rl_sleep_mode_operations_in_flight",
    "rl_weight_update_operation_duration_seconds",
    "num_requests_kv_fetch_by_stage",
    "mm_cache_queries_total",
    "mm_cache_hits_total",
    "estimated_flops_per_gpu_total",
     "nixl_xfer_time_seconds")


def read(pattern):
    texts = []
    for path in sorted(glob.glob(os.path.join(ROOT, pattern))):
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    return "\n".join(texts)


def here_flags():
    """The flag by each name: the flag's name, or an alias."""
    flags = {}
    for row in re.split(r"(?=Flag::\w+(?:<[\w:]+>)?\()", read("coordinator/flags/*.cc")):
        name = re.match(r'Flag::\w+(?:<[\w:]+>)?\(\s*"([a-z0-9-]+)"', row)
        if name:
            flags[name[1]] = name[1]
            flags.update((alias, name[1]) for alias in re.findall(r'\.Alias\("([a-z0-9-]+)"\)', row))
    # Rows that a function makes from its arguments are in the page that tests/flags compares with --help.
    for name in re.findall(r"^  --([a-z][a-z0-9-]*)", read("docs/flags.md"), re.MULTILINE):
        flags.setdefault(name, name)
    return flags


def here_fields():
    """The words of the table about fields: {name: description}; "" is a field that is refused."""
    fields = {}
    for name, text in re.findall(r'\{"(\w+)",\s*k\w+,\s*"([^"]*)"', read("coordinator/openai/field_table.cc")):
        fields[name] = text or fields.get(name, "")
    return fields


def flag_rows():
    flags, rows = here_flags(), []
    for name, word in sorted(FLAGS.items()):
        if flags.get(name) == name:
            rows.append((f"`--{name}`", "here", ""))
        elif name in flags:
            rows.append((f"`--{name}`", "here", f"also `--{flags[name]}`"))
        else:
            rows.append((f"`--{name}`", "not here", word or "an unknown flag"))
    return rows


def field_rows():
    fields, rows = here_fields(), []
    for name in FIELDS:
        text = fields.get(name)
        if text is None:
            rows.append((f"`{name}`", "ignored", "unknown, as to OpenAI's server"))
        elif text == "has no effect":
            rows.append((f"`{name}`", "checked", text))
        else:
            rows.append((f"`{name}`", "here" if text else "refused", text or "a 400 that names the field"))
    return rows


def route_rows():
    public = dict(re.findall(r'\{Route::\w+,\s*"(/[\w/]+)",\s*\w+,\s*\w+,\s*(\w+),', read("coordinator/http/routes.cc")))
    return [(f"`{name}`", "here" if name in public else "not here", word if name not in public else "" if public[name]
             == "true" else "operators' port") for name, word in ROUTES.items()]


def metric_rows():
    text = read("coordinator/metrics/*")
    return [(f"`vllm:{name}`", "here" if re.search(rf'"(?:vllm:)?{name}"', text) else "not here", "") for name in METRICS]


def table(title, columns, rows):
    head = "| " + " | ".join(columns) + " | | |"
    lines = [f"## {title}", "", head, "|" + "---|" * (len(columns) + 2),
             *(re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(row)} |") for row in rows)]
    return "\n".join(lines)


def tables():
    found = [("Flags of `vllm serve`", ("flag",), flag_rows()), ("Fields of requests", ("field",), field_rows()),
             ("Routes", ("route",), route_rows()), ("Metrics", ("metric",), metric_rows()), *compatibility_python.tables()]
    return "\n\n".join(table(*one) for one in found)


def main():
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    begin, end = "<!-- tools/compatibility.py -->\n", "<!-- end -->\n"
    head, rest = page.split(begin)
    new = f"{head}{begin}\n{tables()}\n\n{end}{rest.split(end)[1]}"
    if "--check" in sys.argv[1:]:
        if new != page:
            sys.exit("docs/compatibility.md is not what tools/compatibility.py makes of the sources: run tools/compatibility.py")
        return
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(new)


if __name__ == "__main__":
    main()

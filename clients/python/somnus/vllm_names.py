"""Names of vLLM's that are not here, with a word for whoever uses one: a clear message is better than 'unknown'."""
from typing import Any, Dict, Mapping, Optional, Tuple

_IMAGES = "there are no images"
_READER = "files are read by our own reader"
_KERNELS = "kernels are chosen by the device"
_SCHEDULER = "there is one scheduler"
_TELLS = "get_metrics() has the numbers"
_GRAMMARS = "there is one engine for grammars"
_PROFILE = "an engine records its steps by itself (GET /trace of a server)"

# Engine arguments that mean nothing here, beyond those of engine_args, by reason.
_MEANINGLESS: Dict[str, str] = {
    _IMAGES:
        "allowed_media_domains enable_mm_embeds interleave_mm_strings media_io_kwargs mm_processor_cache_gb "
        "mm_processor_cache_type mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode "
        "mm_encoder_attn_backend skip_mm_profiling video_pruning_rate disable_chunked_mm_input "
        "enable_mm_processor_stats enable_tower_connector_lora enable_multimodal_encoder_data_parallel "
        "language_model_only",
    _READER:
        "safetensors_load_strategy config_format ignore_patterns max_parallel_loading_workers pt_load_map_location "
        "model_impl",
    _KERNELS:
        "kernel_config enable_flashinfer_autotune disable_cascade_attn override_attention_dtype optimization_level "
        "performance_mode max_cudagraph_capture_size all2all_backend",
    _SCHEDULER:
        "scheduler_cls num_scheduler_steps num_lookahead_slots use_v2_block_manager disable_async_output_proc "
        "stream_interval disable_hybrid_kv_cache_manager prefix_caching_hash_algo renderer_num_workers",
    _TELLS:
        "aggregate_engine_logging show_hidden_metrics_for_version collect_detailed_traces cudagraph_metrics "
        "enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details",
    _GRAMMARS:
        "guided_decoding_backend structured_outputs_config",
    "no code of a model or of a plugin is ever run":
        "reasoning_parser_plugin io_processor_plugin worker_cls fail_on_environ_validation",
    "models with such layers are not served":
        "mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode",
    _PROFILE:
        "profiler_config",
}
MEANINGLESS = {name: why for why, names in _MEANINGLESS.items() for name in names.split()}

# Engine arguments of things that are not here: the values that ask for nothing, and what takes their place.
ABSENT: Dict[str, Tuple[Tuple[Any, ...], str]] = {
    "decode_context_parallel_size": ((1,), ""),
    "prefill_context_parallel_size": ((1,), ""),
    "dcp_kv_cache_interleave_size": ((1,), ""),
    "cp_kv_cache_interleave_size": ((1,), ""),
    "enable_eplb": ((False,), ""),
    "eplb_config": (({},), ""),
    "expert_placement_strategy": (("linear",), ""),
    "enable_return_routed_experts": ((False,), ""),
    "enable_dbo": ((False,), ""),
    "ubatch_size": ((0,), ""),
    "dbo_decode_token_threshold": ((32,), ""),
    "dbo_prefill_token_threshold": ((512,), ""),
    "disable_nccl_for_dp_synchronization": ((False, True), ""),
    "kv_transfer_config": ((), "caches do not move between engines"),
    "ec_transfer_config": ((), ""),
    "kv_events_config": ((), "max_kv_events, and GET /v1/kv_events of a server"),
    "kv_offloading_size": ((), "swap_space"),
    "kv_offloading_backend": (("native",), ""),
    "kv_sharing_fast_prefill": ((False,), ""),
    "offload_backend": (("auto",), "weights are wholly on the device"),
    "offload_prefetch_step": ((1,), ""),
    "num_gpu_blocks_override": ((), "kv_cache_memory_bytes"),
    "calculate_kv_scales": ((False,), ""),
    "default_mm_loras": (({},), ""),
    "specialize_active_lora": ((False,), ""),
    "hf_overrides": (({},), "another config.json in the directory"),
    "hf_config_path": ((), "another config.json in the directory"),
    "override_generation_config": (({},), "SamplingParams of each call"),
    "logits_processors": (([],), ""),
    "logits_processor_pattern": ((), ""),
    "logprobs_mode": (("raw_logprobs",), "log-probabilities are those before the sampling's changes"),
    "convert": (("auto", "none"), "runner and pooling_type"),
    "enable_prompt_embeds": ((False,), ""),
    "additional_config": (({},), ""),
    "weight_transfer_config": ((), "update_weights()"),
    "tokens_only": ((False,), ""),
    "nnodes": ((1,), "one host; `somnus serve --workers=remote:N` has several"),
    "node_rank": ((0,), ""),
    "master_addr": (("127.0.0.1",), ""),
    "master_port": ((29501,), ""),
    "data_parallel_rank": ((), "data_parallel_size alone"),
    "data_parallel_start_rank": ((), ""),
    "data_parallel_size_local": ((), "data_parallel_size alone"),
    "data_parallel_address": ((), ""),
    "data_parallel_rpc_port": ((), ""),
    "data_parallel_backend": (("mp",), ""),
    "data_parallel_hybrid_lb": ((False,), ""),
    "data_parallel_external_lb": ((False,), ""),
    "preemption_mode": ((), "preemption"),
}

# Methods of vLLM's LLM and AsyncLLM, and what to do in their place.
_METHODS = {
    "start_profile": _PROFILE,
    "stop_profile": _PROFILE,
    "classify": "models that classify are not served",
    "reward": "reward models are not served",
    "apply_model": "workers run no Python",
    "set_tokenizer": "the tokenizer is the model's own",
    "preprocess_chat": "generate() takes the tokens of get_tokenizer().apply_chat_template()",
    "reset_mm_cache": _IMAGES,
    "reset_encoder_cache": _IMAGES,
    "init_weight_transfer_engine": "update_weights() brings weights by itself",
    "add_lora": "lora_request loads an adapter",
    "remove_lora": "the adapter that was unused for longest goes by itself",
    "list_loras": "lora_request loads an adapter",
    "pin_lora": "max_cpu_loras says how many adapters stay in memory",
    "encode": "LLM.encode()",
    "wait_for_requests_to_drain": "shutdown() ends the engine",
}


def missing_method(owner: str, name: str) -> AttributeError:
    """The error for an attribute that the class does not have."""
    why = _METHODS.get(name)
    return AttributeError(f"'{owner}' object has no attribute '{name}'" + (f": not here; {why}" if why else ""))


def refuse(given: Mapping[str, Any], why: str = "there is no such thing here", nothing: Optional[Tuple[Any, ...]] = None) -> None:
    """ValueError for arguments of vLLM's methods that ask for something."""
    for name, value in given.items():
        if value is not None and not (nothing and value in nothing) and value != {}:
            raise ValueError(f"{name}: {why}")

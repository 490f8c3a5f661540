"""Names of vLLM's that are not here, with a word for whoever uses one: a clear message is better than 'unknown'."""
from typing import Any, Dict, Mapping, Optional, Tuple

_IMAGES = "there are no images"
_READER = "files are read by our own reader"
_KERNELS = "kernels are chosen by the device"
_COMPILED = "nothing is compiled at run time"
_SCHEDULER = "there is one scheduler"
_TELLS = "get_metrics() has the numbers"
_GRAMMARS = "there is one engine for grammars"
_CONSTRUCTOR = "the constructor takes the arguments"
_UPDATES = "update_weights() brings weights by itself"
_PROFILE = "an engine records its steps by itself (GET /trace of a server)"

# Engine arguments that mean nothing here, beyond those of engine_args, by reason.
_MEANINGLESS: Dict[str, str] = {
    _IMAGES:
        "allowed_media_domains enable_mm_embeds interleave_mm_strings media_io_kwargs mm_processor_cache_gb "
        "mm_processor_cache_type mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode "
        "mm_encoder_attn_backend skip_mm_profiling video_pruning_rate disable_chunked_mm_input "
        "enable_mm_processor_stats enable_tower_connector_lora enable_multimodal_encoder_data_parallel "
        "language_model_only mm_hasher_algorithm mm_encoder_attn_dtype mm_encoder_fp8_scale_path "
        "mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin video_pruning_method mm_tensor_ipc "
        "mm_processor_device mm_ipc_gpu_memory_gb mm_device_do_normalize ec_manager_config",
    _READER:
        "safetensors_load_strategy config_format ignore_patterns max_parallel_loading_workers pt_load_map_location "
        "model_impl safetensors_prefetch_num_threads safetensors_prefetch_block_size allow_deprecated_quantization",
    _KERNELS:
        "kernel_config enable_flashinfer_autotune disable_cascade_attn override_attention_dtype optimization_level "
        "performance_mode max_cudagraph_capture_size all2all_backend ir_op_priority moe_backend linear_backend "
        "sparse_indexer_topk_backend use_fp64_gumbel gdn_prefill_backend kda_prefill_backend kda_decode_backend",
    _COMPILED:
        "jit_monitor_mode jit_monitor_verbose",
    _SCHEDULER:
        "scheduler_cls num_scheduler_steps num_lookahead_slots use_v2_block_manager disable_async_output_proc "
        "stream_interval disable_hybrid_kv_cache_manager prefix_caching_hash_algo renderer_num_workers "
        "scheduler_reserve_full_isl prefill_schedule_interval dp_sync_interval",
    _TELLS:
        "aggregate_engine_logging show_hidden_metrics_for_version collect_detailed_traces cudagraph_metrics "
        "enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details",
    "the log goes to the logger somnus.engine":
        "log_level log_config_file logging_config",
    _GRAMMARS:
        "guided_decoding_backend structured_outputs_config",
    "no code of a model or of a plugin is ever run":
        "reasoning_parser_plugin io_processor_plugin worker_cls fail_on_environ_validation model_class_overrides",
    "models with such layers are not served":
        "mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode mamba_config mamba_backend "
        "mamba_ssu_algorithm mamba_cache_philox_rounds enable_mamba_shared_prefix_checkpoint "
        "enable_mamba_cache_stochastic_rounding replayssm_buffer_len use_replayssm engram_config diffusion_config",
    "a worker that is lost is always replaced":
        "enable_fault_tolerance fault_tolerance_config",
    "calls between processes have deadlines of their own (docs/flags.md)":
        "distributed_timeout_seconds cpu_distributed_timeout_seconds",
    "memory is the engine's own, and sleeps by tags":
        "enable_cumem_allocator sleep_mode_offload_cudagraph enable_shm_tensor_arena",
    "the engine ends within a second":
        "shutdown_timeout",
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
    "kv_events_config": ((), "max_kv_events, and GET /kv_events of a server"),
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
    "model_weights": (("",), "model"),
    "quantization_config": ((), "quantization"),
    "offload_group_size": ((0,), "weights are wholly on the device"),
    "offload_num_in_group": ((1,), "weights are wholly on the device"),
    "offload_params": ((set(),), "weights are wholly on the device"),
    "cpu_offload_params": ((set(),), "weights are wholly on the device"),
    "max_num_scheduled_tokens": ((), "max_num_batched_tokens"),
    "max_num_active_seqs": ((), "max_num_seqs"),
    "max_num_queued_reqs": ((), "max_num_waiting"),
    "max_num_queued_tokens": ((), "max_num_waiting_tokens"),
    "long_prefill_token_threshold_adaptive": ((False,), "long_prefill_token_threshold"),
    "watermark": ((0.0, 0), ""),
    "watermark_config": ((), ""),
    "prefix_cache_retention_interval": ((0,), ""),
    "prefix_match_unit": ((), ""),
    "swa_bounded_replay": ((True, False), ""),
    "kv_cache_dtype_skip_layers": (([],), ""),
    "custom_histogram_buckets": ((), ""),
    "per_request_spec_decode_metrics": (("none",), "get_metrics() has the numbers of all requests"),
    "return_sampling_mask": ((False,), ""),
    "enable_trace_replay": ((False,), ""),
    "aux_output_config": ((), ""),
    "reasoning_config": ((), "reasoning_parser of a server"),
    "sleep_preserve_parameter_names": (([],), "tags of sleep()"),
    "enable_nccl_comm_suspend": ((False,), ""),
    "numa_bind": ((False,), "the environment in which the program runs"),
    "numa_bind_nodes": ((), "the environment in which the program runs"),
    "numa_bind_cpus": ((), "the environment in which the program runs"),
    "dcp_comm_backend": ((), ""),
    "dcp_q_replicate": ((), ""),
    "data_parallel_multi_port_external_lb": ((False,), ""),
    "enable_batch_sharded_sampling": ((), ""),
    "enable_ep_weight_filter": ((False,), ""),
    "enable_elastic_ep": ((False,), ""),
    "elastic_ep_max_dp_size": ((), ""),
    "enable_hc_sp": ((False,), ""),
    "lora_target_modules": ((), "an adapter's own adapter_config.json says which modules it has"),
    "enable_mixed_moe_lora_format": ((False,), ""),
    "enable_moe_shared_loras": ((False,), ""),
    "max_lora_cls_labels": ((), ""),
}

# Methods of vLLM's LLM and AsyncLLM, and what to do in their place.
METHODS = {
    "start_profile": _PROFILE,
    "stop_profile": _PROFILE,
    "classify": "models that classify are not served",
    "reward": "reward models are not served",
    "apply_model": "workers run no Python",
    "set_tokenizer": "the tokenizer is the model's own",
    "preprocess_chat": "generate() takes the tokens of get_tokenizer().apply_chat_template()",
    "reset_mm_cache": _IMAGES,
    "reset_encoder_cache": _IMAGES,
    "from_engine_args": _CONSTRUCTOR,
    "from_vllm_config": _CONSTRUCTOR,
    "init_weight_transfer_engine": _UPDATES,
    "shutdown_weight_transfer_engine": _UPDATES,
    "start_weight_update": _UPDATES,
    "start_draft_weight_update": _UPDATES,
    "finish_weight_update": _UPDATES,
    "update_weight_version": "update_weights(weights_label=...) says the label",
    "add_lora": "lora_request loads an adapter",
    "remove_lora": "the adapter that was unused for longest goes by itself",
    "list_loras": "lora_request loads an adapter",
    "pin_lora": "max_cpu_loras says how many adapters stay in memory",
    "encode": "LLM.encode()",
    "get_tokenizer": "tokenize() and detokenize()",
    "add_request": "generate()",
    "get_supported_tasks": "every engine generates and embeds",
    "get_num_unfinished_requests": _TELLS,
    "get_num_queued_tokens": _TELLS,
    "do_log_stats": _TELLS,
    "check_admission": "max_num_waiting and max_num_waiting_tokens bound the queue",
    "is_tracing_enabled": "otlp_traces_endpoint says so",
    "compute_weight_checksums": "POST /weight_checker of a server",
    "get_status": "collective_rpc('get_status')",
    "handle_fault": "a worker that is lost is always replaced",
    "checkpoint_prepare": "sleep() gives all memory of the devices back",
    "checkpoint_restore": "wake_up() maps the memory again",
    "notify_kv_transfer_request_rejected": "caches do not move between engines",
    "get_kv_event_sources": "GET /kv_events of a server",
    "scale_elastic_ep": "experts stay where they are",
    "wait_for_requests_to_drain": "shutdown() ends the engine",
}


def missing_method(owner: str, name: str) -> AttributeError:
    """The error for an attribute that the class does not have."""
    why = METHODS.get(name)
    return AttributeError(f"'{owner}' object has no attribute '{name}'" + (f": not here; {why}" if why else ""))


def refuse(given: Mapping[str, Any], why: str = "there is no such thing here", nothing: Optional[Tuple[Any, ...]] = None) -> None:
    """ValueError for arguments of vLLM's methods that ask for something."""
    for name, value in given.items():
        if value is not None and not (nothing and value in nothing) and value != {}:
            raise ValueError(f"{name}: {why}")

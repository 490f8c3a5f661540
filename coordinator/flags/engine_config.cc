#include "coordinator/flags/engine_config.h"

#include <nlohmann/json.hpp>

#include "coordinator/flags/choice_names.h"
#include "coordinator/flags/kv_cache_dtype.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

const char* DeviceName(v1::DeviceType device) {
  switch (device) {
    case v1::DEVICE_TYPE_CPU:
      return "cpu";
    case v1::DEVICE_TYPE_CUDA:
      return "cuda";
    default:
      return "auto";
  }
}

Json ModelPart(const Flags& flags, const ResolvedSettings& resolved) {
  return {{"model", flags.model},
          {"served_model_name", resolved.served_model_name},
          {"dtype", KvCacheDTypeName(resolved.dtype)},
          {"max_model_len", resolved.max_model_len},
          {"seed", flags.seed},
          {"enforce_eager", flags.enforce_eager},
          {"generation_config", flags.generation_config ? "auto" : "vllm"},
          {"enable_sleep_mode", true}};
}

Json CachePart(const Flags& flags, const ResolvedSettings& resolved) {
  const v1::DType dtype = ResolveKvCacheDType(flags.kv_cache_dtype, resolved.dtype);
  const SchedulerOptions& scheduler = flags.engine.scheduler;
  return {{"block_size", scheduler.blocks.block_size},
          {"cache_dtype", KvCacheDTypeName(dtype)},
          {"num_blocks", resolved.num_blocks},
          {"enable_prefix_caching", scheduler.blocks.enable_prefix_caching},
          {"prefix_cache_on_host",
           NameOf(HostPrefixCachingNames(),
                  CachesOnHost(flags) ? scheduler.host_prefix_caching : HostPrefixCaching::kOff)},
          {"swap_space_bytes", flags.swap_space_bytes}};
}

Json SchedulerPart(const Flags& flags) {
  const SchedulerOptions& scheduler = flags.engine.scheduler;
  return {{"max_num_seqs", scheduler.max_num_seqs},
          {"max_num_batched_tokens", scheduler.max_num_batched_tokens},
          {"policy", NameOf(SchedulingPolicyNames(), scheduler.policy)},
          {"preemption_mode",
           NameOf(PreemptionModeNames(), MaySwap(flags) ? scheduler.preemption : PreemptionMode::kRecompute)},
          {"async_scheduling", flags.engine.async_scheduling},
          {"max_num_partial_prefills", scheduler.max_num_partial_prefills},
          {"max_long_partial_prefills", scheduler.max_long_partial_prefills},
          {"long_prefill_token_threshold", scheduler.long_prefill_token_threshold}};
}

Json SpeculationPart(const Flags& flags) {
  Json part = {{"method", flags.speculative},
               {"num_speculative_tokens", flags.engine.scheduler.speculation.num_speculative_tokens}};
  if (flags.has_draft_model()) {
    part["model"] = flags.draft_model;
  } else {
    part["prompt_lookup_min"] = flags.prompt_lookup_min;
    part["prompt_lookup_max"] = flags.prompt_lookup_max;
  }
  return part;
}

}  // namespace

std::string EngineConfigJson(const Flags& flags, const ResolvedSettings& resolved) {
  const Json config = {
      {"model_config", ModelPart(flags, resolved)},
      {"cache_config", CachePart(flags, resolved)},
      {"parallel_config",
       {{"tensor_parallel_size", flags.world_size / flags.pipeline_parallel_size},
        {"pipeline_parallel_size", flags.pipeline_parallel_size},
        {"data_parallel_size", flags.data_parallel_size},
        {"world_size", flags.world_size}}},
      {"scheduler_config", SchedulerPart(flags)},
      {"speculative_config", SpeculationPart(flags)},
      {"device_config", {{"device", DeviceName(flags.device)}}},
      {"load_config", {{"load_format", flags.load_format == v1::LOAD_FORMAT_DUMMY ? "dummy" : "auto"}}}};
  // A path may have any bytes.
  return config.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace somnus

#include "coordinator/grpc/gateway/server_facts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "checkpoint/family.h"
#include "coordinator/residency/engine_state.h"

namespace somnus::gateway {
namespace {

// The sampling defaults of the model, as in generation_config.json; empty: there are none.
std::string SamplingDefaults(const ServedModel& model) {
  if (!model.generation_defaults) return "";
  const GenerationDefaults& defaults = model.config.generation;
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (defaults.temperature.has_value()) json["temperature"] = *defaults.temperature;
  if (defaults.top_p.has_value()) json["top_p"] = *defaults.top_p;
  if (defaults.top_k.has_value()) json["top_k"] = *defaults.top_k;
  if (defaults.min_p.has_value()) json["min_p"] = *defaults.min_p;
  if (defaults.repetition_penalty.has_value()) json["repetition_penalty"] = *defaults.repetition_penalty;
  return json.empty() ? "" : json.dump();
}

}  // namespace

int32_t MaxNumSeqs(const ServedModel& model, const EngineStats& stats) {
  return model.max_num_seqs * std::max(1, static_cast<int32_t>(stats.replicas.size()));
}

wire::GetModelInfoResponse ModelInfo(const ServedModel& model) {
  wire::GetModelInfoResponse info;
  info.set_model_path(model.name);
  info.set_served_model_name(model.name);
  info.set_is_generation(true);
  info.set_max_context_length(static_cast<uint32_t>(model.engine->max_model_len()));
  info.set_max_req_input_len(model.engine->max_model_len() - 1);  // one token is generated
  info.set_vocab_size(static_cast<uint32_t>(model.config.vocab_size));
  if (model.config.family != nullptr) {
    info.set_model_type(model.config.family->model_type);
    info.add_architectures(absl::StrCat(model.config.family->class_name, "ForCausalLM"));
  }
  info.mutable_eos_token_ids()->Add(model.config.eos_token_ids.begin(), model.config.eos_token_ids.end());
  info.set_pad_token_id(std::max(0, model.config.pad_token_id));
  info.set_bos_token_id(std::max(0, model.config.bos_token_id));
  info.set_default_sampling_params_json(SamplingDefaults(model));
  return info;
}

wire::GetServerInfoResponse ServerInfo(const ServedModel& model, const EngineStats& stats) {
  wire::GetServerInfoResponse info;
  info.set_active_requests(static_cast<uint32_t>(stats.num_running + stats.num_waiting));
  info.set_is_paused(IsPaused(stats.state, stats.sleep_level, stats.paused));
  info.set_server_type("vllm-grpc");
  info.set_data_parallel_size(1);  // the server chooses among its replicas
  info.set_kv_cache_dtype(model.kv_cache_dtype);
  info.set_block_size(stats.block_size);
  info.set_model_dtype(model.dtype);
  info.set_max_num_seqs(MaxNumSeqs(model, stats));
  info.set_constrained_decoding_start("first_token");
  return info;
}

}  // namespace somnus::gateway

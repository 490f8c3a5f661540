#pragma once
// The settings that an engine runs with, under the names of vLLM's configuration, for GET /server_info. Pure
// functions.

#include <cstdint>
#include <string>

#include "coordinator/flags/flags.h"
#include "proto/model.pb.h"

namespace somnus {

// The settings that flags leave to the model, or to the workers.
struct ResolvedSettings {
  std::string served_model_name;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;  // of weights and activations
  int32_t max_model_len = 0;
  int64_t num_blocks = 0;  // of the KV cache, of all replicas
};

// Returns a JSON object with an object for each part: {"model_config": {"model": ...}, "cache_config": ...}.
// Keys, addresses and settings of other models are left out. `flags`: of this model.
std::string EngineConfigJson(const Flags& flags, const ResolvedSettings& resolved);

}  // namespace somnus

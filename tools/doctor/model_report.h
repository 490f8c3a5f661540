#pragma once
// How much a model makes a host read and compute, and so the model's best speed there.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/doctor/host_report.h"

namespace somnus {

class Checkpoint;

struct ModelReport {
  std::string name;
  std::string stored_type;  // "Q4_1": that of most weights
  bool is_quantized = false;
  bool multiplies_bytes = false;  // as stored: products are of int8, and of bfloat16 for all other models
  int64_t num_parameters = 0;
  // The number of experts in a layer, and of a token; 0: the model has no experts. A step computes the
  // experts of its tokens alone, and memory has to hold all experts.
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  int64_t active_parameters = 0;  // that a step of one sequence reads
  int64_t stored_bytes = 0;       // of all tensors
  int64_t bf16_bytes = 0;         // of all tensors in bfloat16
  int64_t kv_token_bytes = 0;     // KV cache in bfloat16, for each token
  // How many tokens of a sequence the KV cache has to have: the widest window. 0: all, since a layer has
  // none.
  int64_t kv_reach = 0;
  // The bytes of weights that a step of one sequence reads. An embedding that is not also the head is not
  // read.
  int64_t step_stored_bytes = 0;
  int64_t step_bf16_bytes = 0;
  int64_t prompt_token_flops = 0;  // of the matrix products of one token of a prompt, without the head
  int64_t step_flops = 0;          // the same with the head
  // Why the tokenizer cannot be read, without which no server starts; empty: it can be read.
  std::string tokenizer_error;
};

ModelReport ReportModel(const Checkpoint& checkpoint);

// Whether `available` bytes hold the weights and a KV cache of kFewestKvTokens. As stored, a model of float32
// has a cache of float32, as a server has it by default; all other caches are of 16 bits.
inline constexpr int64_t kFewestKvTokens = 16;
struct ModelFit {
  int64_t lacking_bytes = 0;  // 0: the model fits
  int64_t kv_tokens = 0;      // of the largest KV cache beside the weights
};
ModelFit FitAsStored(const ModelReport& model, int64_t available);
ModelFit FitInBf16(const ModelReport& model, int64_t available);

// Tokens per second that the ceilings allow, without attention; 0 where a ceiling is 0. A single stream is
// bound by its reads or by its arithmetic, whichever takes longer.
struct ModelSpeed {
  double decode_stored = 0;  // a single stream, weights as stored
  double decode_bf16 = 0;    // a single stream, weights of 16 bits (by --dequantize, or in the file)
  double prompt_stored = 0;
  double prompt_bf16 = 0;
};
ModelSpeed BestSpeed(const ModelReport& model, const HostCeilings& ceilings);

}  // namespace somnus

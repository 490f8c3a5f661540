#pragma once
// A model's small tables in a rank's workspace: of rotary position embedding, and which KV head each query
// head reads. The tables are computed on the host; a sleep loses the device's copy, and Fill makes a new
// copy.
//
// Memory is carved from the caller's workspace. Not thread safe.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "worker/model/carver.h"
#include "worker/model/decoder_model.h"
#include "worker/model/shards.h"

namespace somnus {

class SmallTables {
 public:
  // InvalidArgument: the config's rope parameters give no finite frequencies. `shards` is borrowed.
  absl::Status Init(const ModelConfig& config, const ModelShards* shards, int64_t max_model_len);
  void Carve(Carver* carver);
  // Fills the memory that Carve has taken, and names the tables in `context`. Waits for the device.
  absl::Status Fill(Device* device, ModelContext* context);

 private:
  int64_t rope_size() const { return max_model_len_ * static_cast<int64_t>(frequencies_.size()); }

  const ModelShards* shards_ = nullptr;
  int64_t max_model_len_ = 0;
  std::vector<double> frequencies_;     // radians for a position, [head_dim / 2]; empty: no rotation
  double rope_scale_ = 1.0;             // a factor of cosines and sines
  std::vector<float> rope_host_;        // both tables, for a device with memory apart from the host
  float* rope_cos_ = nullptr;           // [max_model_len, head_dim / 2]
  float* rope_sin_ = nullptr;           // [max_model_len, head_dim / 2]
  int32_t* kv_head_of_head_ = nullptr;  // [H]
};

}  // namespace somnus

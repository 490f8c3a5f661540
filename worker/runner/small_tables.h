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
  // The tables of one rotary embedding.
  struct Rotation {
    std::vector<double> frequencies;  // radians for a position, [head_dim / 2]; empty: no rotation
    double scale = 1.0;               // a factor of cosines and sines
    std::vector<float> host;          // both tables, for a device with memory apart from the host
    float* cos = nullptr;             // [max_model_len, head_dim / 2]
    float* sin = nullptr;             // [max_model_len, head_dim / 2]
  };

  absl::Status InitRotation(const RopeConfig& rope, int64_t head_dim, Rotation* rotation) const;
  int64_t SizeOf(const Rotation& rotation) const {
    return max_model_len_ * static_cast<int64_t>(rotation.frequencies.size());
  }
  RopeTable FillRotation(Device* device, Rotation* rotation) const;

  const ModelShards* shards_ = nullptr;
  int64_t max_model_len_ = 0;
  Rotation main_, local_;               // local_ is empty where no layer has it
  std::vector<float> q_scales_host_;    // [max_model_len]; empty: queries have no factor
  float* q_scales_ = nullptr;           // the same on the device
  int32_t* kv_head_of_head_ = nullptr;  // [H]
};

}  // namespace somnus

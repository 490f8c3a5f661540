#include "worker/runner/small_tables.h"

#include <algorithm>
#include <cmath>

#include "worker/model/rope_table.h"

namespace somnus {

absl::Status SmallTables::Init(const ModelConfig& config, const ModelShards* shards, int64_t max_model_len) {
  shards_ = shards;
  max_model_len_ = max_model_len;
  frequencies_ = RopeFrequencies(config.rope, config.head_dim);
  rope_scale_ = config.rope.attention_factor;
  const auto is_finite = [](double frequency) { return std::isfinite(frequency); };
  if (std::all_of(frequencies_.begin(), frequencies_.end(), is_finite)) return absl::OkStatus();
  return absl::InvalidArgumentError("the config's rope parameters give no finite frequencies");
}

void SmallTables::Carve(Carver* carver) {
  rope_cos_ = carver->Take<float>(rope_size());
  rope_sin_ = carver->Take<float>(rope_size());
  kv_head_of_head_ = carver->Take<int32_t>(shards_->heads.size());
}

absl::Status SmallTables::Fill(Device* device, ModelContext* context) {
  context->rope = {};
  if (const int64_t size = rope_size(); size > 0) {
    context->rope = {rope_cos_, rope_sin_};
    if (!device->asynchronous()) {
      FillRopeTable(frequencies_, rope_scale_, max_model_len_, rope_cos_, rope_sin_);
    } else {
      if (rope_host_.empty()) {
        rope_host_.resize(2 * size);
        FillRopeTable(frequencies_, rope_scale_, max_model_len_, rope_host_.data(), rope_host_.data() + size);
      }
      const auto bytes = static_cast<int64_t>(size * sizeof(float));
      device->CopyToDevice(rope_cos_, rope_host_.data(), bytes);
      device->CopyToDevice(rope_sin_, rope_host_.data() + size, bytes);
    }
  }
  device->CopyToDevice(kv_head_of_head_, shards_->kv_head_of_head.data(),
                       static_cast<int64_t>(shards_->kv_head_of_head.size() * sizeof(int32_t)));
  context->kv_head_of_head = kv_head_of_head_;
  return device->Synchronize();
}

}  // namespace somnus

#include "worker/runner/small_tables.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "worker/model/rope_table.h"

namespace somnus {

absl::Status SmallTables::Init(const ModelConfig& config, const ModelShards* shards, int64_t max_model_len) {
  shards_ = shards;
  max_model_len_ = max_model_len;
  RETURN_IF_ERROR(InitRotation(config.rope, config.RopeHeadDim(), &main_));
  const auto is_local = [](const LayerAttention& layer) { return layer.rope == LayerRope::kLocal; };
  if (std::any_of(config.layer_attention.begin(), config.layer_attention.end(), is_local))
    RETURN_IF_ERROR(InitRotation(config.local_rope, config.head_dim, &local_));
  if (config.query_temperature != 0) {
    q_scales_host_.resize(max_model_len);
    FillQueryScales(config.query_temperature, config.rope.original_max_position_embeddings, max_model_len,
                    q_scales_host_.data());
  }
  return absl::OkStatus();
}

absl::Status SmallTables::InitRotation(const RopeConfig& rope, int64_t head_dim, Rotation* rotation) const {
  rotation->frequencies = RopeFrequencies(rope, head_dim, max_model_len_);
  rotation->scale = rope.attention_factor;
  const auto is_finite = [](double frequency) { return std::isfinite(frequency); };
  if (std::all_of(rotation->frequencies.begin(), rotation->frequencies.end(), is_finite))
    return absl::OkStatus();
  return absl::InvalidArgumentError("the config's rope parameters give no finite frequencies");
}

void SmallTables::Carve(Carver* carver) {
  for (Rotation* rotation : {&main_, &local_}) {
    rotation->cos = carver->Take<float>(SizeOf(*rotation));
    rotation->sin = carver->Take<float>(SizeOf(*rotation));
  }
  q_scales_ = carver->Take<float>(static_cast<int64_t>(q_scales_host_.size()));
  kv_head_of_head_ = carver->Take<int32_t>(shards_->heads.size());
}

RopeTable SmallTables::FillRotation(Device* device, Rotation* rotation) const {
  RopeTable table;
  if (!q_scales_host_.empty()) table.q_scale = q_scales_;
  const int64_t size = SizeOf(*rotation);
  if (size == 0) return table;
  table.cos = rotation->cos;
  table.sin = rotation->sin;
  if (!device->asynchronous()) {
    FillRopeTable(rotation->frequencies, rotation->scale, max_model_len_, rotation->cos, rotation->sin);
    return table;
  }
  if (rotation->host.empty()) {
    rotation->host.resize(2 * size);
    FillRopeTable(rotation->frequencies, rotation->scale, max_model_len_, rotation->host.data(),
                  rotation->host.data() + size);
  }
  const auto bytes = static_cast<int64_t>(size * sizeof(float));
  device->CopyToDevice(rotation->cos, rotation->host.data(), bytes);
  device->CopyToDevice(rotation->sin, rotation->host.data() + size, bytes);
  return table;
}

absl::Status SmallTables::Fill(Device* device, ModelContext* context) {
  context->rope = FillRotation(device, &main_);
  context->local_rope = FillRotation(device, &local_);
  if (!q_scales_host_.empty()) {
    device->CopyToDevice(q_scales_, q_scales_host_.data(),
                         static_cast<int64_t>(q_scales_host_.size() * sizeof(float)));
  }
  device->CopyToDevice(kv_head_of_head_, shards_->kv_head_of_head.data(),
                       static_cast<int64_t>(shards_->kv_head_of_head.size() * sizeof(int32_t)));
  context->kv_head_of_head = kv_head_of_head_;
  return device->Synchronize();
}

}  // namespace somnus

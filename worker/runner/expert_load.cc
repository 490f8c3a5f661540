#include "worker/runner/expert_load.h"

namespace somnus {
namespace {

bool Counts(const ModelRunnerOptions& options, const ModelConfig& config, const ModelShards& shards) {
  const bool reports = shards.expert_parallel || shards.last_rank();
  if (!options.expert_load || !reports || shards.experts.empty()) return false;
  for (int64_t layer = shards.layers.begin; layer < shards.layers.end; ++layer) {
    if (config.HasExperts(static_cast<int32_t>(layer))) return true;
  }
  return false;
}

}  // namespace

void ExpertCounts::FillReply(v1::StepReply* reply) const {
  if (tokens == nullptr) return;
  const int64_t num_experts = shards->experts.size();
  v1::ExpertLoad* const load = reply->add_expert_loads();
  load->set_first_expert(static_cast<int32_t>(shards->experts.begin));
  load->set_num_experts(static_cast<int32_t>(num_experts));
  load->mutable_tokens()->Reserve(static_cast<int>(shards->layers.size() * num_experts));
  for (int64_t i = 0; i < shards->layers.size(); ++i) {
    const auto layer = static_cast<int32_t>(shards->layers.begin + i);
    if (!config->HasExperts(layer)) continue;
    load->add_layers(layer);
    load->mutable_tokens()->Add(tokens + i * num_experts, tokens + (i + 1) * num_experts);
  }
}

ExpertLoad::ExpertLoad(const ModelRunnerOptions& options, const ModelConfig* config,
                       const ModelShards* shards)
    : config_(*config), shards_(*shards), counts_(Counts(options, *config, *shards)) {
  if (counts_) tokens_ = results_.Take<uint32_t>(shards->layers.size() * shards->experts.size());
}

absl::Status ExpertLoad::Bind(Device* device) { return counts_ ? results_.Bind(device) : absl::OkStatus(); }

ExpertCounts ExpertLoad::Download() {
  if (!counts_) return {};
  results_.Turn();
  results_.Download(results_.bytes());
  return {tokens_.host(), &config_, &shards_};
}

}  // namespace somnus

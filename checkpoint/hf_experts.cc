#include "checkpoint/hf_experts.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

using nlohmann::json;

const char* NumberKey(const JsonFields& fields) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (fields.Has(key)) return key;
  }
  return "num_experts";
}

absl::Status ReadListedLayers(const json& types, JsonFields* fields, ModelConfig* config) {
  constexpr char kKey[] = "mlp_layer_types";
  if (!types.is_array() || static_cast<int64_t>(types.size()) < config->num_layers)
    return fields->Bad(kKey, "not a list with a name for each of num_hidden_layers");
  for (int32_t i = 0; i < config->num_layers; ++i) {
    const std::string name = types[i].is_string() ? types[i].get<std::string>() : "";
    if (name != "dense" && name != "sparse")
      return fields->Unsupported(kKey, absl::StrCat("a layer of kind \"", name, "\""));
    config->experts.layers[i] = name == "sparse";
  }
  return absl::OkStatus();
}

absl::Status ReadExpertLayers(const ExpertKeys& keys, JsonFields* fields, ModelConfig* config) {
  std::vector<uint8_t>& layers = config->experts.layers;
  const auto num_layers = static_cast<size_t>(config->num_layers);
  layers.assign(num_layers, 1);
  if (keys.layers != ExpertLayers::kAll && fields->Has("mlp_layer_types")) {
    RETURN_IF_ERROR(ReadListedLayers(*fields->Find("mlp_layer_types"), fields, config));
  } else if (keys.layers == ExpertLayers::kByStep) {
    const int64_t step = fields->Int("decoder_sparse_step", 1, 1, 1 << 20);
    for (size_t i = 0; i < num_layers; ++i) layers[i] = (i + 1) % static_cast<size_t>(step) == 0;
    for (const int32_t layer : fields->Ids("mlp_only_layers")) {
      if (layer >= 0 && static_cast<size_t>(layer) < num_layers) layers[layer] = 0;
    }
  } else if (keys.layers == ExpertLayers::kAfterFirst) {
    const int64_t dense = fields->Int("first_k_dense_replace", keys.default_dense_layers, 0, 1 << 20);
    std::fill_n(layers.begin(), std::min<size_t>(num_layers, static_cast<size_t>(dense)), 0);
  }
  if (std::count(layers.begin(), layers.end(), 1) == static_cast<int64_t>(num_layers)) layers.clear();
  return fields->status();
}

void ReadShared(const ExpertKeys& keys, JsonFields* fields, ExpertsConfig* experts) {
  if (keys.shared == SharedExperts::kBySize) {
    experts->shared_size =
        static_cast<int32_t>(fields->Int("shared_expert_intermediate_size", keys.default_shared, 0, 1 << 28));
    experts->shared_gate = experts->shared_size > 0;
  } else if (keys.shared == SharedExperts::kByCount) {
    const int64_t count = fields->Int("n_shared_experts", keys.default_shared, 0, kMaxRoutedExperts);
    const int64_t size = count * experts->expert_size;
    if (size > 1 << 28) fields->Note(fields->Bad("n_shared_experts", "too wide together"));
    experts->shared_size = static_cast<int32_t>(size);
  }
}

}  // namespace

absl::Status ReadExperts(const ExpertKeys& keys, JsonFields* fields, ModelConfig* config) {
  if (config->num_layers < 1 || config->num_layers > 4096)
    return fields->Bad("num_hidden_layers", "out of range");
  ExpertsConfig& experts = config->experts;
  const auto size = [fields](const char* key, int32_t otherwise) {
    return otherwise > 0 ? fields->Size(key, otherwise) : fields->Size(key);
  };
  experts.num_experts = size(NumberKey(*fields), keys.default_experts);
  experts.per_token = size("num_experts_per_tok", keys.default_per_token);
  experts.expert_size = size(keys.size_key, keys.default_size);
  experts.score = keys.score;
  experts.renormalize = !keys.renormalize_by_key || fields->Bool("norm_topk_prob", keys.default_renormalize);
  experts.scale = fields->Double("routed_scaling_factor", keys.default_scale);
  experts.correction = keys.correction;
  if (keys.groups) {
    experts.num_groups = fields->Size("n_group", keys.default_groups);
    experts.top_groups = fields->Size("topk_group", keys.default_top_groups);
  }
  RETURN_IF_ERROR(fields->status());
  ReadShared(keys, fields, &experts);
  return ReadExpertLayers(keys, fields, config);
}

absl::Status ValidateExperts(const std::string& file, const ModelConfig& config) {
  const ExpertsConfig& e = config.experts;
  if (e.num_experts == 0) return absl::OkStatus();
  const auto bad = [&](const auto&... reason) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", reason...));
  };
  if (e.num_experts < 0 || e.num_experts > kMaxRoutedExperts)
    return bad("number of experts ", e.num_experts, " is more than ", kMaxRoutedExperts);
  if (e.per_token < 1 || e.per_token > std::min(e.num_experts, kMaxRoutedPerToken))
    return bad("num_experts_per_tok: ", e.per_token, " of ", e.num_experts, " experts, at most ",
               kMaxRoutedPerToken);
  if (e.expert_size < 1 || e.expert_size > 1 << 28)
    return bad("size ", e.expert_size, " of an expert is out of range");
  if (e.num_groups < 1 || e.num_experts % e.num_groups != 0)
    return bad("n_group: ", e.num_groups, " does not divide ", e.num_experts, " experts");
  if (e.top_groups < 1 || e.top_groups > e.num_groups)
    return bad("topk_group: ", e.top_groups, " of ", e.num_groups, " groups");
  if (e.num_groups > 1 &&
      (e.num_experts / e.num_groups < 2 || e.per_token > e.top_groups * (e.num_experts / e.num_groups)))
    return bad("n_group: groups of ", e.num_experts / e.num_groups, " experts are too small");
  if (!(e.scale > 0) || !std::isfinite(e.scale)) return bad("routed_scaling_factor is not above zero");
  return absl::OkStatus();
}

}  // namespace somnus

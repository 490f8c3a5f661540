#include "checkpoint/family.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

// A function's static, so that it exists before the first registration in another file.
std::vector<const Family*>& Families() {
  static auto* const families = new std::vector<const Family*>;
  return *families;
}

const TensorSpec* FindRole(absl::Span<const TensorSpec> specs, TensorRole role) {
  for (const TensorSpec& spec : specs) {
    if (spec.role == role) return &spec;
  }
  return nullptr;
}

// The entry's name with the expert's number, if the entry is of experts.
std::string NameOf(const TensorSpec& spec, int32_t expert) {
  const absl::string_view name = spec.name;
  const size_t star = name.find('*');
  if (star == absl::string_view::npos) return spec.name;
  return absl::StrCat(name.substr(0, star), expert, name.substr(star + 1));
}

}  // namespace

bool IsOfExperts(const TensorSpec& spec) { return std::strchr(spec.name, '*') != nullptr; }

bool IsInLayer(const TensorSpec& spec, const ModelConfig& config, int32_t layer) {
  if (!spec.present(config)) return false;
  return spec.layers == LayerKind::kAll || (spec.layers == LayerKind::kExperts) == config.HasExperts(layer);
}

FamilyRegistration::FamilyRegistration(const Family* family) {
  const auto has = [family](TensorRole role) { return FindTensor(*family, role) != nullptr; };
  SOMNUS_CHECK(family->gated_mlp ==
               (has(TensorRole::kGate) || has(TensorRole::kGateUp) || has(TensorRole::kExpertGate)));
  SOMNUS_CHECK(has(TensorRole::kQuery) + has(TensorRole::kQueryKeyValue) + has(TensorRole::kLatentQuery) ==
               1);
  SOMNUS_CHECK(family->learned_positions == (FindTensor(*family, TensorRole::kPositions) != nullptr));
  for (const Family* other : Families()) {
    SOMNUS_CHECK(std::strcmp(other->model_type, family->model_type) != 0);
    SOMNUS_CHECK(std::strcmp(other->class_name, family->class_name) != 0);
  }
  Families().push_back(family);
}

const Family* FindFamily(absl::FunctionRef<bool(const Family&)> matches) {
  for (const Family* family : Families()) {
    if (matches(*family)) return family;
  }
  return nullptr;
}

absl::Span<const Dim> PartsOf(const Dim& dim) {
  static constexpr Dim kQkv[] = {Dim::kQueries, Dim::kKeysValues, Dim::kKeysValues};
  static constexpr Dim kTwice[] = {Dim::kIntermediate, Dim::kIntermediate};
  if (dim == Dim::kQueriesKeysValues) return kQkv;
  if (dim == Dim::kGateUp) return kTwice;
  return absl::MakeConstSpan(&dim, 1);
}

int64_t SizeOf(Dim dim, const ModelConfig& c) {
  switch (dim) {
    case Dim::kNone:
    case Dim::kOne:
      return 1;
    case Dim::kHidden:
      return c.hidden_size;
    case Dim::kHeadDim:
      return c.head_dim;
    case Dim::kEmbedding:
      return c.embedding_dim;
    case Dim::kPositions:
      return int64_t{c.max_position_embeddings} + c.family->position_offset;
    case Dim::kHeads:
      return c.num_heads;
    case Dim::kQueries:
      return int64_t{c.num_heads} * c.head_dim;
    case Dim::kKeysValues:
      return int64_t{c.num_kv_heads} * c.head_dim;
    case Dim::kQueryRank:
      return c.latent.query_rank;
    case Dim::kLatent:
      return c.latent.rank;
    case Dim::kLatentRow:
      return int64_t{c.latent.rank} + c.latent.rope;
    case Dim::kNope:
      return c.latent.nope;
    case Dim::kLatentQueries:
      return int64_t{c.num_heads} * (c.latent.nope + c.latent.rope);
    case Dim::kLatentKeys:
      return int64_t{c.num_heads} * c.latent.rank;
    case Dim::kLatentValues:
      return int64_t{c.num_heads} * c.latent.value;
    case Dim::kIntermediate:
      return c.intermediate_size;
    case Dim::kVocab:
      return c.vocab_size;
    case Dim::kExperts:
      return c.experts.num_experts;
    case Dim::kExpertIntermediate:
      return c.experts.expert_size;
    case Dim::kSharedIntermediate:
      return c.experts.shared_size;
    case Dim::kQueriesKeysValues:
      return (int64_t{c.num_heads} + 2 * int64_t{c.num_kv_heads}) * c.head_dim;
    case Dim::kGateUp:
      return 2 * int64_t{c.intermediate_size};
  }
  return 0;
}

std::vector<int64_t> ShapeOf(const TensorSpec& spec, const ModelConfig& config) {
  std::vector<int64_t> shape = {SizeOf(spec.rows, config)};
  if (spec.cols != Dim::kNone) shape.push_back(SizeOf(spec.cols, config));
  return shape;
}

const TensorSpec* FindTensor(const Family& family, TensorRole role) {
  const TensorSpec* spec = FindRole(family.tensors, role);
  return spec != nullptr ? spec : FindRole(family.layer_tensors, role);
}

std::string TensorName(const Family& family, TensorRole role, int32_t layer, int32_t expert) {
  if (const TensorSpec* spec = FindRole(family.tensors, role); spec != nullptr) return spec->name;
  const TensorSpec* spec = FindRole(family.layer_tensors, role);
  SOMNUS_CHECK(spec != nullptr);
  return absl::StrCat(family.layer_prefix, layer, ".", NameOf(*spec, expert));
}

std::string FileName(const Family& family, absl::string_view name) {
  absl::string_view inner = name;
  if (family.module_names.empty() || !absl::ConsumePrefix(&inner, family.layer_prefix))
    return std::string(name);
  inner.remove_prefix(std::min(inner.size(), inner.find('.') + 1));  // the layer's number
  for (const ModuleName& names : family.module_names) {
    const absl::string_view before = name.substr(0, name.size() - inner.size());
    if (absl::ConsumePrefix(&inner, names.module)) return absl::StrCat(before, names.file, inner);
  }
  return std::string(name);
}

absl::Status ForEachTensor(
    const ModelConfig& config,
    absl::FunctionRef<absl::Status(const std::string&, const std::vector<int64_t>&)> expect) {
  absl::Status status;
  ForEachSpec(config, [&](const TensorSpec& spec, const std::string& name) {
    if (status.ok()) status = expect(name + spec.suffix, ShapeOf(spec, config));
    if (status.ok() && spec.bias(config)) status = expect(name + ".bias", {SizeOf(spec.rows, config)});
  });
  return status;
}

void ForEachSpec(const ModelConfig& config,
                 absl::FunctionRef<void(const TensorSpec&, const std::string&)> visit) {
  const Family& family = *config.family;
  for (const TensorSpec& spec : family.tensors) {
    if (spec.present(config)) visit(spec, spec.name);
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = absl::StrCat(family.layer_prefix, layer, ".");
    for (const TensorSpec& spec : family.layer_tensors) {
      if (!IsInLayer(spec, config, layer)) continue;
      const int32_t count = IsOfExperts(spec) ? config.experts.num_experts : 1;
      for (int32_t expert = 0; expert < count; ++expert) visit(spec, prefix + NameOf(spec, expert));
    }
  }
}

}  // namespace somnus

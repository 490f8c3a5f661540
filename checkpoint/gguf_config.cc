#include "checkpoint/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/yarn.h"

namespace somnus {
namespace {

constexpr char kRopeFactors[] = "rope_freqs.weight";

// Reads integers of one architecture ("llama.block_count"); keeps the first error.
class ArchFields {
 public:
  ArchFields(const GgufFile& gguf, std::string arch) : gguf_(gguf), arch_(std::move(arch)) {}

  std::string Key(absl::string_view key) const { return absl::StrCat(arch_, ".", key); }

  int32_t Size(absl::string_view key, std::optional<int64_t> otherwise = std::nullopt) {
    const auto value = gguf_.Int(Key(key), otherwise);
    if (!value.ok()) return Fail(value.status());
    if (*value <= 0 || *value > std::numeric_limits<int32_t>::max()) {
      return Fail(gguf_.Bad(Key(key), absl::StrCat(*value, " is out of range")));
    }
    return static_cast<int32_t>(*value);
  }

  // As Size; some files write one number per layer, and all must be equal.
  int32_t SizePerLayer(absl::string_view key, std::optional<int64_t> otherwise = std::nullopt) {
    const GgufValue* value = gguf_.Find(Key(key));
    if (value == nullptr || value->type != GgufType::kArray) return Size(key, otherwise);
    const auto numbers = gguf_.Ints(Key(key));
    if (!numbers.ok()) return Fail(numbers.status());
    if (numbers->empty()) return Fail(gguf_.Bad(Key(key), "an empty array"));
    const int64_t first = numbers->front();
    if (std::any_of(numbers->begin(), numbers->end(), [first](int64_t n) { return n != first; })) {
      return Fail(gguf_.Unsupported(Key(key), "a size that differs between layers"));
    }
    if (first <= 0 || first > std::numeric_limits<int32_t>::max())
      return Fail(gguf_.Bad(Key(key), "out of range"));
    return static_cast<int32_t>(first);
  }

  double Double(absl::string_view key, double otherwise) {
    const auto value = gguf_.Double(Key(key), otherwise);
    if (!value.ok()) Fail(value.status());
    return value.ok() ? *value : otherwise;
  }

  // Keeps the first error. Returns 1 in place of a size.
  int32_t Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return 1;
  }
  const absl::Status& status() const { return status_; }

 private:
  const GgufFile& gguf_;
  std::string arch_;
  absl::Status status_;
};

// The keys are llama.cpp's; attn_factor multiplies YaRN's own scale of attention, and yarn_log_multiplier is
// Hugging Face's mscale_all_dim beside an mscale of 1.
absl::Status ReadYarnRope(const GgufFile& gguf, ArchFields* fields, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  rope.type = RopeConfig::Type::kYarn;
  rope.factor = fields->Double("rope.scaling.factor", 1.0);
  rope.original_max_position_embeddings =
      fields->Size("rope.scaling.original_context_length", config->max_position_embeddings);
  const double all_dim = fields->Double("rope.scaling.yarn_log_multiplier", 0.0);
  rope.beta_fast = fields->Double("rope.scaling.yarn_beta_fast", 32.0);
  rope.beta_slow = fields->Double("rope.scaling.yarn_beta_slow", 1.0);
  for (const double beta : {rope.beta_fast, rope.beta_slow}) {
    if (beta > 0) continue;
    return gguf.Bad(fields->Key("rope.scaling.yarn_beta_fast"), "not above zero, or yarn_beta_slow is not");
  }
  const double extension = fields->Double("rope.scaling.yarn_ext_factor", -1.0);  // negative: not given
  if (extension >= 0 && extension != 1.0)
    return gguf.Unsupported(fields->Key("rope.scaling.yarn_ext_factor"), "not 1");
  rope.attention_factor = YarnAttentionScale(rope.factor, 1.0) *
                          fields->Double("rope.scaling.attn_factor", 1.0) /
                          (all_dim != 0 ? YarnAttentionScale(rope.factor, all_dim) : 1.0);
  if (!(rope.attention_factor > 0) || !std::isfinite(rope.attention_factor)) {
    return gguf.Bad(fields->Key("rope.scaling.attn_factor"), "not above zero");
  }
  return fields->status();
}

absl::Status ReadRope(const GgufFile& gguf, const TensorTable& tensors, ArchFields* fields,
                      ModelConfig* config) {
  RopeConfig& rope = config->rope;
  rope.theta = fields->Double("rope.freq_base", 10000.0);
  if (rope.theta <= 0) return gguf.Bad(fields->Key("rope.freq_base"), "not above zero");
  const int32_t rotated = fields->Size("rope.dimension_count", config->head_dim);
  RETURN_IF_ERROR(fields->status());
  if (rotated != config->head_dim)
    return gguf.Unsupported(fields->Key("rope.dimension_count"), "a partial rotation");
  const std::string type_key = fields->Key("rope.scaling.type");
  const double old_linear = fields->Double("rope.scale_linear", 1.0);
  ASSIGN_OR_RETURN(const std::string type, gguf.String(type_key, old_linear != 1.0 ? "linear" : "none"));
  if (type == "linear") {
    rope.type = RopeConfig::Type::kLinear;
    rope.factor = fields->Double("rope.scaling.factor", old_linear);
  } else if (type == "yarn") {
    RETURN_IF_ERROR(ReadYarnRope(gguf, fields, config));
  } else if (type != "none") {
    return gguf.Unsupported(type_key, type);
  }
  RETURN_IF_ERROR(fields->status());
  if (!(rope.factor > 0)) return gguf.Bad(fields->Key("rope.scaling.factor"), "not above zero");
  ExtendByYarn(config);
  if (!tensors.Has(kRopeFactors)) return absl::OkStatus();
  RETURN_IF_ERROR(tensors.Expect(kRopeFactors, {config->head_dim / 2}));
  const TensorInfo* factors = tensors.Find(kRopeFactors);
  rope.freq_factors.resize(config->head_dim / 2);
  DequantizeRange(factors->type, factors->data, 0, config->head_dim / 2, rope.freq_factors.data());
  for (const float factor : rope.freq_factors) {
    if (!(factor > 0) || factor > 1e9f) {
      return absl::InvalidArgumentError(
          absl::StrCat(gguf.name(), ": tensor ", kRopeFactors, ": factor ", factor));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const GgufFile& gguf, const TensorTable& tensors, ArchFields* fields,
                       ModelConfig* config) {
  const std::string name = TensorName(*config->family, TensorRole::kEmbedding) + ".weight";
  const TensorInfo* embedding = tensors.Find(name);
  if (embedding == nullptr || embedding->shape.size() != 2) {
    RETURN_IF_ERROR(tensors.Expect(name, {0, 0}));  // returns the right error
    return absl::InternalError("unreachable: an embedding of shape [0, 0]");
  }
  const int64_t rows = embedding->shape[0];
  if (rows > std::numeric_limits<int32_t>::max()) return gguf.Bad("token_embd.weight", "too many rows");
  config->vocab_size = fields->Size("vocab_size", rows);
  config->hidden_size = config->embedding_dim = fields->Size("embedding_length");
  config->intermediate_size = fields->SizePerLayer("feed_forward_length");
  config->num_layers = fields->Size("block_count");
  config->num_heads = fields->SizePerLayer("attention.head_count");
  config->num_kv_heads = fields->SizePerLayer("attention.head_count_kv", config->num_heads);
  config->max_position_embeddings = fields->Size("context_length");
  const int32_t head_dim = std::max(1, config->hidden_size / config->num_heads);
  config->head_dim = fields->Size("attention.key_length", head_dim);
  const int32_t value_length = fields->Size("attention.value_length", config->head_dim);
  config->norm_eps = fields->Double("attention.layer_norm_rms_epsilon", 1e-5);
  RETURN_IF_ERROR(fields->status());
  if (value_length != config->head_dim)
    return gguf.Unsupported(fields->Key("attention.value_length"), "a length unlike the keys'");
  return absl::OkStatus();
}

absl::Status RefuseOptions(const GgufFile& gguf, const ArchFields& fields, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const int64_t experts, gguf.Int(fields.Key("expert_count"), 0));
  if (experts != 0) return gguf.Unsupported(fields.Key("expert_count"), "a mixture of experts");
  ASSIGN_OR_RETURN(const int64_t window, gguf.Int(fields.Key("attention.sliding_window"), 0));
  if (window > 0 && window < config.max_position_embeddings) {
    return gguf.Unsupported(fields.Key("attention.sliding_window"), absl::StrCat("a window of ", window));
  }
  return absl::OkStatus();
}

absl::Status ReadTokenIds(const GgufFile& gguf, ModelConfig* config) {
  auto read = [&](absl::string_view name) -> absl::StatusOr<int32_t> {
    const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
    ASSIGN_OR_RETURN(const int64_t id, gguf.Int(key, -1));
    // Some files write 2^32 - 1 for "no token", or an id outside of the vocabulary: the reader of the
    // tokenizer warns of the latter.
    return id < 0 || id >= config->vocab_size ? -1 : static_cast<int32_t>(id);
  };
  ASSIGN_OR_RETURN(config->bos_token_id, read("bos"));
  ASSIGN_OR_RETURN(config->pad_token_id, read("padding"));
  // The end of a turn or of a message also ends a sequence.
  for (const char* name : {"eos", "eot", "eom"}) {
    ASSIGN_OR_RETURN(const int32_t id, read(name));
    auto& ids = config->eos_token_ids;
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return absl::OkStatus();
}

// The type that most bytes are stored in.
StorageType CommonType(const TensorTable& tensors) {
  constexpr size_t kTypes = std::size(kStorageTypeInfos);
  int64_t bytes[kTypes] = {};
  for (const TensorInfo* tensor : tensors.All()) {
    bytes[static_cast<int>(tensor->type)] += static_cast<int64_t>(tensor->bytes);
  }
  return static_cast<StorageType>(std::max_element(bytes, bytes + kTypes) - bytes);
}

}  // namespace

absl::StatusOr<const Family*> FindGgufFamily(const GgufFile& gguf) {
  constexpr char kKey[] = "general.architecture";
  ASSIGN_OR_RETURN(const std::string arch, gguf.String(kKey, std::nullopt));
  const Family* family = FindFamily(
      [&](const Family& f) { return f.gguf_architecture != nullptr && arch == f.gguf_architecture; });
  if (family == nullptr) return gguf.Unsupported(kKey, arch);
  return family;
}

absl::StatusOr<ModelConfig> ReadGgufConfig(const Family& family, const GgufFile& gguf,
                                           const TensorTable& tensors) {
  ModelConfig config;
  config.family = &family;
  config.quantization.method = QuantizationConfig::Method::kGguf;
  ArchFields fields(gguf, family.gguf_architecture);
  RETURN_IF_ERROR(ReadSizes(gguf, tensors, &fields, &config));
  RETURN_IF_ERROR(RefuseOptions(gguf, fields, config));
  RETURN_IF_ERROR(ReadRope(gguf, tensors, &fields, &config));
  const auto has = [&](TensorRole role, const char* suffix) {
    return tensors.Has(TensorName(family, role) + suffix);
  };
  config.tie_word_embeddings = !has(TensorRole::kHead, ".weight");
  config.attention_qkv_bias = has(TensorRole::kQuery, ".bias");
  config.attention_out_bias = has(TensorRole::kAttentionOut, ".bias");
  config.mlp_bias = has(TensorRole::kUp, ".bias");
  config.stored_type = CommonType(tensors);
  config.stored_type_given = true;
  RETURN_IF_ERROR(ReadTokenIds(gguf, &config));
  RETURN_IF_ERROR(ValidateConfig(gguf.name(), config));
  return config;
}

}  // namespace somnus

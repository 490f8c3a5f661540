#pragma once
// The description of an architecture: names, how the configuration is read, the tensors, and the properties
// that the forward pass branches on. Readers of checkpoints check, name and permute tensors by this record;
// workers plan their weights by it. Nothing else distinguishes architectures.
//
// To add an architecture whose parts are known: one file in checkpoint/families/ that defines a Family and
// registers it (FamilyRegistration). Records are constants with static lifetime; reading them is thread safe.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/model_config.h"

namespace somnus {

class GgufFields;
class JsonFields;

// One side of a tensor. Ranks divide some dimensions among themselves (tensor parallelism): a matrix with
// divided rows is column-parallel (so is its bias), a matrix with divided columns is row-parallel (its bias
// is added once), a matrix with neither is replicated.
enum class Dim {
  kNone,  // of a vector's columns
  kOne,   // a single row
  kHidden,
  kHeadDim,
  kEmbedding,   // embedding_dim
  kPositions,   // max_position_embeddings + position_offset
  kHeads,       // num_heads; divided by query heads
  kQueries,     // num_heads * head_dim; divided by query heads
  kKeysValues,  // num_kv_heads * head_dim; divided by KV heads
  // Dimensions of models with latent attention (LatentConfig).
  kQueryRank,           // latent.query_rank
  kLatent,              // latent.rank
  kLatentRow,           // latent.rank + latent.rope
  kNope,                // latent.nope
  kLatentQueries,       // num_heads * (latent.nope + latent.rope); divided by query heads
  kLatentKeys,          // num_heads * latent.rank; divided by query heads
  kLatentValues,        // num_heads * latent.value; divided by query heads
  kIntermediate,        // divided
  kVocab,               // divided
  kExperts,             // the number of routed experts; each rank has a router for all
  kExpertIntermediate,  // of an expert; divided, unless ranks divide the number of experts
  kSharedIntermediate,  // of the shared experts together; divided
  // Several of the above, one below the other in one matrix; a rank holds a range of each.
  kQueriesKeysValues,
  kGateUp,  // kIntermediate twice
};

// The parts of a dimension in the order of their rows: the dimension itself unless it is of several.
absl::Span<const Dim> PartsOf(const Dim& dim);

// The role of a tensor in the forward pass (worker/model/decoder_model.h).
enum class TensorRole {
  kEmbedding,
  kPositions,   // learned position embeddings
  kProjectIn,   // embedding_dim -> hidden_size
  kProjectOut,  // hidden_size -> embedding_dim
  kFinalNorm,
  kHead,
  // Roles within a layer.
  kAttentionNorm,  // before the block
  kQueryKeyValue,  // the three in one matrix
  kQuery,
  kKey,
  kValue,
  kQueryNorm,
  kKeyNorm,
  // Latent attention has these tensors in place of queries, keys and values.
  kLatentQueryDown,
  kLatentQueryNorm,
  kLatentQueryUp,
  kLatentQuery,   // where latent.query_rank is 0: a single matrix for the queries
  kLatentRow,     // a token's row of the cache
  kLatentNorm,    // of the row's latent part
  kLatentKeys,    // for each head [latent.rank, latent.nope]
  kLatentValues,  // for each head [latent.value, latent.rank]
  kSinks,         // a logit for each query head (AttentionRule::sinks)
  kAttentionOut,
  kAttentionPostNorm,  // of the block's output, before its addition to the stream
  kMlpNorm,            // before the block
  kGateUp,             // the two in one matrix
  kGate,
  kUp,
  kDown,
  kMlpPostNorm,  // as kAttentionPostNorm
  // Layers with experts have these tensors in place of the MLP's. The router's bias is added to the logits.
  kRouter,
  kRouterCorrection,  // ExpertsConfig::correction
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kSharedMix,  // ExpertsConfig::shared_gate: a row whose product with the input is the logit
};

// Which layers have a tensor.
enum class LayerKind { kAll, kDense, kExperts };

// Says whether a model of this configuration has something.
using Condition = bool (*)(const ModelConfig&);
inline bool Always(const ModelConfig&) { return true; }
inline bool Never(const ModelConfig&) { return false; }
inline bool HasQkvBias(const ModelConfig& c) { return c.attention_qkv_bias; }
inline bool HasOutBias(const ModelConfig& c) { return c.attention_out_bias; }
inline bool HasMlpBias(const ModelConfig& c) { return c.mlp_bias; }
inline bool HasOwnHead(const ModelConfig& c) { return !c.tie_word_embeddings; }
inline bool HasCorrection(const ModelConfig& c) { return c.experts.correction; }
inline bool HasSharedExpert(const ModelConfig& c) { return c.experts.shared_size > 0; }
inline bool HasSharedGate(const ModelConfig& c) { return c.experts.shared_gate; }

// A weight and its bias. Rows and columns as Hugging Face stores them: [out_features, in_features].
struct TensorSpec {
  TensorRole role;
  // Hugging Face's, without ".weight" or ".bias" and the layer's prefix; the number of an expert is "*".
  const char* name;
  // GGUF's, without the same parts; nullptr: none. GGUF has the matrices of all experts in a single tensor,
  // whose first dimension is the experts.
  const char* gguf = nullptr;
  Dim rows = Dim::kHidden;
  Dim cols = Dim::kNone;
  Condition present = Always;
  Condition bias = Never;
  LayerKind layers = LayerKind::kAll;
  // The end of the tensor's name; empty for the router's correction, whose name has no ".weight".
  const char* suffix = ".weight";
  const char* gguf_suffix = ".weight";
};

// Whether each expert has a tensor of this entry.
bool IsOfExperts(const TensorSpec& spec);
// Whether a layer of such a model has the entry's tensor.
bool IsInLayer(const TensorSpec& spec, const ModelConfig& config, int32_t layer);

// How a part of a layer is called by the modules of transformers 5, and how by the family's files: the
// beginnings of the names of tensors, behind the layer's number.
struct ModuleName {
  const char* module;
  const char* file;
};

enum class NormKind { kRmsNorm, kLayerNorm };

struct Family {
  const char* model_type;  // config.json's
  // The name in config.json's "architectures", where "ForCausalLM" follows, or "Model" for a model saved
  // without a head.
  const char* class_name;
  const char* gguf_architecture = nullptr;  // general.architecture; nullptr: no GGUF files of this family

  // Fills sizes and options from config.json, with the defaults of the family's configuration class in
  // `transformers` for keys that are absent. Errors name the key: InvalidArgument (contradictory),
  // Unimplemented.
  absl::Status (*read_config)(JsonFields* fields, ModelConfig* config);

  NormKind norm = NormKind::kRmsNorm;
  // The stored weight of a norm is the norm's factor less this number (Gemma's 1 + w). GGUF files store the
  // factor.
  float norm_offset = 0;
  bool gated_mlp = true;      // down(activation(gate) * up); false: down(activation(up))
  bool qk_norm = false;       // RMSNorm of q and k before the rotary embedding, of each head by itself
  bool qk_norm_wide = false;  // with qk_norm: of all heads together (OLMo 2)
  // Rows of q and k are stored so that neighbours rotate together, 2i with 2i + 1, in all kinds of files
  // (GLM); otherwise row i of a head's rotating rows and the row that lies half of these further on.
  bool interleaved_rope = false;
  bool partial_rope = false;   // files may rotate a part of each head
  bool fused_experts = false;  // all experts of a layer in one tensor (fused_experts.h)
  bool local_rope = false;     // layers with a window have a rotary embedding of their own
  // Where files have windows and no list of layers: the layers whose number, from 1 on, is no multiple have
  // one; 0: all.
  int32_t window_period = 0;
  // embedding_scale is rounded to the type of computation, as transformers and vLLM do (Gemma).
  bool rounds_embedding_scale = false;
  bool learned_positions = false;  // then no token may be beyond max_position_embeddings
  int32_t position_offset = 0;     // the row of position 0 in the table of learned positions
  // GGUF's q and k rows are stored in the pairing order of llama.cpp's rotary embedding: as interleaved_rope.
  bool gguf_permutes_heads = false;
  // Sets what GGUF files of the family leave to the reader; nullptr: nothing. Called when all general keys
  // have been read; keeps errors in the fields.
  void (*finish_gguf)(GgufFields* fields, ModelConfig* config) = nullptr;
  int32_t gguf_nope_period = 0;  // GGUF: every so many layers one has no rotary embedding; 0: none

  const char* layer_prefix = "model.layers.";  // the layer's number and "." follow
  absl::Span<const TensorSpec> tensors;        // outside of the layers
  absl::Span<const TensorSpec> layer_tensors;
  // Where modules have other names than files. Checkpoints and clients may have the names of either:
  // transformers 5 saves those of the modules with save_original_format=False.
  absl::Span<const ModuleName> module_names;
  const char* other_model_type = nullptr;  // in files of models that have a type of their own
};

// Registers a family for the rest of the process. Only at namespace scope, because nothing is locked.
class FamilyRegistration {
 public:
  explicit FamilyRegistration(const Family* family);
};

// The registered family that `matches`, or nullptr.
const Family* FindFamily(absl::FunctionRef<bool(const Family&)> matches);

int64_t SizeOf(Dim dim, const ModelConfig& config);
std::vector<int64_t> ShapeOf(const TensorSpec& spec, const ModelConfig& config);

// The entry of that role, or nullptr where the family has none.
const TensorSpec* FindTensor(const Family& family, TensorRole role);
// Hugging Face's name without ".weight" or ".bias", which follow; `layer` is ignored for roles outside of the
// layers, and `expert` for roles that are not of experts. The family must have an entry of that role.
std::string TensorName(const Family& family, TensorRole role, int32_t layer = 0, int32_t expert = 0);

// The file's name of a tensor that has its module's name; other names stay as they are.
std::string FileName(const Family& family, absl::string_view name);

// Calls expect(name, shape) for every tensor that a model of this configuration needs; returns its first
// error at once.
absl::Status ForEachTensor(
    const ModelConfig& config,
    absl::FunctionRef<absl::Status(const std::string& name, const std::vector<int64_t>& shape)> expect);

// Calls visit(spec, name) for every entry that such a model has, once for each layer where the entry is of
// the layers, and once for each expert of a layer where the entry is of experts; `name` is without the
// entry's suffix and ".bias".
void ForEachSpec(const ModelConfig& config,
                 absl::FunctionRef<void(const TensorSpec& spec, const std::string& name)> visit);

}  // namespace somnus

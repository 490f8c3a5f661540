#pragma once
// A checkpoint's description of itself, in one form for Hugging Face directories and GGUF files.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/experts_config.h"
#include "checkpoint/latent_config.h"

namespace somnus {

// Element types on disk. Quantized types (GGUF) are stored in blocks along the last dimension; fp8
// checkpoints are read as kF8E4M3: blocks of an f32 scale and 32 numbers (base/float8.h).
enum class StorageType {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kIQ4_NL,
  kMXFP4,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF8E4M3
};

struct Family;  // checkpoint/family.h

enum class Activation { kSilu, kRelu, kGeluTanh, kGelu, kClampedSwiglu };

// Rotary embedding. `kLlama3` rescales low frequencies (Llama 3.1, rope_type "llama3"); `kLinear` divides
// positions; `kYarn` divides the positions of slow pairs alone (YaRN, arXiv 2309.00071).
struct RopeConfig {
  enum class Type { kNone, kDefault, kLinear, kLlama3, kYarn };
  Type type = Type::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 0;
  // kYarn: a pair that turns `beta_fast` times or more over the original context keeps its frequency; the
  // frequency of a pair that turns `beta_slow` times or less is divided by `factor`; `truncate` rounds the
  // bounds of the pairs in between, with blended frequencies, to whole numbers.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;
  double attention_factor = 1.0;  // multiplies cosines and sines
  // The first dimensions of a head that rotate (partial_rotary_factor); 0: all.
  int32_t rotary_dim = 0;
  // Each frequency is divided by its factor, after `type` was applied: GGUF's rope_freqs.weight (GGUF files
  // store Llama 3's scaling this way, with type kDefault), and LongRoPE's long_factor. One for each pair of
  // dimensions that rotates; empty: none.
  std::vector<float> freq_factors;
  // LongRoPE (arXiv 2402.13753): the factors in place of freq_factors where no sequence may be longer than
  // original_max_position_embeddings. Empty: freq_factors hold for every length.
  std::vector<float> short_factors;

  bool operator==(const RopeConfig&) const = default;
};

// Which rotary embedding the attention of a layer has: ModelConfig::rope, ModelConfig::local_rope, or none
// (NoPE, arXiv 2305.19466).
enum class LayerRope { kMain, kLocal, kNone };

// The attention of one layer, where layers of a model may differ.
struct LayerAttention {
  // A query attends the last `window` tokens, with its own; 0: all tokens from the first on.
  int32_t window = 0;
  LayerRope rope = LayerRope::kMain;

  bool operator==(const LayerAttention&) const = default;
};

// Defaults for sampling from the checkpoint's generation_config.json; unset where that file has no value.
struct GenerationDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
};

// A checkpoint's quantization: the quantization_config of a Hugging Face checkpoint, as far as the tensors'
// shapes do not tell; for a GGUF file, which gives the type of each tensor, the method alone.
struct QuantizationConfig {
  enum class Method { kNone, kGptq, kAwq, kCompressedTensors, kFp8, kMxfp4, kGguf };
  Method method = Method::kNone;
  bool float8 = false;        // weights are of fp8 (e4m3)
  int32_t bits = 0;           // of a weight; 0: the tensors tell
  int64_t group_size = 0;     // inputs that share a scale; 0: the tensors tell; -1: all
  int64_t block_rows = 0;     // of fp8: outputs that share a scale, in blocks of block_rows x group_size; 0:
                              // no blocks
  bool symmetric = true;      // no zero points
  bool zeros_less_1 = false;  // GPTQ's first format: the stored number is the zero point less 1

  bool operator==(const QuantizationConfig&) const = default;
};

// Far above any known vocabulary. Bounds the tables with an entry for each token.
inline constexpr int32_t kMaxVocabSize = 1 << 21;

// Plain data; copyable. Every size is validated to be positive and mutually consistent by the reader. The
// common properties of all models of a family are in the family's record.
struct ModelConfig {
  const Family* family = nullptr;  // set by every reader
  std::string name;                // directory or file stem
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  // of MLPs that are no experts
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // not necessarily hidden_size / num_heads
  int32_t max_position_embeddings = 0;
  double norm_eps = 1e-5;  // RMSNorm or LayerNorm
  Activation activation = Activation::kSilu;
  double swiglu_limit = 0;  // of kClampedSwiglu (ClampedSwiglu in kernels/op_types.h)
  double swiglu_alpha = 0;
  RopeConfig rope;
  RopeConfig local_rope;  // of layers with a window, in families that have two (Gemma 3, OLMo 3)
  std::vector<LayerAttention> layer_attention;  // [num_layers]; empty: LayerAttention() for each layer
  // With a rank above 0, num_kv_heads is 1 and head_dim the length of a cached row, latent.rank +
  // latent.rope.
  LatentConfig latent;
  double attention_scale = 0;    // of query times key; 0: head_dim ^ -0.5
  double attention_softcap = 0;  // a score s becomes softcap * tanh(s / softcap); 0: none
  // The query at position p is multiplied by 1 + query_temperature * ln(1 + floor(p /
  // rope.original_max_position_embeddings)): llama_4_scaling_beta of Ministral 3.
  double query_temperature = 0;
  double embedding_scale = 1;  // of the tokens' embeddings
  double residual_scale = 1;   // of a block's output, before its addition to the residual stream
  double logits_scale = 1;     // of logits
  double logits_softcap = 0;   // of scaled logits, as attention_softcap
  bool tie_word_embeddings = false;
  bool tie_word_embeddings_given = false;  // a configuration has the key
  bool attention_qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool head_norms = false;  // RMSNorm of each head's q and k, where models of a family differ (GLM-4.5)
  ExpertsConfig experts;    // num_experts 0: every layer has one MLP
  bool norm_before = true;  // OPT's do_layer_norm_before; false: after the residual (opt-350m)
  bool final_norm = true;
  int32_t embedding_dim = 0;  // OPT's word_embed_proj_dim; equals hidden_size unless projected
  // The start for dtype "auto": the configuration's type, else the type of most weights. May be quantized
  // (GGUF).
  StorageType stored_type = StorageType::kBF16;
  bool stored_type_given = false;  // the configuration names it
  int32_t bos_token_id = -1;       // -1: none
  std::vector<int32_t> eos_token_ids;
  int32_t pad_token_id = -1;
  // Trained so that the first numbers of an embedding are an embedding (arXiv 2205.13147): by any number of
  // numbers, or, where there are some, by those of matryoshka_dimensions.
  bool is_matryoshka = false;
  std::vector<int32_t> matryoshka_dimensions;
  GenerationDefaults generation;
  QuantizationConfig quantization;

  LayerAttention AttentionOf(int32_t layer) const {
    return layer_attention.empty() ? LayerAttention() : layer_attention[layer];
  }
  // How many tokens a query attends at most in any layer, with its own: the widest window; 0: all tokens,
  // since a layer has no window.
  int32_t AttentionReach() const {
    int32_t widest = 0;
    for (const LayerAttention& layer : layer_attention) {
      if (layer.window == 0) return 0;
      widest = layer.window > widest ? layer.window : widest;
    }
    return widest;
  }
  // Whether the layer has experts in place of one MLP.
  bool HasExperts(int32_t layer) const {
    return experts.num_experts > 0 && (experts.layers.empty() || experts.layers[layer] != 0);
  }
  // Whether a layer has one MLP.
  bool HasDenseLayer() const {
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      if (!HasExperts(layer)) return true;
    }
    return false;
  }
  // The dimensions of a head that rotary embeddings see.
  int32_t RopeHeadDim() const { return latent.rank > 0 ? latent.rope : head_dim; }
  // The dimensions of a head that rotate, by the main rotary embedding.
  int32_t RotaryDim() const { return rope.rotary_dim > 0 ? rope.rotary_dim : RopeHeadDim(); }
};

}  // namespace somnus

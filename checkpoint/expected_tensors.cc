// Which tensors a model of a given configuration is made of, by Hugging Face's names and shapes.

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/tensor_table.h"

namespace somnus {
namespace {

absl::Status ExpectLinear(const ExpectTensor& expect, const std::string& name, int64_t out, int64_t in,
                          bool bias) {
  RETURN_IF_ERROR(expect(name + ".weight", {out, in}));
  return bias ? expect(name + ".bias", {out}) : absl::OkStatus();
}

absl::Status ExpectNorm(const ExpectTensor& expect, const std::string& name, int64_t size, bool bias) {
  RETURN_IF_ERROR(expect(name + ".weight", {size}));
  return bias ? expect(name + ".bias", {size}) : absl::OkStatus();
}

absl::Status ExpectAttention(const ModelConfig& c, const ExpectTensor& expect, const std::string& prefix,
                             const std::string& out_name) {
  const int64_t q = int64_t{c.num_heads} * c.head_dim, kv = int64_t{c.num_kv_heads} * c.head_dim;
  RETURN_IF_ERROR(ExpectLinear(expect, prefix + "q_proj", q, c.hidden_size, c.attention_qkv_bias));
  RETURN_IF_ERROR(ExpectLinear(expect, prefix + "k_proj", kv, c.hidden_size, c.attention_qkv_bias));
  RETURN_IF_ERROR(ExpectLinear(expect, prefix + "v_proj", kv, c.hidden_size, c.attention_qkv_bias));
  return ExpectLinear(expect, prefix + out_name, c.hidden_size, q, c.attention_out_bias);
}

absl::Status ExpectLlamaLayer(const ModelConfig& c, const ExpectTensor& expect, int layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  RETURN_IF_ERROR(ExpectNorm(expect, prefix + "input_layernorm", c.hidden_size, false));
  RETURN_IF_ERROR(ExpectAttention(c, expect, prefix + "self_attn.", "o_proj"));
  if (c.qk_norm) {
    RETURN_IF_ERROR(ExpectNorm(expect, prefix + "self_attn.q_norm", c.head_dim, false));
    RETURN_IF_ERROR(ExpectNorm(expect, prefix + "self_attn.k_norm", c.head_dim, false));
  }
  RETURN_IF_ERROR(ExpectNorm(expect, prefix + "post_attention_layernorm", c.hidden_size, false));
  const std::string mlp = prefix + "mlp.";
  RETURN_IF_ERROR(ExpectLinear(expect, mlp + "gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias));
  RETURN_IF_ERROR(ExpectLinear(expect, mlp + "up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias));
  return ExpectLinear(expect, mlp + "down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
}

absl::Status ExpectOptLayer(const ModelConfig& c, const ExpectTensor& expect, int layer) {
  const std::string prefix = absl::StrCat("model.decoder.layers.", layer, ".");
  RETURN_IF_ERROR(ExpectNorm(expect, prefix + "self_attn_layer_norm", c.hidden_size, true));
  RETURN_IF_ERROR(ExpectAttention(c, expect, prefix + "self_attn.", "out_proj"));
  RETURN_IF_ERROR(ExpectNorm(expect, prefix + "final_layer_norm", c.hidden_size, true));
  RETURN_IF_ERROR(ExpectLinear(expect, prefix + "fc1", c.intermediate_size, c.hidden_size, c.mlp_bias));
  return ExpectLinear(expect, prefix + "fc2", c.hidden_size, c.intermediate_size, c.mlp_bias);
}

absl::Status CheckOpt(const ModelConfig& c, const ExpectTensor& expect) {
  const std::string prefix = "model.decoder.";
  RETURN_IF_ERROR(expect(prefix + "embed_tokens.weight", {c.vocab_size, c.embedding_dim}));
  const int64_t positions = int64_t{c.max_position_embeddings} + c.position_offset;
  RETURN_IF_ERROR(expect(prefix + "embed_positions.weight", {positions, c.hidden_size}));
  if (c.embedding_dim != c.hidden_size) {
    RETURN_IF_ERROR(expect(prefix + "project_in.weight", {c.hidden_size, c.embedding_dim}));
    RETURN_IF_ERROR(expect(prefix + "project_out.weight", {c.embedding_dim, c.hidden_size}));
  }
  for (int layer = 0; layer < c.num_layers; ++layer) RETURN_IF_ERROR(ExpectOptLayer(c, expect, layer));
  return c.final_norm ? ExpectNorm(expect, prefix + "final_layer_norm", c.hidden_size, true)
                      : absl::OkStatus();
}

}  // namespace

absl::Status ForEachExpectedTensor(const ModelConfig& c, const ExpectTensor& expect) {
  if (c.architecture == Architecture::kOpt) {
    RETURN_IF_ERROR(CheckOpt(c, expect));
  } else {
    RETURN_IF_ERROR(expect("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}));
    for (int layer = 0; layer < c.num_layers; ++layer) RETURN_IF_ERROR(ExpectLlamaLayer(c, expect, layer));
    RETURN_IF_ERROR(expect("model.norm.weight", {c.hidden_size}));
  }
  if (c.tie_word_embeddings) return absl::OkStatus();
  return expect("lm_head.weight", {c.vocab_size, c.embedding_dim});
}

absl::Status CheckTensors(const ModelConfig& config, const TensorTable& tensors) {
  return ForEachExpectedTensor(config, [&](const std::string& name, const std::vector<int64_t>& shape) {
    return tensors.Expect(name, shape);
  });
}

}  // namespace somnus

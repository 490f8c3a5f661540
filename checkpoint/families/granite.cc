// Granite 3 and 4: Llama with four numbers, of embeddings, attention, the blocks' outputs and logits. Granite
// 4's class also has layers of Mamba and experts, which are refused here, and may have no rotary embedding.

#include <string>

#include "base/status_macros.h"
#include "checkpoint/families/gated_decoder.h"
#include "checkpoint/gguf/gguf_fields.h"

namespace somnus {
namespace {

void ReadMultipliers(JsonFields* fields, ModelConfig* config) {
  const auto above_zero = [fields](const char* key) {
    const double value = fields->Double(key, 1.0);
    if (!(value > 0)) fields->Note(fields->Bad(key, "not above zero"));
    return value;
  };
  config->embedding_scale = above_zero("embedding_multiplier");
  config->attention_scale = above_zero("attention_multiplier");
  config->residual_scale = above_zero("residual_multiplier");
  config->logits_scale = 1.0 / above_zero("logits_scaling");
}

// In Granite's GGUF files a key that elsewhere only informs says whether there is a rotary embedding. The
// converter writes Granite 4's models of attention alone as this architecture.
void FinishGguf(GgufFields* fields, ModelConfig* config) {
  const absl::StatusOr<bool> rotates = fields->gguf().Bool(fields->Key("rope.scaling.finetuned"), true);
  if (!rotates.ok()) {
    fields->Fail(rotates.status());
  } else if (!*rotates) {
    config->rope.type = RopeConfig::Type::kNone;
  }
}

constexpr GatedDecoderKeys kGraniteKeys = {
    .bias_by_flag = true,
    .mlp_bias_by_flag = true,
    .sizes = {.vocab = 32000, .hidden = 4096, .intermediate = 11008, .layers = 32, .heads = 32},
    .token_ids = {.bos = 1, .eos = 2},
    .more = ReadMultipliers};
constexpr Family kGranite = GatedDecoder<kGraniteKeys>({
    .model_type = "granite",
    .class_name = "Granite",
    .gguf_architecture = "granite",
    .gguf_permutes_heads = true,
    .finish_gguf = FinishGguf,
});
const FamilyRegistration kGraniteRegistration(&kGranite);

// The 4.0 micro sizes: attention on every layer, and the shared MLP without experts.
void CheckDense(JsonFields* fields, ModelConfig* config) {
  if (!fields->Has("layer_types") && !fields->Has("layers_block_type"))
    fields->Note(fields->Unsupported("layer_types", "Mamba layers, as of a file without the key"));
  if (fields->Int("num_local_experts", 8, 0, 1 << 20) > 0)
    fields->Note(fields->Unsupported("num_local_experts", "a mixture of experts"));
  ReadMultipliers(fields, config);
}

constexpr GatedDecoderKeys kHybridKeys = {
    .bias_by_flag = true,
    .sizes = {.vocab = 32000, .hidden = 4096, .intermediate = 1024, .layers = 32, .heads = 32},
    .intermediate_key = "shared_intermediate_size",
    .token_ids = {.bos = 1, .eos = 2},
    .more = CheckDense};

absl::Status ReadHybrid(JsonFields* fields, ModelConfig* config) {
  const std::string positions = fields->String("position_embedding_type", "nope");
  const bool rotates = positions == "rope";
  if (!rotates && positions != "nope") return fields->Unsupported("position_embedding_type", positions);
  RETURN_IF_ERROR(ReadGatedDecoder(kHybridKeys, fields, config));
  if (!rotates) config->rope.type = RopeConfig::Type::kNone;
  return absl::OkStatus();
}

constexpr TensorSpec kHybridTensors[] = {
    layer_tensors::kInputNorm,
    layer_tensors::kQuery,
    layer_tensors::kKey,
    layer_tensors::kValue,
    layer_tensors::kOut,
    layer_tensors::kPostAttentionNorm,
    {.role = TensorRole::kGateUp,
     .name = "shared_mlp.input_linear",
     .rows = Dim::kGateUp,
     .cols = Dim::kHidden},
    {.role = TensorRole::kDown,
     .name = "shared_mlp.output_linear",
     .rows = Dim::kHidden,
     .cols = Dim::kIntermediate},
};

constexpr Family kGraniteHybrid = {
    .model_type = "granitemoehybrid",
    .class_name = "GraniteMoeHybrid",
    .read_config = ReadHybrid,
    .tensors = kGatedDecoderTensors,
    .layer_tensors = kHybridTensors,
};
const FamilyRegistration kGraniteHybridRegistration(&kGraniteHybrid);

}  // namespace
}  // namespace somnus

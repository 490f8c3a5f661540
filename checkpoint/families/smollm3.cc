// SmolLM3: Llama without rotary embedding on every fourth layer (arXiv 2501.18795).

#include "checkpoint/families/gated_decoder.h"

namespace somnus {
namespace {

constexpr GatedDecoderKeys kSmolLm3Keys = {
    .bias_by_flag = true,
    .mlp_bias_by_flag = true,
    .window = {.kind = AttentionWindow::kWithoutRotary, .default_window = 0, .skips_rope_by_list = true},
    .rope = {.theta = 2e6},
    .sizes = {.vocab = 128256, .hidden = 2048, .intermediate = 11008, .layers = 36, .heads = 16},
    .default_positions = 32768,
    .default_kv_heads = 4,
    .tied = true,
    .token_ids = {.bos = 128000, .eos = 128001, .pad = 128004}};
constexpr Family kSmolLm3 = GatedDecoder<kSmolLm3Keys>({
    .model_type = "smollm3",
    .class_name = "SmolLM3",
    .gguf_architecture = "smollm3",
    .gguf_permutes_heads = true,
    .gguf_nope_period = 4,
});
const FamilyRegistration kSmolLm3Registration(&kSmolLm3);

}  // namespace
}  // namespace somnus

#include "tools/bench/decode/decode_flags.h"

#include "base/flags.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

Flag KvCacheDtype(DecodeFlags* f) {
  return Flag::OneOf<std::optional<DataType>>("kv-cache-dtype", &f->kv_cache_dtype,
                                              {{"auto", std::nullopt},
                                               {"bfloat16", DataType::kBF16},
                                               {"float16", DataType::kF16},
                                               {"float32", DataType::kF32},
                                               {"fp8", DataType::kF8E4M3},
                                               {"fp8_e4m3", DataType::kF8E4M3},
                                               {"int8", DataType::kI8},
                                               {"int8_per_token_head", DataType::kI8}},
                                              "type of the KV cache, by a server's names; auto: --dtype");
}

FlagTable Flags(DecodeFlags* f) {
  constexpr int64_t kMaxTokens = 1 << 20;
  FlagTable table;
  table.program = "decode_bench";
  table.usage = "decode_bench --model=PATH [flags]";
  table.about = "Decode and prefill speed of the model runner, in process.";
  table.groups = {
      {"Flags",
       {Flag::Text("model", &f->model, "Hugging Face directory or GGUF file").Shows("PATH"),
        Flag::OneOf("load-format", &f->load_format,
                    {{"auto", LoadFormat::kAuto}, {"dummy", LoadFormat::kDummy}},
                    "the model's files, or random weights, for which config.json is enough"),
        Flag::Int("threads", &f->threads, 1, 1024, "threads of the device and of the peer"),
        Flag::OneOf<DataType>(
            "dtype", &f->dtype,
            {{"bfloat16", DataType::kBF16}, {"float16", DataType::kF16}, {"float32", DataType::kF32}},
            "type of activations, and of weights that are not computed as stored"),
        Flag::Switch("dequantize", &f->dequantize,
                     "quantized weights become --dtype at load, as a server's do by default; otherwise "
                     "they are computed as stored"),
        Flag::OneOf<std::optional<DataType>>(
            "quantization", &f->quantize,
            {{"none", std::nullopt},
             {"int8", DataType::kQ8_0},
             {"int4", DataType::kQ4_1},
             {"fp8", DataType::kF8E4M3}},
            "what the layers' matrices become at load, where they would become --dtype"),
        KvCacheDtype(f), Flag::Ints("batches", &f->batches, 1, 512, "decode batches"),
        Flag::Int("prompt-tokens", &f->prompt_tokens, 1, kMaxTokens, "prompt of each sequence when decoding"),
        Flag::Int("new-tokens", &f->new_tokens, 1, kMaxTokens, "decode steps"),
        Flag::Ints("prefill-tokens", &f->prefill_tokens, 0, kMaxTokens,
                   "prompts that are measured alone, one sequence each; 0: none"),
        Flag::Int("max-num-batched-tokens", &f->max_num_batched_tokens, 1, 1 << 16,
                  "tokens of prompts in one step: a longer prompt takes several, short ones share one"),
        Flag::Int("rounds", &f->rounds, 1, 1000, "samples of each size"),
        Flag::Text("json", &f->json, "also write all samples to this file").Shows("FILE"),
        Flag::Text("peer", &f->peer, "path of llama-batched-bench").Shows("PATH"),
        Flag::Text("peer-model", &f->peer_model, "the same weights as GGUF, for the peer").Shows("PATH")}}};
  return table;
}

absl::Status Check(const DecodeFlags& flags) {
  if (flags.model.empty()) return absl::InvalidArgumentError("--model: no model was given; see --help");
  if (!flags.peer.empty() && flags.peer_model.empty())
    return absl::InvalidArgumentError("--peer: needs --peer-model");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DecodeFlags> ParseDecodeFlags(const std::vector<std::string>& args) {
  DecodeFlags flags;
  RETURN_IF_ERROR(ParseArgs(Flags(&flags), args).status());
  RETURN_IF_ERROR(Check(flags));
  return flags;
}

std::optional<int> ParseDecodeFlags(int argc, const char* const* argv, DecodeFlags* flags) {
  const FlagTable table = Flags(flags);
  if (const auto code = ParseCommandLine(table, argc, argv); code.has_value()) return code;
  if (const absl::Status status = Check(*flags); !status.ok()) return UsageError(table, status);
  return std::nullopt;
}

}  // namespace somnus

#include "tools/bench/gpu/gpu_bench_flags.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/bench/gpu/bench_report.h"

namespace somnus {
namespace {

// Names of parts, separated by commas.
absl::Status SetParts(const std::string& value, GpuBenchFlags* flags) {
  const std::vector<std::string> known = GpuBenchFlags().parts;
  const std::vector<std::string> parts = absl::StrSplit(value, ',');
  for (const std::string& part : parts) {
    if (std::find(known.begin(), known.end(), part) != known.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("is not some of ", absl::StrJoin(known, ",")));
  }
  flags->parts = parts;
  return absl::OkStatus();
}

absl::Status SetOnly(const std::string& value, GpuBenchFlags* flags) {
  if (const auto pattern = NamePattern::Compile(value); !pattern.ok()) return pattern.status();
  flags->only = value;
  return absl::OkStatus();
}

FlagGroup Reports(GpuBenchFlags* f) {
  const auto set_parts = [f](const std::string& value) { return SetParts(value, f); };
  const auto set_only = [f](const std::string& value) { return SetOnly(value, f); };
  return {
      "What is measured, and where it goes",
      {Flag::Custom("parts", "PART,...", absl::StrJoin(f->parts, ","), set_parts,
                    "what to measure; the ceilings of copies are always"),
       Flag::Custom("only", "REGEX", "all", set_only,
                    "rows of kernels and chunks in whose names this extended regular expression is found"),
       Flag::Number("seconds", &f->seconds, 0.001, 86400,
                    "start no row later than that; the last line names those that were not measured")
           .Default("no end"),
       Flag::Text("json-lines", &f->json_lines,
                  "append a line of JSON to this file as soon as a row is measured; -: to stdout, and text "
                  "to stderr")
           .Shows("FILE"),
       Flag::Text("model", &f->model, "directory with a config.json: its shape is measured").Shows("PATH"),
       Flag::Int("device-index", &f->device_index, 0, 1023, "which GPU")}};
}

FlagGroup Models(GpuBenchFlags* f) {
  constexpr int64_t kMaxTokens = 1 << 20;
  return {
      "model, sleep and load",
      {Flag::Ints("batches", &f->batches, 1, 1024, "decode batches"),
       Flag::Int("prompt-tokens", &f->prompt_tokens, 1, kMaxTokens, "prompt of each sequence when decoding"),
       Flag::Int("new-tokens", &f->new_tokens, 1, kMaxTokens, "decode steps"),
       Flag::Int("prefill-tokens", &f->prefill_tokens, 1, kMaxTokens,
                 "prompt of the prefill measurement, in steps of 4096 tokens"),
       Flag::Switch("enforce-eager", &f->enforce_eager, "no CUDA graphs"),
       Flag::Switch("batch-invariant", &f->batch_invariant, "the same bits in any batch"),
       Flag::Text("load-checkpoint", &f->load_checkpoint,
                  "directory of --model's real weights for the load part")
           .Shows("PATH")
           .Default("a sparse file of that size in TMPDIR"),
       Flag::Number(
           "sleep-kv-share", &f->sleep_kv_share, 0, 1,
           "of what the weights leave of the GPU, that the KV cache takes for the sleep part, as when "
           "serving"),
       Flag::Bytes("device-chunk-bytes", &f->device_chunk_bytes, 2 << 20, int64_t{1} << 40,
                   "size in which the GPU's memory is created and released")}};
}

}  // namespace

FlagTable GpuBenchFlagTable(GpuBenchFlags* f) {
  FlagTable table;
  table.program = "gpu_bench";
  table.usage = "gpu_bench [flags]";
  table.about = "What a GPU and Somnus on it do.";
  table.groups = {Reports(f),
                  Models(f),
                  {"chunks",
                   {Flag::Bytes("chunk-sweep-bytes", &f->chunk_sweep_bytes, 1 << 20, int64_t{1} << 50,
                                "memory that is created, mapped and released in pieces of several sizes")}}};
  return table;
}

}  // namespace somnus

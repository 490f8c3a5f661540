// Measures the GPU's ceilings, then each op beside them, then whole models with random weights (decode,
// prefill, sleep and wake-up), then loading weights from a file.
//
//   gpu_bench --parts=ceilings,kernels,model,sleep,load --model=tools/bench/shapes/qwen3-8b
//   [--batches=1,8,32,128,256]

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "allocator/cuda_vmm_driver.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/bench/decode/decode_loop.h"
#include "tools/bench/gpu/ceilings.h"
#include "tools/bench/gpu/kernel_table.h"
#include "tools/bench/gpu/sparse_checkpoint.h"

namespace somnus {
namespace {

struct BenchFlags {
  std::vector<std::string> parts = {"ceilings", "kernels", "model", "sleep", "load"};
  std::string model = "tools/bench/shapes/qwen3-8b";
  std::vector<int32_t> batches = {1, 8, 32, 128, 256};
  int32_t prompt_tokens = 512;
  int32_t new_tokens = 64;
  int32_t prefill_tokens = 4096;
  bool enforce_eager = false;
  bool batch_invariant = false;
  std::string load_checkpoint;
  int32_t device_index = 0;
  double sleep_kv_share = 0.9;
  int64_t device_chunk_bytes = int64_t{1} << 30;
  std::string json;
};

// The command line, which main sets.
BenchFlags& Given() {
  static BenchFlags* flags = new BenchFlags;
  return *flags;
}

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool Wanted(const std::string& part) {
  const std::vector<std::string> parts = Given().parts;
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

absl::Status Kernels(const GpuCeilings& ceilings, nlohmann::json* report) {
  ASSIGN_OR_RETURN(const auto driver, MakeCudaVmmDriver(Given().device_index));
  ASSIGN_OR_RETURN(const auto device, Device::CreateCuda(Given().device_index));
  const auto allocator = SleepableAllocator::Create(driver.get());
  ASSIGN_OR_RETURN(const std::vector<KernelRow> rows, MeasureKernels(*device, *allocator));
  std::printf("\n%-52s %10s %10s %8s %10s\n", "op", "us", "GB/s", "of copy", "TFLOP/s");
  for (const KernelRow& row : rows) {
    const double gbps = row.bytes / row.us * 1e-3;
    std::printf("%-52s %10.1f %10.1f %8.2f %10.1f\n", row.name.c_str(), row.us, gbps,
                gbps / ceilings.copy_gbps, row.flops / row.us * 1e-6);
    (*report)["kernels"].push_back({{"name", row.name},
                                    {"us", row.us},
                                    {"gbps", gbps},
                                    {"of_copy", gbps / ceilings.copy_gbps},
                                    {"tflops", row.flops / row.us * 1e-6}});
  }
  return absl::OkStatus();
}

// Bytes of weights that a decode step reads: all but an embedding that is not also the head.
double StepWeightBytes(const DecodeLoop& loop) {
  const ModelConfig& c = loop.config();
  const double embedding = c.tie_word_embeddings ? 0.0 : 2.0 * c.vocab_size * c.embedding_dim;
  return static_cast<double>(loop.weights_bytes()) - embedding;
}

absl::StatusOr<std::unique_ptr<DecodeLoop>> LoadModel(int max_batch, double kv_share = 0) {
  DecodeLoopOptions options;
  options.model = Given().model;
  options.load_format = LoadFormat::kDummy;
  options.device = DeviceKind::kCuda;
  options.device_index = Given().device_index;
  options.enforce_eager = Given().enforce_eager;
  options.batch_invariant = Given().batch_invariant;
  options.max_batch = max_batch;
  options.kv_share = kv_share;
  options.device_chunk_bytes = Given().device_chunk_bytes;
  options.max_step_tokens = 4096;
  options.max_len =
      std::max(Given().prompt_tokens + Given().new_tokens + 16, max_batch == 1 ? Given().prefill_tokens : 0);
  ASSIGN_OR_RETURN(auto loop, DecodeLoop::Load(options));
  std::printf("\n%s, %s, weights %.2f GB, KV cache %.2f GB, ready after %.2f s\n", options.model.c_str(),
              loop->device().c_str(), static_cast<double>(loop->weights_bytes()) * 1e-9,
              static_cast<double>(loop->kv_cache_bytes()) * 1e-9, loop->load_seconds());
  return loop;
}

void Graphs(const DecodeLoop& loop, nlohmann::json* report) {
  std::printf("%d graphs in %.2f s, %.1f MiB\n", loop.graphs().count, loop.graphs().seconds,
              static_cast<double>(loop.graph_bytes()) / (1 << 20));
  (*report)["graphs"] = {
      {"count", loop.graphs().count}, {"seconds", loop.graphs().seconds}, {"bytes", loop.graph_bytes()}};
}

absl::Status Model(const GpuCeilings& ceilings, nlohmann::json* report) {
  const std::vector<int32_t>& batches = Given().batches;
  const int prompt = Given().prompt_tokens, steps = Given().new_tokens;
  ASSIGN_OR_RETURN(const auto loop, LoadModel(*std::max_element(batches.begin(), batches.end())));
  const ModelConfig& c = loop->config();
  const double kv_bytes_per_token = 2.0 * 2 * c.num_layers * c.num_kv_heads * c.head_dim;
  Graphs(*loop, report);
  std::printf("%-24s %12s %12s %16s %36s\n", "", "tokens/s", "ms per step", "of copy bandwidth",
              "launching waits, copies, graphs/step");
  for (const int batch : batches) {
    RETURN_IF_ERROR(loop->Run(batch, prompt, 8).status());  // warm-up
    ASSIGN_OR_RETURN(const LoopSample sample, loop->Run(batch, prompt, steps));
    const double step = sample.decode_seconds / static_cast<double>(sample.decode_steps);
    const double bytes = StepWeightBytes(*loop) + kv_bytes_per_token * batch * (prompt + steps / 2.0);
    const double share = bytes / step * 1e-9 / ceilings.copy_gbps;
    const auto per_step = [&](int64_t calls) {
      return static_cast<double>(calls) / static_cast<double>(sample.decode_steps);
    };
    const HostCalls& calls = sample.launching;
    const double copies = per_step(calls.copies_to_device + calls.copies_to_host);
    std::printf("decode, batch %-10d %12.1f %12.3f %16.2f %18.2f %8.2f %8.2f\n", batch, batch / step,
                step * 1e3, share, per_step(calls.waits), copies, per_step(calls.graph_launches));
    (*report)["decode"].push_back({{"batch", batch},
                                   {"tokens_per_second", batch / step},
                                   {"step_ms", step * 1e3},
                                   {"of_copy_bandwidth", share},
                                   {"waits_per_step", per_step(calls.waits)},
                                   {"copies_per_step", copies},
                                   {"graphs_per_step", per_step(calls.graph_launches)}});
  }
  return absl::OkStatus();
}

absl::Status Prefill(nlohmann::json* report) {
  const int prompt = Given().prefill_tokens;
  ASSIGN_OR_RETURN(const auto loop, LoadModel(1));
  RETURN_IF_ERROR(loop->Run(1, prompt, 0).status());
  ASSIGN_OR_RETURN(const LoopSample sample, loop->Run(1, prompt, 0));
  // Two operations per weight and token; the head runs for one token only.
  const ModelConfig& c = loop->config();
  const double head = 2.0 * c.vocab_size * c.embedding_dim;
  const double flops = (StepWeightBytes(*loop) - head) * prompt;
  std::printf("prefill of %d tokens: %.1f ms, %.0f tokens/s, %.0f TFLOP/s in linears\n", prompt,
              sample.prefill_seconds * 1e3, prompt / sample.prefill_seconds,
              flops / sample.prefill_seconds * 1e-12);
  (*report)["prefill"] = {{"tokens", prompt},
                          {"seconds", sample.prefill_seconds},
                          {"tflops", flops / sample.prefill_seconds * 1e-12}};
  return absl::OkStatus();
}

// The memory that others gave back a moment ago is cleared before it is taken: what a wake-up pays for that
// shows beside one that waits for `pause`.
absl::Status SleepOnce(DecodeLoop& loop, const char* name, absl::Duration pause, const GpuCeilings& ceilings,
                       nlohmann::json* report) {
  ASSIGN_OR_RETURN(const int64_t before, loop.driver().AvailableBytes());
  auto start = Clock::now();
  ASSIGN_OR_RETURN(const auto freed, loop.allocator().Sleep({{"weights", RestoreMode::kBackup},
                                                             {"kv_cache", RestoreMode::kDiscard},
                                                             {"workspace", RestoreMode::kDiscard}}));
  const double sleep = SecondsSince(start);
  ASSIGN_OR_RETURN(const int64_t asleep, loop.driver().AvailableBytes());
  absl::SleepFor(pause);
  start = Clock::now();
  RETURN_IF_ERROR(loop.allocator().WakeUp({}).status());
  const double wake = SecondsSince(start);
  RETURN_IF_ERROR(loop.ResetAfterWake());
  const double whole = SecondsSince(start);
  double held = 0;
  for (const auto& [tag, bytes] : freed) held += static_cast<double>(bytes);
  const double weights = static_cast<double>(loop.weights_bytes());
  std::printf(
      "%s sleep: %.1f ms, %.2f GB released (%.2f %% of what was held); wake: %.1f ms (%.2f of the bus), "
      "ready "
      "after %.1f ms\n",
      name, sleep * 1e3, static_cast<double>(asleep - before) * 1e-9,
      static_cast<double>(asleep - before) / held * 100, wake * 1e3,
      weights / wake * 1e-9 / ceilings.host_to_device_gbps, whole * 1e3);
  (*report)["sleep"].push_back({{"name", name},
                                {"sleep_seconds", sleep},
                                {"wake_seconds", wake},
                                {"ready_seconds", whole},
                                {"released_bytes", asleep - before},
                                {"held_bytes", held}});
  return absl::OkStatus();
}

absl::Status Sleep(const GpuCeilings& ceilings, nlohmann::json* report) {
  ASSIGN_OR_RETURN(const auto loop, LoadModel(8, Given().sleep_kv_share));
  const std::pair<const char*, absl::Duration> sleeps[] = {
      {"first", absl::ZeroDuration()}, {"second", absl::ZeroDuration()}, {"one-second", absl::Seconds(1)}};
  for (const auto& [name, pause] : sleeps) {
    RETURN_IF_ERROR(loop->Run(8, 128, 8).status());
    RETURN_IF_ERROR(SleepOnce(*loop, name, pause, ceilings, report));
  }
  return loop->Run(8, 128, 8).status();
}

// Reads the weights as a wake-up from level 2 does. The second time the page cache has the file, if the host
// has the memory for it.
absl::Status LoadTwice(const GpuCeilings& ceilings, const std::string& checkpoint, nlohmann::json* report) {
  ASSIGN_OR_RETURN(const auto loop, LoadModel(1));
  const double bytes = static_cast<double>(loop->weights_bytes());
  for (const char* name : {"first", "second"}) {
    ASSIGN_OR_RETURN(const double seconds, loop->ReloadSeconds(checkpoint));
    const double gbps = bytes / seconds * 1e-9;
    std::printf("%s load: %.2f GB of weights in %.2f s, %.1f GB/s (%.2f of the bus, %.1f GB/s)\n", name,
                bytes * 1e-9, seconds, gbps, gbps / ceilings.host_to_device_gbps,
                ceilings.host_to_device_gbps);
    (*report)["load"].push_back({{"name", name},
                                 {"bytes", bytes},
                                 {"seconds", seconds},
                                 {"gbps", gbps},
                                 {"of_bus", gbps / ceilings.host_to_device_gbps}});
  }
  return absl::OkStatus();
}

absl::Status Load(const GpuCeilings& ceilings, nlohmann::json* report) {
  const std::string given = Given().load_checkpoint;
  if (!given.empty()) return LoadTwice(ceilings, given, report);
  std::string directory = std::filesystem::temp_directory_path() / "gpu_bench_XXXXXX";
  if (mkdtemp(directory.data()) == nullptr)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", directory));
  const absl::Cleanup remove = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  };
  RETURN_IF_ERROR(WriteSparseCheckpoint(Given().model, directory));
  return LoadTwice(ceilings, directory, report);
}

absl::Status Main() {
  nlohmann::json report;
  ASSIGN_OR_RETURN(const GpuCeilings ceilings, MeasureCeilings(Given().device_index));
  std::printf("copy %.0f GB/s (read + write), host to device %.1f GB/s, device to host %.1f GB/s\n",
              ceilings.copy_gbps, ceilings.host_to_device_gbps, ceilings.device_to_host_gbps);
  report["ceilings"] = {{"copy_gbps", ceilings.copy_gbps},
                        {"host_to_device_gbps", ceilings.host_to_device_gbps},
                        {"device_to_host_gbps", ceilings.device_to_host_gbps}};
  if (Wanted("kernels")) RETURN_IF_ERROR(Kernels(ceilings, &report));
  if (Wanted("model")) {
    RETURN_IF_ERROR(Model(ceilings, &report));
    RETURN_IF_ERROR(Prefill(&report));
  }
  if (Wanted("sleep")) RETURN_IF_ERROR(Sleep(ceilings, &report));
  if (Wanted("load")) RETURN_IF_ERROR(Load(ceilings, &report));
  if (const std::string path = Given().json; !path.empty()) {
    std::ofstream file(path);
    file << report.dump(1) << "\n";
    if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

// Names of parts, separated by commas.
absl::Status SetParts(const std::string& value, BenchFlags* flags) {
  const std::vector<std::string> known = BenchFlags().parts;
  const std::vector<std::string> parts = absl::StrSplit(value, ',');
  for (const std::string& part : parts) {
    if (std::find(known.begin(), known.end(), part) != known.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("is not some of ", absl::StrJoin(known, ",")));
  }
  flags->parts = parts;
  return absl::OkStatus();
}

FlagTable Flags(BenchFlags* f) {
  constexpr int64_t kMaxTokens = 1 << 20;
  const auto set_parts = [f](const std::string& value) { return SetParts(value, f); };
  FlagTable table;
  table.program = "gpu_bench";
  table.usage = "gpu_bench [flags]";
  table.about = "What a GPU and Somnus on it do.";
  table.groups = {
      {"Flags",
       {Flag::Custom("parts", "PART,...", absl::StrJoin(f->parts, ","), set_parts,
                     "what to measure; ceilings are always"),
        Flag::Text("model", &f->model, "directory with a config.json: its shape is measured").Shows("PATH"),
        Flag::Ints("batches", &f->batches, 1, 1024, "decode batches"),
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
        Flag::Int("device-index", &f->device_index, 0, 1023, "which GPU"),
        Flag::Number(
            "sleep-kv-share", &f->sleep_kv_share, 0, 1,
            "of what the weights leave of the GPU, that the KV cache takes for the sleep part, as when "
            "serving"),
        Flag::Bytes("device-chunk-bytes", &f->device_chunk_bytes, 2 << 20, int64_t{1} << 40,
                    "size in which the GPU's memory is created and released"),
        Flag::Text("json", &f->json, "also write everything to this file").Shows("FILE")}}};
  return table;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  if (const auto code = somnus::ParseCommandLine(somnus::Flags(&somnus::Given()), argc, argv);
      code.has_value()) {
    return *code;
  }
  const absl::Status status = somnus::Main();
  if (!status.ok()) std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

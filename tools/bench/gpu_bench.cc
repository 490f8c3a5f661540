// The GPU's ceilings, then each op beside them, then whole models with random weights: decode, prefill, sleep
// and wake; and weights from a file.
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
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "allocator/cuda_vmm_driver.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/bench/decode/decode_loop.h"
#include "tools/bench/gpu/ceilings.h"
#include "tools/bench/gpu/kernel_table.h"
#include "tools/bench/gpu/sparse_checkpoint.h"

ABSL_FLAG(std::vector<std::string>, parts,
          std::vector<std::string>({"ceilings", "kernels", "model", "sleep", "load"}),
          "what to measure; ceilings are always");
ABSL_FLAG(std::string, model, "tools/bench/shapes/qwen3-8b",
          "directory with a config.json: its shape is measured");
ABSL_FLAG(std::vector<std::string>, batches, std::vector<std::string>({"1", "8", "32", "128", "256"}),
          "decode batches");
ABSL_FLAG(int, prompt_tokens, 512, "prompt of each sequence when decoding");
ABSL_FLAG(int, new_tokens, 64, "decode steps");
ABSL_FLAG(int, prefill_tokens, 4096, "prompt of the prefill measurement, in steps of 4096 tokens");
ABSL_FLAG(bool, enforce_eager, false, "no CUDA graphs");
ABSL_FLAG(bool, batch_invariant, false, "the same bits in any batch");
ABSL_FLAG(std::string, load_checkpoint, "",
          "directory of --model's real weights for the load part; else a sparse file of that size in TMPDIR");
ABSL_FLAG(int, device_index, 0, "which GPU");
ABSL_FLAG(
    double, sleep_kv_share, 0.9,
    "of what the weights leave of the GPU, that the KV cache takes for the sleep part, as when serving");
ABSL_FLAG(int, device_chunk_mib, 1024, "as of the worker");
ABSL_FLAG(std::string, json, "", "also write everything to this file");

namespace somnus {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool Wanted(const std::string& part) {
  const std::vector<std::string> parts = absl::GetFlag(FLAGS_parts);
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

absl::Status Kernels(const GpuCeilings& ceilings, nlohmann::json* report) {
  ASSIGN_OR_RETURN(const auto driver, MakeCudaVmmDriver(absl::GetFlag(FLAGS_device_index)));
  ASSIGN_OR_RETURN(const auto device, Device::CreateCuda(absl::GetFlag(FLAGS_device_index)));
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

// Bytes of weights that a decode step reads: all but an embedding that is not the head too.
double StepWeightBytes(const DecodeLoop& loop) {
  const ModelConfig& c = loop.config();
  const double embedding = c.tie_word_embeddings ? 0.0 : 2.0 * c.vocab_size * c.embedding_dim;
  return static_cast<double>(loop.weights_bytes()) - embedding;
}

absl::StatusOr<std::unique_ptr<DecodeLoop>> LoadModel(int max_batch, double kv_share = 0) {
  DecodeLoopOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.load_format = LoadFormat::kDummy;
  options.device = DeviceKind::kCuda;
  options.device_index = absl::GetFlag(FLAGS_device_index);
  options.enforce_eager = absl::GetFlag(FLAGS_enforce_eager);
  options.batch_invariant = absl::GetFlag(FLAGS_batch_invariant);
  options.max_batch = max_batch;
  options.kv_share = kv_share;
  options.device_chunk_bytes = int64_t{absl::GetFlag(FLAGS_device_chunk_mib)} << 20;
  options.max_step_tokens = 4096;
  options.max_len = std::max(absl::GetFlag(FLAGS_prompt_tokens) + absl::GetFlag(FLAGS_new_tokens) + 16,
                             max_batch == 1 ? absl::GetFlag(FLAGS_prefill_tokens) : 0);
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
  std::vector<int> batches;
  for (const std::string& text : absl::GetFlag(FLAGS_batches)) {
    int batch;
    if (!absl::SimpleAtoi(text, &batch) || batch < 1 || batch > 1024)
      return absl::InvalidArgumentError(absl::StrCat("--batches: ", text));
    batches.push_back(batch);
  }
  const int prompt = absl::GetFlag(FLAGS_prompt_tokens), steps = absl::GetFlag(FLAGS_new_tokens);
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
  const int prompt = absl::GetFlag(FLAGS_prefill_tokens);
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

absl::Status SleepOnce(DecodeLoop& loop, const char* name, const GpuCeilings& ceilings,
                       nlohmann::json* report) {
  ASSIGN_OR_RETURN(const int64_t before, loop.driver().AvailableBytes());
  auto start = Clock::now();
  ASSIGN_OR_RETURN(const auto freed, loop.allocator().Sleep({{"weights", RestoreMode::kHostBackup},
                                                             {"kv_cache", RestoreMode::kDiscard},
                                                             {"workspace", RestoreMode::kDiscard}}));
  const double sleep = SecondsSince(start);
  ASSIGN_OR_RETURN(const int64_t asleep, loop.driver().AvailableBytes());
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
  ASSIGN_OR_RETURN(const auto loop, LoadModel(8, absl::GetFlag(FLAGS_sleep_kv_share)));
  RETURN_IF_ERROR(loop->Run(8, 128, 8).status());
  RETURN_IF_ERROR(SleepOnce(*loop, "first", ceilings, report));
  RETURN_IF_ERROR(loop->Run(8, 128, 8).status());
  RETURN_IF_ERROR(SleepOnce(*loop, "second", ceilings, report));
  return loop->Run(8, 128, 8).status();
}

// As a wake-up from level 2 does it. The second time the page cache has the file (if the host has the
// memory).
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
  const std::string given = absl::GetFlag(FLAGS_load_checkpoint);
  if (!given.empty()) return LoadTwice(ceilings, given, report);
  std::string directory = std::filesystem::temp_directory_path() / "gpu_bench_XXXXXX";
  if (mkdtemp(directory.data()) == nullptr)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", directory));
  const absl::Cleanup remove = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  };
  RETURN_IF_ERROR(WriteSparseCheckpoint(absl::GetFlag(FLAGS_model), directory));
  return LoadTwice(ceilings, directory, report);
}

absl::Status Main() {
  nlohmann::json report;
  ASSIGN_OR_RETURN(const GpuCeilings ceilings, MeasureCeilings(absl::GetFlag(FLAGS_device_index)));
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
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) {
    std::ofstream file(path);
    file << report.dump(1) << "\n";
    if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("What a GPU and Somnus on it do.");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = somnus::Main();
  if (!status.ok()) std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

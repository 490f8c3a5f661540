#include "tools/bench/gpu/model_phases.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "tools/bench/gpu/sparse_checkpoint.h"

namespace somnus {
namespace {

constexpr int32_t kMaxStepTokens = 4096;
constexpr int32_t kSleepSeqs = 8, kSleepSteps = 8;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Gb(double bytes) { return bytes * 1e-9; }

// Bytes of weights that a decode step reads: all but an embedding that is not also the head.
double StepWeightBytes(const DecodeLoop& loop) {
  const ModelConfig& c = loop.config();
  const double embedding = c.tie_word_embeddings ? 0.0 : 2.0 * c.vocab_size * c.embedding_dim;
  return static_cast<double>(loop.weights_bytes()) - embedding;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeLoop>> ModelPhases::LoadModel(int32_t max_batch, int32_t max_len,
                                                                   double kv_share) {
  DecodeLoopOptions options;
  options.model = flags_.model;
  options.load_format = LoadFormat::kDummy;
  options.enforce_eager = flags_.enforce_eager;
  options.max_batch = max_batch;
  options.kv_share = kv_share;
  options.max_len = max_len;
  options.max_step_tokens =
      static_cast<int32_t>(std::min<int64_t>(int64_t{max_batch} * max_len, kMaxStepTokens));
  ASSIGN_OR_RETURN(LoopDevice device, open_());
  device.device->SetBatchInvariant(flags_.batch_invariant);
  ASSIGN_OR_RETURN(auto loop, DecodeLoop::Load(options, std::move(device)));
  report_.Text(absl::StrFormat("\n%s, %s, weights %.2f GB, KV cache %.2f GB, ready after %.2f s",
                               options.model, loop->device(), Gb(static_cast<double>(loop->weights_bytes())),
                               Gb(static_cast<double>(loop->kv_cache_bytes())), loop->load_seconds()));
  return loop;
}

absl::Status ModelPhases::Graphs(const DecodeLoop& loop) {
  return report_.Row(
      "model", "graphs",
      {{"count", loop.graphs().count},
       {"seconds", loop.graphs().seconds},
       {"bytes", loop.graph_bytes()},
       {"weights_bytes", loop.weights_bytes()},
       {"kv_cache_bytes", loop.kv_cache_bytes()},
       {"ready_seconds", loop.load_seconds()}},
      absl::StrFormat("%d graphs in %.2f s, %.1f MiB", loop.graphs().count, loop.graphs().seconds,
                      static_cast<double>(loop.graph_bytes()) / (1 << 20)));
}

absl::Status ModelPhases::Decode(DecodeLoop& loop, int32_t batch, const std::string& name) {
  const int prompt = flags_.prompt_tokens, steps = flags_.new_tokens;
  const ModelConfig& c = loop.config();
  RETURN_IF_ERROR(loop.Run(batch, prompt, std::min(steps, 8)).status());  // warm-up
  ASSIGN_OR_RETURN(const LoopSample sample, loop.Run(batch, prompt, steps));
  const auto num_steps = static_cast<double>(sample.decode_steps);
  const double step = sample.decode_seconds / num_steps;
  const double kv_bytes_per_token = 2.0 * 2 * c.num_layers * c.num_kv_heads * c.head_dim;
  const double bytes = StepWeightBytes(loop) + kv_bytes_per_token * batch * (prompt + steps / 2.0);
  const double share = Gb(bytes / step) / ceilings_.copy_gbps;
  const HostCalls& calls = sample.launching;
  const double waits = static_cast<double>(calls.waits) / num_steps;
  const double copies = static_cast<double>(calls.copies_to_device + calls.copies_to_host) / num_steps;
  const double graphs = static_cast<double>(calls.graph_launches) / num_steps;
  return report_.Row("model", name,
                     {{"batch", batch},
                      {"tokens_per_second", batch / step},
                      {"step_ms", step * 1e3},
                      {"of_copy_bandwidth", share},
                      {"waits_per_step", waits},
                      {"copies_per_step", copies},
                      {"graphs_per_step", graphs}},
                     absl::StrFormat("%-24s %12.1f %12.3f %16.2f %18.2f %8.2f %8.2f", name, batch / step,
                                     step * 1e3, share, waits, copies, graphs));
}

absl::Status ModelPhases::Model() {
  const std::vector<int32_t>& batches = flags_.batches;
  std::unique_ptr<DecodeLoop> loop;
  if (report_.Starts("model", "graphs")) {
    ASSIGN_OR_RETURN(loop, LoadModel(*std::max_element(batches.begin(), batches.end()),
                                     flags_.prompt_tokens + flags_.new_tokens + 16));
    RETURN_IF_ERROR(Graphs(*loop));
    report_.Text(absl::StrFormat("%-24s %12s %12s %16s %36s", "", "tokens/s", "ms per step",
                                 "of copy bandwidth", "launching waits, copies, graphs/step"));
  }
  for (const int32_t batch : batches) {
    const std::string name = absl::StrCat("decode, batch ", batch);
    if (report_.Starts("model", name)) RETURN_IF_ERROR(Decode(*loop, batch, name));
  }
  loop.reset();
  return Prefill();
}

absl::Status ModelPhases::Prefill() {
  const int32_t prompt = flags_.prefill_tokens;
  const std::string name = absl::StrCat("prefill, ", prompt, " tokens");
  if (!report_.Starts("model", name)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto loop, LoadModel(1, prompt));
  RETURN_IF_ERROR(loop->Run(1, prompt, 0).status());
  ASSIGN_OR_RETURN(const LoopSample sample, loop->Run(1, prompt, 0));
  // Two operations per weight and token; the head runs for one token only.
  const ModelConfig& c = loop->config();
  const double head = 2.0 * c.vocab_size * c.embedding_dim;
  const double tflops = (StepWeightBytes(*loop) - head) * prompt / sample.prefill_seconds * 1e-12;
  const double rate = prompt / sample.prefill_seconds;
  return report_.Row("model", name,
                     {{"tokens", prompt},
                      {"seconds", sample.prefill_seconds},
                      {"tokens_per_second", rate},
                      {"tflops", tflops}},
                     absl::StrFormat("%s: %.1f ms, %.0f tokens/s, %.0f TFLOP/s in linears", name,
                                     sample.prefill_seconds * 1e3, rate, tflops));
}

int32_t ModelPhases::SleepPrompt() const { return std::min(flags_.prompt_tokens, 128); }

absl::Status ModelPhases::RunBesideSleep(DecodeLoop& loop) {
  return loop.Run(kSleepSeqs, SleepPrompt(), kSleepSteps).status();
}

// The driver clears memory that was released a moment ago before giving the memory out: a wake-up at once
// pays for that, and a wake-up after `pause` does not.
absl::Status ModelPhases::SleepOnce(DecodeLoop& loop, const std::string& name, absl::Duration pause) {
  RETURN_IF_ERROR(RunBesideSleep(loop));
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
  const double ready = SecondsSince(start);
  double held = 0;
  for (const auto& [tag, bytes] : freed) held += static_cast<double>(bytes);
  const auto released = static_cast<double>(asleep - before);
  const double of_bus = Gb(static_cast<double>(loop.weights_bytes()) / wake) / ceilings_.host_to_device_gbps;
  return report_.Row(
      "sleep", name,
      {{"sleep_seconds", sleep},
       {"wake_seconds", wake},
       {"ready_seconds", ready},
       {"of_bus", of_bus},
       {"released_bytes", asleep - before},
       {"held_bytes", held},
       {"weights_bytes", loop.weights_bytes()},
       {"kv_cache_bytes", loop.kv_cache_bytes()}},
      absl::StrFormat(
          "%s sleep: %.1f ms, %.2f GB released (%.2f %% of what was held); wake: %.1f ms (%.2f of the "
          "bus), ready after %.1f ms",
          name, sleep * 1e3, Gb(released), released / held * 100, wake * 1e3, of_bus, ready * 1e3));
}

absl::Status ModelPhases::Sleep() {
  std::unique_ptr<DecodeLoop> loop;
  const std::pair<const char*, absl::Duration> sleeps[] = {
      {"first", absl::ZeroDuration()}, {"second", absl::ZeroDuration()}, {"one-second", absl::Seconds(1)}};
  for (const auto& [name, pause] : sleeps) {
    if (!report_.Starts("sleep", name)) continue;
    if (loop == nullptr) {
      ASSIGN_OR_RETURN(loop, LoadModel(kSleepSeqs, SleepPrompt() + kSleepSteps, flags_.sleep_kv_share));
    }
    RETURN_IF_ERROR(SleepOnce(*loop, name, pause));
  }
  return loop == nullptr ? absl::OkStatus() : RunBesideSleep(*loop);
}

// Reads the weights as a wake-up from level 2 does. The second time the page cache has the file, if the host
// has the memory for it.
absl::Status ModelPhases::LoadTwice(const std::string& checkpoint) {
  std::unique_ptr<DecodeLoop> loop;
  for (const std::string name : {"first", "second"}) {
    if (!report_.Starts("load", name)) continue;
    if (loop == nullptr) {
      ASSIGN_OR_RETURN(loop, LoadModel(1, flags_.prompt_tokens));
    }
    ASSIGN_OR_RETURN(const double seconds, loop->ReloadSeconds(checkpoint));
    const auto bytes = static_cast<double>(loop->weights_bytes());
    const double gbps = Gb(bytes / seconds), of_bus = gbps / ceilings_.host_to_device_gbps;
    RETURN_IF_ERROR(report_.Row(
        "load", name,
        {{"bytes", loop->weights_bytes()}, {"seconds", seconds}, {"gbps", gbps}, {"of_bus", of_bus}},
        absl::StrFormat("%s load: %.2f GB of weights in %.2f s, %.1f GB/s (%.2f of the bus, %.1f GB/s)", name,
                        Gb(bytes), seconds, gbps, of_bus, ceilings_.host_to_device_gbps)));
  }
  return absl::OkStatus();
}

absl::Status ModelPhases::Load() {
  if (!flags_.load_checkpoint.empty()) return LoadTwice(flags_.load_checkpoint);
  std::string directory = std::filesystem::temp_directory_path() / "gpu_bench_XXXXXX";
  if (mkdtemp(directory.data()) == nullptr)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", directory));
  const absl::Cleanup remove = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  };
  RETURN_IF_ERROR(WriteSparseCheckpoint(flags_.model, directory));
  return LoadTwice(directory);
}

}  // namespace somnus

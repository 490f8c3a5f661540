// Measures how fast the runner decodes and prefills, in process, compared with the speed of the machine's
// memory at that moment, and optionally with llama.cpp's llama-batched-bench in alternating rounds.
//
//   decode_bench --model=DIR_OR_GGUF [--threads=2] [--dtype=bfloat16] [--dequantize] [--rounds=3]
//                [--quantization=int8] [--kv-cache-dtype=int8] [--json=FILE]
//                [--peer=llama-batched-bench --peer-model=GGUF]
//
// Each run has prompts and then decode steps, and both have a row: tokens per second, the share of the read
// bandwidth (of weights and KV cache, in their computed types), and of the instruction set's peak for the
// weights' type. For long contexts: --prompt-tokens=32768 --new-tokens=32 --batches=1. The peer's KV cache is
// always f16, in spite of --kv-cache-dtype.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/bench/decode/batched_peer.h"
#include "tools/bench/decode/decode_flags.h"
#include "tools/bench/decode/decode_loop.h"
#include "tools/bench/decode/decode_report.h"
#include "tools/bench/decode/step_work.h"
#include "tools/probe/machine_peak.h"
#include "tools/probe/machine_probe.h"
#include "tools/probe/probe_thread.h"

namespace somnus {
namespace {

// The command line, which main sets.
DecodeFlags& Given() {
  static DecodeFlags* flags = new DecodeFlags;
  return *flags;
}

// A round trip between two cores of one chip complex takes well under this, between cores of different
// complexes well over this (measured: about 90 and 450 ns on Zen 4; 140 to 290 ns on Emerald Rapids, where
// all cores are alike).
constexpr double kNearCoresNs = 330;

// A loaded model, and the peer and ceilings for its samples.
struct Bench {
  std::unique_ptr<DecodeLoop> loop;
  std::optional<BatchedPeer> peer;
  std::string isa;
};

// Operations a second of the products for the weights' type, at this moment.
double Peak(const Bench& bench) {
  const MachinePeaks peaks = MeasurePeaks(bench.isa, ThreadsOnFirstCpus(Given().threads));
  if (bench.loop->multiplies_bytes()) return 1e9 * peaks.int8_gops;
  return 1e9 * (Given().dtype == DataType::kBF16 ? peaks.bf16_gflops : peaks.f32_gflops);
}

double ReadBandwidth(const MachineState& state) {
  const int threads = Given().threads;
  if (threads > 2) return ReadGbps(ThreadsOnFirstCpus(threads));
  return threads == 2 ? state.read_gbps_2t : state.read_gbps_1t;
}

// The device pins the thread that runs a step, and the probe needs a thread that may use every CPU.
absl::StatusOr<LoopSample> RunOnOwnThread(DecodeLoop& loop, const Workload& load) {
  absl::StatusOr<LoopSample> sample;
  std::thread thread([&] { sample = loop.Run(load.batch, load.prompt_tokens, load.new_tokens); });
  thread.join();
  return sample;
}

// `bandwidth`: in 1e9 bytes a second. `peak`: operations a second.
RunSample SampleOf(const ModelWork& work, const Workload& load, const LoopSample& run, double bandwidth,
                   double peak) {
  RunSample sample;
  sample.read_gbps = bandwidth;
  sample.prefill.ours = static_cast<double>(run.prompt_tokens) / run.prefill_seconds;
  sample.prefill.step_ms = run.prefill_seconds * 1e3;
  sample.prefill.of_peak = PrefillFlops(work, load.batch, load.prompt_tokens) / run.prefill_seconds / peak;
  if (load.new_tokens == 0) return sample;
  const double step = run.decode_seconds / static_cast<double>(run.decode_steps);
  sample.decode.ours = static_cast<double>(run.new_tokens) / run.decode_seconds;
  sample.decode.step_ms = step * 1e3;
  sample.decode.of_read =
      DecodeBytes(work, load.batch, load.prompt_tokens, load.new_tokens) / step / (bandwidth * 1e9);
  sample.decode.of_peak = DecodeFlops(work, load.batch, load.prompt_tokens, load.new_tokens) / step / peak;
  return sample;
}

absl::StatusOr<RunSample> Measure(Bench& bench, const Workload& load) {
  const MachineState before = ProbeMachine();
  const double bandwidth = ReadBandwidth(before), peak = Peak(bench);
  ASSIGN_OR_RETURN(const LoopSample run, RunOnOwnThread(*bench.loop, load));
  const double peak_after = Peak(bench);
  const MachineState after = ProbeMachine();
  RunSample sample = SampleOf(bench.loop->work(), load, run, (bandwidth + ReadBandwidth(after)) / 2,
                              (peak + peak_after) / 2);
  const bool near = before.ping_pong_ns < kNearCoresNs;
  sample.dropped = near != (after.ping_pong_ns < kNearCoresNs);
  if (bench.peer.has_value()) {
    ASSIGN_OR_RETURN(const PeerSample peer,
                     bench.peer->Run(load.batch, load.prompt_tokens, std::max(1, load.new_tokens)));
    sample.prefill.peer = peer.prefill_tokens_per_second;
    sample.decode.peer = peer.decode_tokens_per_second;
    const MachineState last = ProbeMachine();
    sample.dropped |= near != (last.ping_pong_ns < kNearCoresNs);
  }
  if (load.new_tokens > 0) std::printf("%s\n", SpeedText(load, false, sample.decode).c_str());
  std::printf("%s  [%s | %s]%s\n", SpeedText(load, true, sample.prefill).c_str(), ToString(before).c_str(),
              ToString(after).c_str(), sample.dropped ? "  dropped: cores moved" : "");
  std::fflush(stdout);
  return sample;
}

std::vector<Workload> Workloads() {
  std::vector<Workload> loads;
  for (const int32_t batch : Given().batches)
    loads.push_back({batch, Given().prompt_tokens, Given().new_tokens});
  for (const int32_t tokens : Given().prefill_tokens) {
    if (tokens > 0) loads.push_back({1, tokens, 0});
  }
  return loads;
}

// The loop has room for the largest of `loads`, or as much as memory allows: a peer needs as much again.
DecodeLoopOptions LoopOptions(const std::vector<Workload>& loads) {
  DecodeLoopOptions options;
  options.model = Given().model;
  options.dtype = Given().dtype;
  options.dequantize = Given().dequantize;
  options.quantize = Given().quantize;
  options.kv_cache_dtype = Given().kv_cache_dtype;
  options.load_format = Given().load_format;
  options.threads = Given().threads;
  options.max_batch = 1;
  options.max_len = 1;
  options.max_step_tokens = Given().max_num_batched_tokens;
  options.max_kv_share = Given().peer.empty() ? 0.9 : 0.45;
  for (const Workload& load : loads) {
    const int32_t len = load.prompt_tokens + load.new_tokens;
    options.max_batch = std::max(options.max_batch, load.batch);
    options.max_len = std::max(options.max_len, len);
    options.kv_blocks = std::max(options.kv_blocks, DecodeLoop::BlocksFor(load.batch, len));
  }
  return options;
}

absl::StatusOr<Bench> Load(const std::vector<Workload>& loads) {
  Bench bench;
  const DecodeLoopOptions options = LoopOptions(loads);
  ASSIGN_OR_RETURN(bench.loop, DecodeLoop::Load(options));
  if (!Given().peer.empty()) {
    ASSIGN_OR_RETURN(bench.peer, BatchedPeer::Find(Given().peer, Given().peer_model, Given().threads));
  }
  ASSIGN_OR_RETURN(bench.isa, ChosenCpuIsaName());
  const ModelWork& work = bench.loop->work();
  std::printf("%s, %s, weights %.1f MB, KV cache %.2f kB a token, loaded in %.0f ms\n%s\n",
              options.model.c_str(), bench.loop->device().c_str(), work.weights_bytes / 1e6,
              work.kv_token_bytes / 1e3, bench.loop->load_seconds() * 1e3,
              ToString(MeasurePeaks(bench.isa, ThreadsOnFirstCpus(Given().threads))).c_str());
  return bench;
}

// The loads for which the KV cache has room; prints the loads without room.
std::vector<Workload> ThoseThatFit(const DecodeLoop& loop, const std::vector<Workload>& loads) {
  std::vector<Workload> fitting;
  for (const Workload& load : loads) {
    const int32_t len = load.prompt_tokens + load.new_tokens;
    if (loop.Fits(load.batch, len)) {
      fitting.push_back(load);
      continue;
    }
    std::printf(
        "left out: the KV cache of %d sequences of %d tokens takes %.1f GB, and there is room for %.1f\n",
        load.batch, len, load.batch * static_cast<double>(len) * loop.work().kv_token_bytes / 1e9,
        static_cast<double>(loop.kv_cache_bytes()) / 1e9);
  }
  return fitting;
}

absl::Status WriteJson(const nlohmann::json& report) {
  const std::string path = Given().json;
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path);
  file << report.dump(1) << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::Status Main() {
  ASSIGN_OR_RETURN(Bench bench, Load(Workloads()));
  const std::vector<Workload> loads = ThoseThatFit(*bench.loop, Workloads());
  if (loads.empty()) return absl::ResourceExhaustedError("there is no memory for any of these sizes");
  const Workload warm_up = {1, std::min(128, loads[0].prompt_tokens), std::min(8, loads[0].new_tokens)};
  RETURN_IF_ERROR(RunOnOwnThread(*bench.loop, warm_up).status());
  std::vector<std::vector<RunSample>> samples(loads.size());
  for (int round = 0; round < Given().rounds; ++round) {
    for (size_t i = 0; i < loads.size(); ++i) {
      ASSIGN_OR_RETURN(const RunSample sample, Measure(bench, loads[i]));
      samples[i].push_back(sample);
    }
  }
  nlohmann::json report = nlohmann::json::array();
  for (const bool is_prefill : {false, true}) {
    for (size_t i = 0; i < loads.size(); ++i) {
      if (is_prefill || loads[i].new_tokens > 0) report.push_back(Summary(loads[i], is_prefill, samples[i]));
    }
  }
  std::printf("\n%s", TableHead().c_str());
  for (const nlohmann::json& row : report) std::printf("%s", TableRow(row).c_str());
  return WriteJson(report);
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  if (const auto code = somnus::ParseDecodeFlags(argc, argv, &somnus::Given()); code.has_value())
    return *code;
  const absl::Status status = somnus::Main();
  if (!status.ok()) std::fprintf(stderr, "decode_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

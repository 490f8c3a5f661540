// Measures how fast the runner decodes and prefills, in process, compared with what the machine's memory can
// do at that moment, and optionally with llama.cpp's llama-batched-bench in alternating rounds.
//
//   decode_bench --model=DIR_OR_GGUF [--threads=2] [--dtype=bfloat16] [--no-dequantize] [--rounds=3]
//                [--quantization=int8] [--json=FILE]
//                [--peer=llama-batched-bench --peer-model=GGUF]

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/bench/decode/batched_peer.h"
#include "tools/bench/decode/decode_loop.h"
#include "tools/bench/machine_probe.h"

namespace somnus {
namespace {

struct BenchFlags {
  std::string model;
  LoadFormat load_format = LoadFormat::kAuto;
  int32_t threads = 2;
  std::string dtype = "bfloat16";
  bool dequantize = true;
  std::optional<DataType> quantize;
  std::vector<int32_t> batches = {1, 4, 6, 8, 16, 32};
  int32_t prompt_tokens = 128;
  int32_t new_tokens = 64;
  int32_t prefill_tokens = 512;
  int32_t rounds = 3;
  std::string json;
  std::string peer;
  std::string peer_model;
};

// The command line, which main sets.
BenchFlags& Given() {
  static BenchFlags* flags = new BenchFlags;
  return *flags;
}

// A round trip between two cores of one chip complex takes well under this, between others well over it
// (measured: about 90 and 450 ns).
constexpr double kNearCoresNs = 200;

struct Workload {
  int32_t batch;
  int32_t prompt_tokens;
  int32_t new_tokens;  // 0: only prefill is measured
};

struct Sample {
  double ours = 0;  // tokens per second, of prefill or decode
  double peer = 0;  // 0: no peer
  double step_ms = 0;
  double bandwidth_share = 0;  // of the read bandwidth, the mean of the probes before and after; decode only
  bool dropped = false;        // the distance of the two cores changed meanwhile
};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string Range(const std::vector<double>& values, const char* format) {
  if (values.empty()) return "-";
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  char text[3][32];
  std::snprintf(text[0], sizeof(text[0]), format, Median(values));
  std::snprintf(text[1], sizeof(text[1]), format, *low);
  std::snprintf(text[2], sizeof(text[2]), format, *high);
  return absl::StrCat(text[0], " (", text[1], "..", text[2], ")");
}

absl::StatusOr<DataType> ParseDtype(const std::string& name) {
  if (name == "bfloat16") return DataType::kBF16;
  if (name == "float16") return DataType::kF16;
  if (name == "float32") return DataType::kF32;
  return absl::InvalidArgumentError(absl::StrCat("--dtype=", name, ": bfloat16, float16 or float32"));
}

double BandwidthOf(const MachineState& state, int threads) {
  return threads > 1 ? state.read_gbps_2t : state.read_gbps_1t;
}

// The device pins the thread that runs a step, and the probe needs one that may use every CPU.
absl::StatusOr<LoopSample> RunOnOwnThread(DecodeLoop& loop, const Workload& load) {
  absl::StatusOr<LoopSample> sample;
  std::thread thread([&] { sample = loop.Run(load.batch, load.prompt_tokens, load.new_tokens); });
  thread.join();
  return sample;
}

absl::StatusOr<Sample> Measure(DecodeLoop& loop, const Workload& load) {
  const int threads = Given().threads;
  Sample sample;
  const MachineState before = ProbeMachine();
  ASSIGN_OR_RETURN(const LoopSample ours, RunOnOwnThread(loop, load));
  const MachineState after = ProbeMachine();
  bool near = before.ping_pong_ns < kNearCoresNs;
  sample.dropped = near != (after.ping_pong_ns < kNearCoresNs);
  if (load.new_tokens == 0) {
    sample.ours = static_cast<double>(ours.prompt_tokens) / ours.prefill_seconds;
    sample.step_ms = ours.prefill_seconds * 1e3;
  } else {
    sample.ours = static_cast<double>(ours.new_tokens) / ours.decode_seconds;
    sample.step_ms = ours.decode_seconds / static_cast<double>(ours.decode_steps) * 1e3;
    const double bandwidth = (BandwidthOf(before, threads) + BandwidthOf(after, threads)) / 2;
    sample.bandwidth_share =
        static_cast<double>(loop.weights_bytes()) / (sample.step_ms * 1e-3) / (bandwidth * 1e9);
  }
  if (const std::string binary = Given().peer; !binary.empty()) {
    ASSIGN_OR_RETURN(const PeerSample peer, RunBatchedPeer(binary, Given().peer_model, threads, load.batch,
                                                           load.prompt_tokens, std::max(1, load.new_tokens)));
    sample.peer = load.new_tokens == 0 ? peer.prefill_tokens_per_second : peer.decode_tokens_per_second;
    const MachineState last = ProbeMachine();
    sample.dropped |= near != (last.ping_pong_ns < kNearCoresNs);
  }
  std::printf("  %-8s batch %2d  %8.1f tok/s  step %7.2f ms", load.new_tokens == 0 ? "prefill" : "decode",
              load.batch, sample.ours, sample.step_ms);
  if (load.new_tokens > 0) std::printf("  %3.0f %% of read bandwidth", sample.bandwidth_share * 100);
  if (sample.peer > 0) std::printf("  peer %8.1f  ratio %.2f", sample.peer, sample.ours / sample.peer);
  std::printf("  [%s | %s]%s\n", ToString(before).c_str(), ToString(after).c_str(),
              sample.dropped ? "  dropped: cores moved" : "");
  std::fflush(stdout);
  return sample;
}

nlohmann::json Summarize(const Workload& load, const std::vector<Sample>& samples) {
  std::vector<double> ours, peers, ratios, shares, steps;
  int dropped = 0;
  for (const Sample& sample : samples) {
    if (sample.dropped) {
      ++dropped;
      continue;
    }
    ours.push_back(sample.ours);
    steps.push_back(sample.step_ms);
    if (load.new_tokens > 0) shares.push_back(sample.bandwidth_share * 100);
    if (sample.peer > 0) {
      peers.push_back(sample.peer);
      ratios.push_back(sample.ours / sample.peer);
    }
  }
  std::printf("%-8s %5d  %-26s %-22s %-18s %-24s %-18s %d\n", load.new_tokens == 0 ? "prefill" : "decode",
              load.batch, Range(ours, "%.1f").c_str(), Range(steps, "%.2f").c_str(),
              Range(shares, "%.0f").c_str(), Range(peers, "%.1f").c_str(), Range(ratios, "%.2f").c_str(),
              dropped);
  return {{"kind", load.new_tokens == 0 ? "prefill" : "decode"},
          {"batch", load.batch},
          {"prompt_tokens", load.prompt_tokens},
          {"new_tokens", load.new_tokens},
          {"tokens_per_second", ours},
          {"step_ms", steps},
          {"read_bandwidth_percent", shares},
          {"peer_tokens_per_second", peers},
          {"ratio", ratios},
          {"dropped", dropped}};
}

std::vector<Workload> Workloads() {
  std::vector<Workload> loads;
  for (const int32_t batch : Given().batches) {
    loads.push_back({batch, Given().prompt_tokens, Given().new_tokens});
  }
  if (Given().prefill_tokens > 0) loads.push_back({1, Given().prefill_tokens, 0});
  return loads;
}

absl::Status Main() {
  DecodeLoopOptions options;
  options.model = Given().model;
  ASSIGN_OR_RETURN(options.dtype, ParseDtype(Given().dtype));
  options.dequantize = Given().dequantize;
  options.quantize = Given().quantize;
  options.load_format = Given().load_format;
  const std::vector<Workload> loads = Workloads();
  options.threads = Given().threads;
  options.max_batch = 1;
  options.max_len = 1;
  for (const Workload& load : loads) {
    options.max_batch = std::max(options.max_batch, load.batch);
    options.max_len = std::max(options.max_len, load.prompt_tokens + load.new_tokens);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<DecodeLoop> loop, DecodeLoop::Load(options));
  std::printf("%s, %s, weights %.1f MB, loaded in %.0f ms\n", options.model.c_str(), loop->device().c_str(),
              static_cast<double>(loop->weights_bytes()) / 1e6, loop->load_seconds() * 1e3);

  RETURN_IF_ERROR(RunOnOwnThread(*loop, {1, loads[0].prompt_tokens, std::min(8, loads[0].new_tokens)})
                      .status());  // warm-up
  std::vector<std::vector<Sample>> samples(loads.size());
  for (int round = 0; round < Given().rounds; ++round) {
    for (size_t i = 0; i < loads.size(); ++i) {
      ASSIGN_OR_RETURN(const Sample sample, Measure(*loop, loads[i]));
      samples[i].push_back(sample);
    }
  }
  std::printf("\n%-8s %5s  %-26s %-22s %-18s %-24s %-18s %s\n", "", "batch", "tok/s", "step ms",
              "% of bandwidth", "peer tok/s", "ratio", "dropped");
  nlohmann::json report = nlohmann::json::array();
  for (size_t i = 0; i < loads.size(); ++i) report.push_back(Summarize(loads[i], samples[i]));
  if (const std::string path = Given().json; !path.empty()) {
    std::ofstream file(path);
    file << report.dump(1) << "\n";
    if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

FlagTable Flags(BenchFlags* f) {
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
        Flag::OneOf<std::string>("dtype", &f->dtype,
                                 {{"bfloat16", "bfloat16"}, {"float16", "float16"}, {"float32", "float32"}},
                                 "type of activations, and of weights that are not computed as stored"),
        Flag::Switch("dequantize", &f->dequantize, "compute no weight as it is stored"),
        Flag::OneOf<std::optional<DataType>>(
            "quantization", &f->quantize,
            {{"none", std::nullopt},
             {"int8", DataType::kQ8_0},
             {"int4", DataType::kQ4_1},
             {"fp8", DataType::kF8E4M3}},
            "what the layers' matrices become at load, where they would become --dtype"),
        Flag::Ints("batches", &f->batches, 1, 512, "decode batches"),
        Flag::Int("prompt-tokens", &f->prompt_tokens, 1, kMaxTokens, "prompt of each sequence when decoding"),
        Flag::Int("new-tokens", &f->new_tokens, 1, kMaxTokens, "decode steps"),
        Flag::Int("prefill-tokens", &f->prefill_tokens, 0, kMaxTokens,
                  "prompt of the prefill measurement; 0: skip it"),
        Flag::Int("rounds", &f->rounds, 1, 1000, "samples of each size"),
        Flag::Text("json", &f->json, "also write all samples to this file").Shows("FILE"),
        Flag::Text("peer", &f->peer, "path of llama-batched-bench").Shows("PATH"),
        Flag::Text("peer-model", &f->peer_model, "the same weights as GGUF, for the peer").Shows("PATH")}}};
  return table;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  const somnus::FlagTable table = somnus::Flags(&somnus::Given());
  if (const auto code = somnus::ParseCommandLine(table, argc, argv); code.has_value()) return *code;
  if (somnus::Given().model.empty()) {
    return somnus::UsageError(table, absl::InvalidArgumentError("--model: no model was given; see --help"));
  }
  if (!somnus::Given().peer.empty() && somnus::Given().peer_model.empty()) {
    return somnus::UsageError(table, absl::InvalidArgumentError("--peer: needs --peer-model"));
  }
  const absl::Status status = somnus::Main();
  if (!status.ok()) std::fprintf(stderr, "decode_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

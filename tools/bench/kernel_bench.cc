// kernel_bench: the rate of each op on this machine, beside the machine's ceilings.
//
//   kernel_bench [--threads=N] [--model=smollm2|qwen3|qwen2.5|all] [--filter=TEXT] [--repeats=N] [--json]
//
// With one thread times are processor time, which depends less on other work on the machine. SOMNUS_CPU_ISA
// forces an instruction set.
//
// Ceilings first: read bandwidth, distance of two cores, the instruction set's peaks of products of f32, bf16
// and bytes. Then per op the fastest and the median time of many repeats, and GB/s or GFLOP/s of the fastest
// against the ceiling that binds.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/cpus.h"
#include "base/flags.h"
#include "kernels/cpu/thread_pool.h"
#include "tools/bench/kernel_bench_cases.h"
#include "tools/probe/machine_peak.h"
#include "tools/probe/machine_probe.h"
#include "tools/probe/probe_thread.h"

namespace somnus {
namespace {

struct BenchFlags {
  int32_t threads = 0;
  std::string model = "all";
  std::string filter;
  int32_t repeats = 15;
  bool json = false;
};

struct Ceilings {
  MachineState machine;
  double read_gbps = 0;
  MachinePeaks peaks;
};

double PeakOf(const MachinePeaks& peaks, BenchPeak peak) {
  switch (peak) {
    case BenchPeak::kF32:
      return peaks.f32_gflops;
    case BenchPeak::kBF16:
      return peaks.bf16_gflops;
    case BenchPeak::kInt8:
      return peaks.int8_gops;
  }
  return 0;
}

void PrintCeilings(const Ceilings& c, const std::string& device, bool json) {
  if (json) {
    std::printf(
        "{\"kind\":\"machine\",\"device\":\"%s\",\"read_gbps_1t\":%.2f,\"read_gbps_2t\":%.2f,\"ping_pong_"
        "ns\":%.0f,"
        "\"f32_gflops\":%.1f,\"bf16_gflops\":%.1f,\"int8_gops\":%.1f}\n",
        device.c_str(), c.machine.read_gbps_1t, c.machine.read_gbps_2t, c.machine.ping_pong_ns,
        c.peaks.f32_gflops, c.peaks.bf16_gflops, c.peaks.int8_gops);
    return;
  }
  std::printf("%s\n%s; %s\n", device.c_str(), ToString(c.machine).c_str(), ToString(c.peaks).c_str());
}

void PrintResult(const BenchResult& r, const Ceilings& c, bool json) {
  const double gbps = r.bytes / r.best_seconds / 1e9, gflops = r.flops / r.best_seconds / 1e9;
  const double of_read = gbps / c.read_gbps;
  const double of_peak = gflops / PeakOf(c.peaks, r.peak);
  if (json) {
    std::printf(
        "{\"kind\":\"op\",\"model\":\"%s\",\"op\":\"%s\",\"best_us\":%.3f,\"median_us\":%.3f,\"gbps\":%.2f,"
        "\"gflops\":%.1f,\"of_read\":%.3f,\"of_peak\":%.3f}\n",
        r.model.c_str(), r.op.c_str(), r.best_seconds * 1e6, r.median_seconds * 1e6, gbps, gflops, of_read,
        of_peak);
    return;
  }
  std::printf("%-8s %-34s %11.2f %11.2f us", r.model.c_str(), r.op.c_str(), r.best_seconds * 1e6,
              r.median_seconds * 1e6);
  if (r.bytes > 0) std::printf("  %6.1f GB/s = %4.2f of read", gbps, of_read);
  if (r.flops > 0) std::printf("  %7.1f GFLOP/s = %4.2f of peak", gflops, of_peak);
  std::printf("\n");
}

int Main(const BenchFlags& flags) {
  const bool json = flags.json;
  CpuDeviceOptions options;
  options.num_threads = flags.threads;
  options.first_cpu = 0;
  auto device = Device::CreateCpu(options);
  if (!device.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", std::string(device.status().message()).c_str());
    return 1;
  }
  std::vector<BenchModel> models;
  for (const BenchModel& model : BenchModels()) {
    if (flags.model == "all" || flags.model == model.name) models.push_back(model);
  }
  const int threads = std::max(1, options.num_threads > 0 ? options.num_threads : NumAllowedCpus());
  for (const BenchModel& model : models) {
    Ceilings ceilings{.machine = ProbeMachine(),
                      .peaks = MeasurePeaks(ChosenCpuIsaName().value(), ThreadsOnFirstCpus(threads))};
    ceilings.read_gbps = threads == 1   ? ceilings.machine.read_gbps_1t
                         : threads == 2 ? ceilings.machine.read_gbps_2t
                                        : ReadGbps(ThreadsOnFirstCpus(threads));
    PrintCeilings(ceilings, (*device)->Describe(), json);
    const BenchOptions bench{
        .repeats = flags.repeats, .filter = flags.filter, .processor_time = threads == 1};
    RunBenchCases(**device, model, bench, [&](const BenchResult& result) {
      PrintResult(result, ceilings, json);
      std::fflush(stdout);
    });
    const MachineState after = ProbeMachine();
    if (!json) std::printf("afterwards: %s\n\n", ToString(after).c_str());
  }
  return 0;
}

FlagTable Flags(BenchFlags* f) {
  FlagTable table;
  table.program = "kernel_bench";
  table.usage = "kernel_bench [flags]";
  table.about = "Speed of every kernel beside the machine's ceilings.";
  table.groups = {{"Flags",
                   {Flag::Int("threads", &f->threads, 0, 1024,
                              "threads of the device; 0: as many as this process may use"),
                    Flag::OneOf<std::string>(
                        "model", &f->model,
                        {{"all", "all"}, {"smollm2", "smollm2"}, {"qwen3", "qwen3"}, {"qwen2.5", "qwen2.5"}},
                        "whose shapes: smollm2 is the 135M, qwen3 the 0.6B, qwen2.5 the 1.5B"),
                    Flag::Text("filter", &f->filter, "only ops whose name contains this"),
                    Flag::Int("repeats", &f->repeats, 1, 10000, "repeats of each measurement"),
                    Flag::Switch("json", &f->json, "print JSON lines instead of a table")}}};
  return table;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::BenchFlags flags;
  const somnus::FlagTable table = somnus::Flags(&flags);
  if (const auto code = somnus::ParseCommandLine(table, argc, argv); code.has_value()) return *code;
  return somnus::Main(flags);
}

#include "tools/bench/gpu/gpu_bench_main.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "tools/bench/gpu/bench_report.h"
#include "tools/bench/gpu/gpu_bench_flags.h"
#include "tools/bench/gpu/model_phases.h"

namespace somnus {
namespace {

class GpuBench {
 public:
  GpuBench(const GpuBenchFlags& flags, const GpuBenchMachine& machine, BenchReport& report)
      : flags_(flags), machine_(machine), report_(report) {}

  absl::Status Run() {
    RETURN_IF_ERROR(Ceilings());
    if (Wanted("kernels")) RETURN_IF_ERROR(Kernels());
    ModelPhases phases(
        flags_, ceilings_, [this] { return Open(); }, report_);
    if (Wanted("model")) RETURN_IF_ERROR(phases.Model());
    if (Wanted("sleep")) RETURN_IF_ERROR(phases.Sleep());
    if (Wanted("load")) RETURN_IF_ERROR(phases.Load());
    if (Wanted("chunks")) RETURN_IF_ERROR(Chunks());
    return absl::OkStatus();
  }

 private:
  bool Wanted(const std::string& part) const {
    return std::find(flags_.parts.begin(), flags_.parts.end(), part) != flags_.parts.end();
  }
  absl::StatusOr<LoopDevice> Open() { return machine_.open(flags_.device_index, flags_.device_chunk_bytes); }

  absl::Status Ceilings() {
    ASSIGN_OR_RETURN(ceilings_, machine_.measure_ceilings(flags_.device_index));
    return report_.Row(
        "ceilings", "copies",
        {{"copy_gbps", ceilings_.copy_gbps},
         {"host_to_device_gbps", ceilings_.host_to_device_gbps},
         {"device_to_host_gbps", ceilings_.device_to_host_gbps}},
        absl::StrFormat("copy %.0f GB/s (read + write), host to device %.1f GB/s, device to host %.1f GB/s",
                        ceilings_.copy_gbps, ceilings_.host_to_device_gbps, ceilings_.device_to_host_gbps));
  }

  absl::Status Kernels() {
    ASSIGN_OR_RETURN(const auto shape, Checkpoint::Open(flags_.model, LoadFormat::kDummy));
    ASSIGN_OR_RETURN(const LoopDevice opened, Open());
    const auto allocator = SleepableAllocator::Create(opened.driver.get());
    return MeasureKernels(shape->config(), machine_.kernel_sizes, ceilings_, *opened.device, *allocator,
                          report_);
  }

  absl::Status Chunks() {
    ASSIGN_OR_RETURN(const LoopDevice opened, Open());
    return SweepChunks(*opened.driver, flags_.chunk_sweep_bytes, machine_.chunk_sweep, report_);
  }

  const GpuBenchFlags& flags_;
  const GpuBenchMachine& machine_;
  BenchReport& report_;
  GpuCeilings ceilings_;
};

absl::Status Measure(const GpuBenchFlags& flags, const GpuBenchMachine& machine) {
  BenchReportOptions options;
  options.json_lines = flags.json_lines;
  options.common = {{"model", (std::filesystem::path(flags.model) / "").parent_path().filename().string()}};
  if (flags.batch_invariant) options.common["batch_invariant"] = true;
  if (flags.enforce_eager) options.common["enforce_eager"] = true;
  options.only = flags.only;
  if (flags.seconds.has_value()) options.limit = absl::Seconds(*flags.seconds);
  ASSIGN_OR_RETURN(const auto report, BenchReport::Open(options));
  return report->End(GpuBench(flags, machine, *report).Run());
}

}  // namespace

int GpuBenchMain(int argc, char** argv, const GpuBenchMachine& machine) {
  GpuBenchFlags flags = machine.defaults;
  if (const auto code = ParseCommandLine(GpuBenchFlagTable(&flags), argc, argv); code.has_value())
    return *code;
  const absl::Status status = Measure(flags, machine);
  if (!status.ok()) std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace somnus

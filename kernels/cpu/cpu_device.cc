#include "kernels/cpu/cpu_device.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/cpus.h"
#include "base/status_macros.h"
#include "kernels/cpu/instruction_sets.h"

namespace somnus {
namespace {

constexpr int kMaxThreads = 1024;

// Why KernelsOf(isa) is null: "... is what this CPU lacks" is the message.
absl::string_view WhoLacks(CpuIsa isa) {
  if (isa == CpuIsa::kAmx && cpu::AmxIsRefused())
    return "the operating system refuses to this process (a stack for signals that is too small?)";
  return "this CPU lacks";
}

// The names of the instruction sets that have kernels; with `of_this_cpu` only the names of sets that this
// CPU has, too.
std::string IsaNames(bool of_this_cpu) {
  std::vector<absl::string_view> names;
  for (const CpuIsa isa : kCpuIsas) {
    if (!of_this_cpu || cpu::KernelsOf(isa) != nullptr) names.push_back(CpuIsaName(isa));
  }
  return absl::StrJoin(names, ", ");
}

const cpu::KernelTable& BestKernels() {
  const cpu::KernelTable* best = nullptr;
  for (const CpuIsa isa : kCpuIsas) {
    if (const cpu::KernelTable* kernels = cpu::KernelsOf(isa); kernels != nullptr) best = kernels;
  }
  return *best;
}

absl::StatusOr<const cpu::KernelTable*> KernelsFromEnvironment() {
  const char* value = std::getenv("SOMNUS_CPU_ISA");
  const absl::string_view name = value == nullptr ? "" : value;
  if (name.empty()) return &BestKernels();
  for (const CpuIsa isa : kCpuIsas) {
    if (CpuIsaName(isa) != name) continue;
    if (const cpu::KernelTable* kernels = cpu::KernelsOf(isa); kernels != nullptr) return kernels;
    return absl::FailedPreconditionError(absl::StrCat("SOMNUS_CPU_ISA is \"", name, "\", which ",
                                                      WhoLacks(isa), "; it may be one of ", IsaNames(true)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("SOMNUS_CPU_ISA is \"", name, "\"; it may be one of ", IsaNames(false)));
}

absl::StatusOr<const cpu::KernelTable*> ChooseKernels(CpuIsa isa) {
  if (isa == CpuIsa::kBest) return KernelsFromEnvironment();
  if (const cpu::KernelTable* kernels = cpu::KernelsOf(isa); kernels != nullptr) return kernels;
  return absl::FailedPreconditionError(absl::StrCat(CpuIsaName(isa), " is what ", WhoLacks(isa)));
}

absl::Status CheckSpeeds(const CpuDeviceOptions& options) {
  const std::vector<double>& speeds = options.thread_speeds;
  if (!speeds.empty() && static_cast<int>(speeds.size()) != options.num_threads) {
    return absl::InvalidArgumentError(
        absl::StrCat("thread_speeds has ", speeds.size(), " speeds for ", options.num_threads, " threads"));
  }
  for (const double speed : speeds) {
    if (!(speed > 0 && speed <= 1))
      return absl::InvalidArgumentError(absl::StrCat("thread_speeds: ", speed, " is not in (0, 1]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view CpuIsaName(CpuIsa isa) {
  constexpr absl::string_view kNames[] = {"best",   "portable",     "avx2",        "avx_vnni",
                                          "avx512", "avx512_vnni",  "avx512_bf16", "amx",
                                          "neon",   "neon_dotprod", "neon_bf16"};
  return kNames[static_cast<int>(isa)];
}

absl::StatusOr<std::string> ChosenCpuIsaName() {
  const absl::StatusOr<const cpu::KernelTable*> kernels = ChooseKernels(CpuIsa::kBest);
  if (!kernels.ok()) return kernels.status();
  return std::string((*kernels)->name);
}

absl::StatusOr<std::unique_ptr<Device>> Device::CreateCpu(const CpuDeviceOptions& options) {
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads is ", options.num_threads, "; it may be 0 (all CPUs) to ", kMaxThreads));
  }
  RETURN_IF_ERROR(CheckSpeeds(options));
  const absl::StatusOr<const cpu::KernelTable*> kernels = ChooseKernels(options.isa);
  if (!kernels.ok()) return kernels.status();

  const std::vector<int> allowed = AllowedCpus();
  const int num_cpus = std::max<int>(1, allowed.size());
  const int num_threads = options.num_threads > 0 ? options.num_threads : num_cpus;
  std::vector<int> pin_cpus;
  if (options.first_cpu >= 0 && !allowed.empty()) {
    for (int t = 0; t < num_threads; ++t) pin_cpus.push_back(allowed[(options.first_cpu + t) % num_cpus]);
  }
  const bool spin = options.spin && num_threads <= num_cpus;
  const cpu::Partition partition =
      options.thread_speeds.empty() ? cpu::Partition(num_threads) : cpu::Partition(options.thread_speeds);
  return std::make_unique<cpu::CpuDevice>(**kernels, partition, std::move(pin_cpus), spin);
}

}  // namespace somnus

namespace somnus::cpu {

namespace {

// A CPU's ops are done when they return, so there is nothing to wait for.
class PastEvent final : public DeviceEvent {
 public:
  void Record() override {}
  absl::Status Wait() override { return absl::OkStatus(); }
};

}  // namespace

absl::StatusOr<void*> CpuDevice::AllocatePinned(int64_t bytes) {
  void* data = std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64));
  if (data == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes of host memory"));
  return data;
}

void CpuDevice::FreePinned(void* data) { std::free(data); }

absl::StatusOr<std::unique_ptr<DeviceEvent>> CpuDevice::CreateEvent() {
  return std::make_unique<PastEvent>();
}

absl::Status CpuDevice::BeginCapture() { return absl::UnimplementedError("a CPU has no graphs"); }

absl::StatusOr<std::unique_ptr<DeviceGraph>> CpuDevice::EndCapture() { return BeginCapture(); }

const OpTable& CpuDevice::ops() const {
  static constexpr OpTable kOps = SOMNUS_OP_TABLE;
  return kOps;
}

std::string CpuDevice::Describe() const {
  return absl::StrCat("cpu, ", num_threads(), num_threads() == 1 ? " thread, " : " threads, ", kernels_.name);
}

}  // namespace somnus::cpu

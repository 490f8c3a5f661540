#include "kernels/cpu/cpu_device.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cpus.h"

namespace somnus {
namespace {

constexpr int kMaxThreads = 1024;

absl::StatusOr<CpuIsa> IsaFromEnvironment() {
  const char* name = std::getenv("SOMNUS_CPU_ISA");
  const std::string_view isa = name == nullptr ? "" : name;
  if (isa.empty()) return CpuIsa::kBest;
  if (isa == "portable") return CpuIsa::kPortable;
  if (isa == "avx2") return CpuIsa::kAvx2;
  if (isa == "avx512_bf16") return CpuIsa::kAvx512Bf16;
  return absl::InvalidArgumentError(
      absl::StrCat("SOMNUS_CPU_ISA is \"", name, "\"; it may be portable, avx2 or avx512_bf16"));
}

absl::StatusOr<const cpu::KernelTable*> Kernels(CpuIsa isa) {
  if (isa == CpuIsa::kPortable) return &cpu::PortableKernels();
  const cpu::KernelTable* const avx2 = cpu::Avx2Kernels();
  const cpu::KernelTable* const avx512 = cpu::Avx512Kernels();
  const cpu::KernelTable* const wanted = isa == CpuIsa::kAvx2 ? avx2 : avx512;
  if (wanted != nullptr) return wanted;
  if (isa != CpuIsa::kBest)
    return absl::FailedPreconditionError("this CPU lacks the requested instruction set");
  return avx2 != nullptr ? avx2 : &cpu::PortableKernels();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::CreateCpu(const CpuDeviceOptions& options) {
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads is ", options.num_threads, "; it may be 0 (all CPUs) to ", kMaxThreads));
  }
  CpuIsa isa = options.isa;
  if (isa == CpuIsa::kBest) {
    absl::StatusOr<CpuIsa> from_environment = IsaFromEnvironment();
    if (!from_environment.ok()) return from_environment.status();
    isa = *from_environment;
  }
  absl::StatusOr<const cpu::KernelTable*> kernels = Kernels(isa);
  if (!kernels.ok()) return kernels.status();

  const std::vector<int> allowed = AllowedCpus();
  const int num_cpus = std::max<int>(1, allowed.size());
  const int num_threads = options.num_threads > 0 ? options.num_threads : num_cpus;
  std::vector<int> pin_cpus;
  if (options.first_cpu >= 0 && !allowed.empty()) {
    for (int t = 0; t < num_threads; ++t) pin_cpus.push_back(allowed[(options.first_cpu + t) % num_cpus]);
  }
  const bool spin = options.spin && num_threads <= num_cpus;
  return std::make_unique<cpu::CpuDevice>(**kernels, num_threads, std::move(pin_cpus), spin);
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

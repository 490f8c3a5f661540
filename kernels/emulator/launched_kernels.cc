#include "kernels/emulator/launched_kernels.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "kernels/emulator/grid.h"

namespace somnus::cuda_emulated::emulator {
namespace {

class LaunchedKernels {
 public:
  static LaunchedKernels& Get() {
    static auto* const kernels = new LaunchedKernels;
    return *kernels;
  }

  void Note(const void* kernel) {
    if (path_ == nullptr) return;
    const std::lock_guard lock(mutex_);
    kernels_.insert(kernel);
  }

 private:
  LaunchedKernels() {
    if (path_ != nullptr) std::atexit([] { Get().Write(); });
  }

  void Write() {
    const std::lock_guard lock(mutex_);
    std::FILE* const file = std::fopen(path_, "a");
    if (file == nullptr) return;
    for (const void* const kernel : kernels_) std::fprintf(file, "%s\n", FunctionName(kernel).c_str());
    std::fclose(file);
  }

  const char* const path_ = std::getenv("SOMNUS_EMULATOR_KERNELS");
  std::mutex mutex_;
  std::set<const void*> kernels_;
};

}  // namespace

void NoteLaunch(const void* kernel) { LaunchedKernels::Get().Note(kernel); }

}  // namespace somnus::cuda_emulated::emulator

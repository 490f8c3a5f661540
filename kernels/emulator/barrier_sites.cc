#include "kernels/emulator/barrier_sites.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/emulator/grid.h"

namespace somnus::cuda_emulated::emulator {
namespace {

class Sites {
 public:
  static Sites& Get() {
    static Sites* const sites = [] {
      auto* made = new Sites;
      if (std::getenv("SOMNUS_EMULATOR_BARRIERS") != nullptr) std::atexit([] { Get().Write(); });
      return made;
    }();
    return *sites;
  }

  int Number(const Site& site) {
    const std::lock_guard lock(mutex_);
    const auto it = numbers_.try_emplace({site.file_name(), site.line()}, numbers_.size()).first;
    if (it->second >= kMost) Die("more barriers in the source than the race detector counts");
    return static_cast<int>(it->second);
  }

  // Called at nearly every access: without the lock.
  void Need(int number) { needed_[number].store(true, std::memory_order_relaxed); }

 private:
  void Write() {
    const std::lock_guard lock(mutex_);
    std::FILE* const file = std::fopen(std::getenv("SOMNUS_EMULATOR_BARRIERS"), "a");
    if (file == nullptr) return;
    for (const auto& [place, number] : numbers_) {
      std::fprintf(file, "%s %s:%u\n", needed_[number].load() ? "needed" : "ran", place.first.c_str(),
                   place.second);
    }
    std::fclose(file);
  }

  static constexpr size_t kMost = 1024;

  std::mutex mutex_;
  std::map<std::pair<std::string, uint32_t>, size_t> numbers_;
  std::atomic<bool> needed_[kMost] = {};  // by number
};

}  // namespace

int BarrierSite(const Site& site) { return Sites::Get().Number(site); }
void NoteNeeded(int barrier_site) { Sites::Get().Need(barrier_site); }

}  // namespace somnus::cuda_emulated::emulator

#include "allocator/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/cpus.h"

namespace somnus {
namespace {

// Below this a thread costs more than it saves.
constexpr int64_t kMinBytesPerThread = 8 << 20;
constexpr int64_t kPartsPerThread = 4;

}  // namespace

void ParallelRanges(int64_t bytes, int64_t align, int num_threads,
                    const std::function<void(int64_t, int64_t)>& work) {
  const int64_t threads = std::clamp<int64_t>(bytes / kMinBytesPerThread, 1, std::max(1, num_threads));
  const int64_t parts = threads == 1 ? 1 : std::min(threads * kPartsPerThread, bytes / kMinBytesPerThread);
  const int64_t units = (bytes + align - 1) / align;
  const auto cut = [&](int64_t part) { return std::min(bytes, units * part / parts * align); };
  std::atomic<int64_t> next{0};
  const auto work_on_parts = [&] {
    for (int64_t part = next++; part < parts; part = next++) work(cut(part), cut(part + 1));
  };
  std::vector<std::thread> helpers;
  for (int64_t i = 1; i < threads; ++i) {
    helpers.emplace_back([&] {
      UnpinThisThread();
      work_on_parts();
    });
  }
  work_on_parts();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace somnus

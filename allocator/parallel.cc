#include "allocator/parallel.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/cpus.h"

namespace somnus {
namespace {

// Below this a thread costs more than it saves.
constexpr int64_t kMinBytesPerThread = 8 << 20;

}  // namespace

void ParallelRanges(int64_t bytes, int64_t align, int num_threads,
                    const std::function<void(int64_t, int64_t)>& work) {
  const int64_t parts = std::clamp<int64_t>(bytes / kMinBytesPerThread, 1, std::max(1, num_threads));
  const int64_t units = (bytes + align - 1) / align;
  const auto cut = [&](int64_t part) { return std::min(bytes, units * part / parts * align); };
  std::vector<std::thread> threads;
  for (int64_t part = 1; part < parts; ++part) {
    threads.emplace_back([&work, begin = cut(part), end = cut(part + 1)] {
      UnpinThisThread();
      work(begin, end);
    });
  }
  work(0, cut(1));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace somnus

#include "base/freed_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace somnus {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnMalloc = true;  // the sanitizers'
#else
constexpr bool kOwnMalloc = false;
#endif

constexpr int kBlocks = 1 << 20;
constexpr int64_t kBlocksBytes = int64_t{48} * kBlocks;
constexpr int64_t kLittle = kBlocksBytes / 8;

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Allocates and frees many small blocks, such as the values of a large JSON text. Returns a block behind
// them, of so many bytes.
std::unique_ptr<char[]> UseManyBlocks(size_t bytes_behind = 0) {
  std::vector<std::unique_ptr<char[]>> blocks(kBlocks);
  for (auto& block : blocks) block = std::make_unique<char[]>(40);
  return bytes_behind == 0 ? nullptr : std::make_unique<char[]>(bytes_behind);
}

// By how much `work` has let the process grow, on a thread with an arena of its own.
int64_t GrowthBy(const std::function<void()>& work) {
  int64_t growth = 0;
  std::thread([&] {
    ReturnFreedMemory();
    const int64_t before = ResidentBytes();
    work();
    growth = ResidentBytes() - before;
  }).join();
  return growth;
}

class FreedMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kOwnMalloc) GTEST_SKIP() << "sanitizers have a malloc of their own";
    ReturnLargeBlocks();
  }
};

TEST_F(FreedMemoryTest, MallocKeepsManySmallBlocks) {
  EXPECT_GT(GrowthBy([] { UseManyBlocks(); }), kBlocksBytes - kLittle);
}

TEST_F(FreedMemoryTest, GoesBackFromTheMiddleOfAnArena) {
  std::unique_ptr<char[]> last;
  EXPECT_LT(GrowthBy([&] {
              last = UseManyBlocks(4096);
              ReturnFreedMemory();
            }),
            kLittle);
}

TEST_F(FreedMemoryTest, GoesBackFromTheEndOfTheThreadsArena) {
  EXPECT_LT(GrowthBy([] {
              UseManyBlocks();
              ReturnFreedMemory();
            }),
            kLittle);
}

TEST_F(FreedMemoryTest, OfAnotherThreadsArenaGoesBackToo) {
  std::unique_ptr<char[]> last;
  std::thread([&] { last = UseManyBlocks(4096); }).join();
  const int64_t before = ResidentBytes();
  ReturnFreedMemory();
  EXPECT_LT(ResidentBytes(), before - (kBlocksBytes - kLittle));
}

TEST_F(FreedMemoryTest, ALargeInputReturnsWhatItsWorkHasFreed) {
  const auto growth_by = [](size_t input_bytes) {
    return GrowthBy([input_bytes] {
      const auto work = [input_bytes] {
        const InputMemory memory(input_bytes);
        UseManyBlocks();
      };
      work();
    });
  };
  EXPECT_LT(growth_by(kLargeInputBytes + 1), kLittle);
  EXPECT_GT(growth_by(kLargeInputBytes), kBlocksBytes - kLittle);
}

TEST_F(FreedMemoryTest, LargeBlocksGoBackByThemselves) {
  EXPECT_LT(GrowthBy([] { std::vector<char>(64 << 20, 'x'); }), 1 << 20);
  // By default glibc would keep such blocks from now on, since it has freed a larger one.
  EXPECT_LT(GrowthBy([] {
              for (int i = 0; i < 4; ++i) std::vector<std::vector<char>>(8, std::vector<char>(2 << 20, 'x'));
            }),
            1 << 20);
}

}  // namespace
}  // namespace somnus

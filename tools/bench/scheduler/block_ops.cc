#include "tools/bench/scheduler/block_ops.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/monotonic.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/block_manager/block_pool.h"
#include "tools/bench/median.h"

namespace somnus {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kBatch = 256;  // a sequence of 4,096 tokens

class Batches {
 public:
  template <typename Function>
  void Time(int32_t count, const Function& function) {
    const MonotonicTime begin = MonotonicNow();
    function();
    samples_.push_back(absl::ToDoubleNanoseconds(MonotonicNow() - begin) / count);
  }
  const std::vector<double>& samples() const { return samples_; }

 private:
  std::vector<double> samples_;
};

// Makes the contents of a block known, which are of no other block.
void Remember(BlockPool* pool, KvBlock* block, std::vector<int32_t>* tokens, int32_t number) {
  tokens->front() = number;
  BlockContent content;
  content.tokens = *tokens;
  content.hash = HashBlock(0, *tokens, "");
  pool->Remember(block, content);
}

void MeasurePool(int32_t num_blocks, int32_t rounds, BlockOpTimes* times) {
  BlockPool pool(num_blocks + 1, kBlockSize);
  std::vector<int32_t> tokens(kBlockSize, 0);
  std::vector<KvBlock*> all, taken;
  int32_t number = 0;
  for (int32_t i = 0; i < num_blocks; ++i) {
    all.push_back(pool.Allocate());
    Remember(&pool, all.back(), &tokens, number++);
  }
  std::shuffle(all.begin(), all.end(), std::mt19937_64(1));
  for (KvBlock* block : all) pool.Release(block);
  const int32_t batch = std::min(kBatch, num_blocks / 2);
  Batches allocate, free, touch;
  size_t next = 0;
  for (int32_t round = 0; round < rounds; ++round) {
    taken.clear();
    allocate.Time(batch, [&] {
      for (int32_t i = 0; i < batch; ++i) taken.push_back(pool.Allocate());
    });
    for (KvBlock* block : taken) Remember(&pool, block, &tokens, number++);
    free.Time(batch, [&] {
      for (auto block = taken.rbegin(); block != taken.rend(); ++block) pool.Release(*block);
    });
    touch.Time(2 * batch, [&] {
      for (int32_t i = 0; i < batch; ++i) {
        KvBlock* const block = all[next++ % all.size()];
        pool.Reference(block);
        pool.Release(block);
      }
    });
  }
  times->allocate = Median(allocate.samples());
  times->free = Median(free.samples());
  times->touch = Median(touch.samples());
}

void MeasureFork(int32_t num_blocks, int32_t rounds, BlockOpTimes* times) {
  BlockManagerOptions options;
  options.num_blocks = num_blocks + 1;
  options.block_size = kBlockSize;
  BlockManager blocks(options);
  const int32_t batch = std::min(kBatch, num_blocks / 2);
  const int32_t parents = num_blocks / batch;
  std::vector<int32_t> tokens(static_cast<size_t>(batch) * kBlockSize);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (int32_t parent = 0; parent < parents; ++parent) {
    tokens.front() = parent;
    blocks.Allocate(parent, tokens, "", /*use_cache=*/false, /*ignore_watermark=*/true);
  }
  std::mt19937_64 random(1);
  Batches fork;
  for (int32_t round = 0; round < rounds; ++round) {
    const auto parent = static_cast<int64_t>(random() % parents);
    fork.Time(2 * batch, [&] {
      blocks.sharing().Fork(parent, parents);
      blocks.Free(parents);
    });
  }
  times->fork = Median(fork.samples());
}

}  // namespace

BlockOpTimes MeasureBlockOps(int32_t num_blocks, int32_t rounds) {
  BlockOpTimes times;
  MeasurePool(num_blocks, rounds, &times);
  MeasureFork(num_blocks, rounds, &times);
  return times;
}

}  // namespace somnus

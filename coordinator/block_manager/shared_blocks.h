#pragma once
// Sequences that share blocks: forks, and the copies that come before a write (copy on write).
//
// Invariant: no sequence writes into a block that another sequence has, too. A fork has all full blocks in
// common with its parent; ForkAt and MakeWritable give the fork a last, partly filled block of its own.
//
// Ownership: borrows the pool, the tables and the watermark. Not thread safe: owned by the block manager.

#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/block_table.h"
#include "coordinator/block_manager/watermark.h"

namespace somnus {

class SharedBlocks {
 public:
  SharedBlocks(int32_t block_size, BlockPool* pool, BlockTables* tables, Watermark* watermark)
      : block_size_(block_size), pool_(*pool), tables_(*tables), watermark_(*watermark) {}
  SharedBlocks(const SharedBlocks&) = delete;

  // `child` shares all blocks of `parent`.
  void Fork(int64_t parent, int64_t child);
  // As Fork, of the parent's first `num_blocks` blocks alone.
  void ForkPrefix(int64_t parent, int64_t child, int32_t num_blocks);
  // `child` begins with the `num_tokens` tokens that `parent` has computed, and shares the parent's full
  // blocks. The child has a last, partly filled block of its own, and the copy that a step has to do first is
  // appended. `parent` has no more blocks than those tokens take. False, and nothing is taken, where the fork
  // would leave fewer blocks free than admission does.
  bool ForkAt(int64_t parent, int64_t child, int64_t num_tokens, std::vector<BlockCopyOp>* copies);
  // To be called before `sequence` writes at `position`: replaces a shared block there by a new one, and
  // appends the copy that the step has to do. False when no block is free.
  bool MakeWritable(int64_t sequence, int64_t position, std::vector<BlockCopyOp>* copies);
  // Two sequences exchange their tables.
  void SwapTables(int64_t a, int64_t b) { std::swap(TableOf(a, &tables_), TableOf(b, &tables_)); }

 private:
  const int32_t block_size_;
  BlockPool& pool_;
  BlockTables& tables_;
  Watermark& watermark_;
};

}  // namespace somnus

#include "coordinator/block_manager/shared_blocks.h"

#include "base/check.h"
#include "coordinator/block_manager/block_manager_options.h"

namespace somnus {

void SharedBlocks::Fork(int64_t parent, int64_t child) {
  SOMNUS_CHECK(!tables_.contains(child));
  BlockTable table = TableOf(parent, tables_);
  for (KvBlock* block : table.blocks) pool_.Reference(block);
  tables_.emplace(child, std::move(table));
}

void SharedBlocks::ForkPrefix(int64_t parent, int64_t child, int32_t num_blocks) {
  SOMNUS_CHECK(!tables_.contains(child));
  BlockTable table = TableOf(parent, tables_);
  table.blocks.resize(num_blocks);
  if (table.num_committed > num_blocks) {
    table.num_committed = num_blocks;
    table.last_content_id = num_blocks == 0 ? 0 : table.blocks.back()->content_id;
  }
  if (table.hashes.size() > static_cast<size_t>(num_blocks)) table.hashes.resize(num_blocks);
  for (KvBlock* block : table.blocks) pool_.Reference(block);
  tables_.emplace(child, std::move(table));
}

bool SharedBlocks::ForkAt(int64_t parent, int64_t child, int64_t num_tokens,
                          std::vector<BlockCopyOp>* copies) {
  SOMNUS_CHECK(TableOf(parent, tables_).num_blocks() == BlocksFor(num_tokens, block_size_));
  const bool has_partial = num_tokens % block_size_ != 0;
  if (!watermark_.Admits(/*needed=*/has_partial ? 1 : 0, /*ignored=*/false)) return false;
  Fork(parent, child);
  return !has_partial || MakeWritable(child, num_tokens, copies);
}

bool SharedBlocks::MakeWritable(int64_t sequence, int64_t position, std::vector<BlockCopyOp>* copies) {
  BlockTable& table = TableOf(sequence, &tables_);
  const size_t index = static_cast<size_t>(position / block_size_);
  SOMNUS_CHECK(index < table.blocks.size());
  KvBlock* shared = table.blocks[index];
  if (shared->ref_count == 1) return true;
  if (pool_.num_free() == 0) return false;
  KvBlock* own = pool_.Allocate();
  copies->push_back({shared->id, own->id});
  pool_.Release(shared);
  table.blocks[index] = own;
  return true;
}

}  // namespace somnus

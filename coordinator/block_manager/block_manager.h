#pragma once
// Block tables over one BlockPool: which blocks hold the keys and values of which sequence (PagedAttention).
//
// Reuse is safe while a step is in flight: workers execute steps in order, so a block freed after step k was
// sent is written or read by its new owner in step k+1 at the earliest, when every access of step k is over.
// Only a swap of step k to the host may still read then, on a GPU; a worker waits for that swap before a step
// that gives the block to a sequence.
// For the same reason a block may be remembered for the prefix cache as soon as the step that fills the block
// has been sent. A shared block is never written: positions at or beyond a sequence's adopted prefix are in
// blocks of the sequence alone, and a fork's last, partly filled block is copied by MakeWritable first.
//
// The hashes of blocks depend on the sequence's tokens and salt alone, so that a hash is computed once. A
// table keeps the hashes of its blocks. The hashes of a sequence that still waits for blocks are kept until
// the sequence gets blocks or is withdrawn.
//
// Ownership: owns the pool, all tables, and what is in host memory (host_blocks.h); sequences are named by
// their ids. Not thread safe: the engine's loop alone uses it. No call blocks; a call with an unknown id is a
// broken invariant.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_events.h"
#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/block_manager/host_blocks.h"
#include "coordinator/block_manager/host_prefix_cache.h"
#include "coordinator/block_manager/kept_block.h"
#include "coordinator/block_manager/prefix_pins.h"

namespace somnus {

struct BlockManagerOptions {
  int32_t num_blocks = 0;  // counts the null block
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  // The share of the blocks that admission leaves free, so that running sequences can grow.
  double watermark = 0.01;
  int32_t num_host_blocks = 0;  // of the host tier; 0: there is none
  bool records_events = false;  // of the prefix cache, which TakeEvents returns
};

class BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);

  // How many blocks hold `num_tokens` tokens.
  int32_t BlocksFor(int64_t num_tokens) const;
  // Whether a new sequence of `num_tokens` tokens can be admitted that has `num_adopted` of its blocks from
  // the prefix cache: the question that Allocate asks. With `ignore_watermark`, for when nothing else runs,
  // all blocks count. Returns kNever only for a sequence that an empty pool could not hold.
  AllocStatus CanAllocate(int64_t num_tokens, bool ignore_watermark, int32_t num_adopted = 0) const;
  // Whether the table can be extended to hold `num_tokens` tokens: the question that Grow asks. The watermark
  // is there for growth, so all blocks count. kNever: as above.
  AllocStatus CanAppend(int64_t sequence, int64_t num_tokens) const;

  // Makes the table of a new sequence: adopts the longest cached prefix of `tokens` if `use_cache`, and takes
  // blocks for the other tokens. Returns how many tokens are in the cache already: a multiple of the block
  // size that leaves at least the last token to compute. Returns -1, and takes nothing, when there are too
  // few blocks.
  int32_t Allocate(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt, bool use_cache,
                   bool ignore_watermark);
  // Returns how many more blocks such an Allocate would need; with 0 or less, Allocate would succeed.
  int32_t BlocksMissing(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                        bool use_cache, bool ignore_watermark);
  // Returns how many tokens such an Allocate, with `use_cache`, would find in the cache.
  int32_t CountCached(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt);
  // Forgets the hashes of `sequence`, which has no table and will never get one again.
  void Withdraw(int64_t sequence) { waiting_hashes_.erase(sequence); }
  // Extends the table to hold `num_tokens` tokens and appends the new blocks' ids to `new_blocks`. False, and
  // nothing is taken, unless CanAppend says kOk.
  bool Grow(int64_t sequence, int64_t num_tokens, std::vector<int32_t>* new_blocks);
  // As Grow, for lookahead slots, which may stay without use: False also where the growth would leave fewer
  // than `reserve` blocks free, or fewer than admission does.
  bool GrowAhead(int64_t sequence, int64_t num_tokens, int32_t reserve, std::vector<int32_t>* new_blocks);
  // Gives back the blocks behind those that hold `num_tokens` tokens, none of which was committed.
  void Shrink(int64_t sequence, int64_t num_tokens);
  // Returns how many more blocks such a Grow would need; with 0 or less, Grow would succeed.
  int32_t BlocksMissingToGrow(int64_t sequence, int64_t num_tokens) const;
  // Remembers the full blocks among the first `num_computed` of `tokens`, which are in the cache, or will be
  // once the steps scheduled so far are done.
  void Commit(int64_t sequence, absl::Span<const int32_t> tokens, int64_t num_computed);
  // Releases the table, last block first.
  void Free(int64_t sequence);

  // Swapped sequences (host_blocks.h): a sequence that is swapped out has a table of host blocks instead.
  struct Computed {
    int64_t sequence;    // which has a table
    int64_t num_tokens;  // its leading tokens whose keys and values are in the cache
  };
  // Returns in how many blocks those tokens are; a shared block counts once.
  int32_t CountBlocks(absl::Span<const Computed> sequences) const;
  // Whether the host tier has room for `num_blocks` blocks; kNever: not even an empty tier has.
  AllocStatus CanSwapOut(int32_t num_blocks) const { return host_.CanTake(num_blocks); }
  // Takes host blocks for those tokens, appends the copies into the host blocks, and releases the tables.
  // CanSwapOut must have said kOk. A block that several of the sequences share is one block in the host tier,
  // and is shared again by the sequences that come back together.
  void SwapOut(absl::Span<const Computed> sequences, std::vector<BlockCopyOp>* swap_outs);
  // A sequence that is about to have a table again, for all of `tokens`.
  struct Returning {
    int64_t sequence;
    absl::Span<const int32_t> tokens;
    absl::string_view salt;
    bool use_cache = false;   // adopt the tokens that the prefix cache has
    int64_t num_shared = 0;   // to be computed: leading tokens in blocks that another of the sequences fills
    int64_t num_adopted = 0;  // SwapIn sets it: tokens that were found, maybe more than were swapped out
  };
  struct Room {
    int32_t missing = 0;  // how many more blocks are needed; 0 or less: there is room
    int32_t total = 0;    // how many blocks the sequences have then, a shared block once
  };
  // The blocks that all of these sequences need together. Suspended sequences already have tables; swapped
  // sequences have host blocks.
  Room RoomFor(absl::Span<const Returning> all, bool ignore_watermark);
  // Makes the tables of swapped sequences: adopts, takes blocks for the rest, and appends the copies of the
  // tokens that were swapped out and not found. The host blocks are released. All or nothing: after kLater
  // and kNever nothing has changed.
  AllocStatus SwapIn(absl::Span<Returning> all, bool ignore_watermark, std::vector<BlockCopyOp>* swap_ins);
  // Releases the host blocks of a swapped sequence, which is computed again or has ended.
  void DropSwapped(int64_t sequence) { host_.Drop(sequence); }
  int32_t swapped_blocks() const { return host_.num_swapped_blocks(); }
  // HostBlocks::SwappedBlocks.
  std::vector<int32_t> SwappedBlocks() const { return host_.SwappedBlocks(); }
  bool is_swapped(int64_t sequence) const { return host_.Find(sequence) != nullptr; }
  int32_t num_swapped() const { return static_cast<int32_t>(host_.tables().size()); }

  // The prefix cache in the host tier: cached blocks are copied there before the device's blocks are given to
  // other sequences, and copied back where a later sequence begins with the same tokens.
  //
  // Whether lookups from now on go on in the host tier, where the device has no more. The tokens that an
  // Allocate finds there count as cached: Allocate takes blocks for those tokens, and TakeHostHits returns
  // the copies into the blocks since the last call.
  void SetReadsHost(bool reads) { reads_host_ = reads; }
  std::vector<BlockCopyOp> TakeHostHits() { return std::exchange(host_hits_, {}); }
  // Stores up to `count` of the cached blocks that are given out next and are not in the host tier yet, in a
  // step that swaps nothing in: appends the copies, and returns the contents for NoteStored.
  std::vector<uint64_t> StoreCached(int32_t count, int64_t step, std::vector<BlockCopyOp>* swap_outs);
  // HostPrefixCache::NoteStored.
  void NoteStored(const std::vector<uint64_t>& content_ids, int64_t step, bool is_ready) {
    host_.mutable_cache()->NoteStored(content_ids, step, is_ready);
  }
  void ForgetHostCache() { host_.mutable_cache()->Clear(); }
  const HostPrefixCache& host_cache() const { return host_.cache(); }

  // Counts the blocks that Free would make free if it was called for one sequence after another: a block that
  // several of the sequences share counts with the last of these.
  class FreedBlocks {
   public:
    void Add(const BlockManager& manager, int64_t sequence);
    int32_t count() const { return count_; }

   private:
    absl::flat_hash_map<int32_t, int32_t> references_;  // of shared blocks by id: how many were counted
    int32_t count_ = 0;
  };

  // `child` shares all blocks of `parent`.
  void Fork(int64_t parent, int64_t child);
  // As Fork, of the parent's first `num_blocks` blocks alone.
  void ForkPrefix(int64_t parent, int64_t child, int32_t num_blocks);
  // Two sequences exchange their tables.
  void SwapTables(int64_t a, int64_t b) { std::swap(TableOf(a), TableOf(b)); }
  // `child` begins with the `num_tokens` tokens that `parent` has computed, and shares the parent's full
  // blocks. The child has a last, partly filled block of its own, and the copy that a step has to do first is
  // appended. `parent` has no more blocks than those tokens take. False, and nothing is taken, where the fork
  // would leave fewer blocks free than admission does.
  bool ForkAt(int64_t parent, int64_t child, int64_t num_tokens, std::vector<BlockCopyOp>* copies);
  // To be called before `sequence` writes at `position`: replaces a shared block there by a new one, and
  // appends the copy that the step has to do. False when no block is free.
  bool MakeWritable(int64_t sequence, int64_t position, std::vector<BlockCopyOp>* copies);

  // Forgets the contents of the blocks known for the leading tokens of `tokens`: no sequence adopts them any
  // more. Tables stay.
  void ForgetPrefix(absl::Span<const int32_t> tokens, absl::string_view salt);
  // Forgets all cached contents; tables stay.
  void ResetPrefixCache(CacheLoss cause = CacheLoss::kReset);

  // Pinned prefixes, whose blocks count as used (prefix_pins.h). Without the prefix cache they hold none.
  void Pin(PrefixPin pin) { pins_.Add(std::move(pin)); }
  void Unpin(const std::string& id) { pins_.Remove(id); }
  // A sequence that has the cache to itself cannot go on: PrefixPins::GiveWay.
  int32_t PinsGiveWay(int32_t count) { return pins_.GiveWay(count); }
  const PrefixPins& pins() const { return pins_; }

  // Blocks that outlive a sleep of the cache, in the host tier. The choice is made before the sleep: it takes
  // host blocks, for which cached blocks there give way, and changes nothing else. Once the sleep has
  // happened, all contents that were not chosen are forgotten. The host blocks are released when the contents
  // are on the device again, at the same device blocks, or are not wanted any more. Between the choice and
  // the release no block may be allocated.
  //
  // Chooses the blocks that hold those tokens, all of a sequence or none, in the order of `sequences`.
  // Returns the sequences for which there is no room, in the host tier or within `limits`. The room that is
  // left goes to the beginnings of these sequences, as far as the beginnings can be adopted, then to pinned
  // blocks, and then to cached blocks, the most recently used first. Nothing may have been chosen since the
  // last release.
  std::vector<int64_t> ChooseKept(absl::Span<const Computed> sequences, const KeepLimits& limits = {});
  // Of all sequences only the chosen ones may still have tables.
  void ForgetUnkept();
  void ReleaseKept() { host_.ReleaseKept(); }
  const std::vector<KeptBlock>& kept() const { return host_.kept(); }

  // From now on only blocks with ids below `num_blocks`, which counts the null block and is at least 1, are
  // given out, and the others are not cached. Tables stay.
  void SetLimit(int32_t num_blocks);
  int32_t limit() const { return pool_.limit(); }
  // 1 + the highest id in a table or among the kept blocks; 0 where there is no such block.
  int32_t EndOfUsed() const;

  bool HasTable(int64_t sequence) const { return tables_.contains(sequence); }
  std::vector<int32_t> Table(int64_t sequence) const;
  int32_t block_size() const { return options_.block_size; }
  // Counts of blocks without the null block: total = free + used, and cached blocks are free. Blocks beyond a
  // limit count only while they are used.
  int32_t total_blocks() const { return pool_.num_total(); }
  int32_t free_blocks() const { return pool_.num_free(); }
  int32_t used_blocks() const { return pool_.num_used(); }
  bool is_used(int32_t id) const { return pool_.block(id)->ref_count > 0; }
  int32_t cached_blocks() const { return pool_.num_cached(); }
  int32_t total_host_blocks() const { return host_.pool().num_total(); }
  int32_t used_host_blocks() const { return host_.pool().num_used(); }
  int32_t cached_host_blocks() const { return host_.cache().size(); }  // among the used ones
  const BlockPool& pool() const { return pool_; }
  const CacheBlockCounts& cache_counts() const { return pool_.counts(); }
  // Returns what has entered and left the prefix cache, on both sides, since the last call. The first event
  // says that the cache is empty. Returns nothing unless events are recorded; recorded events have to be
  // taken again and again.
  std::vector<BlockEvent> TakeEvents();
  // How often a call was refused because of the watermark alone.
  int64_t num_watermark_refusals() const { return num_watermark_refusals_; }
  // How many blocks were hashed since the start: the cost of the prefix cache.
  int64_t num_blocks_hashed() const { return num_blocks_hashed_; }

  // Internal when a pool's own check fails, when a block's reference count is not the number of its
  // occurrences in tables and pins, or when the host blocks in use are not those of kept, swapped and cached
  // blocks.
  absl::Status CheckIntegrity() const;
  // A check that an engine can afford while requests may come: the counts, and the next kCheckedBlocks blocks
  // behind those of the last call. While no sequence has a table, this check sees every reference that was
  // not given back.
  static constexpr int32_t kCheckedBlocks = 4096;
  absl::Status CheckNextBlocks();

 private:
  struct BlockTable {
    std::vector<KvBlock*> blocks;
    std::string salt;
    int32_t num_committed = 0;     // leading blocks that were given to BlockPool::Remember
    std::vector<uint64_t> hashes;  // of the leading full blocks, num_committed at least
    // The id of the block known for the last committed content; 0 though num_committed > 0: the chain is
    // broken.
    uint64_t last_content_id = 0;
    // While the table begins: the contents behind `blocks` that the host tier has. num_committed counts both.
    std::vector<const HostPrefixCache::Entry*> on_host;

    bool is_broken() const { return num_committed > 0 && last_content_id == 0; }
  };

  // The content of the first block of `tokens` that is not committed yet.
  BlockContent ContentAt(BlockTable* table, absl::Span<const int32_t> tokens);
  // Begins the table of a sequence that has none: references the cached prefix, and takes nothing else.
  BlockTable BeginTable(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                        bool use_cache, bool reads_host = false);
  // Takes blocks for the part of the sequence's beginning that the host tier has.
  void TakeFromHost(absl::Span<const int32_t> tokens, BlockTable* table);
  // Undoes BeginTable, but keeps the hashes.
  void GiveUpTable(int64_t sequence, BlockTable table);
  int32_t Missing(const BlockTable& table, int64_t num_tokens, bool ignore_watermark) const;
  // Whether a sequence that has `num_had` blocks can have `num_blocks`.
  AllocStatus CanHave(int32_t num_blocks, int32_t num_had, bool ignore_watermark) const;
  // Whether so many blocks can be taken.
  bool HasRoom(int32_t needed, bool ignore_watermark) const {
    return pool_.num_free() - needed >= Watermark(ignore_watermark);
  }
  // There was no room for so many blocks. The refusal counts where the watermark alone is the reason.
  void NoteRefusal(int32_t needed) { num_watermark_refusals_ += needed <= pool_.num_free() ? 1 : 0; }
  int32_t Needed(const BlockTable& table, int64_t num_tokens) const {
    return BlocksFor(num_tokens) - static_cast<int32_t>(table.blocks.size());
  }
  // The blocks that a swapped sequence needs beyond the adopted blocks, which `table` has, and beyond the
  // host blocks in `seen`, to which the sequence's host blocks are added.
  int32_t NeededToSwapIn(const HostBlocks::Table& host, const BlockTable& table, int64_t num_tokens,
                         absl::flat_hash_set<int32_t>* seen) const;
  // Takes these blocks. `came_back`: the device blocks for host blocks, which other sequences may have too.
  void FillFromHost(const HostBlocks::Table& host, int64_t num_tokens,
                    absl::flat_hash_map<int32_t, KvBlock*>* came_back, BlockTable* table,
                    std::vector<BlockCopyOp>* swap_ins);
  // The first `count` blocks of a table were adopted.
  void NoteAdopted(const BlockTable& table, size_t count);
  // Records that the cache is empty, if it was not before (`had_any`) and is now.
  void NoteIfCleared(bool had_any);
  bool CachesAny() const { return pool_.counts().num_cached() > 0 || host_.cache().size() > 0; }
  // How many blocks admission leaves free.
  int32_t Watermark(bool ignored) const {
    return ignored ? 0 : static_cast<int32_t>(options_.watermark * pool_.limit());
  }
  BlockTable& TableOf(int64_t sequence);

  const BlockManagerOptions options_;
  const std::unique_ptr<BlockEventRecorder> recorder_;  // null: nobody wants events
  BlockPool pool_;
  PrefixPins pins_;
  HostBlocks host_;  // its tables are of sequences without a table in tables_
  bool reads_host_ = false;
  std::vector<BlockCopyOp> host_hits_;  // since the last TakeHostHits
  absl::flat_hash_map<int64_t, BlockTable> tables_;
  int64_t num_watermark_refusals_ = 0;
  absl::flat_hash_map<int64_t, std::vector<uint64_t>> waiting_hashes_;  // by sequence without a table
  int64_t num_blocks_hashed_ = 0;
  int32_t next_checked_ = 0;  // the block that CheckNextBlocks begins with
};

}  // namespace somnus

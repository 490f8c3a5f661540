#pragma once
// Block tables over one BlockPool: which blocks hold the keys and values of which sequence (PagedAttention).
//
// Reuse is safe while a step is in flight: workers execute steps in order, so a block freed after step k was
// sent is written or read by its new owner in step k+1 at the earliest, when every access of step k is over.
// Only a swap of step k to the host may still read then, on a GPU; a worker waits for it before a step that
// gives the block to a sequence.
// For the same reason a block may be remembered for the prefix cache as soon as the step that fills it has
// been sent. A shared block is never written: positions at or beyond a sequence's adopted prefix are in
// blocks of its own, and a fork's last, partly filled block is copied by MakeWritable first.
//
// The hashes of blocks depend on the sequence's tokens and salt alone, so they are computed once: a table
// keeps its own, and those of a sequence that is still waiting for blocks are kept until it gets them or is
// withdrawn.
//
// Ownership: owns the pool and all tables; sequences are named by their ids. Not thread safe: the engine's
// loop alone uses it. No call blocks; a call with an unknown id is a broken invariant.

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
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/block_manager/host_block_pool.h"
#include "coordinator/block_manager/host_prefix_cache.h"
#include "coordinator/block_manager/kept_block.h"
#include "coordinator/block_manager/prefix_pins.h"

namespace somnus {

enum class AllocStatus {
  kOk,
  kLater,  // not now: too few blocks are free
  kNever,  // more than the pool has without a limit
};

struct BlockManagerOptions {
  int32_t num_blocks = 0;  // counts the null block
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  // The share of the blocks that admission leaves free, so that running sequences can grow.
  double watermark = 0.01;
  int32_t num_host_blocks = 0;  // of the host tier; 0: there is none
  bool records_events = false;  // of the prefix cache, which TakeEvents returns
};

// A block whose contents must be copied before the step writes.
struct BlockCopyOp {
  int32_t src;
  int32_t dst;
};

class BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);

  // How many blocks hold `num_tokens` tokens.
  int32_t BlocksFor(int64_t num_tokens) const;
  // Whether a new sequence of `num_tokens` tokens can be admitted, of whose blocks it has `num_adopted` from
  // the prefix cache: what Allocate asks. With `ignore_watermark`, for when nothing else runs, all blocks
  // count. Returns kNever only for what an empty pool could not hold.
  AllocStatus CanAllocate(int64_t num_tokens, bool ignore_watermark, int32_t num_adopted = 0) const;
  // Whether the table can be extended to hold `num_tokens` tokens: what Grow asks. The watermark is there for
  // that, so all blocks count. kNever: as above.
  AllocStatus CanAppend(int64_t sequence, int64_t num_tokens) const;

  // Makes the table of a new sequence: adopts the longest cached prefix of `tokens` if `use_cache`, and takes
  // blocks for the rest of them. Returns how many tokens are in the cache already: a multiple of the block
  // size that leaves at least the last token to compute. Returns -1, and takes nothing, when there are too
  // few blocks.
  int32_t Allocate(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt, bool use_cache,
                   bool ignore_watermark);
  // Returns how many more blocks such an Allocate would need; it would succeed when that is 0 or less.
  int32_t BlocksMissing(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                        bool use_cache, bool ignore_watermark);
  // Returns how many tokens such an Allocate, with `use_cache`, would find in the cache.
  int32_t CountCached(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt);
  // Forgets what is kept of `sequence`, which has no table and will get none any more.
  void Withdraw(int64_t sequence) { waiting_hashes_.erase(sequence); }
  // Extends the table to hold `num_tokens` tokens and appends the new blocks' ids to `new_blocks`. False, and
  // nothing is taken, unless CanAppend says kOk.
  bool Grow(int64_t sequence, int64_t num_tokens, std::vector<int32_t>* new_blocks);
  // As Grow, for lookahead slots, which may stay without use: False also where that would leave fewer than
  // `reserve` blocks free, or fewer than admission does.
  bool GrowAhead(int64_t sequence, int64_t num_tokens, int32_t reserve, std::vector<int32_t>* new_blocks);
  // Gives back the blocks behind those that hold `num_tokens` tokens, none of which was committed.
  void Shrink(int64_t sequence, int64_t num_tokens);
  // Returns how many more blocks such a Grow would need; it would succeed when that is 0 or less.
  int32_t BlocksMissingToGrow(int64_t sequence, int64_t num_tokens) const;
  // Remembers the full blocks among the first `num_computed` of `tokens`: those are in the cache, or will be
  // once the steps scheduled so far are done.
  void Commit(int64_t sequence, absl::Span<const int32_t> tokens, int64_t num_computed);
  // Releases the table, last block first.
  void Free(int64_t sequence);
  // Sequences that are swapped out have a table of host blocks instead (swap_blocks.cc): whole blocks that
  // hold their computed tokens, copied by steps in order, so that a host block may be given out again as soon
  // as the step that reads it has been sent. A block that several sequences share when they are swapped out
  // together is one block there, and is shared again by those that come back together.
  struct Computed {
    int64_t sequence;    // which has a table
    int64_t num_tokens;  // its leading tokens whose keys and values are in the cache
  };
  // In how many blocks those tokens are; one that is shared counts once.
  int32_t CountBlocks(absl::Span<const Computed> sequences) const;
  // Whether the host tier has room for `num_blocks` blocks; kNever: not even an empty one has.
  AllocStatus CanSwapOut(int32_t num_blocks) const;
  // Takes host blocks for those tokens, appends the copies to them, and releases the tables. CanSwapOut must
  // have said kOk.
  void SwapOut(absl::Span<const Computed> sequences, std::vector<BlockCopyOp>* swap_outs);
  // A sequence that is about to have a table again, for all of `tokens`.
  struct Returning {
    int64_t sequence;
    absl::Span<const int32_t> tokens;
    absl::string_view salt;
    bool use_cache = false;   // what the prefix cache has of them is adopted
    int64_t num_shared = 0;   // of one to be computed: leading tokens in blocks that it will have of another
    int64_t num_adopted = 0;  // SwapIn sets it: tokens that were found, maybe more than were swapped out
  };
  struct Room {
    int32_t missing = 0;  // how many more blocks are needed; 0 or less: there is room
    int32_t total = 0;    // how many blocks they have then, a shared one once
  };
  // What such sequences need together: swapped ones, suspended ones, which have tables, and others.
  Room RoomFor(absl::Span<const Returning> all, bool ignore_watermark);
  // Makes the tables of swapped sequences: adopts, takes blocks for the rest, and appends the copies of what
  // was swapped out and not found. Their host blocks are released. All or nothing: after kLater and kNever
  // nothing has changed.
  AllocStatus SwapIn(absl::Span<Returning> all, bool ignore_watermark, std::vector<BlockCopyOp>* swap_ins);
  // The prefix cache in the host tier (host_hits.cc): cached blocks are copied there before they are given to
  // others, and copied back where a later sequence begins with them.
  //
  // Whether lookups from now on go on there, where the device has no more. What an Allocate finds there
  // counts as cached: it takes blocks for it, and TakeHostHits returns the copies into them since the last
  // call.
  void SetReadsHost(bool reads) { reads_host_ = reads; }
  std::vector<BlockCopyOp> TakeHostHits() { return std::exchange(host_hits_, {}); }
  // Stores up to `count` of the cached blocks that are given out next and are not there yet, in a step that
  // swaps nothing in: appends the copies, and returns the contents for NoteStored.
  std::vector<uint64_t> StoreCached(int32_t count, int64_t step, std::vector<BlockCopyOp>* swap_outs);
  // HostPrefixCache::NoteStored.
  void NoteStored(const std::vector<uint64_t>& content_ids, int64_t step, bool is_ready) {
    host_cache_.NoteStored(content_ids, step, is_ready);
  }
  void ForgetHostCache() { host_cache_.Clear(); }
  const HostPrefixCache& host_cache() const { return host_cache_; }

  // Releases the host blocks of a swapped sequence, which is computed again or has ended.
  void DropSwapped(int64_t sequence);
  int32_t swapped_blocks() const { return num_swapped_blocks_; }
  // The host blocks that steps have swapped out and may still swap in, each once, in ascending order: those
  // of swapped sequences, and of the prefix cache.
  std::vector<int32_t> SwappedBlocks() const;
  bool is_swapped(int64_t sequence) const { return swapped_.contains(sequence); }
  int32_t num_swapped() const { return static_cast<int32_t>(swapped_.size()); }

  // Counts the blocks that Free would make free, of one sequence after another: a block that several of them
  // share counts with the last of them.
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
  // `child` begins with the `num_tokens` tokens that `parent` has computed, and shares its full blocks; it
  // has a last, partly filled one of its own, and the copy that a step has to do first is appended. `parent`
  // has no more blocks than those tokens take. False, and nothing is taken, where that would leave fewer
  // blocks free than admission does.
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

  // What outlives a sleep of the cache, in the host tier (keep_blocks.cc). Before the sleep it is chosen,
  // which takes host blocks, for which cached ones there give way, and changes nothing else. Once the sleep
  // has happened, all contents that were not chosen are forgotten. The host blocks are released when the
  // contents are on the device again, at the same device blocks, or are not wanted any more. Between the
  // choice and the release no block may be allocated.
  //
  // Chooses the blocks that hold those tokens, all of a
  // sequence or none, in the order of `sequences`. Returns the sequences for which there is no room, in the
  // host tier or within `limits`. What room is left goes to these sequences' beginnings, as far as they can
  // be adopted, then to pinned blocks, and then to cached ones, the most recently used first. Nothing may
  // have been chosen since the last release.
  std::vector<int64_t> ChooseKept(absl::Span<const Computed> sequences, const KeepLimits& limits = {});
  // Of the sequences with tables only the chosen ones may be left.
  void ForgetUnkept();
  void ReleaseKept();
  const std::vector<KeptBlock>& kept() const { return kept_; }

  // From now on only blocks with ids below `num_blocks`, which counts the null block and is at least 1, are
  // given out, and the others are not cached. Tables stay.
  void SetLimit(int32_t num_blocks);
  int32_t limit() const { return pool_.limit(); }
  // 1 + the highest id in a table or among the kept ones; 0 where there is none.
  int32_t EndOfUsed() const;

  bool HasTable(int64_t sequence) const { return tables_.contains(sequence); }
  std::vector<int32_t> Table(int64_t sequence) const;
  int32_t block_size() const { return options_.block_size; }
  // Counts of blocks without the null block: total = free + used, and cached ones are free. With a limit,
  // what is not used beyond it does not count.
  int32_t total_blocks() const { return pool_.num_total(); }
  int32_t free_blocks() const { return pool_.num_free(); }
  int32_t used_blocks() const { return pool_.num_used(); }
  bool is_used(int32_t id) const { return pool_.block(id)->ref_count > 0; }
  int32_t cached_blocks() const { return pool_.num_cached(); }
  // Of the host tier.
  int32_t total_host_blocks() const { return host_pool_.num_total(); }
  int32_t used_host_blocks() const { return host_pool_.num_used(); }
  const BlockPool& pool() const { return pool_; }
  const CacheBlockCounts& cache_counts() const { return pool_.counts(); }
  // Returns what has entered and left the prefix cache, on both sides, since the last call. The first event
  // says that it is empty. Nothing unless it is recorded, and then it has to be taken again and again.
  std::vector<BlockEvent> TakeEvents();
  int32_t cached_host_blocks() const { return host_cache_.size(); }  // among the used ones
  // How often what was asked for was refused because of the watermark alone.
  int64_t num_watermark_refusals() const { return num_watermark_refusals_; }
  // How many blocks were hashed since the start: what the prefix cache costs.
  int64_t num_blocks_hashed() const { return num_blocks_hashed_; }

  // Internal when a pool's own check fails, when a block's reference count is not the number of its
  // occurrences in tables and pins, or when the host blocks in use are not those of kept, swapped and cached
  // blocks.
  absl::Status CheckIntegrity() const;
  // What an engine can afford while requests may come: of that the counts, and the blocks behind those of the
  // last call, kCheckedBlocks at most. While no sequence has a table it sees every reference that was not
  // given back.
  static constexpr int32_t kCheckedBlocks = 4096;
  absl::Status CheckNextBlocks();

 private:
  struct BlockTable {
    std::vector<KvBlock*> blocks;
    std::string salt;
    int32_t num_committed = 0;     // leading blocks that were given to BlockPool::Remember
    std::vector<uint64_t> hashes;  // of the leading full blocks, num_committed at least
    // Of the block known for the last committed content; 0 though num_committed > 0: the chain is broken.
    uint64_t last_content_id = 0;
    // While it begins: what the host tier has behind `blocks`, and num_committed counts.
    std::vector<const HostPrefixCache::Entry*> on_host;
  };

  struct HostTable {
    std::vector<int32_t> blocks;
    bool is_forgotten = false;  // the contents may not enter the prefix cache any more
  };

  // The content of the first block of `tokens` that is not committed yet.
  BlockContent ContentAt(BlockTable* table, absl::Span<const int32_t> tokens);
  // Begins the table of a sequence that has none: references the cached prefix, and takes nothing else.
  BlockTable BeginTable(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                        bool use_cache, bool reads_host = false);
  // Takes blocks for what the host tier has of the sequence's beginning.
  void TakeFromHost(absl::Span<const int32_t> tokens, BlockTable* table);
  // The pool of the host tier must have free blocks, or blocks of the prefix cache, which gives one up then.
  void MakeHostRoom();
  // Undoes BeginTable, but keeps the hashes.
  void GiveUpTable(int64_t sequence, BlockTable table);
  int32_t Missing(const BlockTable& table, int64_t num_tokens, bool ignore_watermark) const;
  // Whether a sequence that has `num_had` blocks can have `num_blocks`.
  AllocStatus CanHave(int32_t num_blocks, int32_t num_had, bool ignore_watermark) const;
  // Whether so many blocks can be taken.
  bool HasRoom(int32_t needed, bool ignore_watermark) const {
    return pool_.num_free() - needed >= Watermark(ignore_watermark);
  }
  // There was no room for so many blocks. It is counted where the watermark alone is the reason.
  void NoteRefusal(int32_t needed) { num_watermark_refusals_ += needed <= pool_.num_free() ? 1 : 0; }
  int32_t Needed(const BlockTable& table, int64_t num_tokens) const {
    return BlocksFor(num_tokens) - static_cast<int32_t>(table.blocks.size());
  }
  // The blocks that a swapped sequence needs beyond those of the prefix cache, which `table` has, and beyond
  // the host blocks in `seen`, to which its own are added.
  int32_t NeededToSwapIn(const HostTable& host, const BlockTable& table, int64_t num_tokens,
                         absl::flat_hash_set<int32_t>* seen) const;
  // Takes these blocks. `came_back`: those for host blocks, which it may have in common with others.
  void FillFromHost(const HostTable& host, int64_t num_tokens,
                    absl::flat_hash_map<int32_t, KvBlock*>* came_back, BlockTable* table,
                    std::vector<BlockCopyOp>* swap_ins);
  // The first `count` blocks of a table were adopted.
  void NoteAdopted(const BlockTable& table, size_t count);
  // What was cached is not any more, if anything was: `had_any`.
  void NoteIfCleared(bool had_any);
  bool CachesAny() const { return pool_.counts().num_cached() > 0 || host_cache_.size() > 0; }
  absl::Status CheckKept() const;
  // How many blocks admission leaves free.
  int32_t Watermark(bool ignored) const {
    return ignored ? 0 : static_cast<int32_t>(options_.watermark * pool_.limit());
  }
  BlockTable& TableOf(int64_t sequence);

  const BlockManagerOptions options_;
  const std::unique_ptr<BlockEventRecorder> recorder_;  // null: nobody wants events
  BlockPool pool_;
  PrefixPins pins_;
  HostBlockPool host_pool_;
  HostPrefixCache host_cache_;
  bool reads_host_ = false;
  std::vector<BlockCopyOp> host_hits_;
  std::vector<KeptBlock> kept_;
  absl::flat_hash_map<int64_t, BlockTable> tables_;
  absl::flat_hash_map<int64_t, HostTable> swapped_;  // of sequences without a table in tables_
  int32_t num_swapped_blocks_ = 0;
  int64_t num_watermark_refusals_ = 0;
  absl::flat_hash_map<int64_t, std::vector<uint64_t>> waiting_hashes_;  // by sequence without a table
  int64_t num_blocks_hashed_ = 0;
  int32_t next_checked_ = 0;  // the block that CheckNextBlocks begins with
};

}  // namespace somnus

#pragma once
// The second level of the prefix cache: contents of cached blocks that are also, or only, in host blocks.
//
// A content is the same content on both sides: a copy keeps the content id, so that a chain of blocks may be
// found partly on the device and partly here. As there, a hit is decided by comparison and not by the hash.
// Contents that a step copies here are ready once all ranks have replied to that step.
//
// The least recently used content goes first, when something else needs the host block; blocks of sequences
// that are swapped out, or kept over a sleep, come before all contents here.
//
// Ownership: each entry has one reference to its host block; borrows the pool. Not thread safe: owned by the
// block manager. The recorder of events is told of contents that can be found here, and of contents that
// cannot any more.

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "coordinator/block_manager/block_events.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/host_block_pool.h"

namespace somnus {

class HostPrefixCache {
 public:
  struct Entry {
    uint64_t content_id = 0;
    uint64_t parent_content_id = 0;
    uint64_t hash = 0;
    std::vector<int32_t> tokens;
    std::string salt;
    int32_t host_block = -1;
    int64_t step = 0;       // that copies the content here
    bool is_ready = false;  // the content may be copied back
  };

  // Borrows both; without a recorder nobody wants events.
  explicit HostPrefixCache(HostBlockPool* pool, BlockEventRecorder* recorder = nullptr)
      : pool_(pool), recorder_(recorder) {}
  HostPrefixCache(const HostPrefixCache&) = delete;

  // Null when the content is not here.
  const Entry* Find(const BlockContent& content) const;
  // The id of a content that is here, or 0.
  uint64_t IdOf(const BlockContent& content) const;
  // A content that is here is used.
  void Use(uint64_t content_id);
  bool Has(uint64_t content_id) const { return by_id_.contains(content_id); }
  // Takes a free host block for a block with known contents that are not here; returns the host block. The
  // pool must not be exhausted.
  int32_t Store(const KvBlock& block, int64_t step);
  // All ranks have the contents that the step has copied here; or a rank lacks the contents, which are
  // forgotten. In the order of BlockPool::FirstCached: children before their parents.
  void NoteStored(const std::vector<uint64_t>& content_ids, int64_t step, bool is_ready);
  // Gives up the least recently used content, if there is any.
  bool Evict();
  void Forget(uint64_t content_id);
  void Clear();

  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  std::vector<int32_t> HostBlocks() const;
  const std::list<Entry>& entries() const { return entries_; }  // the least recently used first
  int64_t num_evicted() const { return num_evicted_; }          // since the start

  // Internal names what does not add up; adds its references to `counts`, by host block.
  absl::Status CheckIntegrity(std::vector<int32_t>* counts) const;

 private:
  using Entries = std::list<Entry>;

  void Erase(Entries::iterator entry);

  HostBlockPool* const pool_;
  BlockEventRecorder* const recorder_;
  Entries entries_;
  absl::flat_hash_map<uint64_t, Entries::iterator> by_hash_, by_id_;
  int64_t num_evicted_ = 0;
};

}  // namespace somnus

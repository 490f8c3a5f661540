#pragma once
// Pinned prefixes: prompts whose beginnings stay in the prefix cache.
//
// A pin references the blocks with its contents, from the first on without a gap, as soon as they are known:
// those that the cache has when it is added, and then each one that a sequence computes or adopts. A
// referenced block is used, so that it is never given to another sequence. A pin computes nothing itself.
//
// Contents may be forgotten all the same. The pin then gives these references up, stays registered, and holds
// the blocks again once a sequence has computed them again. So does one that has given way (GiveWay) to a
// sequence that could not go on without its blocks.
//
// Cost: no more than a comparison for each block that becomes known, and nothing while all pins hold all of
// their blocks. Ownership: borrows the pool. Not thread safe: owned by the block manager.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/pin_releases.h"

namespace somnus {

struct PrefixPin {
  std::string id;               // chosen by the caller
  std::vector<int32_t> tokens;  // of whole blocks, one at least
  std::string salt;             // as the requests' that adopt them
};

class PrefixPins {
 public:
  PrefixPins(BlockPool* pool, int32_t block_size) : pool_(pool), block_size_(block_size) {}

  // The id must be new. Holds at once what the cache has.
  void Add(PrefixPin pin);
  // An id that is not known is ignored.
  void Remove(const std::string& id);
  // The contents of a block have become known, or a sequence has adopted it.
  void Note(const KvBlock& block) {
    if (num_incomplete_ > 0) HoldWhereNext(block);
  }
  // To be called after whatever may have made the pool forget contents of used blocks; `cause` says what.
  void DropForgotten(int64_t PinReleases::*cause);
  // Of the first `count` pins, in the order in which they were added, the last one that holds blocks which no
  // sequence uses gives all of its blocks up. Returns how many are before it; -1: there is none.
  int32_t GiveWay(int32_t count);

  int32_t size() const { return static_cast<int32_t>(pins_.size()); }
  // That pins hold, each once.
  int32_t num_blocks() const { return static_cast<int32_t>(num_holders_.size()); }
  // How many pins hold a block.
  int32_t num_holders(int32_t block) const {
    const auto found = num_holders_.find(block);
    return found == num_holders_.end() ? 0 : found->second;
  }
  // Their ids, in the order of the pins, and from each one's first on; one that several hold more than once.
  std::vector<int32_t> HeldBlocks() const;
  // Of the pin with an index, in the order in which they were added: its id, and how many blocks it holds.
  const std::string& id(int32_t index) const { return pins_[static_cast<size_t>(index)].prefix.id; }
  int32_t num_held(int32_t index) const {
    return static_cast<int32_t>(pins_[static_cast<size_t>(index)].held.size());
  }
  const PinReleases& releases() const { return releases_; }

  // Adds the pins' references to `counts`, by block id. Internal names what does not add up.
  absl::Status CheckIntegrity(std::vector<int32_t>* counts) const;

 private:
  struct Pin {
    PrefixPin prefix;
    std::vector<uint64_t> hashes;  // of all of its blocks
    std::vector<KvBlock*> held;    // the first ones of them

    bool is_complete() const { return held.size() == hashes.size(); }
  };

  // Of the first block that the pin lacks.
  BlockContent Next(const Pin& pin) const;
  void HoldWhereNext(const KvBlock& block);
  // Whether the pool knows the first block that the pin lacks; holds it then.
  bool HoldNext(Pin* pin);
  // Gives up what is held beyond the first `count` blocks, the last one first.
  void Truncate(Pin* pin, size_t count);

  BlockPool* const pool_;
  const int32_t block_size_;
  std::vector<Pin> pins_;
  absl::flat_hash_map<int32_t, int32_t> num_holders_;  // by block id: how many pins hold it; never 0
  int32_t num_incomplete_ = 0;
  int64_t num_forgotten_seen_ = 0;  // BlockPool::num_used_forgotten
  PinReleases releases_;
};

}  // namespace somnus

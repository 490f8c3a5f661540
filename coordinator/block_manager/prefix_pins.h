#pragma once
// Pinned prefixes: prompts whose beginnings stay in the prefix cache.
//
// A pin references the blocks with the pin's contents, from the first on without a gap, as soon as the blocks
// are known: the blocks that the cache has when the pin is added, and then each block that a sequence
// computes or adopts. A referenced block is used, so that the block is never given to another sequence. A pin
// computes nothing itself.
//
// Contents may be forgotten all the same. The pin then gives these references up, stays registered, and holds
// the blocks again once a sequence has computed them again. So does a pin that has given way (GiveWay) to a
// sequence that could not go on without the pin's blocks.
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
  std::string salt;             // as that of the requests that adopt the blocks
};

class PrefixPins {
 public:
  PrefixPins(BlockPool* pool, int32_t block_size) : pool_(pool), block_size_(block_size) {}

  // The id must be new. Holds at once the blocks that the cache has.
  void Add(PrefixPin pin);
  // An id that is not known is ignored.
  void Remove(const std::string& id);
  // The contents of a block have become known, or a sequence has adopted the block.
  void Note(const KvBlock& block) {
    if (num_incomplete_ > 0) HoldWhereNext(block);
  }
  // To be called after every event that may have made the pool forget contents of used blocks; `cause` names
  // the event.
  void DropForgotten(int64_t PinReleases::*cause);
  // Among the first `count` pins, in the order in which pins were added, the last pin that holds blocks which
  // no sequence uses gives all of its blocks up. Returns how many pins are before that pin; -1: there is no
  // such pin.
  int32_t GiveWay(int32_t count);

  int32_t size() const { return static_cast<int32_t>(pins_.size()); }
  // Blocks that pins hold, each counted once.
  int32_t num_blocks() const { return static_cast<int32_t>(num_holders_.size()); }
  // How many pins hold a block.
  int32_t num_holders(int32_t block) const {
    const auto found = num_holders_.find(block);
    return found == num_holders_.end() ? 0 : found->second;
  }
  // The ids of these blocks, in the order of the pins, and from each pin's first block on; a block that
  // several pins hold comes several times.
  std::vector<int32_t> HeldBlocks() const;
  // The id of the pin with an index, in the order in which pins were added, and how many blocks the pin
  // holds.
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
    std::vector<KvBlock*> held;    // the first blocks of the prefix

    bool is_complete() const { return held.size() == hashes.size(); }
  };

  // The content of the first block that the pin lacks.
  BlockContent Next(const Pin& pin) const;
  void HoldWhereNext(const KvBlock& block);
  // Whether the pool knows the first block that the pin lacks. If so, the pin holds the block from then on.
  bool HoldNext(Pin* pin);
  // Gives up the held blocks beyond the first `count`, the last block first.
  void Truncate(Pin* pin, size_t count);

  BlockPool* const pool_;
  const int32_t block_size_;
  std::vector<Pin> pins_;
  absl::flat_hash_map<int32_t, int32_t> num_holders_;  // by block id: how many pins hold the block; never 0
  int32_t num_incomplete_ = 0;
  int64_t num_forgotten_seen_ = 0;  // BlockPool::num_used_forgotten
  PinReleases releases_;
};

}  // namespace somnus

#pragma once
// How many of each KV block's tokens, from the first on, have keys and values in the draft model's part of
// the block. The numbers go with the block: to sequences that share the block, to copies, through the host
// tier. Every rank calls the same, so that all know the same. Used by the runner thread alone.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace somnus {

class DraftBlocks {
 public:
  explicit DraftBlocks(int32_t block_size) : block_size_(block_size) {}

  // No block has any; afterwards there are as many blocks.
  void Reset(int32_t num_blocks) {
    device_.assign(static_cast<size_t>(num_blocks), 0);
    host_.clear();
  }

  // The block becomes the `index`-th of a sequence of which `num_computed` tokens are in the cache. Later
  // tokens in the block are an earlier sequence's.
  void Enter(int32_t block, int32_t index, int32_t num_computed) {
    int32_t& own = device_[static_cast<size_t>(block)];
    own = std::min(own, std::max(0, num_computed - index * block_size_));
  }
  // The draft model has computed tokens [begin, end) of the sequence with the blocks, and all tokens before.
  void NoteComputed(absl::Span<const int32_t> blocks, int32_t begin, int32_t end) {
    for (int32_t first = begin - begin % block_size_; first < end; first += block_size_) {
      int32_t& own = device_[static_cast<size_t>(blocks[static_cast<size_t>(first / block_size_)])];
      own = std::max(own, std::min(block_size_, end - first));
    }
  }
  // How many tokens of a sequence with the blocks are there before the first missing token.
  int32_t NumTokens(absl::Span<const int32_t> blocks) const {
    int32_t count = 0;
    for (const int32_t block : blocks) {
      const int32_t own = device_[static_cast<size_t>(block)];
      count += own;
      if (own < block_size_) break;
    }
    return count;
  }

  void Copy(int32_t src, int32_t dst) {
    device_[static_cast<size_t>(dst)] = device_[static_cast<size_t>(src)];
  }
  // `host`: a block's number in the host tier.
  void SwapOut(int32_t device, int64_t host) {
    if (host >= static_cast<int64_t>(host_.size())) host_.resize(static_cast<size_t>(host) + 1, 0);
    host_[static_cast<size_t>(host)] = device_[static_cast<size_t>(device)];
  }
  void SwapIn(int32_t device, int64_t host) {
    const bool is_known = host < static_cast<int64_t>(host_.size());
    device_[static_cast<size_t>(device)] = is_known ? host_[static_cast<size_t>(host)] : 0;
  }

 private:
  const int32_t block_size_;
  std::vector<int32_t> device_, host_;  // numbers of tokens, by block
};

}  // namespace somnus

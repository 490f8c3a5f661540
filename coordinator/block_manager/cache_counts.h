#pragma once
// How blocks enter and leave the prefix cache, and why prompts are not found there. Values.

#include <array>
#include <cstddef>
#include <cstdint>

namespace somnus {

// Why the contents of a block are not cached any more.
enum class CacheLoss {
  kEvicted,      // the block was given to another sequence
  kOrphaned,     // the parent was lost before, so that nothing led to the block, whose place was taken
  kReset,        // a call has emptied the cache
  kPause,        // a pause that clears the cache
  kSleep,        // a sleep that has not kept the block
  kWeights,      // the weights were replaced
  kShrunk,       // the cache has become smaller
  kFailure,      // the group was lost
  kBadContents,  // the sequence that had computed the block has ended with bad logits
};
inline constexpr std::array<const char*, 9> kCacheLosses = {
    "evicted", "orphaned", "reset", "pause", "sleep", "weights", "shrunk", "failure", "bad_contents"};

// Blocks, since the start.
struct CacheBlockCounts {
  int64_t stored = 0;
  std::array<int64_t, kCacheLosses.size()> lost = {};

  void Add(const CacheBlockCounts& other) {
    stored += other.stored;
    for (size_t i = 0; i < lost.size(); ++i) lost[i] += other.lost[i];
  }
  int64_t num_lost(CacheLoss cause) const { return lost[static_cast<size_t>(cause)]; }
  // That are cached now.
  int64_t num_cached() const {
    int64_t count = stored;
    for (const int64_t of_cause : lost) count -= of_cause;
    return count;
  }
};

// Why a token of a prompt was not found.
enum class CacheMiss {
  kNotCached,       // no block has the token after the same tokens
  kSalt,            // not cached, of a request with a cache_salt, which finds the blocks of that salt alone
  kLastToken,       // of the last block, which is full: the last token is computed, for the logits
  kPartialBlock,    // of the last block, which is not full
  kPromptLogprobs,  // the request wants log-probabilities of the prompt, so that the whole prompt is computed
  kOff,             // there is no prefix cache
};
inline constexpr std::array<const char*, 6> kCacheMisses = {
    "not_cached", "salt", "last_token", "partial_block", "prompt_logprobs", "off"};

// Tokens of prompts that were looked up and not found, since the start.
struct CacheMissCounts {
  std::array<int64_t, kCacheMisses.size()> tokens = {};

  void Add(CacheMiss cause, int64_t count) { tokens[static_cast<size_t>(cause)] += count; }
  void Add(const CacheMissCounts& other) {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] += other.tokens[i];
  }
  int64_t of(CacheMiss cause) const { return tokens[static_cast<size_t>(cause)]; }
};

}  // namespace somnus

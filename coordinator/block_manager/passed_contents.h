#pragma once
// Contents that the device's cache has had, without keys and values: how a chain of cached blocks is followed
// beyond blocks that were given to other sequences.
//
// Where every layer of a model has a window, a prompt needs only the last blocks of a cached beginning. Which
// contents these blocks have is decided by comparison of all tokens before, as everywhere in the prefix
// cache; of blocks that are lost this class keeps the tokens for the comparison, and the content id that
// later blocks name as their parent's. (A hash of the whole beginning would not do: somebody could make a
// collision.)
//
// Bounded: the contents that were used least recently are forgotten first. Not thread safe: owned by the
// block manager.

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace somnus {

struct BlockContent;
struct KvBlock;

class PassedContents {
 public:
  // Keeps at most `most` contents, of a block each; 0: keeps none.
  explicit PassedContents(int32_t most) : most_(most) {}
  PassedContents(const PassedContents&) = delete;

  // To be called before a block with known contents loses the contents.
  void Note(const KvBlock& block);
  // The id of a content that is kept, which counts as a use, or 0.
  uint64_t IdOf(const BlockContent& content);
  void Clear();
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }

 private:
  struct Entry {
    uint64_t content_id = 0;
    uint64_t parent_content_id = 0;
    uint64_t hash = 0;
    std::vector<int32_t> tokens;
    std::string salt;
  };
  using Entries = std::list<Entry>;

  const int32_t most_;
  Entries entries_;  // the least recently used first
  absl::flat_hash_map<uint64_t, Entries::iterator> by_hash_;
};

}  // namespace somnus

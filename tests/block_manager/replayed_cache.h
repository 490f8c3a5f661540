#pragma once
// What a reader of the prefix cache's events knows of it, which must be what the block pool knows.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/block_manager/block_pool.h"

namespace somnus {

class ReplayedCache {
 public:
  struct Content {
    uint64_t parent = 0;
    std::vector<int32_t> tokens;
    std::string salt;
    bool operator==(const Content&) const = default;
  };
  using Contents = std::map<uint64_t, Content>;

  explicit ReplayedCache(int32_t block_size) : block_size_(static_cast<size_t>(block_size)) {}

  void Apply(const std::vector<BlockEvent>& events) {
    for (const BlockEvent& event : events) Apply(event);
  }
  void Apply(const BlockEvent& event) {
    ++num_events_;
    if (event.kind == BlockEvent::Kind::kCleared) return contents_.clear();
    if (event.kind == BlockEvent::Kind::kRemoved) {
      for (const uint64_t id : event.content_ids)
        EXPECT_EQ(contents_.erase(id), 1u) << "block " << id << " was not stored";
      return;
    }
    ASSERT_EQ(event.tokens.size(), event.content_ids.size() * block_size_);
    uint64_t parent = event.parent_content_id;
    for (size_t i = 0; i < event.content_ids.size(); ++i) {
      const auto begin = event.tokens.begin() + static_cast<std::ptrdiff_t>(i * block_size_);
      const Content content = {
          parent, {begin, begin + static_cast<std::ptrdiff_t>(block_size_)}, parent == 0 ? event.salt : ""};
      const bool is_new = contents_.emplace(event.content_ids[i], content).second;
      EXPECT_TRUE(is_new) << "block " << event.content_ids[i] << " is stored twice";
      parent = event.content_ids[i];
    }
  }

  // Compares it with all blocks of `pool`, which are `num_blocks`.
  void ExpectIs(const BlockPool& pool, int32_t num_blocks) const {
    Contents known;
    for (int32_t id = 0; id < num_blocks; ++id) {
      const KvBlock& block = *pool.block(id);
      if (block.content_id == 0) continue;
      known[block.content_id] = {block.parent_content_id, block.tokens, block.salt};
    }
    EXPECT_TRUE(contents_ == known) << contents_.size() << " are stored by events, the pool knows "
                                    << known.size();
    EXPECT_EQ(pool.counts().num_cached(), static_cast<int64_t>(known.size()));
  }

  const Contents& contents() const { return contents_; }
  int64_t num_events() const { return num_events_; }

 private:
  const size_t block_size_;
  Contents contents_;
  int64_t num_events_ = 0;
};

}  // namespace somnus

#pragma once
// The prefix cache, in each medium, as known to a reader of the cache's events; must agree with the block
// manager.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/block_manager/block_manager.h"

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

  // `may_repeat`: events may come again, as for a reader whose snapshot was taken while the cache changed.
  explicit ReplayedCache(int32_t block_size, bool may_repeat = false)
      : block_size_(static_cast<size_t>(block_size)), may_repeat_(may_repeat) {}

  void Apply(const std::vector<BlockEvent>& events) {
    for (const BlockEvent& event : events) Apply(event);
  }
  void Apply(const BlockEvent& event) {
    ++num_events_;
    if (event.kind == BlockEvent::Kind::kCleared) {
      contents_.clear();
      return;
    }
    Contents& contents = contents_[event.medium];
    if (event.kind == BlockEvent::Kind::kRemoved) {
      for (const uint64_t id : event.content_ids)
        EXPECT_TRUE(contents.erase(id) == 1 || may_repeat_) << "block " << id << " was not stored there";
      return;
    }
    ASSERT_EQ(event.tokens.size(), event.content_ids.size() * block_size_);
    uint64_t parent = event.parent_content_id;
    for (size_t i = 0; i < event.content_ids.size(); ++i) {
      const auto begin = event.tokens.begin() + static_cast<std::ptrdiff_t>(i * block_size_);
      const Content content = {
          parent, {begin, begin + static_cast<std::ptrdiff_t>(block_size_)}, parent == 0 ? event.salt : ""};
      const bool is_new = contents.emplace(event.content_ids[i], content).second;
      EXPECT_TRUE(is_new || may_repeat_) << "block " << event.content_ids[i] << " is stored twice";
      parent = event.content_ids[i];
    }
  }

  // Compares the replayed cache with all blocks of `manager`, `num_blocks` on the device: blocks that can be
  // found there, and in the host tier.
  void ExpectIs(const BlockManager& manager, int32_t num_blocks) const {
    size_t on_device = 0, on_host = 0;
    for (int32_t id = 0; id < num_blocks; ++id) {
      const KvBlock& block = *manager.pool().block(id);
      if (block.content_id == 0) continue;
      ++on_device;
      ExpectHas(CacheMedium::kDevice, block);
    }
    for (const HostPrefixCache::Entry& entry : manager.host().cache().entries()) {
      if (!entry.is_ready) continue;
      ++on_host;
      ExpectHas(CacheMedium::kHost, entry);
    }
    EXPECT_EQ(contents().size(), on_device) << "are stored by events and by the pool";
    EXPECT_EQ(manager.pool().counts().num_cached(), static_cast<int64_t>(on_device));
    EXPECT_EQ(contents(CacheMedium::kHost).size(), on_host) << "are stored by events and in the host tier";
  }

  const Contents& contents(CacheMedium medium = CacheMedium::kDevice) const {
    static const Contents kNone;
    const auto found = contents_.find(medium);
    return found == contents_.end() ? kNone : found->second;
  }
  int64_t num_events() const { return num_events_; }

 private:
  // `block`: a KvBlock or an entry of the host's cache.
  template <typename Block>
  void ExpectHas(CacheMedium medium, const Block& block) const {
    const auto found = contents(medium).find(block.content_id);
    ASSERT_TRUE(found != contents(medium).end()) << "no event has stored block " << block.content_id;
    const auto& [parent, tokens, salt] = found->second;
    EXPECT_TRUE(parent == block.parent_content_id && tokens == block.tokens && salt == block.salt)
        << "block " << block.content_id << " was stored with another content";
  }

  const size_t block_size_;
  bool may_repeat_;
  std::map<CacheMedium, Contents> contents_;
  int64_t num_events_ = 0;
};

}  // namespace somnus

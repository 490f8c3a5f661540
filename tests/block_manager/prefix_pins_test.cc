// Blocks of pinned prefixes are never given to a sequence without the prefix, and the books always add up.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/block_manager/small_blocks.h"

namespace somnus {
namespace {

BlockManagerOptions Options(int32_t num_blocks, int32_t num_host_blocks = 0) {
  BlockManagerOptions options;
  options.num_blocks = num_blocks;
  options.block_size = 4;
  options.watermark = 0;
  options.num_host_blocks = num_host_blocks;
  return options;
}

class PrefixPinsTest : public ::testing::Test {
 protected:
  void Make(int32_t num_blocks, int32_t num_host_blocks = 0) {
    manager_ = std::make_unique<BlockManager>(Options(num_blocks, num_host_blocks));
  }
  // A sequence computes all of `tokens`, and ends.
  void Compute(const std::vector<int32_t>& tokens, const std::string& salt = "") {
    ASSERT_GE(manager_->Allocate(++sequence_, tokens, salt, true, true), 0);
    manager_->Commit(sequence_, tokens, static_cast<int64_t>(tokens.size()));
    manager_->Free(sequence_);
    Check();
  }
  // So often other sequences take the whole cache.
  void Flood(int times = 3) {
    for (int i = 0; i < times; ++i) {
      first_ += 1000;
      Compute(Tokens(4 * manager_->pool().num_free(), first_));
    }
  }
  int32_t CountCached(const std::vector<int32_t>& tokens, const std::string& salt = "") {
    const int32_t cached = manager_->cache().CountCached(1'000'000, tokens, salt);
    manager_->cache().Withdraw(1'000'000);
    return cached;
  }
  int32_t NumHeld(int32_t index = 0) const { return manager_->pins().num_held(index); }
  void Check() const {
    const absl::Status integrity = manager_->CheckIntegrity();
    ASSERT_TRUE(integrity.ok()) << integrity;
  }

  std::unique_ptr<BlockManager> manager_;
  int64_t sequence_ = 0;
  int32_t first_ = 10'000;
};

TEST_F(PrefixPinsTest, WhatIsCachedIsHeldAtOnceAndOutlivesEveryOtherSequence) {
  Make(11);
  const std::vector<int32_t> prompt = Tokens(13);
  Compute(prompt);
  manager_->pins().Add({"a", Tokens(12), ""});
  EXPECT_EQ(NumHeld(), 3);
  EXPECT_EQ(manager_->pool().num_used(), 3);
  EXPECT_EQ(manager_->pins().num_blocks(), 3);
  Flood();
  EXPECT_EQ(CountCached(prompt), 12);
  manager_->pins().Remove("a");
  Check();
  EXPECT_EQ(manager_->pool().num_used(), 0);
  EXPECT_EQ(CountCached(prompt), 12) << "it is cached as any other prompt";
  Flood();
  EXPECT_EQ(CountCached(prompt), 0);
}

TEST_F(PrefixPinsTest, BlocksAreHeldAsTheyBecomeKnown) {
  Make(11);
  manager_->pins().Add({"a", Tokens(12), ""});
  EXPECT_EQ(NumHeld(), 0);
  const std::vector<int32_t> prompt = Tokens(18);
  ASSERT_EQ(manager_->Allocate(1, prompt, "", true, false), 0);
  manager_->Commit(1, prompt, 9);
  EXPECT_EQ(NumHeld(), 2);
  Check();
  manager_->Free(1);
  Flood();
  EXPECT_EQ(CountCached(prompt), 8);
  EXPECT_EQ(NumHeld(), 2) << "nothing is held that nobody has computed";
  Compute(prompt);
  EXPECT_EQ(NumHeld(), 3);
  Flood();
  EXPECT_EQ(CountCached(prompt), 12);
}

TEST_F(PrefixPinsTest, OnlyTheSameTokensAndTheSameSaltAreHeld) {
  Make(20);
  manager_->pins().Add({"salted", Tokens(8), "s"});
  manager_->pins().Add({"plain", Tokens(8), ""});
  std::vector<int32_t> other = Tokens(8);
  other[6] = 99;
  Compute(other);
  EXPECT_EQ(NumHeld(0), 0);
  EXPECT_EQ(NumHeld(1), 1);
  Compute(Tokens(8), "s");
  EXPECT_EQ(NumHeld(0), 2);
  EXPECT_EQ(NumHeld(1), 1);
}

TEST_F(PrefixPinsTest, PinsShareBlocksAndEachKeepsThem) {
  Make(20);
  Compute(Tokens(16));
  manager_->pins().Add({"short", Tokens(8), ""});
  manager_->pins().Add({"long", Tokens(16), ""});
  EXPECT_EQ(NumHeld(0), 2);
  EXPECT_EQ(NumHeld(1), 4);
  EXPECT_EQ(manager_->pins().num_blocks(), 4);
  EXPECT_EQ(manager_->pool().num_used(), 4);
  Check();
  manager_->pins().Remove("long");
  EXPECT_EQ(manager_->pins().size(), 1);
  Flood();
  EXPECT_EQ(CountCached(Tokens(16)), 8);
}

TEST_F(PrefixPinsTest, WhatIsForgottenIsGivenUpAndHeldAgainOnceItIsComputed) {
  Make(20);
  Compute(Tokens(13));
  manager_->pins().Add({"a", Tokens(12), ""});
  manager_->ResetPrefixCache();
  Check();
  EXPECT_EQ(NumHeld(), 0);
  EXPECT_EQ(manager_->pool().num_used(), 0);
  EXPECT_EQ(manager_->pins().releases().forgotten, 1);
  Compute(Tokens(13));
  EXPECT_EQ(NumHeld(), 3);
  manager_->cache().ForgetPrefix(Tokens(8), "");
  Check();
  EXPECT_EQ(NumHeld(), 0) << "no chain leads to the third block any more";
  EXPECT_EQ(manager_->pins().releases().forgotten, 2);
  Compute(Tokens(13));
  EXPECT_EQ(NumHeld(), 3);
  manager_->ResetPrefixCache();
  manager_->pins().Remove("a");
  Check();
  EXPECT_EQ(manager_->pins().size(), 0);
}

TEST_F(PrefixPinsTest, AResetWhileASequenceUsesTheBlocksLeavesThemToIt) {
  Make(20);
  manager_->pins().Add({"a", Tokens(12), ""});
  ASSERT_EQ(manager_->Allocate(1, Tokens(13), "", true, false), 0);
  manager_->Commit(1, Tokens(13), 13);
  EXPECT_EQ(NumHeld(), 3);
  manager_->ResetPrefixCache();
  Check();
  EXPECT_EQ(NumHeld(), 0);
  EXPECT_EQ(manager_->pool().num_used(), 4);
  manager_->Free(1);
  Check();
  EXPECT_EQ(manager_->pool().num_cached(), 0);
}

TEST_F(PrefixPinsTest, ASmallerCacheTakesTheBlocksBeyondItsEnd) {
  Make(20);
  Compute(Tokens(40));  // blocks 1 to 10
  manager_->pins().Add({"a", Tokens(40), ""});
  EXPECT_EQ(manager_->EndOfUsed(), 11);
  manager_->SetLimit(7);
  Check();
  EXPECT_EQ(NumHeld(), 6);
  EXPECT_EQ(manager_->EndOfUsed(), 7);
  EXPECT_EQ(manager_->pins().releases().shrunk, 1);
  EXPECT_EQ(manager_->pins().releases().forgotten, 0);
}

TEST_F(PrefixPinsTest, ThePinThatWasAddedLastGivesWayFirst) {
  Make(13);
  Compute(Tokens(12));
  Compute(Tokens(12, 100));
  manager_->pins().Add({"a", Tokens(12), ""});
  manager_->pins().Add({"b", Tokens(12, 100), ""});
  EXPECT_EQ(manager_->pool().num_free(), 6);
  EXPECT_EQ(manager_->pins().GiveWay(2), 1);
  EXPECT_EQ(NumHeld(0), 3);
  EXPECT_EQ(NumHeld(1), 0);
  EXPECT_EQ(manager_->pool().num_free(), 9);
  EXPECT_EQ(manager_->pins().GiveWay(1), 0);
  EXPECT_EQ(manager_->pins().GiveWay(2), -1) << "nothing is left to give";
  EXPECT_EQ(manager_->pins().releases().no_blocks, 2);
  Check();
  // The contents are still cached: a sequence that adopts the contents lets the pin hold the blocks again.
  ASSERT_EQ(manager_->Allocate(1, Tokens(13, 100), "", true, false), 12);
  EXPECT_EQ(NumHeld(0), 0);
  EXPECT_EQ(NumHeld(1), 3);
  Check();
}

TEST_F(PrefixPinsTest, APinWhoseBlocksASequenceUsesHasNothingToGive) {
  Make(13);
  Compute(Tokens(13));
  manager_->pins().Add({"a", Tokens(12), ""});
  manager_->pins().Add({"the same", Tokens(12), ""});
  ASSERT_EQ(manager_->Allocate(1, Tokens(13), "", true, false), 12);
  EXPECT_EQ(manager_->pins().GiveWay(2), -1);
  manager_->Free(1);
  EXPECT_EQ(manager_->pins().GiveWay(2), 1) << "only pins hold them";
  EXPECT_EQ(manager_->pins().GiveWay(1), 0);
  EXPECT_EQ(manager_->pool().num_used(), 0);
}

TEST_F(PrefixPinsTest, PinnedBlocksAreKeptBeforeOtherCachedOnes) {
  Make(20, /*num_host_blocks=*/4);
  Compute(Tokens(13));
  manager_->pins().Add({"a", Tokens(12), ""});
  Compute(Tokens(16, 100));
  EXPECT_TRUE(manager_->kept().Choose({}).empty());
  std::set<int32_t> kept;
  for (const KeptBlock& block : manager_->kept().blocks()) kept.insert(block.device_block);
  EXPECT_TRUE(kept.contains(1) && kept.contains(2) && kept.contains(3));
  EXPECT_EQ(kept.size(), 4u);
  manager_->kept().ForgetOthers();
  manager_->kept().Release();
  Check();
  EXPECT_EQ(NumHeld(), 3);
  EXPECT_EQ(CountCached(Tokens(13)), 12);
}

TEST_F(PrefixPinsTest, OfAPinWithoutRoomInTheHostTierTheBeginningIsKept) {
  Make(20, /*num_host_blocks=*/2);
  Compute(Tokens(13));
  manager_->pins().Add({"a", Tokens(12), ""});
  manager_->kept().Choose({}, {.cached_blocks = false});
  EXPECT_EQ(manager_->kept().blocks().size(), 2u);
  manager_->kept().ForgetOthers();
  manager_->kept().Release();
  Check();
  EXPECT_EQ(NumHeld(), 2);
}

TEST_F(PrefixPinsTest, WithoutAPrefixCacheNothingIsHeld) {
  BlockManagerOptions options = Options(20);
  options.enable_prefix_caching = false;
  manager_ = std::make_unique<BlockManager>(options);
  manager_->pins().Add({"a", Tokens(12), ""});
  Compute(Tokens(13));
  EXPECT_EQ(NumHeld(), 0);
}

// Few prompts that begin alike, little memory, and everything that can happen to a block.
class RandomRun {
 public:
  explicit RandomRun(uint32_t seed)
      : random_(seed), num_blocks_(8 + Below(40)), manager_(Options(num_blocks_, Below(12))) {}

  void Step() {
    auto it = live_.begin();
    if (!live_.empty()) std::advance(it, Below(static_cast<int32_t>(live_.size())));
    const int32_t operation = Below(14);
    if (operation <= 3) return Arrive();
    if (operation == 4) return Pin();
    if (operation == 5) return Unpin();
    if (operation == 6) return Disturb();
    if (live_.empty()) return;
    if (operation <= 8) {
      manager_.Free(it->first);
      live_.erase(it);
    } else if (operation == 9) {
      std::vector<int32_t> ids;
      it->second.tokens.push_back(Below(3));
      if (!manager_.Grow(it->first, static_cast<int64_t>(it->second.tokens.size()), &ids))
        it->second.tokens.pop_back();
    } else if (operation <= 12) {
      const auto size = static_cast<int64_t>(it->second.tokens.size());
      manager_.Commit(it->first, it->second.tokens, Below(static_cast<int32_t>(size) + 1));
    } else if (live_.size() == 1) {
      manager_.pins().GiveWay(manager_.pins().size());
    } else {
      manager_.cache().ForgetPrefix(it->second.tokens, it->second.salt);
    }
  }
  absl::Status Check() const { return manager_.CheckIntegrity(); }
  int64_t num_held() const { return manager_.pins().num_blocks(); }
  const PinReleases& releases() const { return manager_.pins().releases(); }

 private:
  struct Live {
    std::vector<int32_t> tokens;
    std::string salt;
  };
  int32_t Below(int32_t bound) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(bound)); }
  std::string SomeSalt() { return Below(4) == 0 ? "s" : ""; }

  void Arrive() {
    Live live{Tokens(1 + Below(40), 100 * Below(3)), SomeSalt()};
    if (manager_.Allocate(next_, live.tokens, live.salt, Below(5) != 0, live_.empty()) >= 0)
      live_[next_++] = std::move(live);
  }
  void Pin() {
    if (pins_.size() == 6) return;
    const std::string id = std::to_string(next_pin_++);
    manager_.pins().Add({id, Tokens(4 * (1 + Below(4)), 100 * Below(3)), SomeSalt()});
    pins_.push_back(id);
  }
  void Unpin() {
    if (pins_.empty()) return;
    const auto pin = pins_.begin() + Below(static_cast<int32_t>(pins_.size()));
    manager_.pins().Remove(*pin);
    pins_.erase(pin);
  }
  void Disturb() {
    switch (Below(12)) {
      case 0:
        return manager_.ResetPrefixCache();
      case 1:
        manager_.SetLimit(2 + Below(num_blocks_ - 1));
        return manager_.SetLimit(num_blocks_);
      case 2: {
        while (!live_.empty()) {
          manager_.Free(live_.begin()->first);
          live_.erase(live_.begin());
        }
        manager_.kept().Choose({}, {.cached_blocks = Below(2) == 0});
        manager_.kept().ForgetOthers();
        return manager_.kept().Release();
      }
      default:
        return;
    }
  }

  std::mt19937 random_;
  const int32_t num_blocks_;
  BlockManager manager_;
  std::map<int64_t, Live> live_;
  std::vector<std::string> pins_;
  int64_t next_ = 1;
  int next_pin_ = 0;
};

TEST(PrefixPinsRandomTest, TheBooksAddUpAfterEveryStep) {
  int64_t held = 0;
  PinReleases releases;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    RandomRun run(seed);
    for (int step = 0; step < 1000; ++step) {
      run.Step();
      const absl::Status integrity = run.Check();
      ASSERT_TRUE(integrity.ok()) << integrity << " seed " << seed << " step " << step;
      held += run.num_held();
    }
    releases.Add(run.releases());
  }
  EXPECT_GT(held, 10'000);
  EXPECT_GT(releases.no_blocks, 20);
  EXPECT_GT(releases.forgotten, 100);
  EXPECT_GT(releases.shrunk, 20);
}

}  // namespace
}  // namespace somnus

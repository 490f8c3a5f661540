// Flags about the KV cache and the host tier.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/flags/flags.h"

namespace somnus {
namespace {

TEST(CacheFlagsTest, TheHostTierOfTheKvCache) {
  constexpr int64_t kGib = int64_t{1} << 30;
  const auto defaults = ParseFlags({"m"});
  ASSERT_TRUE(defaults.ok());
  EXPECT_FALSE(KeepsKvOnSleep(*defaults));
  EXPECT_EQ(defaults->swap_space_bytes, 4 * kGib);
  EXPECT_TRUE(KeepsKvOnSleep(*ParseFlags({"m", "--keep-kv-on-sleep"})));
  const std::pair<const char*, int64_t> sizes[] = {
      {"8", 8 * kGib},       {"0.5", kGib / 2},        {"0", 0},
      {"512MiB", 512 << 20}, {"8589934592", 8 * kGib}, {"2GB", 2'000'000'000}};
  for (const auto& [text, bytes] : sizes)
    EXPECT_EQ(ParseFlags({"m", absl::StrCat("--swap-space=", text)})->swap_space_bytes, bytes) << text;
  for (const char* text : {"-1", "much", "", "nan"}) {
    const absl::Status status = ParseFlags({"m", absl::StrCat("--swap-space=", text)}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
  }
}

TEST(CacheFlagsTest, PreemptionBySwapNeedsRoomThatNobodyElseCountsOn) {
  const auto defaults = ParseFlags({"m"});
  EXPECT_EQ(defaults->engine.scheduler.preemption, PreemptionMode::kAuto);
  EXPECT_TRUE(MaySwap(*defaults));
  EXPECT_FALSE(MaySwap(*ParseFlags({"m", "--preemption=recompute"})));
  EXPECT_FALSE(MaySwap(*ParseFlags({"m", "--swap-space=0"})));
  const std::vector<std::string> models = {"--model=a=x", "--model=b=y", "--host-memory-budget=1GiB"};
  EXPECT_FALSE(MaySwap(*ParseFlags(models)));
  std::vector<std::string> swapping = models;
  swapping.push_back("--preemption=swap");
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags(swapping).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", "--preemption=swap", "--swap-space=0"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", "--preemption=discard"}).status()));
}

TEST(CacheFlagsTest, CachedPrefixesInHostMemoryNeedTheSameRoom) {
  EXPECT_FALSE(CachesOnHost(*ParseFlags({"m"}))) << "it takes host memory, and is asked for";
  const std::string on = "--prefix-cache-on-host=on";
  EXPECT_TRUE(CachesOnHost(*ParseFlags({"m", on})));
  EXPECT_TRUE(CachesOnHost(*ParseFlags({"m", "--prefix-cache-on-host=auto", "--preemption=recompute"})));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", on, "--swap-space=0"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", on, "--no-enable-prefix-caching"}).status()));
  const std::vector<std::string> models = {"--model=a=x", "--model=b=y", "--host-memory-budget=1GiB", on};
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags(models).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", "--prefix-cache-step-blocks=0"}).status()));
}

}  // namespace
}  // namespace somnus

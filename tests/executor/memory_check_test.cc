// How much memory each rank lacks before a wake-up maps anything, and ranks and replicas together.

#include "coordinator/executor/memory_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "proto/missing_memory.h"

namespace somnus {
namespace {

using Lines = std::vector<std::string>;

Lines MissingLines(const absl::Status& status) {
  Lines lines;
  const v1::MissingMemory lacking = MissingOf(status);
  for (const v1::MissingMemory::Shortage& one : lacking.shortages()) {
    lines.push_back(absl::StrCat("replica ", one.replica(), " rank ", one.rank(), " ", one.tag(), " ",
                                 one.memory(), " ", one.missing_bytes(), " of ", one.needed_bytes()));
  }
  return lines;
}

absl::Status Lacking(const std::string& message, int32_t rank, const std::string& tag) {
  v1::MissingMemory missing;
  v1::MissingMemory::Shortage* shortage = missing.add_shortages();
  shortage->set_rank(rank);
  shortage->set_tag(tag);
  shortage->set_needed_bytes(9);
  shortage->set_missing_bytes(4);
  shortage->set_memory("host");
  return WithMissing(absl::ResourceExhaustedError(message), missing);
}

TEST(MemoryCheckTest, RanksOfAHostShareOneAccountAndLackInProportionToWhatTheyNeed) {
  const absl::Status status = CheckMemory({{"rank 0", "host a", {{"kv_cache", 60}, {"weights", 30}}, 100},
                                           {"rank 1", "host b", {{"kv_cache", 60}, {"weights", 30}}, 90},
                                           {"rank 2", "host a", {{"kv_cache", 30}}, 102}});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(
      status.message(),
      "rank 0 needs 60 bytes for kv_cache, 30 bytes for weights; rank 2 needs 30 bytes for kv_cache: 100 "
      "available, 20 missing");
  EXPECT_EQ(MissingLines(status),
            (Lines{"replica 0 rank 0 kv_cache device 10 of 60", "replica 0 rank 0 weights device 5 of 30",
                   "replica 0 rank 2 kv_cache device 5 of 30"}));
}

TEST(MemoryCheckTest, WhatSufficesOrIsNotNeededLacksNothing) {
  EXPECT_TRUE(CheckMemory({}).ok());
  EXPECT_TRUE(
      CheckMemory({{"rank 0", "a", {{"weights", 50}}, 100}, {"rank 1", "a", {{"weights", 50}}, 100}}).ok());
  EXPECT_TRUE(CheckMemory({{"rank 0", "a", {{"weights", 50}}, 50}, {"rank 1", "a", {}, 0}}).ok())
      << "what a rank sees that needs nothing does not count";
}

TEST(MemoryCheckTest, EveryAccountThatDoesNotSufficeIsNamed) {
  const absl::Status status =
      CheckMemory({{"rank 0", "a", {{"weights", 5}}, 3}, {"rank 1", "b", {{"weights", 5}}, -7}});
  EXPECT_EQ(MissingLines(status),
            (Lines{"replica 0 rank 0 weights device 2 of 5", "replica 0 rank 1 weights device 5 of 5"}));
  EXPECT_EQ(status.message(),
            "rank 0 needs 5 bytes for weights: 3 available, 2 missing; rank 1 needs 5 bytes for weights: 0 "
            "available, 5 missing");
}

TEST(MemoryCheckTest, ReplicasOfAHostShareItsAccountAndAGpuIsItsRanksOwn) {
  const absl::Status status = CheckMemoryOfReplicas(
      {{{"rank 0", "host a", {{"weights", 60}}, 100}},
       {},
       {{"rank 0", "host b", {{"weights", 60}}, 100}, {"rank 1", "host a", {{"weights", 60}}, 100}}});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(MissingLines(status),
            (Lines{"replica 0 rank 0 weights device 10 of 60", "replica 2 rank 1 weights device 10 of 60"}));
  EXPECT_EQ(status.message(),
            "replica 0 rank 0 needs 60 bytes for weights; replica 2 rank 1 needs 60 bytes for weights: 100 "
            "available, 20 missing");
  const std::vector<RankNeed> of_gpu = {{"rank 0", "rank 0", {{"weights", 60}}, 100}};
  EXPECT_TRUE(CheckMemoryOfReplicas({of_gpu, of_gpu}).ok());
}

TEST(MemoryCheckTest, ThePartsAddUpToTheWhole) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<RankNeed> ranks;
    int64_t needed = 0;
    for (uint64_t rank = 0; rank <= random() % 5; ++rank) {
      ranks.push_back({.name = "r", .account = "a", .bytes_by_tag = {}, .available_bytes = 0});
      for (const char* tag : {"kv_cache", "weights", "workspace"}) {
        const auto bytes = static_cast<int64_t>(random() % (int64_t{1} << (random() % 50)));
        ranks.back().bytes_by_tag[tag] = bytes;
        needed += bytes;
      }
    }
    if (needed == 0) continue;
    const auto available = static_cast<int64_t>(random() % static_cast<uint64_t>(needed));
    for (RankNeed& rank : ranks) rank.available_bytes = available;
    int64_t missing = 0;
    const v1::MissingMemory lacking = MissingOf(CheckMemory(ranks));
    for (const v1::MissingMemory::Shortage& one : lacking.shortages()) {
      EXPECT_EQ(one.needed_bytes(), ranks[one.rank()].bytes_by_tag[one.tag()]);
      EXPECT_GT(one.missing_bytes(), 0);
      EXPECT_LE(one.missing_bytes(), one.needed_bytes());
      missing += one.missing_bytes();
    }
    EXPECT_EQ(missing, needed - available);
  }
}

TEST(MemoryCheckTest, AnErrorSaysWhatAllRanksLack) {
  const absl::Status first = Lacking("rank 0: no", 0, "weights"),
                     second = Lacking("rank 2: no", 2, "kv_cache");
  const absl::Status all =
      WithMissingOfAll(first, {first, absl::OkStatus(), second, absl::CancelledError("x")});
  EXPECT_TRUE(absl::IsResourceExhausted(all));
  EXPECT_EQ(all.message(), "rank 0: no; rank 2: no");
  EXPECT_EQ(MissingLines(all),
            (Lines{"replica 0 rank 0 weights host 4 of 9", "replica 0 rank 2 kv_cache host 4 of 9"}));
  const absl::Status lost = absl::UnavailableError("rank 1 was lost");
  EXPECT_EQ(WithMissingOfAll(lost, {first, lost}), lost) << "another error is what has to be known";
  EXPECT_TRUE(WithMissingOfAll(absl::OkStatus(), {absl::OkStatus()}).ok());
}

TEST(MemoryCheckTest, WhatAReplicaLacksHasItsNumber) {
  const absl::Status status = OfReplica(3, Lacking("rank 1: no", 1, "weights"));
  EXPECT_EQ(status.message(), "replica 3: rank 1: no");
  EXPECT_EQ(MissingLines(status), (Lines{"replica 3 rank 1 weights host 4 of 9"}));
  EXPECT_EQ(OfReplica(1, absl::InternalError("no")), absl::InternalError("replica 1: no"));
}

}  // namespace
}  // namespace somnus

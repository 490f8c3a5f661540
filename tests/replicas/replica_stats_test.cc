// The snapshot of several replicas: every member of EngineStats has a rule, and the sum forgets no member.

#include "coordinator/replicas/replica_stats.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

namespace somnus {
namespace {

// The numbers of a snapshot that the rule of the sum is for, in a fixed order.
//
// Each structured binding names every member of a struct: a new member does not compile until the binding has
// the name. A number that is summed belongs to the list below the binding, and any other member to the test
// of the member's rule; the table of rules is in replica_stats.h.
class SummedNumbers {
 public:
  explicit SummedNumbers(EngineStats* stats) {
    auto& [state, sleep_level, residency, weights_version, weights_source, only_copy, needs_weights, paused,
           resident_bytes, host_bytes, sleeping_bytes, error, wake_up_error, note, may_revive,
           gave_up_stale_weights, call_stalls, stall, stalled_since, request_wakes, awaits_room_of,
           model_flag, num_running, num_waiting, total_blocks, free_blocks, used_blocks, block_size,
           mapped_blocks, longest_blocks, max_blocks, waiting_tokens, oldest_wait, num_preemptions,
           preemptions, swaps, prompt_tokens, forked_prompt_tokens, generation_tokens, corrupted_requests,
           copied_blocks, watermark_refusals, num_first_scheduled, queue_time, prefix_cache_queries,
           prefix_cache_hits, prefix_cache_misses, cached_blocks, speculation, num_forks, total_host_blocks,
           used_host_blocks, cached_host_blocks, keepable_bytes, pinned_blocks, pin_releases, num_cache_grows,
           num_cache_shrinks, given_back_blocks, kept_blocks, kept_tokens, num_steps, decode_step_time,
           num_recoveries, group_epoch, num_moved, lifecycle_call, num_auto_sleeps, num_auto_wake_ups,
           replicas] = *stats;
    AddAll(&resident_bytes, &host_bytes, &sleeping_bytes, &num_running, &num_waiting, &total_blocks,
           &free_blocks, &used_blocks, &mapped_blocks, &longest_blocks, &max_blocks, &waiting_tokens,
           &num_preemptions, &preemptions, &swaps, &prompt_tokens, &forked_prompt_tokens, &generation_tokens,
           &corrupted_requests, &copied_blocks, &watermark_refusals, &num_first_scheduled, &queue_time,
           &prefix_cache_queries, &prefix_cache_hits, &prefix_cache_misses, &cached_blocks, &speculation,
           &num_forks, &total_host_blocks, &used_host_blocks, &cached_host_blocks, &keepable_bytes,
           &pinned_blocks, &pin_releases, &num_cache_grows, &num_cache_shrinks, &given_back_blocks,
           &kept_blocks, &kept_tokens, &num_steps, &num_recoveries);
  }

  size_t size() const { return numbers_.size(); }
  int64_t get(size_t i) const { return numbers_[i].get(); }
  void set(size_t i, int64_t value) { numbers_[i].set(value); }

 private:
  struct Number {
    std::function<int64_t()> get;
    std::function<void(int64_t)> set;
  };

  template <typename... Members>
  void AddAll(Members*... members) {
    (Add(members), ...);
  }
  template <typename Integer>
  void AddInteger(Integer* number) {
    numbers_.push_back(
        {[=] { return *number; }, [=](int64_t value) { *number = static_cast<Integer>(value); }});
  }
  void Add(int32_t* number) { AddInteger(number); }
  void Add(int64_t* number) { AddInteger(number); }
  void Add(absl::Duration* time) {
    numbers_.push_back(
        {[=] { return absl::ToInt64Seconds(*time); }, [=](int64_t value) { *time = absl::Seconds(value); }});
  }
  void Add(TagBytes* bytes) {
    for (const char* tag : {"weights", "kv_cache"}) Add(&(*bytes)[tag]);
  }
  template <size_t N>
  void Add(std::array<int64_t, N>* numbers) {
    for (int64_t& number : *numbers) Add(&number);
  }
  void Add(PreemptionCounts* counts) {
    auto& [by_swap, by_recompute] = *counts;
    AddAll(&by_swap, &by_recompute);
  }
  void Add(SwapCounts* counts) {
    auto& [out_blocks, in_blocks, in_tokens, stored_blocks, evicted_blocks, host_hit_tokens,
           host_query_tokens, refusals, obstacles] = *counts;
    AddAll(&out_blocks, &in_blocks, &in_tokens, &stored_blocks, &evicted_blocks, &host_hit_tokens,
           &host_query_tokens, &refusals, &obstacles);
  }
  void Add(CacheMissCounts* counts) {
    auto& [tokens] = *counts;
    Add(&tokens);
  }
  void Add(CacheBlockCounts* counts) {
    auto& [stored, lost] = *counts;
    AddAll(&stored, &lost);
  }
  void Add(SpeculationCounts* counts) {
    auto& [num_drafts, num_draft_tokens, num_accepted_tokens, per_pos] = *counts;
    per_pos.resize(3);
    AddAll(&num_drafts, &num_draft_tokens, &num_accepted_tokens);
    for (int64_t& number : per_pos) Add(&number);
  }
  void Add(PinReleases* releases) {
    auto& [no_blocks, forgotten, shrunk] = *releases;
    AddAll(&no_blocks, &forgotten, &shrunk);
  }

  std::vector<Number> numbers_;
};

const absl::Time kSince = absl::UnixEpoch() + absl::Hours(5);

EngineStats Awake() {
  EngineStats stats{.state = EngineState::kAwake};
  return stats;
}

EngineStats Failed(const std::string& error) {
  EngineStats stats{.state = EngineState::kFailed, .error = error};
  return stats;
}

EngineStats Sum(const std::vector<EngineStats>& replicas, EngineState state = EngineState::kAwake) {
  return SumOfReplicas(replicas, state, kSince);
}

TEST(ReplicaStatsTest, EveryCounterIsSummed) {
  EngineStats one = Awake();
  SummedNumbers numbers(&one);
  for (size_t i = 0; i < numbers.size(); ++i) numbers.set(i, static_cast<int64_t>(i) + 1);
  EngineStats sum = Sum({one, one});
  const SummedNumbers sums(&sum);
  ASSERT_EQ(sums.size(), numbers.size());
  for (size_t i = 0; i < sums.size(); ++i)
    EXPECT_EQ(sums.get(i), 2 * (static_cast<int64_t>(i) + 1)) << "number " << i << " of SummedNumbers";
}

TEST(ReplicaStatsTest, TheLargestCounts) {
  EngineStats one = Awake(), two = Awake();
  one.decode_step_time = absl::Milliseconds(7);
  two.decode_step_time = absl::Milliseconds(3);
  one.group_epoch = 2;
  two.group_epoch = 5;
  one.block_size = two.block_size = 16;
  const EngineStats sum = Sum({one, two});
  EXPECT_EQ(sum.decode_step_time, absl::Milliseconds(7));
  EXPECT_EQ(sum.group_epoch, 5);
  EXPECT_EQ(sum.block_size, 16);
}

// Memory and weights are counted at the replicas that can serve; a failed replica has neither.
TEST(ReplicaStatsTest, AFailedReplicaSaysNothingOfMemoryAndWeights) {
  EngineStats one = Awake(), two = Awake(), failed = Failed("lost");
  one.sleep_level = 2;
  one.residency.Slept({2, {}});
  two.sleep_level = 1;
  two.residency.Slept({1, {}});
  one.weights_version = 3;
  one.weights_source = "new";
  two.weights_version = 2;
  two.weights_source = "old";
  two.only_copy = true;
  one.needs_weights = true;
  one.paused = two.paused = true;
  one.gave_up_stale_weights = two.gave_up_stale_weights = true;
  failed.weights_version = 9;
  failed.weights_source = "lost";
  const EngineStats sum = Sum({one, two, failed});
  EXPECT_EQ(sum.state, EngineState::kAwake);
  EXPECT_EQ(sum.sleep_level, 1);
  EXPECT_EQ(sum.residency.level(), two.residency.level());
  EXPECT_EQ(sum.weights_version, 3);
  EXPECT_EQ(sum.weights_source, "new");
  EXPECT_TRUE(sum.only_copy);
  EXPECT_TRUE(sum.needs_weights);
  EXPECT_TRUE(sum.paused);
  EXPECT_TRUE(sum.gave_up_stale_weights);
  EXPECT_EQ(sum.error, "") << "the engine has not failed";

  two.paused = two.gave_up_stale_weights = false;
  failed.only_copy = failed.needs_weights = true;
  two.only_copy = one.needs_weights = false;
  const EngineStats others = Sum({one, two, failed});
  EXPECT_FALSE(others.only_copy);
  EXPECT_FALSE(others.needs_weights);
  EXPECT_FALSE(others.paused);
  EXPECT_FALSE(others.gave_up_stale_weights);
}

TEST(ReplicaStatsTest, AnEngineFailsWithTheErrorsOfAllReplicas) {
  EngineStats one = Failed("lost"), two = Failed("out of memory");
  two.may_revive = true;
  for (const EngineState state : {EngineState::kFailed, EngineState::kRecovering}) {
    const EngineStats sum = Sum({one, two}, state);
    EXPECT_EQ(sum.sleep_level, 0) << "also a moment before the engine's own state changes";
    EXPECT_FALSE(sum.paused);
    EXPECT_FALSE(sum.gave_up_stale_weights);
    EXPECT_TRUE(sum.may_revive);
  }
  EXPECT_EQ(Sum({one, two}, EngineState::kFailed).error, "replica 0: lost; replica 1: out of memory");
}

TEST(ReplicaStatsTest, TheReasonsAreThoseOfAReplicaInTheEnginesState) {
  EngineStats one = Awake(), two = Awake();
  one.state = EngineState::kRecovering;
  one.note = {.since = kSince + absl::Hours(1), .why = "a rank was lost"};
  two.note = {.since = kSince + absl::Hours(2), .why = "an operator has woken it"};
  two.lifecycle_call = {.name = "sleep", .client = "somebody"};
  const EngineStats sum = Sum({one, two});
  EXPECT_EQ(sum.note.why, "an operator has woken it");
  EXPECT_EQ(sum.note.since, kSince);
  EXPECT_EQ(sum.lifecycle_call.name, "sleep");
  EXPECT_EQ(sum.lifecycle_call.client, "somebody");
  EXPECT_EQ(Sum({one, Awake()}).note.why, "a rank was lost");
}

TEST(ReplicaStatsTest, AnEngineStallsOnceNoReplicaServes) {
  EngineStats stalled = Awake();
  stalled.stall = absl::UnavailableError("rank 1 hangs");
  stalled.call_stalls = true;
  stalled.stalled_since = kSince + absl::Minutes(1);
  EXPECT_TRUE(Sum({stalled, Awake()}).stall.ok());
  const EngineStats sum = Sum({stalled, Failed("lost")});
  EXPECT_EQ(sum.stall, stalled.stall);
  EXPECT_TRUE(sum.call_stalls);
  EXPECT_EQ(sum.stalled_since, stalled.stalled_since);
  const EngineStats none = Sum({Failed("lost"), Failed("lost")});
  EXPECT_FALSE(none.stall.ok()) << "the engine was awake a moment ago";
  EXPECT_EQ(none.stalled_since, kSince);
}

TEST(ReplicaStatsTest, EachReplicaIsListed) {
  EngineStats one = Awake();
  one.num_running = 1;
  one.num_waiting = 2;
  one.num_recoveries = 3;
  one.group_epoch = 4;
  const EngineStats sum = Sum({one, Failed("lost")});
  ASSERT_EQ(sum.replicas.size(), 2u);
  const auto& [state, error, num_running, num_waiting, num_requests, num_recoveries, group_epoch] =
      sum.replicas[0];
  EXPECT_EQ(state, EngineState::kAwake);
  EXPECT_EQ(error, "");
  EXPECT_EQ(num_running, 1);
  EXPECT_EQ(num_waiting, 2);
  EXPECT_EQ(num_requests, 0) << "the queue knows";
  EXPECT_EQ(num_recoveries, 3);
  EXPECT_EQ(group_epoch, 4);
  EXPECT_EQ(sum.replicas[1].error, "lost");
}

// The set itself, or an engine around the set, knows the rest.
TEST(ReplicaStatsTest, WhatNoReplicaKnowsStaysEmpty) {
  EngineStats one = Awake();
  one.wake_up_error = one.awaits_room_of = one.model_flag = "a replica's";
  one.request_wakes = true;
  one.oldest_wait = absl::Seconds(1);
  one.num_moved = one.num_auto_sleeps = one.num_auto_wake_ups = 1;
  const EngineStats sum = Sum({one, one});
  EXPECT_EQ(sum.wake_up_error + sum.awaits_room_of + sum.model_flag, "");
  EXPECT_FALSE(sum.request_wakes);
  EXPECT_EQ(sum.oldest_wait, absl::ZeroDuration());
  EXPECT_EQ(sum.num_moved + sum.num_auto_sleeps + sum.num_auto_wake_ups, 0);
}

}  // namespace
}  // namespace somnus

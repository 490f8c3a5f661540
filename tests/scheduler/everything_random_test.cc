// All at once: requests of every kind arrive in one load and are disturbed in every way that there is, with
// plenty of memory and with little. The answers are exact at the end, and after every step all books add up
// (Harness::Check).

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "coordinator/scheduler/request_check.h"
#include "tests/scheduler/fake_drafter.h"
#include "tests/scheduler/reference_beams.h"

namespace somnus {
namespace {

// The events of all loads, so that no kind of event stays away unnoticed.
struct Totals {
  int64_t steps = 0, given_back = 0, preemptions = 0, recomputed = 0, swapped_in = 0, host_hits = 0,
          forks = 0, branches = 0, accepted = 0, accepted_of_workers = 0, wrong = 0, salted_hits = 0,
          pinned = 0, aborts = 0, losses = 0, sleeps = 0, deep_sleeps = 0, losses_asleep = 0, abandoned = 0,
          resets = 0, refused_swaps = 0, arrived = 0, refused = 0, logprobs = 0, prompt_logprobs = 0,
          penalized = 0, bounded_steps = 0;
  PinReleases pin_releases;
};

// In so many blocks any request has room, beams of the largest width too.
constexpr int32_t kRoomForAny = 66;

class RandomRun {
 public:
  RandomRun(uint32_t seed, size_t depth)
      : random_(seed),
        options_(Options()),
        harness_(options_, depth, /*nan_token=*/-1, /*wrong_period=*/3 + Below(17)) {}

  void Run() {
    for (int i = 0; i < 400; ++i) {
      if (Below(7) == 0) Arrive(std::to_string(i));
      if (Below(10) == 0) ChangePins(std::to_string(i));
      Disturb();
      harness_.Step();
      if (::testing::Test::HasFatalFailure()) return;
    }
    harness_.worker.RefuseSwaps(false);
    harness_.RunToEnd();
  }

  void ExpectExact() const {
    EXPECT_FALSE(harness_.scheduler.has_sequences());
    const BlockManager& blocks = harness_.scheduler.blocks();
    EXPECT_EQ(blocks.pool().num_used(), blocks.pins().num_blocks());
    EXPECT_EQ(blocks.host().pool().num_used(), blocks.host().cache().size());
    for (const v1::StepRequest& step : harness_.steps)
      ASSERT_TRUE(step.swap_outs().empty() || step.swap_ins().empty());
    for (const auto& [id, request] : requests_) {
      if (aborted_.contains(id)) continue;
      if (request.sampling->beam_search.has_value()) {
        ExpectExactAnswer(request, harness_);
        continue;
      }
      ASSERT_TRUE(harness_.answers.contains(id)) << id;
      const Answer& answer = harness_.answers.at(id);
      ASSERT_TRUE(answer.error.ok()) << id << ": " << answer.error;
      ASSERT_EQ(answer.tokens, ReferenceUntilItStops(request)) << id;
      if (request.sampling->num_prompt_logprobs >= 0) {
        ASSERT_EQ(answer.prompt_logprobs.size(), request.prompt.size()) << id;
      }
      if (request.sampling->num_logprobs >= 0) {
        ASSERT_EQ(answer.logprobs.size(), answer.tokens.size()) << id;
      }
    }
  }

  void AddTo(Totals* totals) const {
    const Scheduler& scheduler = harness_.scheduler;
    totals->steps += static_cast<int64_t>(harness_.steps.size());
    totals->given_back += scheduler.stats().given_back_blocks;
    totals->preemptions += scheduler.stats().num_preemptions();
    totals->recomputed += scheduler.stats().preemptions.by_recompute[0];
    totals->swapped_in += scheduler.stats().swaps.in_tokens;
    totals->host_hits += scheduler.stats().swaps.host_hit_tokens;
    totals->forks += scheduler.stats().num_forks;
    for (const v1::StepRequest& step : harness_.steps) totals->branches += step.branches_size();
    (options_.speculation.asks_workers ? totals->accepted_of_workers : totals->accepted) +=
        scheduler.speculation().num_accepted_tokens;
    totals->wrong += scheduler.speculation().num_draft_tokens - scheduler.speculation().num_accepted_tokens;
    for (const auto& [id, request] : requests_) {
      const auto answer = harness_.answers.find(id);
      if (!request.cache_salt.empty() && answer != harness_.answers.end())
        totals->salted_hits += answer->second.num_cached;
      if (answer == harness_.answers.end() || request.sampling->beam_search.has_value()) continue;
      totals->logprobs += static_cast<int64_t>(answer->second.logprobs.size());
      totals->prompt_logprobs += static_cast<int64_t>(answer->second.prompt_logprobs.size());
      if (request.sampling->repetition_penalty != 1)
        totals->penalized += static_cast<int64_t>(answer->second.tokens.size());
    }
    if (has_few_step_bytes()) totals->bounded_steps += static_cast<int64_t>(harness_.steps.size());
    totals->pinned += num_pinned_;
    totals->pin_releases.Add(scheduler.blocks().pins().releases());
    totals->aborts += static_cast<int64_t>(aborted_.size());
    totals->losses += num_losses_;
    totals->sleeps += num_sleeps_;
    totals->deep_sleeps += num_deep_sleeps_;
    totals->losses_asleep += num_losses_asleep_;
    totals->abandoned += num_abandoned_;
    totals->resets += num_resets_;
    totals->refused_swaps += scheduler.stats().swaps.refusals;
    totals->arrived += num_arrived_;
    totals->refused += num_refused_;
  }

 private:
  int32_t Below(uint32_t bound) { return static_cast<int32_t>(random_() % bound); }
  bool has_few_step_bytes() const { return options_.step_bytes < SchedulerOptions().step_bytes; }
  std::string Salt() { return Below(4) == 0 ? "salt" : ""; }

  SchedulerOptions Options() {
    SchedulerOptions options = SmallOptions(/*num_blocks=*/Below(2) == 0 ? 60 + Below(40) : 15 + Below(25));
    options.max_num_seqs = 6 + Below(8);
    options.max_num_batched_tokens = 14 + Below(40);
    options.policy = Below(2) == 0 ? SchedulingPolicy::kFcfs : SchedulingPolicy::kPriority;
    options.priority_aging_steps = Below(20);
    options.preemption = static_cast<PreemptionMode>(Below(3));
    options.host_prefix_caching = static_cast<HostPrefixCaching>(Below(3));
    options.max_step_stores = 1 + Below(16);
    options.max_num_partial_prefills = 1 + Below(3);
    options.max_long_partial_prefills = 1 + Below(2);
    options.long_prefill_token_threshold = Below(12);
    if (Below(4) == 0) options.step_bytes = 300 + Below(1000);
    options.blocks.enable_prefix_caching = Below(6) != 0;
    options.blocks.watermark = Below(2) * 0.05;
    options.blocks.num_host_blocks = Below(60);
    if (Below(3) == 0) {
      options.blocks.attention_reach = 2 + Below(30);
      const auto at_once = static_cast<int32_t>(WindowBlocks(
          options.blocks.attention_reach, options.max_num_batched_tokens, options.blocks.block_size));
      if (Below(2) == 0) options.blocks.num_blocks = 1 + at_once + Below(20);
    }
    if (Below(2) == 0) options.accounts = UserAccounts::Create(8);
    if (Below(4) == 0) return options;
    const auto seed = static_cast<uint64_t>(random_());
    const auto is_wrong = [seed](int64_t position) { return (seed + 7919 * position) % 4 == 0; };
    options.speculation = Below(2) == 0 ? FakeDrafts(1 + Below(8), is_wrong) : WorkersDrafts(1 + Below(8));
    return options;
  }

  void Arrive(const std::string& id) {
    const int32_t first = 100 * Below(3);
    EngineRequest request = MakeRequest(id, 1 + Below(40), 1 + Below(30), first);
    const int kind = Below(4);
    if (kind == 0) {
      request = BeamRequest(id, 1 + Below(5), 1 + Below(30), 1 + Below(15), first);
      ParamsOf(&request)->ignore_eos = Below(2) == 0;
      ParamsOf(&request)->length_penalty = Below(3);
      ParamsOf(&request)->early_stopping = static_cast<EarlyStopping>(Below(3));
    } else if (Below(4) == 0) {
      OwnSampling(&request)->eos_token_ids = {FakeWorker::ReferenceTokens(request.prompt, 12)[Below(12)]};
    } else if (Below(6) == 0) {
      OwnSampling(&request)->num_prompt_logprobs = 0;
    } else if (Below(6) == 0) {
      OwnSampling(&request)->num_logprobs = 1;
    } else if (Below(6) == 0) {
      OwnSampling(&request)->repetition_penalty = 1.5f;
    }
    request.priority = Below(3);
    request.cache_salt = Salt();
    request.user = std::to_string(Below(3));
    const int num_choices = kind == 1 ? 2 + Below(4) : 1;
    for (int choice = 0; choice < num_choices; ++choice) {
      ++num_arrived_;
      if (const absl::Status status = CheckRequest(options_, request); !status.ok()) {
        ++num_refused_;
        EXPECT_TRUE(options_.blocks.num_blocks < kRoomForAny || has_few_step_bytes()) << status;
        return;
      }
      requests_[request.id] = request;
      harness_.Add(request);
      request.fork_of = id;
      request.id = id + "." + std::to_string(choice);
    }
  }

  void ChangePins(const std::string& id) {
    if (pins_.size() < 3 && Below(2) == 0) {
      pins_.push_back(id);
      const std::vector<int32_t> tokens = MakeRequest("", 4 * (1 + Below(4)), 0, 100 * Below(3)).prompt;
      harness_.scheduler.pins().Add({id, tokens, Salt()});
    } else if (!pins_.empty()) {
      const auto pin = pins_.begin() + Below(static_cast<uint32_t>(pins_.size()));
      harness_.scheduler.pins().Remove(*pin);
      pins_.erase(pin);
    }
    num_pinned_ += harness_.scheduler.blocks().pins().num_blocks();
  }

  void Disturb() {
    harness_.worker.RefuseSwaps(Below(200) == 0);
    harness_.scheduler.SetPrices({.seconds_per_token = 1, .seconds_per_block = 4.0 * Below(2)});
    switch (Below(200)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Abort();
      case 4:
        ++num_losses_;
        harness_.Lose();
        return;
      case 5:
        return harness_.Suspend();
      case 6:
        ++num_resets_;
        return harness_.scheduler.ResetPrefixCache();
      case 10:  // a sleep that does not happen
        ++num_abandoned_;
        harness_.Suspend();
        harness_.scheduler.kept().Choose();
        return harness_.scheduler.kept().Abandon();
      case 7:
      case 8:
      case 9: {
        ++num_sleeps_;
        harness_.SleepKeeping();
        if (Below(5) == 0) {  // level 2
          ++num_deep_sleeps_;
          harness_.scheduler.ForgetComputed();
        }
        if (Below(8) == 0) {
          ++num_losses_asleep_;
          harness_.Lose();
        }
        harness_.WakeKeeping();
        return;
      }
      default:
        return;
    }
  }
  void Abort() {
    if (requests_.empty()) return;
    auto it = requests_.begin();
    std::advance(it, Below(static_cast<uint32_t>(requests_.size())));
    if (harness_.scheduler.Abort(it->first) != nullptr) aborted_.insert(it->first);
  }

  std::mt19937 random_;
  const SchedulerOptions options_;
  Harness harness_;
  std::map<std::string, EngineRequest> requests_;
  std::set<std::string> aborted_;
  std::vector<std::string> pins_;
  int64_t num_pinned_ = 0, num_losses_ = 0, num_sleeps_ = 0, num_deep_sleeps_ = 0, num_losses_asleep_ = 0,
          num_abandoned_ = 0, num_resets_ = 0, num_arrived_ = 0, num_refused_ = 0;
};

TEST(EverythingRandomTest, EveryAnswerIsExactAndTheBooksAddUp) {
  Totals totals;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    for (const size_t depth : {0u, 1u}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " depth " << depth);
      RandomRun run(seed, depth);
      run.Run();
      if (HasFailure()) return;
      run.ExpectExact();
      if (HasFailure()) return;
      run.AddTo(&totals);
    }
  }
  EXPECT_GT(totals.steps, 100'000);
  EXPECT_GT(totals.given_back, 30'000);
  EXPECT_GT(totals.preemptions, 6000);
  EXPECT_GT(totals.recomputed, 2000);
  EXPECT_GT(totals.swapped_in, 50'000);
  EXPECT_GT(totals.refused_swaps, 50);
  EXPECT_GT(totals.host_hits, 5000);
  EXPECT_GT(totals.forks, 30'000);
  EXPECT_GT(totals.branches, 20'000);
  EXPECT_GT(totals.accepted, 4000);
  EXPECT_GT(totals.accepted_of_workers, 20'000);
  EXPECT_GT(totals.wrong, 10'000);
  EXPECT_GT(totals.salted_hits, 20'000);
  EXPECT_GT(totals.logprobs, 20'000);
  EXPECT_GT(totals.prompt_logprobs, 20'000);
  EXPECT_GT(totals.penalized, 20'000);
  EXPECT_GT(totals.bounded_steps, 20'000);
  EXPECT_GT(totals.pinned, 10'000);
  EXPECT_GT(totals.pin_releases.forgotten, 1000);
  EXPECT_GT(totals.pin_releases.no_blocks, 40);
  EXPECT_GT(totals.aborts, 300);
  EXPECT_GT(totals.losses, 500);
  EXPECT_GT(totals.losses_asleep, 200);
  EXPECT_GT(totals.sleeps, 1500);
  EXPECT_GT(totals.deep_sleeps, 300);
  EXPECT_GT(totals.abandoned, 500);
  EXPECT_GT(totals.resets, 500);
  EXPECT_GT(totals.arrived, 30'000);
  EXPECT_LT(totals.refused, 0.02 * totals.arrived);
}

}  // namespace
}  // namespace somnus

// Requests whose outputs follow a constraint: the tokens follow the constraint, exactly and in any company,
// over losses of the group, drafts, forks, swaps and moves to another engine.

#include <gtest/gtest.h>

#include "coordinator/scheduler/worker_drafts.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

constexpr int32_t kVocab = 1000, kEnd = 999;

// Which ids may be output k depends on the output before. After `length` outputs only kEnd may come. Of 8
// outputs in a row the last `num_forced` have one id each; the matcher forces these ahead, and the last
// wrongly where the number of outputs is a multiple of `wrong_period`. After `breaks_at` outputs the matcher
// has an error.
struct Rule {
  int32_t length = 1 << 20;
  size_t breaks_at = 1 << 20;
  size_t num_forced = 0;
  size_t wrong_period = 1 << 20;

  bool IsForced(absl::Span<const int32_t> outputs) const { return outputs.size() % 8 >= 8 - num_forced; }
  static int32_t OnlyId(absl::Span<const int32_t> outputs) {
    return static_cast<int32_t>((outputs.back() * 5 + static_cast<int64_t>(outputs.size())) % kEnd);
  }

  bool Allows(absl::Span<const int32_t> outputs, int32_t id) const {
    if (static_cast<int32_t>(outputs.size()) >= length) return id == kEnd;
    if (IsForced(outputs)) return id == OnlyId(outputs);
    const int64_t last = outputs.empty() ? 0 : outputs.back();
    return id != kEnd && (id - last * 3 - static_cast<int64_t>(outputs.size())) % 7 == 0;
  }
};

class RuleMatcher : public TokenMatcher {
 public:
  explicit RuleMatcher(const Rule& rule) : rule_(rule) {}

  absl::Status Accept(int32_t token) override {
    if (IsTerminated() || !rule_.Allows(outputs_, token)) return absl::InvalidArgumentError("not allowed");
    outputs_.push_back(token);
    return absl::OkStatus();
  }
  void Rollback(int32_t count) override { outputs_.resize(outputs_.size() - count); }
  bool FillMask(absl::Span<uint32_t> mask) override {
    EXPECT_FALSE(IsTerminated());
    std::fill(mask.begin(), mask.end(), 0u);
    for (int32_t id = 0; error().ok() && id < kVocab; ++id) {
      if (rule_.Allows(outputs_, id)) mask[id / 32] |= 1u << (id % 32);
    }
    return true;
  }
  void ForcedTokens(int32_t most, std::vector<int32_t>* tokens) override {
    tokens->clear();
    std::vector<int32_t> outputs = outputs_;
    while (static_cast<int32_t>(tokens->size()) < most && rule_.IsForced(outputs)) {
      outputs.push_back(rule_.OnlyId(outputs));
      tokens->push_back(outputs.back());
    }
    if (!tokens->empty() && outputs_.size() % rule_.wrong_period == 0)
      tokens->back() = (tokens->back() + 1) % kEnd;
  }
  bool IsTerminated() const override { return !outputs_.empty() && outputs_.back() == kEnd; }
  absl::Status error() const override {
    return outputs_.size() < rule_.breaks_at ? absl::OkStatus() : absl::DeadlineExceededError("a slow mask");
  }

 private:
  const Rule rule_;
  std::vector<int32_t> outputs_;
};

class RuleConstraint : public TokenConstraint {
 public:
  explicit RuleConstraint(const Rule& rule) : rule_(rule) {}
  std::unique_ptr<TokenMatcher> NewMatcher() const override { return std::make_unique<RuleMatcher>(rule_); }
  int32_t num_mask_words() const override { return (kVocab + 31) / 32; }
  int64_t bytes() const override { return 100; }

 private:
  const Rule rule_;
};

Ticket Constrained(Ticket ticket, const Rule& rule = {}) {
  ticket.request.constraint = std::make_shared<RuleConstraint>(rule);
  return ticket;
}

// The next allowed id after the model's choice, as FakeWorker chooses.
std::vector<int32_t> Expected(const Ticket& ticket, const Rule& rule = {}) {
  std::vector<int32_t> tokens = ticket.request.prompt, outputs;
  while (static_cast<int32_t>(outputs.size()) < ticket.request.max_tokens) {
    int32_t id = FakeWorker::ReferenceTokens(tokens, 1, kVocab)[0];
    while (!rule.Allows(outputs, id)) id = (id + 1) % kVocab;
    outputs.push_back(id);
    tokens.push_back(id);
    if (id == kEnd) break;
  }
  return outputs;
}

class EngineConstraintTest : public ::testing::TestWithParam<bool> {
 protected:
  // Submits the tickets, of which the odd ones are constrained, and expects the right tokens.
  void Run(const EngineOptions& options, FakeExecutor* executor, int num_tickets, int32_t max_tokens) {
    EngineLoop engine(options, executor, nullptr);
    std::vector<Ticket> tickets;
    for (int i = 0; i < num_tickets; ++i) {
      Ticket ticket = MakeTicket(std::to_string(i), 5 + i, max_tokens, 40 * i + 1);
      tickets.push_back(i % 2 == 1 ? Constrained(ticket) : ticket);
      ASSERT_TRUE(engine.Submit(tickets.back().request).ok());
    }
    for (int i = 0; i < num_tickets; ++i) {
      ASSERT_TRUE(tickets[i].sink->Wait());
      EXPECT_EQ(tickets[i].sink->tokens(), i % 2 == 1 ? Expected(tickets[i]) : Reference(tickets[i])) << i;
      EXPECT_EQ(tickets[i].sink->reason(), FinishReason::kLength) << tickets[i].sink->error();
    }
  }

  EngineOptions options_ = SmallEngine(GetParam());
  FakeExecutor executor_{SmallWorker(options_)};
};
INSTANTIATE_TEST_SUITE_P(Overlap, EngineConstraintTest, ::testing::Bool());

TEST_P(EngineConstraintTest, TokensFollowTheConstraintBesideOtherRequests) {
  Run(options_, &executor_, 6, 40);
}

TEST_P(EngineConstraintTest, MasksOfManySequencesAreMadeOnSeveralThreads) {
  options_.scheduler.mask_threads = 3;
  options_.scheduler.max_num_seqs = 24;
  options_.scheduler.max_num_batched_tokens = 64;
  options_.scheduler.blocks.num_blocks = 600;
  options_.queue.max_num_waiting = 24;
  FakeExecutor executor{SmallWorker(options_)};
  Run(options_, &executor, 24, 20);
}

TEST_P(EngineConstraintTest, ACompleteTextEndsTheRequest) {
  EngineLoop engine(options_, &executor_, nullptr);
  const Rule rule{.length = 9};
  const Ticket ticket = Constrained(MakeTicket("a", 5, 60), rule);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kStop) << "though the request names no end token";
  EXPECT_EQ(ticket.sink->tokens(), Expected(ticket, rule));
  EXPECT_EQ(ticket.sink->tokens().back(), kEnd);
}

TEST_P(EngineConstraintTest, AConstraintThatFailsEndsItsRequestWithItsOwnError) {
  EngineLoop engine(options_, &executor_, nullptr);
  const Rule rule{.breaks_at = 7};
  const Ticket ticket = Constrained(MakeTicket("a", 5, 60), rule);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kError);
  EXPECT_EQ(ticket.sink->tokens().size(), 7u);
  EXPECT_EQ(ticket.sink->error().message(), "the mask leaves no token: a slow mask");
}

TEST_P(EngineConstraintTest, TokensGoOnAfterALoss) {
  executor_.SetRecovery(FakeExecutor::Recovery::kSucceeds);
  for (const int64_t step : {4, 9, 20}) executor_.FailStep(step, absl::UnavailableError("rank 1 was killed"));
  Run(options_, &executor_, 4, 40);
}

TEST_P(EngineConstraintTest, TokensGoOnAtAnotherEngine) {
  FakeExecutor other_executor{SmallWorker(options_)};
  EngineLoop other(options_, &other_executor, nullptr);
  executor_.SetRecovery(FakeExecutor::Recovery::kWaits);
  executor_.FailStep(12, absl::UnavailableError("rank 1 was killed"));
  EngineOptions options = options_;
  options.hand_over = [&](std::vector<EngineRequest> requests) {
    for (EngineRequest& request : requests) EXPECT_TRUE(other.Offer(&request));
  };
  Run(options, &executor_, 4, 40);
}

// Drafts of the workers' model, which knows no masks: most of the drafts are wrong.
TEST_P(EngineConstraintTest, DraftsChangeNoToken) {
  options_.scheduler.speculation = {.num_speculative_tokens = 3, .asks_workers = true, .must_pay = false};
  options_.scheduler.speculation.make_drafter = [] { return std::make_unique<WorkerDrafts>(); };
  FakeWorkerOptions worker = SmallWorker(options_);
  worker.max_proposals = 3;
  FakeExecutor executor(worker);
  Run(options_, &executor, 4, 40);
}

// Proposes nothing.
class NoDrafter : public Drafter {
 public:
  void Propose(absl::Span<const int32_t>, int32_t, std::vector<int32_t>* draft) override { draft->clear(); }
};

TEST_P(EngineConstraintTest, ForcedTokensAreDrafts) {
  options_.scheduler.speculation = {.num_speculative_tokens = 4, .must_pay = false};
  options_.scheduler.speculation.make_drafter = [] { return std::make_unique<NoDrafter>(); };
  for (const size_t wrong_period : {size_t{1} << 20, size_t{3}}) {
    const Rule rule{.num_forced = 5, .wrong_period = wrong_period};
    FakeExecutor executor{SmallWorker(options_)};
    EngineLoop engine(options_, &executor, nullptr);
    std::vector<Ticket> tickets;
    for (int i = 0; i < 3; ++i) {
      tickets.push_back(Constrained(MakeTicket(std::to_string(i), 5 + i, 80, 40 * i + 1), rule));
      ASSERT_TRUE(engine.Submit(tickets.back().request).ok());
    }
    for (const Ticket& ticket : tickets) {
      ASSERT_TRUE(ticket.sink->Wait());
      EXPECT_EQ(ticket.sink->tokens(), Expected(ticket, rule));
    }
    const SpeculationCounts counts = engine.Stats().speculation;
    // 5 of 8 tokens are forced; the first forced token may be sampled before the draft is sent.
    if (wrong_period > 80) {
      EXPECT_EQ(counts.num_accepted_tokens, counts.num_draft_tokens);
      EXPECT_GE(counts.num_accepted_tokens, 3 * 80 * 3 / 8);
    } else {
      EXPECT_LT(counts.num_accepted_tokens, counts.num_draft_tokens);
      EXPECT_GT(counts.num_accepted_tokens, 0);
    }
  }
}

TEST_P(EngineConstraintTest, SwappedSequencesGoOn) {
  const EngineOptions options = SwappingEngine(GetParam());
  FakeExecutor executor(SmallWorker(options));
  Run(options, &executor, 4, 60);
  EXPECT_GT(executor.num_steps_sent(), 0);
}

TEST_P(EngineConstraintTest, AForkHasAMatcherOfItsOwn) {
  EngineLoop engine(options_, &executor_, nullptr);
  const Ticket source = Constrained(MakeTicket("a", 11, 30));
  Ticket fork = Constrained(MakeTicket("b", 11, 20));
  fork.request.prompt = source.request.prompt;
  fork.request.sampling = source.request.sampling;
  fork.request.constraint = source.request.constraint;
  fork.request.fork_of = "a";
  ASSERT_TRUE(engine.SubmitAll({source.request, fork.request}).ok());
  ASSERT_TRUE(source.sink->Wait() && fork.sink->Wait());
  EXPECT_EQ(engine.Stats().num_forks, 1);
  EXPECT_EQ(source.sink->tokens(), Expected(source));
  EXPECT_EQ(fork.sink->tokens(), Expected(fork));
}

}  // namespace
}  // namespace somnus

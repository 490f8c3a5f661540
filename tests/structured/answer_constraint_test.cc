#include "coordinator/structured/answer_constraint.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/api/byte_tokenizer.h"

namespace somnus {
namespace {

constexpr int32_t kRows = 257, kEnd = 256;

// The text "ok", and then the end token.
class OkMatcher : public GrammarMatcher {
 public:
  absl::Status Accept(int32_t token) override {
    if (at_ >= 3 || token != kText[at_]) return absl::InvalidArgumentError("not ok");
    ++at_;
    return absl::OkStatus();
  }
  absl::Status Rollback(int64_t count) override {
    at_ -= static_cast<size_t>(count);
    return absl::OkStatus();
  }
  absl::Status FillMask(absl::Span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    if (at_ >= 3) return absl::FailedPreconditionError("nothing may follow");
    mask[kText[at_] / 32] |= 1u << (kText[at_] % 32);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ForcedText(int64_t, absl::Duration) override {
    ++num_forced_texts;
    return std::string("ok").substr(std::min<size_t>(2, at_));
  }
  bool IsComplete() const override { return at_ >= 2; }
  bool IsTerminated() const override { return at_ >= 3; }
  absl::StatusOr<std::unique_ptr<GrammarMatcher>> Fork() const override {
    return std::make_unique<OkMatcher>(*this);
  }

  static inline int num_forced_texts = 0;

 private:
  static constexpr int32_t kText[] = {'o', 'k', kEnd};
  size_t at_ = 0;
};

class OkGrammar : public CompiledGrammar {
 public:
  absl::StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    return std::make_unique<OkMatcher>();
  }
  bool MakeMasks() const override { return false; }
  int64_t bytes() const override { return 1; }
};

std::vector<int32_t> Ids(const std::string& text) { return {text.begin(), text.end()}; }

ReasoningBounds Bounds(bool is_open) {
  return {.is_open = is_open, .begin = Ids("<t>"), .end = "</t>", .forced_end = Ids(" so</t>")};
}

class AnswerConstraintTest : public ::testing::Test {
 protected:
  void Make(std::optional<ReasoningBounds> reasoning, bool has_grammar = true) {
    constraint_ =
        MakeAnswerConstraint(has_grammar ? std::make_shared<OkGrammar>() : nullptr, std::move(reasoning),
                             tokenizer_, std::make_shared<ForcedTokenizer>(tokenizer_), (kRows + 31) / 32);
    matcher_ = constraint_->NewMatcher();
  }
  void Accept(const std::string& text) {
    for (const char c : text) ASSERT_TRUE(matcher_->Accept(c).ok()) << c << " of " << text;
  }
  // The tokens that may come next; "*": every token.
  std::string Next() {
    std::vector<uint32_t> mask(static_cast<size_t>(constraint_->num_mask_words()));
    if (!matcher_->FillMask(absl::MakeSpan(mask))) return "*";
    std::string next;
    for (int32_t id = 0; id < kRows; ++id) {
      if ((mask[id / 32] >> (id % 32)) & 1) next += id == kEnd ? '$' : static_cast<char>(id);
    }
    return next;
  }

  std::string Forced(int32_t most = 100) {
    std::vector<int32_t> tokens = {1, 2, 3};
    matcher_->ForcedTokens(most, &tokens);
    return {tokens.begin(), tokens.end()};
  }

  const std::shared_ptr<const Tokenizer> tokenizer_ = std::make_shared<ByteTokenizer>();
  std::shared_ptr<const TokenConstraint> constraint_;
  std::unique_ptr<TokenMatcher> matcher_;
};

TEST_F(AnswerConstraintTest, WithoutReasoningTheGrammarBeginsAtOnce) {
  Make(std::nullopt);
  EXPECT_EQ(Next(), "o");
  EXPECT_FALSE(matcher_->Accept('x').ok());
  Accept("ok");
  EXPECT_EQ(Next(), "$");
  ASSERT_TRUE(matcher_->Accept(kEnd).ok());
  EXPECT_TRUE(matcher_->IsTerminated());
}

TEST_F(AnswerConstraintTest, TheGrammarBeginsBehindOpenReasoning) {
  Make(Bounds(/*is_open=*/true));
  EXPECT_EQ(Next(), "*");
  Accept("hm, ok? <</t");
  EXPECT_EQ(Next(), "*");
  Accept(">");
  EXPECT_EQ(Next(), "o");
}

TEST_F(AnswerConstraintTest, AModelMayThinkOrAnswer) {
  Make(Bounds(/*is_open=*/false));
  EXPECT_EQ(Next(), "<o");
  Accept("<");
  EXPECT_EQ(Next(), "t") << "a marker that has begun is completed";
  Accept("t>why</t>");
  EXPECT_EQ(Next(), "o");
  Make(Bounds(/*is_open=*/false));
  Accept("o");
  EXPECT_EQ(Next(), "k");
}

TEST_F(AnswerConstraintTest, ABudgetForcesTheEnd) {
  ReasoningBounds bounds = Bounds(/*is_open=*/true);
  bounds.max_tokens = 2;
  Make(bounds);
  Accept("a");
  EXPECT_EQ(Next(), "*");
  Accept("b");
  for (const char c : std::string(" so</t>")) {
    EXPECT_EQ(Next(), std::string(1, c));
    Accept(std::string(1, c));
  }
  EXPECT_EQ(Next(), "o");
  Make(bounds, /*has_grammar=*/false);
  Accept("ab so</t>");
  EXPECT_EQ(Next(), "*");
  EXPECT_FALSE(matcher_->IsTerminated());
}

TEST_F(AnswerConstraintTest, ARollbackCrossesTheEndOfReasoning) {
  Make(Bounds(/*is_open=*/true));
  Accept("x</t>ok");
  matcher_->Rollback(3);
  EXPECT_EQ(Next(), "*") << "the marker lacks its last byte";
  Accept(">o");
  EXPECT_EQ(Next(), "k");
}

TEST_F(AnswerConstraintTest, TheErrorOfTheGrammarIsKeptUntilTheDeadEndIsTakenBack) {
  Make(std::nullopt);
  Accept("ok");
  ASSERT_TRUE(matcher_->Accept(kEnd).ok());
  EXPECT_TRUE(matcher_->error().ok());
  EXPECT_EQ(Next(), "");
  EXPECT_EQ(matcher_->error().message(), "nothing may follow");
  matcher_->Rollback(1);
  EXPECT_TRUE(matcher_->error().ok());
  EXPECT_EQ(Next(), "$");
}

TEST_F(AnswerConstraintTest, AForcedTextIsLookedForOnce) {
  Make(std::nullopt);
  const int before = OkMatcher::num_forced_texts;
  EXPECT_EQ(Forced(), "ok");
  EXPECT_EQ(Forced(1), "o");
  Accept("o");
  EXPECT_EQ(Forced(), "k");
  matcher_->Rollback(1);
  EXPECT_EQ(Forced(), "ok");
  EXPECT_EQ(OkMatcher::num_forced_texts, before + 1);
  Accept("ok");
  EXPECT_EQ(Forced(), "");
  matcher_->Rollback(2);
  EXPECT_EQ(Forced(), "ok");
}

TEST_F(AnswerConstraintTest, TheEndOfReasoningIsForcedAtTheBudget) {
  ReasoningBounds bounds = Bounds(/*is_open=*/true);
  bounds.max_tokens = 2;
  Make(bounds);
  EXPECT_EQ(Forced(), "");
  Accept("hm");
  EXPECT_EQ(Forced(), " so</t>");
  Accept(" so");
  EXPECT_EQ(Forced(), "</t>");
  Accept("</t>");
  EXPECT_EQ(Forced(), "ok");
}

}  // namespace
}  // namespace somnus

#include "coordinator/structured/answer_constraint.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/status_macros.h"
#include "proto/limits.h"

namespace somnus {
namespace {

// The bound of a text that a grammar forces ahead. A longer text, or one whose masks take long, is forced in
// parts.
constexpr int64_t kMaxForcedBytes = 64;
constexpr absl::Duration kMaxForcedTime = absl::Milliseconds(1);

void AllowOnly(int32_t token, absl::Span<uint32_t> mask) {
  std::fill(mask.begin(), mask.end(), 0u);
  mask[token / 32] |= 1u << (token % 32);
}

// How far an answer has come before its grammar begins.
struct ReasoningPlace {
  enum class At { kStart, kReasoning, kAnswer };
  At at = At::kStart;
  size_t num_begun = 0;      // tokens of the begin marker, at the start
  std::string tail;          // the last bytes of the reasoning, which may begin the end marker
  int64_t num_tokens = 0;    // of the reasoning
  size_t num_forced = 0;     // tokens of the forced end
  bool is_grammars = false;  // the last token was given to the grammar
};

class AnswerMatcher : public TokenMatcher {
 public:
  AnswerMatcher(absl::StatusOr<std::unique_ptr<GrammarMatcher>> grammar,
                const std::optional<ReasoningBounds>& reasoning, const Tokenizer& tokenizer,
                const ForcedTokenizer* forced_tokenizer)
      : tokenizer_(tokenizer), reasoning_(reasoning), forced_tokenizer_(forced_tokenizer) {
    if (grammar.ok()) {
      grammar_ = *std::move(grammar);
    } else {
      error_ = grammar.status();
    }
    place_.at = !reasoning_.has_value() ? ReasoningPlace::At::kAnswer
                : reasoning_->is_open   ? ReasoningPlace::At::kReasoning
                                        : ReasoningPlace::At::kStart;
  }

  absl::Status Accept(int32_t token) override {
    RETURN_IF_ERROR(error_);
    ReasoningPlace next = place_;
    RETURN_IF_ERROR(Step(token, &next));
    if (next.is_grammars && grammar_ != nullptr) {
      RETURN_IF_ERROR(grammar_->Accept(token));
      PassForced(token);
    }
    before_.push_back(std::exchange(place_, std::move(next)));
    if (before_.size() > static_cast<size_t>(kMaxSpeculativeTokens)) before_.pop_front();
    return absl::OkStatus();
  }

  void Rollback(int32_t count) override {
    int64_t num_grammars = 0;
    for (; count > 0 && !before_.empty(); --count) {
      num_grammars += place_.is_grammars && grammar_ != nullptr ? 1 : 0;
      place_ = std::move(before_.back());
      before_.pop_back();
    }
    if (num_grammars == 0) return;
    // A dead end behind tokens that are taken back is none.
    if (absl::IsFailedPrecondition(error_)) error_ = absl::OkStatus();
    num_passed_ -= num_grammars;
    if (num_passed_ < 0) ForgetForced();
    if (absl::Status status = grammar_->Rollback(num_grammars); !status.ok()) error_ = std::move(status);
  }

  bool FillMask(absl::Span<uint32_t> mask) override {
    switch (place_.at) {
      case ReasoningPlace::At::kStart:
        return FillStart(mask);
      case ReasoningPlace::At::kReasoning:
        if (!IsForced()) return false;
        AllowOnly(reasoning_->forced_end[place_.num_forced], mask);
        return true;
      case ReasoningPlace::At::kAnswer:
        break;
    }
    return FillAnswer(mask);
  }

  void ForcedTokens(int32_t most, std::vector<int32_t>* tokens) override {
    tokens->clear();
    if (place_.at == ReasoningPlace::At::kReasoning && IsForced()) {
      const auto next = reasoning_->forced_end.begin() + static_cast<std::ptrdiff_t>(place_.num_forced);
      tokens->assign(next, reasoning_->forced_end.end());
    } else if (place_.at == ReasoningPlace::At::kAnswer) {
      if (num_passed_ == static_cast<int64_t>(forced_.size())) ForceAhead();
      tokens->assign(forced_.begin() + static_cast<std::ptrdiff_t>(num_passed_), forced_.end());
    }
    if (tokens->size() > static_cast<size_t>(most)) tokens->resize(static_cast<size_t>(most));
  }

  bool IsTerminated() const override { return grammar_ != nullptr && grammar_->IsTerminated(); }
  absl::Status error() const override { return error_; }

 private:
  bool IsForced() const {
    return place_.num_forced > 0 ||
           (reasoning_->max_tokens.has_value() && place_.num_tokens >= *reasoning_->max_tokens);
  }

  void ForgetForced() {
    forced_.clear();
    num_passed_ = 0;
  }
  // The grammar has accepted `token`.
  void PassForced(int32_t token) {
    if (num_passed_ < static_cast<int64_t>(forced_.size()) &&
        forced_[static_cast<size_t>(num_passed_)] == token) {
      ++num_passed_;
    } else {
      ForgetForced();
    }
  }
  void ForceAhead() {
    ForgetForced();
    if (grammar_ == nullptr || forced_tokenizer_ == nullptr || !error_.ok() || grammar_->IsTerminated())
      return;
    const absl::StatusOr<std::string> text = grammar_->ForcedText(kMaxForcedBytes, kMaxForcedTime);
    // An error of the grammar shows again at the next mask.
    if (text.ok() && !text->empty()) forced_ = forced_tokenizer_->Tokens(*text);
  }

  // Moves `next`, the place before `token`, behind the token.
  absl::Status Step(int32_t token, ReasoningPlace* next) {
    next->is_grammars = false;
    if (next->at == ReasoningPlace::At::kReasoning) return StepReasoning(token, next);
    if (next->at == ReasoningPlace::At::kStart) {
      const std::vector<int32_t>& begin = reasoning_->begin;
      if (next->num_begun < begin.size() && begin[next->num_begun] == token) {
        if (++next->num_begun == begin.size()) next->at = ReasoningPlace::At::kReasoning;
        return absl::OkStatus();
      }
      next->at = ReasoningPlace::At::kAnswer;
    }
    next->is_grammars = true;
    return absl::OkStatus();
  }

  absl::Status StepReasoning(int32_t token, ReasoningPlace* next) {
    if (IsForced()) ++next->num_forced;
    ++next->num_tokens;
    next->tail += tokenizer_.TokenBytes(token);
    const std::string& end = reasoning_->end;
    const size_t found = next->tail.find(end);
    if (found == std::string::npos) {
      if (next->tail.size() >= end.size()) next->tail.erase(0, next->tail.size() - end.size() + 1);
      if (next->num_forced >= reasoning_->forced_end.size()) next->num_forced = 0;
      return absl::OkStatus();
    }
    const std::string rest = next->tail.substr(found + end.size());
    if (grammar_ != nullptr && !absl::StripAsciiWhitespace(rest).empty())
      return absl::InvalidArgumentError("the token that ends the reasoning goes on with text");
    next->tail.clear();
    next->at = ReasoningPlace::At::kAnswer;
    return absl::OkStatus();
  }

  // At the start the answer may begin, or the marker of reasoning; a marker that has begun must be completed.
  bool FillStart(absl::Span<uint32_t> mask) {
    const std::vector<int32_t>& begin = reasoning_->begin;
    if (place_.num_begun > 0) {
      AllowOnly(begin[place_.num_begun], mask);
      return true;
    }
    if (!FillAnswer(mask)) return false;
    if (!begin.empty()) mask[begin[0] / 32] |= 1u << (begin[0] % 32);
    return true;
  }

  // A grammar that cannot go on allows no token: the worker says so, and the sequence ends.
  bool FillAnswer(absl::Span<uint32_t> mask) {
    if (error_.ok() && grammar_ == nullptr) return false;
    if (error_.ok()) error_ = grammar_->FillMask(mask);
    if (!error_.ok()) std::fill(mask.begin(), mask.end(), 0u);
    return true;
  }

  const Tokenizer& tokenizer_;
  const std::optional<ReasoningBounds>& reasoning_;
  const ForcedTokenizer* const forced_tokenizer_;
  std::unique_ptr<GrammarMatcher> grammar_;
  absl::Status error_;
  ReasoningPlace place_;
  std::deque<ReasoningPlace> before_;  // before each of the last tokens
  // Tokens that the grammar has forced, of which the first num_passed_ were accepted last.
  std::vector<int32_t> forced_;
  int64_t num_passed_ = 0;
};

class AnswerConstraint : public TokenConstraint {
 public:
  AnswerConstraint(std::shared_ptr<const CompiledGrammar> grammar, std::optional<ReasoningBounds> reasoning,
                   std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const ForcedTokenizer> forced,
                   int32_t num_mask_words)
      : grammar_(std::move(grammar)),
        reasoning_(std::move(reasoning)),
        tokenizer_(std::move(tokenizer)),
        forced_(std::move(forced)),
        num_mask_words_(num_mask_words) {}

  std::unique_ptr<TokenMatcher> NewMatcher() const override {
    absl::StatusOr<std::unique_ptr<GrammarMatcher>> matcher = std::unique_ptr<GrammarMatcher>();
    if (grammar_ != nullptr) matcher = grammar_->NewMatcher();
    return std::make_unique<AnswerMatcher>(std::move(matcher), reasoning_, *tokenizer_, forced_.get());
  }
  int32_t num_mask_words() const override { return num_mask_words_; }
  int64_t bytes() const override { return kMatcherBytes + num_mask_words_ * int64_t{8}; }

 private:
  static constexpr int64_t kMatcherBytes = 64 << 10;

  const std::shared_ptr<const CompiledGrammar> grammar_;
  const std::optional<ReasoningBounds> reasoning_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const ForcedTokenizer> forced_;
  const int32_t num_mask_words_;
};

}  // namespace

std::shared_ptr<const TokenConstraint> MakeAnswerConstraint(std::shared_ptr<const CompiledGrammar> grammar,
                                                            std::optional<ReasoningBounds> reasoning,
                                                            std::shared_ptr<const Tokenizer> tokenizer,
                                                            std::shared_ptr<const ForcedTokenizer> forced,
                                                            int32_t num_mask_words) {
  return std::make_shared<AnswerConstraint>(std::move(grammar), std::move(reasoning), std::move(tokenizer),
                                            std::move(forced), num_mask_words);
}

}  // namespace somnus

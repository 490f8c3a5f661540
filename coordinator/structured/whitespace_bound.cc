#include "coordinator/structured/whitespace_bound.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/limits.h"

namespace somnus {
namespace {

bool IsJsonWhitespace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

int32_t FirstRun(absl::string_view bytes) {
  return static_cast<int32_t>(std::find_if_not(bytes.begin(), bytes.end(), IsJsonWhitespace) - bytes.begin());
}

int32_t LongestRun(absl::string_view bytes) {
  int32_t longest = 0, run = 0;
  for (const char c : bytes) {
    run = IsJsonWhitespace(c) ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

std::vector<int32_t> RunsOf(const GrammarVocabulary& vocabulary, int32_t (*length)(absl::string_view)) {
  std::vector<int32_t> runs;
  runs.reserve(vocabulary.token_bytes.size());
  for (const std::string& bytes : vocabulary.token_bytes) runs.push_back(length(bytes));
  for (const int32_t token : vocabulary.end_tokens) runs[static_cast<size_t>(token)] = 0;
  return runs;
}

}  // namespace

WhitespaceTokens::ByRun::ByRun(const std::vector<int32_t>& length_of_token) {
  for (size_t token = 0; token < length_of_token.size(); ++token) {
    if (length_of_token[token] > 0) tokens.push_back(static_cast<int32_t>(token));
  }
  const auto length = [&](int32_t token) { return length_of_token[static_cast<size_t>(token)]; };
  std::stable_sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) { return length(a) > length(b); });
  lengths.reserve(tokens.size());
  for (const int32_t token : tokens) lengths.push_back(length(token));
}

absl::Span<const int32_t> WhitespaceTokens::ByRun::Above(int32_t count) const {
  const auto end = std::partition_point(lengths.begin(), lengths.end(),
                                        [count](int32_t length) { return length > count; });
  return absl::MakeSpan(tokens).first(static_cast<size_t>(end - lengths.begin()));
}

WhitespaceTokens::WhitespaceTokens(const GrammarVocabulary& vocabulary)
    : beginning_(RunsOf(vocabulary, FirstRun)), holding_(RunsOf(vocabulary, LongestRun)) {
  begins_.reserve(vocabulary.token_bytes.size() + 1);
  begins_.push_back(0);
  for (size_t token = 0; token < vocabulary.token_bytes.size(); ++token) {
    const std::vector<int32_t>& ends = vocabulary.end_tokens;
    if (std::find(ends.begin(), ends.end(), static_cast<int32_t>(token)) == ends.end())
      bytes_ += vocabulary.token_bytes[token];
    begins_.push_back(bytes_.size());
  }
}

absl::string_view WhitespaceTokens::BytesOf(int32_t token) const {
  if (token < 0 || static_cast<size_t>(token) + 1 >= begins_.size()) return "";
  const auto at = static_cast<size_t>(token);
  return absl::string_view(bytes_).substr(begins_[at], begins_[at + 1] - begins_[at]);
}

bool JsonPlace::Advance(absl::string_view bytes, int32_t most) {
  for (const char c : bytes) {
    if (in_string) {
      if (c == '"' && !escaped) in_string = false;
      escaped = c == '\\' && !escaped;
    } else if (IsJsonWhitespace(c)) {
      if (++run > most) return false;
    } else {
      run = 0;
      in_string = c == '"';
    }
  }
  return true;
}

BoundedWhitespaceMatcher::BoundedWhitespaceMatcher(std::unique_ptr<GrammarMatcher> inner,
                                                   std::shared_ptr<const WhitespaceTokens> tokens,
                                                   int32_t most)
    : inner_(std::move(inner)), tokens_(std::move(tokens)), most_(most), places_(1) {}

absl::Status BoundedWhitespaceMatcher::Accept(int32_t token) {
  RETURN_IF_ERROR(inner_->Accept(token));
  JsonPlace place = places_.back();
  if (!place.Advance(tokens_->BytesOf(token), most_)) {
    RETURN_IF_ERROR(inner_->Rollback(1));
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " is not allowed: more than ", most_, " characters of white space"));
  }
  places_.push_back(place);
  if (places_.size() > static_cast<size_t>(kMaxSpeculativeTokens) + 1) places_.pop_front();
  return absl::OkStatus();
}

absl::Status BoundedWhitespaceMatcher::Rollback(int64_t count) {
  if (count >= static_cast<int64_t>(places_.size()))
    return absl::InvalidArgumentError(absl::StrCat(count, " tokens cannot be taken back"));
  RETURN_IF_ERROR(inner_->Rollback(count));
  places_.resize(places_.size() - static_cast<size_t>(count));
  return absl::OkStatus();
}

absl::Status BoundedWhitespaceMatcher::FillMask(absl::Span<uint32_t> mask) {
  RETURN_IF_ERROR(inner_->FillMask(mask));
  const JsonPlace& here = places_.back();
  const auto bit = [](int32_t token) { return uint32_t{1} << (token % 32); };
  bool cleared = false;
  if (here.run > 0) {
    for (const int32_t token : tokens_->BeginningWithMoreThan(most_ - here.run)) {
      mask[static_cast<size_t>(token) / 32] &= ~bit(token);
      cleared = true;
    }
  }
  for (const int32_t token : tokens_->HoldingMoreThan(most_)) {
    uint32_t& word = mask[static_cast<size_t>(token) / 32];
    JsonPlace place = here;
    if ((word & bit(token)) == 0 || place.Advance(tokens_->BytesOf(token), most_)) continue;
    word &= ~bit(token);
    cleared = true;
  }
  if (!cleared || std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; }))
    return absl::OkStatus();
  return absl::FailedPreconditionError("no token can go on with the text without more white space");
}

absl::StatusOr<std::unique_ptr<GrammarMatcher>> BoundedWhitespaceMatcher::Fork() const {
  ASSIGN_OR_RETURN(auto inner, inner_->Fork());
  auto fork = std::make_unique<BoundedWhitespaceMatcher>(std::move(inner), tokens_, most_);
  fork->places_ = places_;
  return fork;
}

}  // namespace somnus

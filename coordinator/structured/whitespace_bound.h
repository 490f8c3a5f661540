#pragma once
// The bound of white space in JSON texts. A grammar engine that counts white space has a rule for each count,
// and walks through these rules for every mask. So the engine's grammar takes any number, and a matcher
// around the engine's matcher counts.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/structured/grammar.h"
#include "coordinator/structured/grammar_vocabulary.h"

namespace somnus {

// The white space of a vocabulary's tokens. Immutable and thread safe; holds a copy of the tokens' bytes.
class WhitespaceTokens {
 public:
  explicit WhitespaceTokens(const GrammarVocabulary& vocabulary);

  // The bytes that a token adds to a text; empty for end tokens and for rows without a token.
  absl::string_view BytesOf(int32_t token) const;
  // The tokens that begin with more than `count` characters of white space.
  absl::Span<const int32_t> BeginningWithMoreThan(int32_t count) const { return beginning_.Above(count); }
  // The tokens that hold more than `count` characters of white space in a row, at any place.
  absl::Span<const int32_t> HoldingMoreThan(int32_t count) const { return holding_.Above(count); }

 private:
  // Tokens with the lengths of a run, in falling order of the lengths. Runs of length 0 are left out.
  struct ByRun {
    std::vector<int32_t> tokens, lengths;

    explicit ByRun(const std::vector<int32_t>& length_of_token);
    absl::Span<const int32_t> Above(int32_t count) const;
  };

  std::string bytes_;           // of all tokens, one after the other
  std::vector<size_t> begins_;  // of each token in bytes_, and the end of the last one
  ByRun beginning_, holding_;
};

// Where a JSON text stands, as far as white space is concerned.
struct JsonPlace {
  int32_t run = 0;  // characters of white space at the end of the text, outside of strings
  bool in_string = false;
  bool escaped = false;  // within a string, behind a backslash

  // Goes on with `bytes`. False where a run becomes longer than `most`; the place is then of no further use.
  bool Advance(absl::string_view bytes, int32_t most);
};

// Allows what `inner`, a matcher of JSON texts, allows, but for runs of more than `most` characters of white
// space outside of strings. At most kMaxSpeculativeTokens (proto/limits.h) tokens can be taken back.
class BoundedWhitespaceMatcher : public GrammarMatcher {
 public:
  BoundedWhitespaceMatcher(std::unique_ptr<GrammarMatcher> inner,
                           std::shared_ptr<const WhitespaceTokens> tokens, int32_t most);

  absl::Status Accept(int32_t token) override;
  absl::Status Rollback(int64_t count) override;
  absl::Status FillMask(absl::Span<uint32_t> mask) override;
  // A text that `inner` forces holds no white space that could be left out.
  absl::StatusOr<std::string> ForcedText(int64_t max_bytes, absl::Duration max_time) override {
    return inner_->ForcedText(max_bytes, max_time);
  }

  bool IsComplete() const override { return inner_->IsComplete(); }
  bool IsTerminated() const override { return inner_->IsTerminated(); }
  absl::StatusOr<std::unique_ptr<GrammarMatcher>> Fork() const override;

 private:
  const std::unique_ptr<GrammarMatcher> inner_;
  const std::shared_ptr<const WhitespaceTokens> tokens_;
  const int32_t most_;
  std::deque<JsonPlace> places_;  // behind the last tokens, which may be taken back; the last one is here
};

}  // namespace somnus

#pragma once
// Regular expressions of pre-tokenizers. They are written for Oniguruma (Ruby syntax) and run on PCRE2, after
// a translation of the syntax that the two read differently. Immutable after Compile; thread safe.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

class Regex {
 public:
  // InvalidArgument gives PCRE2's reason. `literal`: the pattern has no special characters.
  static absl::StatusOr<std::unique_ptr<Regex>> Compile(const std::string& pattern, bool literal);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Appends the byte ranges [begin, end) of all matches in `text` (valid UTF-8), left to right, without
  // overlaps. Empty matches right after the previous match are skipped. A match that exceeds PCRE2's limits
  // ends the search; the matches before it stay.
  void FindAll(absl::string_view text, std::vector<std::pair<size_t, size_t>>* matches) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Translates Oniguruma's syntax to PCRE2's: \s and \w by Unicode property (PCRE2 counts U+180E as a space and
// few marks as word characters), \h as a hexadecimal digit, (?m) as "dot matches newline". InvalidArgument
// for syntax that has no translation (set intersection, nested sets). Public for tests.
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

}  // namespace somnus

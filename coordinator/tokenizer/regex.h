#pragma once
// Regular expressions of pre-tokenizers. They are written for Oniguruma (Ruby syntax) and run on PCRE2, after
// a translation of what the two read differently. Immutable after Compile; thread safe.

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
  // InvalidArgument with PCRE2's reason. `literal`: the pattern stands for itself.
  static absl::StatusOr<std::unique_ptr<Regex>> Compile(const std::string& pattern, bool literal);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Byte ranges of all matches in `text` (valid UTF-8), left to right, without overlaps. Empty matches right
  // after the previous match are skipped. A match that exceeds the limits ends the search: what was found so
  // far stands.
  void FindAll(absl::string_view text, std::vector<std::pair<size_t, size_t>>* matches) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Oniguruma to PCRE2: \s and \w by Unicode property (PCRE2 counts U+180E as a space and few marks as word
// characters), \h as a hexadecimal digit, (?m) as "dot matches newline". Exposed for tests.
// InvalidArgument for what has no translation (set intersection, nested sets).
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

}  // namespace somnus

#pragma once
// The steps that change a text before the pre-tokenizer: Unicode forms (ICU), prefixes, replacements.
// Immutable after Create; thread safe.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/tokenizer_data.h"
#include "text/tokenizer/regex.h"

namespace somnus {

class Normalizer {
 public:
  // InvalidArgument for a pattern that is empty or does not compile.
  static absl::StatusOr<std::unique_ptr<Normalizer>> Create(const std::vector<NormalizerStep>& steps);

  bool enabled() const { return !steps_.empty(); }
  // `text` must be valid UTF-8. The time is linear, except for the sorting of long runs of combining marks.
  std::string Normalize(absl::string_view text) const;

 private:
  struct Step {
    NormalizerStep spec;
    std::unique_ptr<Regex> regex;  // of kReplace; null: the pattern is a literal
  };
  static std::string Apply(const Step& step, std::string text);

  std::vector<Step> steps_;
};

}  // namespace somnus

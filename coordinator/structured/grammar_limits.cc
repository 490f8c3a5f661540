#include "coordinator/structured/grammar_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/structured/schema_brackets.h"

namespace somnus {
namespace {

// Engines that read strings up to the first byte of value 0 would miss what follows.
bool HasNul(const GrammarSource& source) {
  const auto has = [](const std::string& text) { return text.find('\0') != std::string::npos; };
  return has(source.text) || std::any_of(source.choices.begin(), source.choices.end(), has);
}

}  // namespace

int64_t GrammarSource::bytes() const {
  int64_t bytes = static_cast<int64_t>(text.size());
  for (const std::string& choice : choices) bytes += static_cast<int64_t>(choice.size() + sizeof(choice));
  return bytes;
}

absl::Status CheckGrammarSource(const GrammarSource& source, const GrammarLimits& limits) {
  if (source.bytes() > limits.source_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the grammar has ", source.bytes(), " bytes, and at most ",
                                                   limits.source_bytes, " are allowed"));
  }
  if (HasNul(source)) return absl::InvalidArgumentError("the grammar contains a byte of value 0");
  if (source.kind == GrammarKind::kChoice && source.choices.empty()) {
    return absl::InvalidArgumentError("choice: the list is empty");
  }
  const bool json = source.kind == GrammarKind::kJsonSchema || source.kind == GrammarKind::kStructuralTag;
  if (const int64_t depth = BracketDepth(source.text, json); depth > limits.depth) {
    return absl::InvalidArgumentError(absl::StrCat("the grammar's brackets are nested ", depth,
                                                   " levels deep, and at most ", limits.depth,
                                                   " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace somnus

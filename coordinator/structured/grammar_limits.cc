#include "coordinator/structured/grammar_limits.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

// How many brackets are open at once at most. A character after a backslash is no bracket. In JSON the
// brackets of a string count too, as a pattern stands in a string of its schema, and what a string opens ends
// with the string.
int64_t Depth(std::string_view text, bool json) {
  int64_t outside = 0, inside = 0, deepest = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    int64_t& open = quoted ? inside : outside;
    switch (text[i]) {
      case '\\':
        ++i;
        break;
      case '"':
        quoted = json && !quoted;
        inside = 0;
        break;
      case '(':
      case '[':
      case '{':
        ++open;
        deepest = std::max(deepest, outside + inside);
        break;
      case ')':
      case ']':
      case '}':
        open = std::max<int64_t>(0, open - 1);
        break;
      default:
        break;
    }
  }
  return deepest;
}

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
  if (const int64_t depth = Depth(source.text, json); depth > limits.depth) {
    return absl::InvalidArgumentError(absl::StrCat("the grammar's brackets are nested ", depth,
                                                   " levels deep, and at most ", limits.depth,
                                                   " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace somnus

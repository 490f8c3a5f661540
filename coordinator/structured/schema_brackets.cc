#include "coordinator/structured/schema_brackets.h"

#include <algorithm>

namespace somnus {

int64_t BracketDepth(absl::string_view text, bool json) {
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

}  // namespace somnus

#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/unicode.h"

namespace somnus {
namespace {

bool WordEndsAt(absl::string_view text, size_t pos) {
  return pos > 0 && IsWord(DecodeUtf8(text, PreviousCharacter(text, pos)).code);
}

bool WordStartsAt(absl::string_view text, size_t pos) {
  return pos < text.size() && IsWord(DecodeUtf8(text, pos).code);
}

// Never goes left of `limit`, which keeps repeated scans over the same white space linear.
size_t StripLeft(absl::string_view text, size_t pos, size_t limit) {
  while (pos > limit) {
    const size_t previous = PreviousCharacter(text, pos);
    if (!IsWhiteSpace(DecodeUtf8(text, previous).code)) break;
    pos = previous;
  }
  return pos;
}

size_t StripRight(absl::string_view text, size_t pos) {
  while (pos < text.size()) {
    const Utf8Step step = DecodeUtf8(text, pos);
    if (!IsWhiteSpace(step.code)) break;
    pos += step.length;
  }
  return pos;
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token, absl::string_view spelling) {
  if (spelling.empty()) return;
  int32_t node = 0;
  for (const char c : spelling) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = Child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].children.emplace_back(byte, next);
    }
    node = next;
  }
  first_[static_cast<unsigned char>(spelling[0])] = true;
  if (nodes_[node].token >= 0) return;  // the first of two equal spellings wins
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.lstrip, token.rstrip, token.single_word});
}

int32_t AddedTokenMatcher::Child(int32_t node, unsigned char byte) const {
  for (const auto& [key, child] : nodes_[node].children) {
    if (key == byte) return child;
  }
  return -1;
}

int32_t AddedTokenMatcher::LongestAt(absl::string_view text, size_t pos, size_t* length) const {
  int32_t node = 0, best = -1;
  for (size_t i = pos; i < text.size(); ++i) {
    node = Child(node, static_cast<unsigned char>(text[i]));
    if (node < 0) break;
    if (nodes_[node].token >= 0) {
      best = nodes_[node].token;
      *length = i + 1 - pos;
    }
  }
  return best;
}

void AddedTokenMatcher::Split(absl::string_view text, std::vector<TextSegment>* out) const {
  if (text.empty()) return;
  if (tokens_.empty()) {
    out->push_back({-1, text});
    return;
  }
  size_t done = 0, pos = 0;
  while (pos < text.size()) {
    size_t length = 0;
    const int32_t index = first_[static_cast<unsigned char>(text[pos])] ? LongestAt(text, pos, &length) : -1;
    if (index < 0) {
      ++pos;
      continue;
    }
    const Token& token = tokens_[index];
    size_t start = pos, stop = pos + length;
    pos = stop;
    if (token.single_word && (WordEndsAt(text, start) || WordStartsAt(text, stop))) continue;
    if (token.lstrip) start = std::max(done, StripLeft(text, start, done));
    if (token.rstrip) stop = StripRight(text, stop);
    if (done < start) out->push_back({-1, text.substr(done, start - done)});
    out->push_back({token.id, text.substr(start, stop - start)});
    done = stop;
  }
  if (done < text.size()) out->push_back({-1, text.substr(done)});
}

}  // namespace somnus

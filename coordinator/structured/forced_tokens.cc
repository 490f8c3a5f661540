#include "coordinator/structured/forced_tokens.h"

#include <algorithm>

namespace somnus {
namespace {

// How many of the last bytes may begin a token that goes on; each costs a tokenization. Longer tokens exist
// (runs of spaces), and texts that end in their starts force nothing.
constexpr size_t kMaxOpenBytes = 48;

}  // namespace

void ForcedTokenizer::Prepare() const {
  absl::call_once(once_, [this] {
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      if (!tokenizer_->IsSpecial(id)) sorted_.push_back(tokenizer_->TokenBytes(id));
    }
    std::sort(sorted_.begin(), sorted_.end());
  });
}

bool ForcedTokenizer::BeginsToken(std::string_view start) const {
  const auto next = std::upper_bound(sorted_.begin(), sorted_.end(), start);
  return next != sorted_.end() && next->substr(0, start.size()) == start;
}

std::vector<int32_t> ForcedTokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids = tokenizer_->Encode({text.data(), text.size()}, /*add_special_tokens=*/false);
  size_t position = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string& bytes = tokenizer_->TokenBytes(ids[i]);
    if (bytes.empty() || tokenizer_->IsSpecial(ids[i]) || text.substr(position, bytes.size()) != bytes) {
      ids.resize(i);
      break;
    }
    position += bytes.size();
  }
  return ids;
}

std::vector<int32_t> ForcedTokenizer::Tokens(std::string_view text) const {
  Prepare();
  size_t open = text.size();
  for (size_t begin = 0; begin < text.size(); ++begin) {
    if (!BeginsToken(text.substr(begin))) continue;
    open = begin;
    break;
  }
  if (text.size() - open > kMaxOpenBytes) return {};
  std::vector<int32_t> tokens = Encode(text);
  for (size_t end = open; end < text.size() && !tokens.empty(); ++end) {
    const std::vector<int32_t> other = Encode(text.substr(0, end));
    const auto differ = std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end());
    tokens.erase(differ.first, tokens.end());
  }
  return tokens;
}

}  // namespace somnus

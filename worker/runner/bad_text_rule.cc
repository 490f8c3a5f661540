#include "worker/runner/bad_text_rule.h"

#include <algorithm>

namespace somnus {

absl::StatusOr<BadTextRule> BadTextRule::Create(const v1::BadText& text) {
  const int size = text.token_ids_size();
  if (text.from_size() != size || text.to_size() != size)
    return absl::InvalidArgumentError("a bad text's lists have different lengths");
  BadTextRule rule;
  rule.num_bytes_ = text.num_bytes();
  for (int i = 0; i < size; ++i) {
    const int32_t token = text.token_ids(i), from = text.from(i), to = text.to(i);
    if (from < 0 || from >= to || to > text.num_bytes())
      return absl::InvalidArgumentError("a bad text's piece is not within it");
    if (to == text.num_bytes()) {
      rule.endings_.push_back({from, token, to});
      if (from == 0) ++rule.always_;
    } else {
      rule.inner_.push_back({token, from, to});
    }
  }
  const auto by_key = [](const Piece& a, const Piece& b) { return a.key < b.key; };
  std::stable_sort(rule.inner_.begin(), rule.inner_.end(), by_key);
  std::stable_sort(rule.endings_.begin(), rule.endings_.end(), by_key);
  return rule;
}

bool BadTextRule::IsInside(int32_t token) const {
  const auto it = std::lower_bound(inner_.begin(), inner_.end(), token,
                                   [](const Piece& piece, int32_t id) { return piece.key < id; });
  return it != inner_.end() && it->key == token;
}

// A prefix has no more tokens than bytes: every token brings a byte at least.
std::vector<bool> BadTextRule::PrefixesAtEnd(absl::Span<const int32_t> outputs) const {
  size_t count = 0;
  while (count < outputs.size() && count < static_cast<size_t>(num_bytes_) &&
         IsInside(outputs[outputs.size() - 1 - count]))
    ++count;
  if (count == 0) return {};
  std::vector<bool> now(num_bytes_), next(num_bytes_);
  now[0] = true;
  for (const int32_t token : outputs.subspan(outputs.size() - count)) {
    next.assign(num_bytes_, false);
    next[0] = true;
    auto it = std::lower_bound(inner_.begin(), inner_.end(), token,
                               [](const Piece& piece, int32_t id) { return piece.key < id; });
    for (; it != inner_.end() && it->key == token; ++it) {
      if (now[it->other]) next[it->to] = true;
    }
    now.swap(next);
  }
  return now;
}

void BadTextRule::ForEachForbidden(absl::Span<const int32_t> outputs,
                                   const std::function<void(int32_t)>& forbid) const {
  for (size_t i = 0; i < always_; ++i) forbid(endings_[i].other);
  if (always_ == endings_.size()) return;
  const std::vector<bool> prefixes = PrefixesAtEnd(outputs);
  if (prefixes.empty()) return;
  for (size_t i = always_; i < endings_.size(); ++i) {
    if (prefixes[endings_[i].key]) forbid(endings_[i].other);
  }
}

}  // namespace somnus

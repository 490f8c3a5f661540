#pragma once
// How many values a JSON text has, before anybody works on them.

#include <cstdint>
#include <vector>

namespace somnus {

// Whether `root`, an nlohmann::json or an ordered_json, has more than `most` values, itself and keys' values
// included. Takes time and memory in proportion to `most`, whatever the size of `root`.
template <typename Json>
bool HasMoreValues(const Json& root, int64_t most) {
  int64_t values = 1;
  std::vector<const Json*> unread = {&root};
  while (!unread.empty() && values <= most) {
    const Json& value = *unread.back();
    unread.pop_back();
    if (!value.is_structured()) continue;
    values += static_cast<int64_t>(value.size());
    if (values > most) break;
    for (const Json& inner : value) unread.push_back(&inner);
  }
  return values > most;
}

}  // namespace somnus

#pragma once
// The median of samples. Pure.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace somnus {

// The middle value, or the mean of the two values in the middle; 0 for no values.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace somnus

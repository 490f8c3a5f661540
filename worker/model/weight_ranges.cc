#include "worker/model/weight_ranges.h"

#include <algorithm>
#include <map>

namespace somnus {
namespace {

constexpr uint64_t kMaxGap = 256 << 10;  // read along with the ranges around the gap

// The stored rows.
FileRange RangeOf(const WeightSource& source) {
  const TensorInfo& tensor = *source.tensor;
  const uint64_t begin = tensor.data - tensor.source->data();
  const int64_t rows = tensor.shape[0];
  // In a vector, blocks of quantized elements do not end with each row, and rows of a head change places.
  // Packed numbers may have the inputs first; their scales, a hundredth of the bytes, are left out.
  const bool divides = tensor.bytes % rows == 0 && tensor.heads.head_dim == 0 && tensor.packed == nullptr &&
                       tensor.part == nullptr;
  if (!divides) return {tensor.source, begin, begin + tensor.bytes};
  const uint64_t row_bytes = tensor.bytes / rows;
  return {tensor.source, begin + source.rows.begin * row_bytes, begin + source.rows.end * row_bytes};
}

}  // namespace

std::vector<FileRange> WeightRanges(const WeightPlan& plan) {
  std::map<const MappedFile*, std::vector<FileRange>> by_file;
  const auto add = [&](const std::vector<WeightSource>& sources) {
    for (const WeightSource& source : sources) {
      const bool reads = source.rows.size() > 0 && source.tensor->source != nullptr;
      if (reads) by_file[source.tensor->source].push_back(RangeOf(source));
    }
  };
  for (const WeightPlan::Matrix& matrix : plan.matrices()) add(matrix.sources);
  for (const WeightPlan::Vector& vector : plan.vectors()) add(vector.sources);
  std::vector<FileRange> ranges;
  for (auto& [file, of_file] : by_file) {
    std::sort(of_file.begin(), of_file.end(),
              [](const FileRange& a, const FileRange& b) { return a.begin < b.begin; });
    for (const FileRange& range : of_file) {
      const bool joins =
          !ranges.empty() && ranges.back().file == file && range.begin <= ranges.back().end + kMaxGap;
      if (joins) {
        ranges.back().end = std::max(ranges.back().end, range.end);
      } else {
        ranges.push_back(range);
      }
    }
  }
  return ranges;
}

}  // namespace somnus

#include "checkpoint/gguf_split.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/gguf_tensors.h"
#include "checkpoint/mapped_file.h"

namespace somnus {
namespace {

constexpr char kCount[] = "split.count", kNumber[] = "split.no", kTensors[] = "split.tensors.count";
constexpr int64_t kMaxSplits = 1000;

std::string SplitSuffix(int64_t number, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number + 1, count);
}

// Ok when the file is part `number` (from 0) of `count`.
absl::Status CheckPart(const GgufFile& gguf, int64_t number, int64_t count) {
  ASSIGN_OR_RETURN(const int64_t its_number, gguf.Int(kNumber, std::nullopt));
  ASSIGN_OR_RETURN(const int64_t its_count, gguf.Int(kCount, std::nullopt));
  if (its_count != count) return gguf.Bad(kCount, absl::StrCat(its_count, ", the first file says ", count));
  if (its_number != number) {
    return gguf.Bad(kNumber,
                    absl::StrCat(its_number, " (counted from 0), but part ", number, " is expected here"));
  }
  return absl::OkStatus();
}

// Returns how many tensors the part has.
absl::StatusOr<size_t> AddPart(const Family& family, const std::string& path, int64_t number, int64_t count,
                               TensorTable* tensors) {
  auto file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat(BaseName(path), ": part ", number + 1, " of ", count, " of the model is missing"));
  }
  RETURN_IF_ERROR(file.status());
  const auto gguf = GgufFile::Parse(**file);
  RETURN_IF_ERROR((*file)->CheckWhole());
  RETURN_IF_ERROR(gguf.status());
  RETURN_IF_ERROR(CheckPart(*gguf, number, count));
  RETURN_IF_ERROR(AddGgufTensors(family, *gguf, **file, tensors));
  tensors->Keep(*std::move(file));
  return gguf->tensors().size();
}

}  // namespace

absl::StatusOr<int64_t> CountGgufParts(const GgufFile& first) {
  ASSIGN_OR_RETURN(const int64_t count, first.Int(kCount, 1));
  if (count < 1 || count > kMaxSplits) return first.Bad(kCount, absl::StrCat(count, " is out of range"));
  if (count > 1) RETURN_IF_ERROR(CheckPart(first, 0, count));
  return count;
}

absl::StatusOr<std::string> AddGgufSplits(const Family& family, const std::string& path,
                                          const GgufFile& first, int64_t count, TensorTable* tensors) {
  if (count == 1) return std::string(absl::StripSuffix(first.name(), ".gguf"));
  absl::string_view stem = path, name = first.name();
  const std::string suffix = SplitSuffix(0, count);
  if (!absl::ConsumeSuffix(&stem, suffix) || !absl::ConsumeSuffix(&name, suffix)) {
    return first.Bad(kCount, absl::StrCat("the file's name does not end in ", suffix));
  }
  auto found = static_cast<int64_t>(first.tensors().size());
  for (int64_t number = 1; number < count; ++number) {
    ASSIGN_OR_RETURN(const size_t more,
                     AddPart(family, absl::StrCat(stem, SplitSuffix(number, count)), number, count, tensors));
    found += static_cast<int64_t>(more);
  }
  ASSIGN_OR_RETURN(const int64_t expected, first.Int(kTensors, found));
  if (found != expected) {
    return first.Bad(kTensors, absl::StrCat(expected, ", but the ", count, " files have ", found));
  }
  return std::string(name);
}

std::vector<std::string> GgufPartPaths(const std::string& path) {
  constexpr size_t kDigits = 5;
  const absl::string_view end = ".gguf";
  std::vector<std::string> paths = {path};
  absl::string_view stem = path;
  int64_t count = 0;
  if (!absl::ConsumeSuffix(&stem, end) || stem.size() < kDigits) return paths;
  if (!absl::SimpleAtoi(stem.substr(stem.size() - kDigits), &count) || count > kMaxSplits) return paths;
  stem = path;
  if (!absl::ConsumeSuffix(&stem, SplitSuffix(0, count))) return paths;
  for (int64_t number = 1; number < count; ++number) {
    std::string part = absl::StrCat(stem, SplitSuffix(number, count));
    struct stat info;
    if (stat(part.c_str(), &info) == 0) paths.push_back(std::move(part));
  }
  return paths;
}

}  // namespace somnus

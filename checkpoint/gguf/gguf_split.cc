#include "checkpoint/gguf/gguf_split.h"

#include <sys/stat.h>

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "checkpoint/gguf/gguf_tensors.h"
#include "checkpoint/mapped_file.h"

namespace somnus {
namespace {

constexpr char kCount[] = "split.count", kNumber[] = "split.no", kTensors[] = "split.tensors.count";
constexpr int64_t kMaxSplits = 1000;

constexpr absl::string_view kGgufEnding = ".gguf";

// The paths of a model's parts: STEM-00001-of-00003.gguf, with the ending in upper or lower case.
class PartPaths {
 public:
  // nullopt: `path` is not of that form.
  static std::optional<PartPaths> Of(absl::string_view path) {
    constexpr absl::string_view kForm = "-00001-of-00003.gguf";
    constexpr size_t kDigits = 5, kSecond = 10;  // where the second number begins
    if (path.size() <= kForm.size()) return std::nullopt;
    PartPaths paths;
    paths.stem_ = std::string(path.substr(0, path.size() - kForm.size()));
    const absl::string_view tail = path.substr(paths.stem_.size());
    paths.ending_ = std::string(tail.substr(kSecond + kDigits));
    int64_t number = 0;
    if (!absl::SimpleAtoi(tail.substr(1, kDigits), &number) ||
        !absl::SimpleAtoi(tail.substr(kSecond, kDigits), &paths.count_) || paths.count_ > kMaxSplits ||
        !absl::EqualsIgnoreCase(paths.ending_, kGgufEnding) || paths.Part(number - 1) != path) {
      return std::nullopt;
    }
    return paths;
  }

  int64_t count() const { return count_; }
  const std::string& stem() const { return stem_; }
  // `number` counts from 0.
  std::string Part(int64_t number) const {
    return absl::StrFormat("%s-%05d-of-%05d%s", stem_, number + 1, count_, ending_);
  }

 private:
  std::string stem_, ending_;
  int64_t count_ = 0;
};

bool PartExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
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
  if (count == 1) {
    absl::string_view name = first.name();
    if (absl::EndsWithIgnoreCase(name, kGgufEnding)) name.remove_suffix(kGgufEnding.size());
    return std::string(name);
  }
  const std::optional<PartPaths> paths = PartPaths::Of(path);
  if (!paths.has_value() || paths->count() != count || path != paths->Part(0)) {
    return first.Bad(kCount, absl::StrFormat("the file's name does not end in -00001-of-%05d.gguf", count));
  }
  auto found = static_cast<int64_t>(first.tensors().size());
  for (int64_t number = 1; number < count; ++number) {
    ASSIGN_OR_RETURN(const size_t more, AddPart(family, paths->Part(number), number, count, tensors));
    found += static_cast<int64_t>(more);
  }
  ASSIGN_OR_RETURN(const int64_t expected, first.Int(kTensors, found));
  if (found != expected) {
    return first.Bad(kTensors, absl::StrCat(expected, ", but the ", count, " files have ", found));
  }
  return BaseName(paths->stem());
}

std::string FirstGgufPart(const std::string& path) {
  const std::optional<PartPaths> paths = PartPaths::Of(path);
  if (!paths.has_value()) return path;
  std::string first = paths->Part(0);
  return PartExists(first) ? first : path;
}

std::vector<std::string> GgufPartPaths(const std::string& path) {
  const std::optional<PartPaths> paths = PartPaths::Of(path);
  if (!paths.has_value()) return {path};
  std::vector<std::string> found;
  for (int64_t number = 0; number < paths->count(); ++number) {
    if (std::string part = paths->Part(number); PartExists(part)) found.push_back(std::move(part));
  }
  return found;
}

}  // namespace somnus

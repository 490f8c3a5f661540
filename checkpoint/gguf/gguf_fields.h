#pragma once
// Typed access to the keys of one architecture in a GGUF file's metadata ("llama.block_count").

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "checkpoint/gguf/gguf_file.h"

namespace somnus {

// Keeps the first error, which names the key. Borrows the file. Not thread safe.
class GgufFields {
 public:
  GgufFields(const GgufFile& gguf, std::string arch);

  const GgufFile& gguf() const { return gguf_; }
  std::string Key(absl::string_view key) const;
  bool Has(absl::string_view key) const { return gguf_.Has(Key(key)); }

  // A positive int32; 1 after an error. Without `otherwise` the key must be there.
  int32_t Size(absl::string_view key, std::optional<int64_t> otherwise = std::nullopt);
  // As Size; some files write one number per layer, and all must be equal.
  int32_t SizePerLayer(absl::string_view key, std::optional<int64_t> otherwise = std::nullopt);
  // As Size, where 0 and an absent key mean none, which is 0.
  int32_t SizeOrNone(absl::string_view key);
  // The size times `factor`, above zero; an error where the product is out of range.
  int32_t SizeTimes(absl::string_view key, int64_t otherwise, int32_t factor);
  bool Bool(absl::string_view key, bool otherwise);
  double Double(absl::string_view key, double otherwise);
  // As Double; an error unless the number is above zero.
  double PositiveDouble(absl::string_view key, double otherwise);

  // Returns 1 in place of a size.
  int32_t Fail(absl::Status status);
  const absl::Status& status() const { return status_; }

 private:
  const GgufFile& gguf_;
  const std::string arch_;
  absl::Status status_;
};

}  // namespace somnus

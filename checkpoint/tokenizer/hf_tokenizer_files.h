#pragma once
// The files of a Hugging Face tokenizer: opened within limits.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/mapped_file.h"

namespace somnus {

// tokenizer.json of the largest vocabularies (256 k) is below 40 MB.
inline constexpr uint64_t kMaxTokenizerBytes = 512 << 20;
inline constexpr uint64_t kMaxTokenizerConfigBytes = 16 << 20;

// InvalidArgument when the file is longer than `max_bytes`.
absl::StatusOr<std::unique_ptr<MappedFile>> OpenLimited(const std::string& path, uint64_t max_bytes);

// Gives the text of a file of at most kMaxTokenizerConfigBytes, and the file's name, to `parse`; a missing
// file changes nothing.
using ParseFile = std::function<absl::Status(const std::string& file, absl::string_view text)>;
absl::Status ReadOptionalFile(const std::string& path, const ParseFile& parse);

}  // namespace somnus

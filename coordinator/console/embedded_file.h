#pragma once
// A file of the console as embed.py puts it into the program.

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace somnus {

struct EmbeddedFile {
  absl::string_view name;
  absl::string_view body;
  absl::string_view etag;  // with its quotation marks
};

// Sorted by name.
absl::Span<const EmbeddedFile> EmbeddedFiles();

}  // namespace somnus

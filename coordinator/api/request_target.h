#pragma once
// The target of a request's first line (RFC 9112, section 3.2). Pure functions.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

struct RequestTarget {
  std::string authority;       // of the absolute form, where it replaces the Host header; else empty
  std::string path_and_query;  // "/v1/models?x=1"; "*"
};

// Reads the origin form ("/path?query") and the absolute form ("http://host:port/path?query"). In the path
// "%2D" and the like, which spell letters, digits, '-', '.', '_' and '~', become what they stand for; all
// other bytes remain as they are.
RequestTarget ParseTarget(absl::string_view target);

}  // namespace somnus

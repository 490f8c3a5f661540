#pragma once
// The target of a request's first line (RFC 9112, section 3.2). Pure functions.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

struct RequestTarget {
  std::string authority;       // of the absolute form, and replaces the Host header; else empty
  std::string path_and_query;  // "/v1/models?x=1"; "*"
};

// Reads the origin form ("/path?query") and the absolute form ("http://host:port/path?query"). In the path,
// escapes of letters, digits, '-', '.', '_' and '~' ("%2D") are decoded; the remaining bytes do not change.
RequestTarget ParseTarget(absl::string_view target);

// The path and query without `root`, a prefix of paths as "/llm" that a proxy in front has left: "/models" of
// "/llm/models". Paths that do not begin so, and all where `root` is empty, do not change.
std::string BelowRoot(absl::string_view root, std::string path_and_query);

}  // namespace somnus

#pragma once
// Percent-encoding of URLs (RFC 3986, section 2.1). A pure function.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Encodes every byte but letters, digits, '-', '_' and '.' as "%2F", so that the text may be a segment of a
// path or a value in a query.
std::string PercentEncoded(absl::string_view text);

}  // namespace somnus

#include "tools/http/percent_encoded.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace somnus {

std::string PercentEncoded(absl::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '_' || c == '.') {
      encoded += c;
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", byte);
    }
  }
  return encoded;
}

}  // namespace somnus

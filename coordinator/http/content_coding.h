#pragma once
// Bodies that clients send compressed (Content-Encoding). Pure, but for the caller's count of bytes.
//
// Memory is bounded: a body is decompressed piece by piece, each piece is counted before the body grows, and
// the body never exceeds the bound, however small the compressed form is. Source: RFC 9110, section 8.4.1.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/http/api_error.h"

namespace somnus {

enum class ContentCoding { kIdentity, kGzip, kDeflate };
inline constexpr char kContentCodings[] = "gzip, deflate";  // for Accept-Encoding

// Reads the value of a Content-Encoding header; nullopt: several codings, or a coding that is not supported.
std::optional<ContentCoding> ParseContentCoding(absl::string_view value);

// Decompresses `*body`, to at most `max_bytes`. `reserve` is called with the size of each further piece, and
// returns false when there is no memory for the piece. Errors: 400 for a damaged or incomplete body, 413
// for a body that is too large, 503 when `reserve` has refused.
std::optional<ApiError> DecodeContent(ContentCoding coding, int64_t max_bytes,
                                      const std::function<bool(int64_t)>& reserve, std::string* body);

}  // namespace somnus

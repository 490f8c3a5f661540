#pragma once
// Bodies that clients send compressed (Content-Encoding). Pure, but for the caller's count of bytes.
//
// Bounded: a body grows piece by piece, each of which is counted before it is kept, and never beyond the
// bound, however small its compressed form is. Source: RFC 9110, section 8.4.1.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/api/api_error.h"

namespace somnus {

enum class ContentCoding { kIdentity, kGzip, kDeflate };
inline constexpr char kContentCodings[] = "gzip, deflate";  // for Accept-Encoding

// The value of a Content-Encoding header; nullopt: one that this server does not have, or several.
std::optional<ContentCoding> ParseContentCoding(absl::string_view value);

// Replaces `*body` by what it is the compressed form of, at most `max_bytes`. `reserve` is called with the
// bytes of each further piece, and returns false when there is no memory for it. Errors: 400 where the body
// is damaged or not whole, 413 where it is too large, 503 where `reserve` has refused.
std::optional<ApiError> DecodeContent(ContentCoding coding, int64_t max_bytes,
                                      const std::function<bool(int64_t)>& reserve, std::string* body);

}  // namespace somnus

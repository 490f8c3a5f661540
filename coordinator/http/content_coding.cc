#include "coordinator/http/content_coding.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <exception>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace somnus {
namespace {

constexpr size_t kPieceBytes = 64 << 10;
// The windowBits of inflateInit2: how far back references may go, and which wrapper is around the data.
constexpr int kGzipWindow = 15 + 16, kZlibWindow = 15, kRawWindow = -15;

// "deflate" is zlib's format; but some clients send the bare data, as some browsers' servers once did. The
// first two bytes of zlib's format are a multiple of 31, with 8 in the low half of the first.
bool HasZlibHeader(absl::string_view data) {
  if (data.size() < 2) return false;
  const auto first = static_cast<unsigned char>(data[0]), second = static_cast<unsigned char>(data[1]);
  return (first & 0x0F) == 8 && (first * 256 + second) % 31 == 0;
}

ApiError Damaged() { return BadRequest("", "The body is not what Content-Encoding says."); }

std::optional<ApiError> Inflate(z_stream* stream, bool has_members, int64_t max_bytes,
                                const std::function<bool(int64_t)>& reserve, std::string* out) {
  std::array<char, kPieceBytes> piece;
  for (;;) {
    stream->next_out = reinterpret_cast<Bytef*>(piece.data());
    stream->avail_out = piece.size();
    const int status = ::inflate(stream, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) return Damaged();
    const size_t got = piece.size() - stream->avail_out;
    if (static_cast<int64_t>(out->size() + got) > max_bytes)
      return ApiError{413, "The body is too large, decompressed.", ""};
    if (!reserve(static_cast<int64_t>(got))) return ApiError{503, "Too many large requests at once.", ""};
    out->append(piece.data(), got);
    if (status == Z_OK) continue;
    if (stream->avail_in == 0) return std::nullopt;
    // A gzip body may consist of several members in a row.
    if (!has_members || ::inflateReset(stream) != Z_OK) return Damaged();
  }
}

}  // namespace

std::optional<ContentCoding> ParseContentCoding(absl::string_view value) {
  value = absl::StripAsciiWhitespace(value);
  if (value.empty() || absl::EqualsIgnoreCase(value, "identity")) return ContentCoding::kIdentity;
  if (absl::EqualsIgnoreCase(value, "gzip") || absl::EqualsIgnoreCase(value, "x-gzip"))
    return ContentCoding::kGzip;
  if (absl::EqualsIgnoreCase(value, "deflate")) return ContentCoding::kDeflate;
  return std::nullopt;
}

std::optional<ApiError> DecodeContent(ContentCoding coding, int64_t max_bytes,
                                      const std::function<bool(int64_t)>& reserve, std::string* body) {
  if (coding == ContentCoding::kIdentity) return std::nullopt;
  const bool gzip = coding == ContentCoding::kGzip;
  z_stream stream{};
  stream.next_in = reinterpret_cast<Bytef*>(body->data());
  stream.avail_in = static_cast<uInt>(body->size());
  const int window = gzip ? kGzipWindow : HasZlibHeader(*body) ? kZlibWindow : kRawWindow;
  const ApiError no_memory{503, "There is no memory to decompress the body.", ""};
  if (::inflateInit2(&stream, window) != Z_OK) return no_memory;
  const absl::Cleanup end = [&stream] { ::inflateEnd(&stream); };
  try {
    std::string decoded;
    if (std::optional<ApiError> error = Inflate(&stream, gzip, max_bytes, reserve, &decoded)) return error;
    *body = std::move(decoded);
    return std::nullopt;
  } catch (const std::exception&) {
    return no_memory;
  }
}

}  // namespace somnus

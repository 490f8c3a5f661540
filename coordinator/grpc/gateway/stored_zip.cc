#include "coordinator/grpc/gateway/stored_zip.h"

#include <zlib.h>

#include <utility>

namespace somnus::gateway {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEnd = 0x06054b50;
constexpr uint16_t kVersion = 20;             // of the format that a reader has to know: 2.0
constexpr uint16_t kUtf8Names = 1 << 11;      // a flag
constexpr uint16_t kFirstDay = (1 << 5) | 1;  // 1980-01-01: the same files give the same archive

void Append16(uint16_t number, std::string* to) {
  to->push_back(static_cast<char>(number & 0xff));
  to->push_back(static_cast<char>(number >> 8));
}

void Append32(uint32_t number, std::string* to) {
  Append16(static_cast<uint16_t>(number & 0xffff), to);
  Append16(static_cast<uint16_t>(number >> 16), to);
}

// The fields that both headers of a file have, from the version on.
void AppendCommon(const std::string& name, uint32_t crc, uint32_t size, std::string* to) {
  Append16(kVersion, to);
  Append16(kUtf8Names, to);
  Append16(0, to);  // no compression
  Append16(0, to);  // midnight
  Append16(kFirstDay, to);
  Append32(crc, to);
  Append32(size, to);
  Append32(size, to);
  Append16(static_cast<uint16_t>(name.size()), to);
  Append16(0, to);  // no extra field
}

}  // namespace

bool StoredZip::Add(const std::string& name, absl::string_view contents) {
  const auto crc = static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const unsigned char*>(contents.data()), contents.size()));
  const auto size = static_cast<uint32_t>(contents.size());
  entries_.push_back({name, crc, size, offset_});
  std::string header;
  Append32(kLocalHeader, &header);
  AppendCommon(name, crc, size, &header);
  header += name;
  return Write(header) && Write(contents);
}

bool StoredZip::Finish() {
  const uint32_t begin = offset_;
  const auto count = static_cast<uint16_t>(entries_.size());
  for (const Entry& entry : entries_) {
    std::string header;
    Append32(kCentralHeader, &header);
    Append16(kVersion, &header);  // that made the archive
    AppendCommon(entry.name, entry.crc, entry.size, &header);
    Append16(0, &header);  // no comment
    Append16(0, &header);  // first disk
    Append16(0, &header);  // no attributes, nor any of a system
    Append32(0, &header);
    Append32(entry.offset, &header);
    header += entry.name;
    if (!Write(header)) return false;
  }
  std::string end;
  Append32(kEnd, &end);
  Append32(0, &end);  // one disk alone
  Append16(count, &end);
  Append16(count, &end);
  Append32(offset_ - begin, &end);
  Append32(begin, &end);
  Append16(0, &end);  // no comment
  return Write(end);
}

bool StoredZip::Write(absl::string_view bytes) {
  offset_ += static_cast<uint32_t>(bytes.size());
  return sink_(bytes);
}

}  // namespace somnus::gateway

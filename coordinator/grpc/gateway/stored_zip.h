#pragma once
// Writes a zip archive without compression, as a stream. Not thread safe. Internal to
// coordinator/grpc/gateway. Source of the format: PKWARE's APPNOTE 6.3.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus::gateway {

class StoredZip {
 public:
  // Takes the archive's next bytes. False: the archive is not wanted any more.
  using Sink = std::function<bool(absl::string_view)>;

  explicit StoredZip(Sink sink) : sink_(std::move(sink)) {}
  StoredZip(const StoredZip&) = delete;
  StoredZip& operator=(const StoredZip&) = delete;

  // Adds a file. Names and contents have 4 GiB together at most, and there are 65,535 files at most.
  bool Add(const std::string& name, absl::string_view contents);
  // Ends the archive. To be called once, last.
  bool Finish();

 private:
  struct Entry {
    std::string name;
    uint32_t crc, size, offset;
  };
  bool Write(absl::string_view bytes);

  const Sink sink_;
  std::vector<Entry> entries_;
  uint32_t offset_ = 0;  // of the next byte
};

}  // namespace somnus::gateway

#pragma once
// Files in protobuf's text format. Thread safe.

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <string>

#include "absl/status/status.h"

namespace somnus {

inline constexpr size_t kMaxTextFileBytes = 1 << 20;

// Reads the file, which may be a FIFO (base/small_file.h), into an empty message; `lines`, where given, then
// knows on which line each field is, counted from 0. NotFound: there is no such file. DataLoss says what is
// wrong with the file, without the path: "line 7: ...".
absl::Status ReadTextFile(const std::string& path, google::protobuf::Message* message,
                          google::protobuf::TextFormat::ParseInfoTree* lines = nullptr);

}  // namespace somnus

#pragma once
// Server-sent events, as far as the OpenAI API uses events: the data of each event. Not thread safe.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus {

class SseParser {
 public:
  // The data of every event that these bytes complete. Comments and other fields are skipped.
  std::vector<std::string> Feed(absl::string_view bytes);

 private:
  void TakeLine(absl::string_view line, std::vector<std::string>* events);

  std::string line_;  // unfinished
  std::string data_;
  bool has_data_ = false;
};

}  // namespace somnus

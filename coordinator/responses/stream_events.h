#pragma once
// The events of one stream of the Responses API: `event: TYPE` and `data: {"type": TYPE, "sequence_number":
// N, ...}`, numbered from 0. Not thread safe.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace somnus {

class StreamEvents {
 public:
  // Appends an event. `members`: further members of the data, each with a comma before.
  void Add(absl::string_view type, absl::string_view members, std::string* out) {
    absl::StrAppend(out, "event: ", type, "\ndata: {\"type\":\"", type, "\",\"sequence_number\":", next_++,
                    members, "}\n\n");
  }

 private:
  int64_t next_ = 0;
};

}  // namespace somnus

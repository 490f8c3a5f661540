#pragma once
// A number with the name of the things that the number counts, for messages: "1 worker", "2 workers".

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace somnus {

inline std::string Counted(int64_t number, absl::string_view noun) {
  return absl::StrCat(number, " ", noun, number == 1 ? "" : "s");
}

}  // namespace somnus

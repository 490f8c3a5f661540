#include "coordinator/http/shown_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace somnus {

std::string ShownText(absl::string_view text) {
  constexpr size_t kMostBytes = 200;
  std::string shown;
  for (const char c : text) {
    if (shown.size() >= kMostBytes) return shown + "...";
    if (absl::ascii_isprint(static_cast<unsigned char>(c))) {
      shown += c;
    } else {
      absl::StrAppend(&shown, "%", absl::AsciiStrToUpper(absl::BytesToHexString(absl::string_view(&c, 1))));
    }
  }
  return shown;
}

}  // namespace somnus

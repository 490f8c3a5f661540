#include "tools/http/sse.h"

#include <utility>

#include "absl/strings/strip.h"

namespace somnus {

std::vector<std::string> SseParser::Feed(absl::string_view bytes) {
  std::vector<std::string> events;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == absl::string_view::npos) {
      line_.append(bytes.data(), bytes.size());
      break;
    }
    line_.append(bytes.data(), end);
    bytes.remove_prefix(end + 1);
    TakeLine(absl::StripSuffix(line_, "\r"), &events);
    line_.clear();
  }
  return events;
}

void SseParser::TakeLine(absl::string_view line, std::vector<std::string>* events) {
  if (line.empty()) {
    if (has_data_) events->push_back(std::exchange(data_, {}));
    has_data_ = false;
    return;
  }
  if (!absl::ConsumePrefix(&line, "data:")) return;
  absl::ConsumePrefix(&line, " ");
  if (has_data_) data_ += '\n';
  data_.append(line.data(), line.size());
  has_data_ = true;
}

}  // namespace somnus

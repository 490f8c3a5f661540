#pragma once
// Unicode normalization (ICU). Thread safe.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

class Normalizer {
 public:
  explicit Normalizer(const TokenizerData& data)
      : nfc_(data.nfc), nfd_(data.nfd), nfkc_(data.nfkc), nfkd_(data.nfkd), lowercase_(data.lowercase) {}

  bool enabled() const { return nfc_ || nfd_ || nfkc_ || nfkd_ || lowercase_; }
  // `text` must be valid UTF-8. The time is linear, except for the sorting of long runs of combining marks.
  std::string Normalize(absl::string_view text) const;

 private:
  bool nfc_, nfd_, nfkc_, nfkd_, lowercase_;
};

}  // namespace somnus

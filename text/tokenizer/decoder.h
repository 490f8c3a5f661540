#pragma once
// The decoder of a tokenizer: the bytes that each token adds to a text. Immutable after Create; thread safe.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

// The change to the start of a decoded text.
struct TextStart {
  std::string strip;  // removed from the start of the text, up to `count` times
  int32_t count = 0;
};

class Decoder {
 public:
  // Unimplemented: the result of the steps depends on more than each token and the text's start.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const TokenizerData& data);

  // The bytes of a token, not necessarily whole characters. `first`: no token goes before.
  std::string BytesOf(absl::string_view token, bool first) const;
  const TextStart& text_start() const { return text_start_; }
  // The first token of a text differs from the same token elsewhere.
  bool first_differs() const { return first_differs_; }
  bool changes_start() const { return first_differs_ || text_start_.count > 0; }
  // As in SentencePiece, each byte that is part of no character becomes a U+FFFD of its own. Otherwise a
  // character that breaks off becomes a single U+FFFD, as in Python.
  bool replaces_each_byte() const { return byte_fallback_; }

 private:
  std::vector<DecoderStep> steps_;  // for each token
  TextStart text_start_;
  bool byte_fallback_ = false, first_differs_ = false;
};

}  // namespace somnus

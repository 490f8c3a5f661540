#pragma once
// What a token stands for in a text: the decoder of a tokenizer. Immutable after Create; thread safe.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

// What happens where a text begins.
struct TextStart {
  std::string strip;  // goes from the start of the text, up to `count` times
  int32_t count = 0;
};

class Decoder {
 public:
  // Unimplemented for an order of steps whose result depends on more than the token and the text's start.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const TokenizerData& data);

  // The bytes of a token, not necessarily whole characters. `first`: no other token goes before it.
  std::string BytesOf(absl::string_view token, bool first) const;
  const TextStart& text_start() const { return text_start_; }
  // The first token of a text differs from the same token elsewhere.
  bool first_differs() const { return first_differs_; }
  bool changes_start() const { return first_differs_ || text_start_.count > 0; }
  // As in SentencePiece, each byte that is part of no character becomes a U+FFFD of its own. Otherwise a
  // character that breaks off becomes one, as in Python.
  bool replaces_each_byte() const { return byte_fallback_; }

 private:
  std::vector<DecoderStep> steps_;  // those of each token
  TextStart text_start_;
  bool byte_fallback_ = false, first_differs_ = false;
};

}  // namespace somnus

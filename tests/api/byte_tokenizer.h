#pragma once
// A tokenizer whose tokens are bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace somnus {

// Ids 0..255 are bytes, 256 is "<eos>" (special).
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kEos = 256;
  ByteTokenizer() {
    for (int i = 0; i < 256; ++i) bytes_.push_back(std::string(1, static_cast<char>(i)));
    bytes_.push_back("<eos>");
    data_.eos_token = "<eos>";
  }
  std::vector<int32_t> Encode(absl::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const override {
    IncrementalDetokenizer detokenizer(this, skip_special_tokens);
    std::string text;
    for (const int32_t id : ids) text += detokenizer.Append(id);
    return text + detokenizer.Flush();
  }
  const std::string& TokenBytes(int32_t id) const override { return bytes_[id]; }
  const std::string& TokenString(int32_t id) const override { return bytes_[id]; }
  bool IsSpecial(int32_t id) const override { return id == kEos; }
  int32_t vocab_size() const override { return 257; }
  const TokenizerData& data() const override { return data_; }

 private:
  std::vector<std::string> bytes_;
  TokenizerData data_;
};

}  // namespace somnus

#pragma once
// Text to token ids and back: byte-level BPE (GPT-2, SmolLM2, Qwen, Llama 3) and SentencePiece's BPE (Llama
// 2, Mistral, Gemma, Phi-3), equal to Hugging Face `tokenizers`. Immutable after Create; thread safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

class Decoder;

class Tokenizer {
 public:
  // InvalidArgument when the data are not consistent (a merge of unknown tokens, an invalid pattern).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerData data);
  virtual ~Tokenizer() = default;

  // `text` is UTF-8; invalid bytes become U+FFFD first, as with Python's errors="replace".
  // `add_special_tokens`: the tokens that the post-processor adds (Llama 3's <|begin_of_text|>). Added tokens
  // that are written out in the text always become their ids, as in Hugging Face.
  virtual std::vector<int32_t> Encode(absl::string_view text, bool add_special_tokens) const = 0;

  // Decodes a whole text; bytes that are not UTF-8 become U+FFFD. Ids out of range are skipped.
  virtual std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const = 0;

  // The raw bytes that `id` stands for, not necessarily whole characters. Empty for an unused id.
  virtual const std::string& TokenBytes(int32_t id) const = 0;
  // The token as the vocabulary writes it ("Ġhello").
  virtual const std::string& TokenString(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  virtual int32_t vocab_size() const = 0;  // all ids are less than this
  virtual const TokenizerData& data() const = 0;
  // The rules for a text's first token and for broken characters; null: TokenBytes are joined unchanged.
  virtual const Decoder* decoder() const { return nullptr; }
};

// Turns a growing sequence of ids into text that never splits a UTF-8 character: the bytes of an incomplete
// character are held back. Not thread safe. The tokenizer must outlive it.
class IncrementalDetokenizer {
 public:
  // `at_start`: the first id begins a text; the concatenation of all results of Append and Flush equals
  // Tokenizer::Decode of the ids then. Otherwise the ids continue a text, and a first word keeps its space.
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens, bool at_start = true);
  std::string Append(int32_t id);
  void Append(int32_t id, std::string* out);
  // Returns what is still held back, invalid bytes as U+FFFD. To be called once, at the end.
  std::string Flush();

 private:
  void StripStart(std::string* text);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_, each_byte_;
  bool first_;            // the next id is the first of its text
  int32_t to_strip_ = 0;  // how often the start of the text may still be stripped
  std::string pending_;
};

// Whether the token after `ids` begins a text, because the ids add no text. False also for a tokenizer that
// writes the start of a text like the rest.
bool BeginsText(const Tokenizer& tokenizer, absl::Span<const int32_t> ids, bool skip_special_tokens);

}  // namespace somnus

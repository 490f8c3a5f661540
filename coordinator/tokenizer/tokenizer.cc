#include "coordinator/tokenizer/tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "coordinator/tokenizer/added_tokens.h"
#include "coordinator/tokenizer/bpe.h"
#include "coordinator/tokenizer/normalizer.h"
#include "coordinator/tokenizer/pre_tokenizer.h"
#include "coordinator/tokenizer/unicode.h"

namespace somnus {
namespace {

constexpr int32_t kMaxTokens = 1 << 24;

// Returns the byte that a token of a byte_fallback vocabulary stands for ("<0x0A>": 10), or -1.
int FallbackByte(absl::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(TokenizerData data) : data_(std::move(data)), normalizer_(data_) {}

  absl::Status Init() {
    RETURN_IF_ERROR(CheckIds());
    ASSIGN_OR_RETURN(pre_tokenizer_, PreTokenizer::Create(data_.pre_tokenizer));
    ASSIGN_OR_RETURN(bpe_, Bpe::Create(data_, pre_tokenizer_->byte_pieces()));
    std::vector<std::pair<std::string, std::string>>().swap(data_.merges);  // large, and not read again
    AddAddedTokens();
    FillBytes();
    return absl::OkStatus();
  }

  std::vector<int32_t> Encode(absl::string_view text, bool add_special_tokens) const override {
    std::string repaired;
    if (!IsAscii(text) && !IsUtf8(text)) {
      repaired = ReplaceInvalidUtf8(text);
      text = repaired;
    }
    std::vector<int32_t> ids;
    const PostProcessor& post = data_.post_processor;
    if (add_special_tokens) ids = post.prefix_ids;
    std::vector<TextSegment> segments;
    raw_matcher_.Split(text, &segments);
    for (const TextSegment& segment : segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else {
        EncodeSegment(segment.text, &ids);
      }
    }
    if (add_special_tokens) ids.insert(ids.end(), post.suffix_ids.begin(), post.suffix_ids.end());
    return ids;
  }

  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const override {
    std::string bytes;
    for (const int32_t id : ids) {
      if (!(skip_special_tokens && IsSpecial(id))) bytes += TokenBytes(id);
    }
    return ReplaceInvalidUtf8(bytes);
  }

  const std::string& TokenBytes(int32_t id) const override { return InRange(id) ? bytes_[id] : empty_; }
  const std::string& TokenString(int32_t id) const override { return InRange(id) ? strings_[id] : empty_; }
  bool IsSpecial(int32_t id) const override { return InRange(id) && special_[id]; }
  int32_t vocab_size() const override { return static_cast<int32_t>(bytes_.size()); }
  const TokenizerData& data() const override { return data_; }

 private:
  bool InRange(int32_t id) const { return id >= 0 && id < vocab_size(); }

  absl::Status CheckIds() const {
    if (data_.tokens.size() > kMaxTokens) return absl::InvalidArgumentError("the vocabulary is too large");
    for (const AddedToken& token : data_.added_tokens) {
      if (token.id < 0 || token.id >= kMaxTokens) {
        return absl::InvalidArgumentError(
            absl::StrCat("added token \"", token.content, "\" has the invalid id ", token.id));
      }
    }
    return absl::OkStatus();
  }

  void AddAddedTokens() {
    strings_ = data_.tokens;
    for (const AddedToken& token : data_.added_tokens) {
      if (static_cast<size_t>(token.id) >= strings_.size()) strings_.resize(token.id + 1);
      strings_[token.id] = token.content;
    }
    special_.resize(strings_.size());
    // Special tokens first: of two equal spellings, Hugging Face prefers the special one.
    for (const bool special : {true, false}) {
      for (const AddedToken& token : data_.added_tokens) {
        if (token.special != special) continue;
        special_[token.id] = special;
        if (token.normalized) {
          normalized_matcher_.Add(token, normalizer_.Normalize(token.content));
        } else {
          raw_matcher_.Add(token, token.content);
        }
      }
    }
  }

  void FillBytes() {
    bool byte_level = false;
    for (const PreTokenizerStep& step : data_.pre_tokenizer) {
      byte_level = byte_level || step.kind == PreTokenizerStep::Kind::kByteLevel;
    }
    bytes_.reserve(strings_.size());
    for (const std::string& token : strings_) {
      const int byte = data_.byte_fallback ? FallbackByte(token) : -1;
      if (byte >= 0) {
        bytes_.emplace_back(1, static_cast<char>(byte));
      } else {
        bytes_.push_back(byte_level ? AlphabetToBytes(token) : token);
      }
    }
  }

  void EncodeSegment(absl::string_view text, std::vector<int32_t>* ids) const {
    std::string normalized;
    if (normalizer_.enabled()) {
      normalized = normalizer_.Normalize(text);
      text = normalized;
    }
    std::vector<TextSegment> segments;
    normalized_matcher_.Split(text, &segments);
    PieceList list;
    for (const TextSegment& segment : segments) {
      if (segment.id >= 0) {
        ids->push_back(segment.id);
        continue;
      }
      pre_tokenizer_->Split(segment.text, &list);
      for (const absl::string_view piece : list.pieces) bpe_->Encode(piece, ids);
    }
  }

  TokenizerData data_;
  const std::string empty_;
  Normalizer normalizer_;
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<Bpe> bpe_;
  std::vector<std::string> strings_;  // by id, added tokens included
  std::vector<std::string> bytes_;
  std::vector<bool> special_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerData data) {
  auto tokenizer = std::make_unique<BpeTokenizer>(std::move(data));
  RETURN_IF_ERROR(tokenizer->Init());
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

std::string IncrementalDetokenizer::Append(int32_t id) {
  std::string out;
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return out;
  pending_ += tokenizer_->TokenBytes(id);
  DrainUtf8(&pending_, &out);
  return out;
}

std::string IncrementalDetokenizer::Flush() {
  std::string out = ReplaceInvalidUtf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace somnus

#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace somnus {
namespace {

constexpr int32_t kMaxTokens = 1 << 24;

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(TokenizerData data) : data_(std::move(data)) {}

  absl::Status Init() {
    RETURN_IF_ERROR(CheckIds());
    ASSIGN_OR_RETURN(normalizer_, Normalizer::Create(data_.normalizer));
    ASSIGN_OR_RETURN(decoder_, Decoder::Create(data_));
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
        EncodeSegment(segment.text, segment.text.data() == text.data(), &ids);
      }
    }
    if (add_special_tokens) ids.insert(ids.end(), post.suffix_ids.begin(), post.suffix_ids.end());
    return ids;
  }

  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const override {
    IncrementalDetokenizer detokenizer(this, skip_special_tokens);
    std::string text;
    for (const int32_t id : ids) detokenizer.Append(id, &text);
    return text + detokenizer.Flush();
  }

  const std::string& TokenBytes(int32_t id) const override { return InRange(id) ? bytes_[id] : empty_; }
  const std::string& TokenString(int32_t id) const override { return InRange(id) ? strings_[id] : empty_; }
  bool IsSpecial(int32_t id) const override { return InRange(id) && special_[id]; }
  int32_t vocab_size() const override { return static_cast<int32_t>(bytes_.size()); }
  const TokenizerData& data() const override { return data_; }
  const Decoder* decoder() const override { return decoder_.get(); }

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
          normalized_matcher_.Add(token, normalizer_->Normalize(token.content));
        } else {
          raw_matcher_.Add(token, token.content);
        }
      }
    }
  }

  void FillBytes() {
    bytes_.reserve(strings_.size());
    for (const std::string& token : strings_) bytes_.push_back(decoder_->BytesOf(token, /*first=*/false));
  }

  // `at_start`: nothing goes before `text`.
  void EncodeSegment(absl::string_view text, bool at_start, std::vector<int32_t>* ids) const {
    std::string normalized;
    if (normalizer_->enabled()) {
      normalized = normalizer_->Normalize(text);
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
      pre_tokenizer_->Split(segment.text, at_start && segment.text.data() == text.data(), &list);
      for (const absl::string_view piece : list.pieces) bpe_->Encode(piece, ids);
    }
  }

  TokenizerData data_;
  const std::string empty_;
  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<Decoder> decoder_;
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

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens,
                                               bool at_start)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {
  const Decoder* decoder = tokenizer->decoder();
  each_byte_ = decoder != nullptr && decoder->replaces_each_byte();
  first_ = at_start && decoder != nullptr && decoder->first_differs();
  if (at_start && decoder != nullptr) to_strip_ = decoder->text_start().count;
}

std::string IncrementalDetokenizer::Append(int32_t id) {
  std::string out;
  Append(id, &out);
  return out;
}

void IncrementalDetokenizer::Append(int32_t id, std::string* out) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return;
  if (std::exchange(first_, false)) {
    pending_ += tokenizer_->decoder()->BytesOf(tokenizer_->TokenString(id), /*first=*/true);
  } else {
    pending_ += tokenizer_->TokenBytes(id);
  }
  if (to_strip_ == 0) return DrainUtf8(&pending_, out, each_byte_);
  std::string text;
  DrainUtf8(&pending_, &text, each_byte_);
  StripStart(&text);
  *out += text;
}

void IncrementalDetokenizer::StripStart(std::string* text) {
  const std::string& strip = tokenizer_->decoder()->text_start().strip;
  size_t begin = 0;
  for (; to_strip_ > 0 && begin < text->size(); --to_strip_) {
    if (text->compare(begin, strip.size(), strip) != 0) {
      to_strip_ = 0;
      break;
    }
    begin += strip.size();
  }
  text->erase(0, begin);
}

std::string IncrementalDetokenizer::Flush() {
  std::string out;
  DrainUtf8(&pending_, &out, each_byte_);
  if (!pending_.empty()) pending_.resize(each_byte_ ? pending_.size() : 1);
  for (size_t i = 0; i < pending_.size(); ++i) out += "\xEF\xBF\xBD";
  pending_.clear();
  return out;
}

bool BeginsText(const Tokenizer& tokenizer, absl::Span<const int32_t> ids, bool skip_special_tokens) {
  if (tokenizer.decoder() == nullptr || !tokenizer.decoder()->changes_start()) return false;
  return std::none_of(ids.begin(), ids.end(), [&](int32_t id) {
    return !(skip_special_tokens && tokenizer.IsSpecial(id)) && !tokenizer.TokenBytes(id).empty();
  });
}

}  // namespace somnus

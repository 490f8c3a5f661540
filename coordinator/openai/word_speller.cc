#include "coordinator/openai/word_speller.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "base/utf8.h"

namespace somnus {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Letters and digits of scripts that put spaces between words.
bool BelongsToWords(char32_t c) {
  if (c < 0x80) return absl::ascii_isalnum(static_cast<unsigned char>(c));
  if (c < 0xC0 || c == 0xD7 || c == 0xF7) return false;
  const bool without_spaces = (c >= 0x0E00 && c < 0x0F00) || (c >= 0x1000 && c < 0x10A0) ||
                              (c >= 0x1780 && c < 0x1800);  // Thai, Lao, Burmese, Khmer
  return c < 0x2000 && !without_spaces;
}

// Bytes that are no whole character belong to no word.
bool BelongsToWordsAt(absl::string_view text, size_t at) {
  const Utf8Step step = DecodeUtf8(text, at);
  return step.valid && BelongsToWords(step.code);
}

}  // namespace

bool IsWordBorder(absl::string_view text, size_t at) {
  if (IsContinuation(text[at])) return false;
  size_t before = at - 1;
  while (before > 0 && IsContinuation(text[before])) --before;
  return !BelongsToWordsAt(text, before) || !BelongsToWordsAt(text, at);
}

void WordSpeller::Sort() const {
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const absl::string_view bytes = tokenizer_->TokenBytes(id);
    for (size_t at = 0; at < bytes.size(); ++at) {
      if (at == 0 || IsWordBorder(bytes, at)) entries_.push_back({id, static_cast<int32_t>(at)});
    }
  }
  std::sort(entries_.begin(), entries_.end(),
            [this](const Entry& a, const Entry& b) { return TextOf(a) < TextOf(b); });
}

// The entries that begin with the bytes so far are neighbours, and get fewer with each byte; the entries
// without further bytes come first.
void WordSpeller::AddPieces(absl::string_view word, int32_t from, std::vector<BadText::Piece>* pieces) const {
  const auto fits = [from](const Entry& entry) { return from == 0 || entry.offset == 0; };
  const auto num_bytes = static_cast<int32_t>(word.size());
  Iterator first = entries_.begin(), last = entries_.end();
  for (int32_t to = from + 1; to <= num_bytes && first != last; ++to) {
    const auto byte = static_cast<unsigned char>(word[to - 1]);
    const size_t depth = to - from - 1;
    const auto next = [&](const Entry& entry) {
      const absl::string_view text = TextOf(entry);
      return text.size() <= depth ? -1 : static_cast<int>(static_cast<unsigned char>(text[depth]));
    };
    first = std::partition_point(first, last, [&](const Entry& entry) { return next(entry) < byte; });
    last = std::partition_point(first, last, [&](const Entry& entry) { return next(entry) <= byte; });
    for (Iterator it = first; it != last; ++it) {
      const absl::string_view text = TextOf(*it);
      const bool is_whole = text.size() == depth + 1;
      if (!is_whole && to < num_bytes) break;
      if (fits(*it) && (is_whole || IsWordBorder(text, depth + 1)))
        pieces->push_back({it->token_id, from, to});
    }
  }
}

BadText WordSpeller::Spell(absl::string_view word) const {
  absl::call_once(once_, [this] { Sort(); });
  BadText text;
  text.num_bytes = static_cast<int32_t>(word.size());
  for (int32_t from = 0; from < text.num_bytes; ++from) AddPieces(word, from, &text.pieces);
  std::sort(text.pieces.begin(), text.pieces.end());
  text.pieces.erase(std::unique(text.pieces.begin(), text.pieces.end()), text.pieces.end());
  return text;
}

}  // namespace somnus
